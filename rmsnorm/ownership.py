"""Whether a gradient belongs to the backward that receives it, or somebody else holds it too.

Addition passes one tensor to both of its terms: while the backward of the norm in x + norm(x) runs, the engine holds
the same dY for x, and dX written over it would give x a wrong gradient in silence. PyTorch has no question for that,
but reference counts answer it. What they are where nobody else holds the gradient depends on the versions of Python and
PyTorch, so it is measured, once a process, by the first backward that asks.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

# References in C++ to a gradient, to its storage and to the tensor that it is a view of (0: it is none); in Python.
Holders = tuple[int, int, int, int]


def holders(gradient: torch.Tensor) -> Holders:
    """Counted in the body of a backward whose only gradient this is: a frame more is a reference more."""
    base = gradient._base
    return (
        gradient._use_count(),  # type: ignore[attr-defined]
        torch._C._storage_Use_Count(gradient.untyped_storage()._cdata),
        0 if base is None else base._use_count(),  # type: ignore[attr-defined]
        sys.getrefcount(gradient),
    )


def belongs_here(held: Holders) -> bool:
    """Whether nobody but the backward that got the gradient holds it, or else the caller who passed it to autograd.

    The caller allows with in_place that it is overwritten. Counts that are higher for any other reason, a module's
    backward hook say, only cost the reuse.
    """
    computed, viewed, passed = _measured()
    return held in (computed, viewed) or (held[0] == passed[0] and held[3] >= passed[3])


class _Probe(torch.autograd.Function):
    """The identity. Its backward notes how its gradient is held."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, seen: list[Holders]) -> torch.Tensor:
        ctx.seen = seen
        return t.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (gradient,) = grads
        ctx.seen.append(holders(gradient))
        return gradient, None


@functools.cache
def _measured() -> list[Holders]:
    """Of a gradient that an operation computed, of a view of one, and of one that was passed to torch.autograd.grad."""
    seen: list[Holders] = []
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(1, device="cpu", requires_grad=True)
        torch.autograd.grad(_Probe.apply(leaf, seen) * 2.0, leaf)
        torch.autograd.grad(_Probe.apply(leaf, seen).view(1, 1) * 2.0, leaf)
        torch.autograd.grad(_Probe.apply(leaf, seen), leaf, torch.ones_like(leaf))
    return seen
