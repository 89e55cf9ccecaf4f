"""What one run cannot show: whether bits repeat, whether results follow their inputs, whether the batch matters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from references.arrays import bits
from references.candidates.memory import Arguments
from references.cells.cell import Case, Inputs

Results = dict[str, np.ndarray | None]  # by tensor


@dataclass(frozen=True)
class Behaviour:
    """Tensors by what they did; `error` is what ended the runs early."""

    unrepeated: tuple[str, ...] = ()  # other bits from the same content
    stale: tuple[str, ...] = ()  # the same bits from other content at the same address
    batch_dependent: tuple[str, ...] | None = ()  # the last row has other bits alone; None without a batch
    error: str | None = None


def observe(case: Case, inputs: Inputs, arrange: Callable[..., Arguments], run: Callable[..., Results]) -> Behaviour:
    """Run a candidate four times: other content at the same address in between, then one row alone.

    Args:
        case: a cell with at least one element.
        inputs: its inputs.
        arrange: (case, inputs) → arguments.
        run: (case, arguments) → results by tensor, None where there is none.
    """
    arguments = arrange(case, inputs)
    first = run(case, arguments)
    # Y, S, dX and dW are odd in X and R, or linear in dY and dS: each one changes wherever it is not zero.
    arguments.refill(_each(inputs, lambda x: -x, lambda dy: 2 * dy))
    other = run(case, arguments)
    arguments.refill(inputs)
    again = run(case, arguments)
    return Behaviour(
        unrepeated=_where(first, lambda name, value: not _same(value, again[name])),
        stale=_where(first, lambda name, value: name != "rstd" and _telling(value) and _same(value, other[name])),
        batch_dependent=_batch_dependent(case, inputs, first, arrange, run),
    )


def _batch_dependent(
    case: Case, inputs: Inputs, batch: Results, arrange: Callable[..., Arguments], run: Callable[..., Results]
) -> tuple[str, ...] | None:
    if case.n_rows < 2:
        return None
    alone_case = replace(case, shape=(*(1 for _ in case.shape[:-1]), case.shape[-1]))
    row = _each(inputs, *(2 * [lambda values: _last_row(values, alone_case.shape)]))
    alone = run(alone_case, arrange(alone_case, row))

    def differs(name: str, value: np.ndarray) -> bool:
        shape = alone_case.shape if name != "rstd" else alone_case.shape[:-1]
        got = alone[name]
        fits = value.shape == (case.shape if name != "rstd" else case.shape[:-1])
        return fits and (got is None or got.shape != shape or not _same(_last_row(value, shape), got))

    return _where({name: batch.get(name) for name in ("y", "s", "rstd", "dx", "dr")}, differs)


Change = Callable[[np.ndarray], np.ndarray]


def _each(inputs: Inputs, of_x: Change, of_dy: Change) -> Inputs:
    """Other inputs: X and R changed in one way, dY and dS in another."""
    r, ds = (None if v is None else change(v) for v, change in ((inputs.r, of_x), (inputs.ds, of_dy)))
    return Inputs(of_x(inputs.x), inputs.w, of_dy(inputs.dy), r, ds)


def _last_row(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The last row of (..., H), or the last of (...) values, in the given shape."""
    return values.reshape(-1)[-math.prod(shape) :].reshape(shape)


def _where(results: Results, holds: Callable[[str, np.ndarray], bool]) -> tuple[str, ...]:
    return tuple(name for name, value in results.items() if value is not None and holds(name, value))


def _telling(value: np.ndarray) -> bool:
    return bool((np.isfinite(value) & (value != 0)).any())


def _same(a: np.ndarray, b: np.ndarray | None) -> bool:
    """Whether shape, dtype and bits agree, all NaN being one."""
    if b is None or a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(((bits(a) == bits(b)) | (np.isnan(a) & np.isnan(b))).all())
