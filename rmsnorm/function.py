"""LigerRMSNormFunction and liger_rms_norm: the operators with their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from rmsnorm import eager, ops, sharding, transforms


class LigerRMSNormFunction(torch.autograd.Function):
    """RMSNorm over the last dimension, with gradients for X and W, of any order. See `liger_rms_norm`."""

    @classmethod
    def apply(
        cls,
        X: torch.Tensor,
        W: torch.Tensor | None,
        eps: float,
        offset: float = 0.0,
        casting_mode: str = "llama",
        in_place: bool = True,
        row_mode: bool | None = None,
    ) -> torch.Tensor:
        """Y. torch.compile traces `forward` and `backward` without coming here."""
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            return transforms.rms_norm(X, W, eps, offset, casting_mode)
        if type(X) is not torch.Tensor:  # perhaps the first DTensor
            sharding.register()
        if not torch.is_grad_enabled():  # no node for a gradient that cannot be asked for: it takes host time
            return ops.forward(X, W, eps, offset, casting_mode, row_mode)[0]
        return super().apply(X, W, eps, offset, casting_mode, in_place, row_mode)

    @staticmethod
    def forward(
        ctx: Any,
        X: torch.Tensor,
        W: torch.Tensor | None,
        eps: float,
        offset: float = 0.0,
        casting_mode: str = "llama",
        in_place: bool = True,
        row_mode: bool | None = None,
    ) -> torch.Tensor:
        Y, RSTD = ops.forward(X, W, eps, offset, casting_mode, row_mode)
        ctx.save_for_backward(X, W, RSTD)
        ctx.settings = (eps, offset, casting_mode, row_mode)
        ctx.in_place = in_place
        return Y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (dY,) = grads
        X, W, RSTD = ctx.saved_tensors
        eps, offset, casting_mode, row_mode = ctx.settings
        needs_dx, needs_dw = ctx.needs_input_grad[:2]
        compiling = torch.compiler.is_compiling()
        dX: torch.Tensor | None = None
        dW: torch.Tensor | None = None
        if torch._C._are_functorch_transforms_active():  # torch.func.vmap over this backward
            dX, dW = transforms.rms_norm_backward(dY, X, W, eps, offset, casting_mode)
        elif torch.is_grad_enabled() and not compiling:  # create_graph: the gradients are differentiable themselves
            dX, dW = _RMSNormBackward.apply(dY, X, W, RSTD, eps, offset, casting_mode, row_mode, needs_dx, needs_dw)
        elif needs_dx and ctx.in_place and not compiling and _may_overwrite(dY, X, W):
            dW = ops.backward_(dY, X, W, RSTD, offset, casting_mode, row_mode, needs_dw)
            dX = dY
        else:
            dX, dW = ops.backward(dY, X, W, RSTD, offset, casting_mode, row_mode, needs_dx, needs_dw)
        return (dX if needs_dx else None, dW if needs_dw else None, None, None, None, None, None)


def _may_overwrite(dY: torch.Tensor, X: torch.Tensor, W: torch.Tensor | None) -> bool:
    """Whether dX may be written over dY: dY is dense, and its memory holds nothing that must stay."""
    if type(dY) is not torch.Tensor or not dY.is_contiguous() or dY.is_inference():
        return False
    try:
        storage = dY.untyped_storage().data_ptr()
    except NotImplementedError:  # is_grads_batched: a batch of dY that has no storage of its own
        return False
    # y.backward(x) is legal: X and W are never written.
    return storage != X.untyped_storage().data_ptr() and (W is None or storage != W.untyped_storage().data_ptr())


class _RMSNormBackward(torch.autograd.Function):
    """The first backward as a differentiable function of dY, X and W.

    Its own backward differentiates the unrounded formula in eager PyTorch, in the compute dtype, with RSTD as a
    function of X; the roundings of the casting mode have derivative one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        dY: torch.Tensor,
        X: torch.Tensor,
        W: torch.Tensor | None,
        RSTD: torch.Tensor,
        eps: float,
        offset: float,
        casting_mode: str,
        row_mode: bool | None,
        needs_dx: bool,
        needs_dw: bool,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        dX, dW = ops.backward(dY, X, W, RSTD, offset, casting_mode, row_mode, needs_dx, needs_dw)
        ctx.save_for_backward(dY, X, W)
        ctx.settings = (eps, offset, RSTD.dtype)
        return dX if needs_dx else None, dW if needs_dw else None

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        eps, offset, c_dtype = ctx.settings
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            # Aliases: dY may itself be a function of X, and what flows through it is the engine's to add.
            inputs: list[Any] = [None if t is None else t.view_as(t) for t in ctx.saved_tensors]
            wanted = [t for t, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
            outputs = eager.unrounded_backward(*inputs, eps=eps, offset=offset, c_dtype=c_dtype)
            pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o is not None and g is not None]
            found = iter(
                torch.autograd.grad(
                    [o for o, _ in pairs],
                    wanted,
                    [g for _, g in pairs],
                    create_graph=create_graph,
                    allow_unused=True,
                )
            )
        gradients = [next(found) if needed else None for needed in ctx.needs_input_grad[:3]]
        return (*gradients, None, None, None, None, None, None, None)


def liger_rms_norm(
    X: torch.Tensor,
    W: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = True,
    row_mode: bool | None = None,
) -> torch.Tensor:
    """Y = X / sqrt(mean(X²) + eps) · (W + offset), over the last dimension.

    Args:
        X: (..., H), float16, bfloat16, float32 or float64, any strides.
        W: (H,), any of these dtypes, or None for no weight (offset is then ignored).
        eps: added to the mean square; finite and not negative, exact in the compute dtype.
        offset: added to W in the compute dtype; 0.0 for Llama, 1.0 for Gemma.
        casting_mode: where values are rounded to X's dtype on the way: "llama" (X·RSTD), "gemma" (nothing but Y),
            "none" (every step). The compute dtype is float64 for float64 X, float32 otherwise.
        in_place: permits the backward to write dX over dY. Pass False where dY is used elsewhere.
        row_mode: None lets the shape choose the kernel variant, True forces row-wise, False block-wise.

    Returns:
        Y: shape and dtype of X, contiguous.

    Raises:
        TypeError: a dtype that is none of the four.
        ValueError: a shape, device or setting that cannot be computed; the message names both values.

    Formula: Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4, with eps inside the root.
    """
    return LigerRMSNormFunction.apply(X, W, eps, offset, casting_mode, in_place, row_mode)
