"""RMSNorm of rows whose columns are spread over the ranks of a process group.

The tensor stays where it is: forward and backward each all-reduce one number a row, instead of gathering the row.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from rmsnorm import eager
from rmsnorm.checks import check_inputs, check_settings, compute_dtype


class _HiddenShardedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        X: torch.Tensor,
        W: torch.Tensor | None,
        hidden_size: int,
        eps: float,
        offset: float,
        casting_mode: str,
        group: dist.ProcessGroup | None,
    ) -> torch.Tensor:
        Y, RSTD = eager.rms_norm_forward(
            X,
            W,
            eps=eps,
            offset=offset,
            casting_mode=casting_mode,
            c_dtype=compute_dtype(X.dtype),
            row_mean=_mean_over_group(hidden_size, group),
        )
        ctx.save_for_backward(X, W, RSTD)
        ctx.settings = (hidden_size, offset, casting_mode, group)
        return Y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise NotImplementedError(
                "hidden_sharded_rms_norm has first derivatives only (create_graph=True asks for more)"
            )
        (dY,) = grads
        X, W, RSTD = ctx.saved_tensors
        hidden_size, offset, casting_mode, group = ctx.settings
        needs_dx, needs_dw = ctx.needs_input_grad[:2]
        dX, dW = eager.rms_norm_backward(
            dY,
            X,
            W,
            RSTD,
            offset=offset,
            casting_mode=casting_mode,
            needs_dx=needs_dx,
            needs_dw=needs_dw,
            row_mean=_mean_over_group(hidden_size, group),
        )
        return dX, dW, None, None, None, None, None


def _mean_over_group(hidden_size: int, group: dist.ProcessGroup | None) -> eager.RowMean:
    def mean(part: torch.Tensor) -> torch.Tensor:
        total = part.sum(-1, keepdim=True)
        dist.all_reduce(total, group=group)
        return total / hidden_size

    return mean


def hidden_sharded_rms_norm(
    X: torch.Tensor,
    W: torch.Tensor | None,
    hidden_size: int,
    eps: float,
    offset: float = 0.0,
    casting_mode: str = "llama",
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """This rank's columns of RMSNorm over rows that the ranks of `group` hold together.

    Every rank of the group calls it, with the same rows, and differentiates or none does. The ranks' parts may differ
    in width, and be empty. Gradients are complete: dX and dW of a rank's columns need nothing from other ranks
    afterwards.

    Args:
        X: (..., H_rank), this rank's columns, 0 or more, float16, bfloat16, float32 or float64.
        W: (H_rank,), the weights of these columns, or None.
        hidden_size: H, the sum of H_rank over the group.
        eps, offset, casting_mode: see `rmsnorm.liger_rms_norm`.
        group: the process group; None is the default one.

    Returns:
        Y: shape and dtype of X.

    Raises:
        TypeError, ValueError: as `rmsnorm.liger_rms_norm`; the backward NotImplementedError for a second derivative.
    """
    eps, offset = check_settings(eps, offset, casting_mode)
    check_inputs(X, W, least_cols=0)
    if hidden_size < max(1, X.shape[-1]):
        raise ValueError(
            f"hidden_size counts the columns of all ranks, got {hidden_size} and {X.shape[-1]} columns here"
        )
    return _HiddenShardedRMSNorm.apply(X, W, hidden_size, eps, offset, casting_mode, group)
