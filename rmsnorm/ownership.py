"""Whether a backward is the only one that can see its dY, so that dX may be written over it.

The proof is by counting references: to the tensor (C++), to its Python object, to its storage, to the storage's Python
object, and to the tensor that it is a view of. What the counts are where the engine alone holds dY depends on the
versions of Python and PyTorch and on the calls in between. So they are measured once in the process, by a probe whose
backward asks the same question at the same depth: for gradients that nobody else holds, and for gradients held in each
way there is. A count that the probe cannot tell from a shared one permits nothing. A proof that is not found costs
memory, never a value.

Memory that a storage does not own (NumPy's, another library's, a CUDA graph's) is never written.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

Counts = tuple[int, ...]


def is_exclusive(grads: tuple[Any, ...]) -> bool:
    """Whether nobody but the engine and the running backward can see grads[0], a dense tensor of memory of its own.

    grads: the tuple that the backward was called with, of which it has taken nothing yet: a name for dY is a reference.
    """
    if type(grads[0]) is not torch.Tensor or not grads[0].is_contiguous() or grads[0].is_inference():
        return False
    try:
        counts = _count(grads)
    except NotImplementedError:  # is_grads_batched: a batch of dY has no storage of its own
        return False
    return counts in _exclusive_counts()


def _count(grads: tuple[Any, ...]) -> Counts:
    """References to dY, to its storage and to what it is a view of, and whether its storage owns its memory."""
    dy = grads[0]
    storage, base = dy.untyped_storage(), dy._base
    counts = (
        dy._use_count(),
        sys.getrefcount(dy),
        weakref.getweakrefcount(dy),
        torch._C._storage_Use_Count(storage._cdata),
        sys.getrefcount(storage),
        weakref.getweakrefcount(storage),
        storage.resizable(),
    )
    if base is None:
        return counts
    return *counts, base._use_count(), sys.getrefcount(base), weakref.getweakrefcount(base)


class _Probe(torch.autograd.Function):
    """The identity, whose backward counts as that of LigerRMSNormFunction does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, found: list[Counts]) -> torch.Tensor:
        ctx.found = found
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.found.append(_count(grads))
        return grads[0].clone(), None


def _hold(kind: str) -> Callable[[torch.Tensor], Any]:
    """What a hook keeps of a gradient."""
    return {
        "object": lambda g: g,
        "weak reference": weakref.ref,
        "storage": lambda g: g.untyped_storage(),
        "alias": lambda g: g.detach(),
        "view": lambda g: g[:1],
        "base": lambda g: g._base if g._base is not None else g,
    }[kind]


HOLDS = ("object", "weak reference", "storage", "alias", "view", "base")


@functools.lru_cache(maxsize=1)
def _exclusive_counts() -> frozenset[Counts]:
    """The counts of a dY that is held by nobody else: of a tensor, and of a view of a tensor that only the view holds.

    The probe runs on the CPU, within the first backward that asks: an engine started earlier would not survive a fork.
    """
    exclusive: set[Counts] = set()
    shared: set[Counts] = set()
    kept: list[Any] = []

    def gradient(
        found: set[Counts], end: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], hold: Any = None
    ) -> None:
        counts: list[Counts] = []
        x = torch.zeros(2, 2, device="cpu", dtype=torch.float32, requires_grad=True)
        y = _Probe.apply(x * 1.0, counts)
        if hold is not None:
            y.register_hook(lambda g: kept.append(hold(g)))
        end(y, x).sum().backward()
        found.update(counts)

    def whole(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return y * 2.0

    def viewed(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return y.view(4) * 2.0

    def residual(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x + y) * 2.0

    modes = (
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch.inference_mode(False),
        torch.enable_grad(),
    )
    with modes[0], modes[1], modes[2], modes[3]:
        for end in (whole, viewed):
            gradient(exclusive, end)
            for kind in HOLDS:
                gradient(shared, end, _hold(kind))
        gradient(shared, residual)
    kept.clear()
    return frozenset(exclusive - shared)
