"""The least that an eager call costs the host: Triton kernels in a torch.autograd.Function, nothing else.

No checks, no choice of a tile, no look-ups: the results are allocated and the compiled kernels launched, with arguments
worked out beforehand for one shape. What an eager call of this project costs beyond that is its own.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from rmsnorm import LigerRMSNorm
from rmsnorm.fused.variant import Variant


class BareRMSNorm(nn.Module):
    """LigerRMSNorm's kernels for 2-D CUDA tensors of one shape and dtype, of few rows: a backward is one launch."""

    def __init__(self, hidden_size: int, eps: float, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.norm = LigerRMSNorm(hidden_size, eps, dtype=dtype, device=device)
        self._launches: dict[tuple[int, ...], list[Any]] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        launches = self._launches.get(x.shape)
        if launches is None:
            launches = self._launches[x.shape] = self._record(x)
        return _Bare.apply(x, self.norm.weight, launches)

    def _record(self, x: torch.Tensor) -> list[Any]:
        """The compiled kernels of a forward and a backward, with what stands before and after their pointers."""
        found: list[Any] = []
        launch = Variant.launch

        def record(variant: Variant, n_programs: int, tensors: Any, integers: Any) -> None:
            launch(variant, n_programs, tensors, integers)
            (compiled,) = variant._compiled.values()
            stream = torch.cuda.current_stream().cuda_stream
            before = (n_programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None)
            after = (*integers, *variant._constants)
            found.append((compiled.run, before, after))

        with patch.object(Variant, "launch", record), torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self.norm(x)
            torch.autograd.grad(y, (x, self.norm.weight), torch.zeros_like(y))
        return found


class _Bare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, launches: list[Any]) -> torch.Tensor:
        y = torch.empty_like(x)
        rstd = x.new_empty(x.shape[0], dtype=torch.float32)
        run, before, after = launches[0]
        run(*before, x.data_ptr(), None, w.data_ptr(), y.data_ptr(), None, rstd.data_ptr(), *after)  # no residual
        ctx.save_for_backward(x, w, rstd)
        ctx.launches = launches
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (dy,) = grads
        x, w, rstd = ctx.saved_tensors
        _, (run, before, after) = ctx.launches
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        pointers = (dy.data_ptr(), None, x.data_ptr(), w.data_ptr(), rstd.data_ptr(), dx.data_ptr(), dw.data_ptr())
        run(*before, *pointers, *after)
        return dx, dw, None
