"""Memory layouts: logical arrays inside poisoned storage: a stray read gives NaN and a stray write shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from references import arrays
from references.cells.cell import Case, Inputs

GUARD = 64  # poisoned elements before and after the view: keeps the alignment of a fresh allocation
PADDING = 8  # poisoned elements between rows


@dataclass(frozen=True)
class Placed:
    """A view (shape, strides, offset in elements) of one-dimensional storage that is NaN everywhere else."""

    storage: np.ndarray
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def view(self, storage: np.ndarray | None = None) -> np.ndarray:
        """The logical array, sharing the memory of `storage` (default: the own one)."""
        storage = self.storage if storage is None else storage
        byte_strides = tuple(stride * storage.itemsize for stride in self.strides)
        return as_strided(storage[self.offset :], self.shape, byte_strides)

    @property
    def dense(self) -> bool:
        """Whether the view covers one gapless piece of memory, each element once."""
        if 0 in self.shape:
            return True
        expected = 1
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size > 1 and stride != expected:
                return False
            expected *= size
        return True

    def realise(self, library: str, device: str) -> tuple[Any, Any]:
        """(storage, view) as arrays of "torch", "jax" or "numpy". JAX has no strides: its view is a copy."""
        if library == "torch":
            storage = arrays.to_torch(self.storage, device)
            return storage, storage.as_strided(self.shape, self.strides, self.offset)
        if library == "jax":
            return self.storage, arrays.to_jax(np.ascontiguousarray(self.view()))
        return self.storage, self.view()

    def changed(self, before: np.ndarray, after: np.ndarray) -> tuple[bool, bool]:
        """Whether the bit patterns of the storage differ (inside the view, outside of it)."""
        inside = np.zeros(self.storage.shape, dtype=bool)
        self.view(inside)[...] = True
        differs = before != after
        return bool((differs & inside).any()), bool((differs & ~inside).any())


def place(values: np.ndarray, layout: str) -> Placed:
    """Lay `values` (any shape and float dtype) out as one of `cases.LAYOUT_CODES`.

    "expanded" stores one row: the rows of `values` must be equal. Raises ValueError for an unknown layout.
    """
    shape, offset = values.shape, GUARD
    if layout == "contiguous":
        strides = _strides(shape)
    elif layout == "misaligned":
        strides, offset = _strides(shape), GUARD + 1
    elif layout == "row_strided":
        strides = _strides((*shape[:-1], shape[-1] + PADDING))
    elif layout == "column_strided":
        strides = (*_strides((*shape[:-1], 2 * shape[-1]))[:-1], 2)
    elif layout == "transposed":
        strides = _swapped(_strides(_swapped(shape, -1, -2)), -1, -2)
    elif layout == "heads":
        strides = _swapped(_strides(_swapped(shape, -2, -3)), -2, -3)
    elif layout == "expanded":
        strides = (*(0 for _ in shape[:-1]), 1)
    else:
        raise ValueError(f"no layout {layout!r}")
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if values.size else 0
    placed = Placed(np.full(offset + last + 1 + GUARD, np.nan, values.dtype), shape, strides, offset)
    placed.view()[...] = values
    return placed


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a contiguous array."""
    strides, size = [], 1
    for length in reversed(shape):
        strides.append(size)
        size *= max(length, 1)
    return tuple(reversed(strides))


def _swapped(items: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    swapped = list(items)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    return tuple(swapped)


@dataclass(frozen=True)
class Contract:
    """What a run did besides computing."""

    changed: tuple[str, ...]  # of x, r, w, dy, ds, y, s, rstd: written to after the caller had them
    changed_outside: tuple[str, ...]  # arguments with writes to the storage around their view
    shares_storage: tuple[tuple[str, str], ...]  # (result, argument)
    dy_dense: bool


class Arguments:
    """x, dy, w (or None) and with a residual r and ds, in the case's layouts, as one library's arrays (`views`)."""

    def __init__(self, case: Case, inputs: Inputs, library: str, device: str) -> None:
        given = (
            ("x", inputs.x, case.x_layout),
            ("dy", inputs.dy, case.dy_layout),
            ("w", inputs.w, case.w_layout),
            ("r", inputs.r, case.r_layout),
            ("ds", inputs.ds, case.ds_layout),
        )
        self._library, self._device = library, device
        self._layouts = {name: layout for name, _, layout in given}
        self._placed = {name: place(values, layout) for name, values, layout in given if values is not None}
        self._before = {name: arrays.bits(placed.storage).copy() for name, placed in self._placed.items()}
        self._storage: dict[str, Any] = {}
        self._lent: dict[str, tuple[int, int]] = {}
        self.views: dict[str, Any] = {"w": None}
        for name, placed in self._placed.items():
            self._storage[name], self.views[name] = placed.realise(library, device)

    def lend(self, name: str) -> Any:
        """A PyTorch tensor with an argument's content and layout, which its receiver alone holds.

        Only its address is kept: `observe` knows a result that lies there, and looks around it. The storage is longer
        than any dense result: one that gets the same address after the argument was freed is another one.
        """
        placed = self._placed[name]
        room = np.full(placed.view().size + 1, np.nan, placed.storage.dtype)
        # A copy: of memory that PyTorch owns.
        storage = arrays.to_torch(np.concatenate([placed.storage, room]), self._device).clone()
        self._lent[name] = _address(storage)
        return storage.as_strided(placed.shape, placed.strides, placed.offset)

    def refill(self, inputs: Inputs) -> None:
        """Write other values of the same shapes where the old ones lie, poison and all; JAX gets new arrays."""
        for name in self._placed:
            placed = self._placed[name] = place(getattr(inputs, name), self._layouts[name])
            if self._library == "torch":
                self._storage[name].copy_(arrays.to_torch(placed.storage, self._device))
            elif self._library == "numpy":
                self._storage[name][...] = placed.storage
            else:
                self._storage[name], self.views[name] = placed.realise(self._library, self._device)
            self._before[name] = arrays.bits(placed.storage).copy()

    def observe(self, early: Mapping[str, tuple[Any, np.ndarray | None]], late: Mapping[str, Any]) -> Contract:
        """Compare storage with what it was.

        Args:
            early: forward results by name, each with the NumPy copy that was taken before the backward ran.
            late: the backward's results by name.
        """
        changed, outside = [], []
        for name, placed in self._placed.items():
            now = arrays.bits(arrays.to_numpy(self._storage[name]))
            within, around = placed.changed(self._before[name], now)
            changed += [name] * within
            outside += [name] * around
        for name, (result, copy) in early.items():
            if copy is not None and (arrays.bits(copy) != arrays.bits(arrays.to_numpy(result))).any():
                changed.append(name)
        results = {name: result for name, (result, _) in early.items()} | dict(late)
        lent_to = [
            (result, argument)
            for result, value in results.items()
            for argument, address in self._lent.items()
            if hasattr(value, "untyped_storage") and _address(value) == address
        ]
        for result, argument in lent_to:
            placed, value = self._placed[argument], results[result]
            now = arrays.bits(arrays.to_numpy(value.as_strided(placed.storage.shape, (1,), 0)))
            within, around = placed.changed(self._before[argument], now)
            changed += [argument] * within
            outside += [argument] * around
        shares = lent_to + [
            (result, argument)
            for result, value in results.items()
            for argument, storage in self._storage.items()
            if _same_storage(value, storage)
        ]
        # Two results may lie in one argument: dX and dR are one gradient.
        unique = tuple(dict.fromkeys(changed)), tuple(dict.fromkeys(outside))
        return Contract(*unique, tuple(shares), self._placed["dy"].dense)


def _same_storage(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.may_share_memory(a, b)
    if hasattr(a, "untyped_storage") and hasattr(b, "untyped_storage"):
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    return False


def _address(tensor: Any) -> tuple[int, int]:
    """Where a PyTorch tensor's storage lies, and its size in bytes."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()
