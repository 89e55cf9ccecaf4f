"""The norm and the norm of a sum, as functions of PyTorch: the operators with their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._functorch import unwrap_if_dead
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function_variadic

from rmsnorm import nested, ops, ownership, sharding, transforms
from rmsnorm.checks import check_inputs, check_residual, check_settings


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
        eps, offset = check_settings(eps, offset, casting_mode, in_place, row_mode)
        if type(X) is not torch.Tensor or not (W is None or isinstance(W, torch.Tensor)):
            sharding.register()  # perhaps the first DTensor
            if nested.is_jagged(X):
                return nested.map_values(cls.apply, (X,), W, eps, offset, casting_mode, in_place, row_mode)
            check_inputs(X, W)
        if _is_traced(X):
            return transforms.rms_norm(X, W, eps, offset, casting_mode)
        if not torch.is_grad_enabled() or not (X.requires_grad or (W is not None and W.requires_grad)):
            return ops.normalize(X, W, eps, offset, casting_mode, row_mode)
        # Past torch.autograd.Function.apply, which looks for transforms once more.
        X, W = unwrap_if_dead(X), W if W is None else unwrap_if_dead(W)
        return super(torch.autograd.Function, cls).apply(X, W, eps, offset, casting_mode, in_place, row_mode)  # type: ignore[misc]

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
        if torch.compiler.is_compiling():  # Dynamo comes here past `apply`
            eps, offset = check_settings(eps, offset, casting_mode, in_place, row_mode)
            check_inputs(X, W)
            if torch._C._are_functorch_transforms_active():  # it drops `backward` then
                return transforms.rms_norm(X, W, eps, offset, casting_mode)
        Y, RSTD = ops.forward(X, W, eps, offset, casting_mode, row_mode)
        ctx.save_for_backward(X, W, RSTD)
        ctx.settings = (eps, offset, casting_mode, row_mode)
        ctx.in_place = in_place
        return Y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        dX, dW = _gradients(ctx, grads, *ctx.needs_input_grad[:2])
        return dX, dW, None, None, None, None, None


class LigerFusedAddRMSNormFunction(torch.autograd.Function):
    """X + R and its RMSNorm, with gradients for X, R and W, of any order. See `liger_fused_add_rms_norm`."""

    @classmethod
    def apply(
        cls,
        X: torch.Tensor,
        R: torch.Tensor,
        W: torch.Tensor | None,
        eps: float,
        offset: float = 0.0,
        casting_mode: str = "llama",
        in_place: bool = False,
        row_mode: bool | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Y and S. torch.compile traces `forward` and `backward` without coming here."""
        eps, offset = check_settings(eps, offset, casting_mode, in_place, row_mode)
        if type(X) is not torch.Tensor or type(R) is not torch.Tensor or not (W is None or isinstance(W, torch.Tensor)):
            sharding.register()  # perhaps the first DTensor
            if nested.is_jagged(X):
                return nested.map_values(cls.apply, (X, R), W, eps, offset, casting_mode, in_place, row_mode)
            check_inputs(X, W)
            check_residual(R, X)
        if _is_traced(X) or transforms.is_masked(R):
            return transforms.add_rms_norm(X, R, W, eps, offset, casting_mode)
        needs_gradient = X.requires_grad or R.requires_grad or (W is not None and W.requires_grad)
        if not torch.is_grad_enabled() or not needs_gradient:
            return ops.add_and_normalize(X, R, W, eps, offset, casting_mode, row_mode)
        # Past torch.autograd.Function.apply, which looks for transforms once more.
        X, R, W = unwrap_if_dead(X), unwrap_if_dead(R), W if W is None else unwrap_if_dead(W)
        return super(torch.autograd.Function, cls).apply(X, R, W, eps, offset, casting_mode, in_place, row_mode)  # type: ignore[misc]

    @staticmethod
    def forward(
        ctx: Any,
        X: torch.Tensor,
        R: torch.Tensor,
        W: torch.Tensor | None,
        eps: float,
        offset: float = 0.0,
        casting_mode: str = "llama",
        in_place: bool = False,
        row_mode: bool | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if torch.compiler.is_compiling():  # Dynamo comes here past `apply`
            eps, offset = check_settings(eps, offset, casting_mode, in_place, row_mode)
            check_inputs(X, W)
            check_residual(R, X)
            if torch._C._are_functorch_transforms_active():  # it drops `backward` then
                return transforms.add_rms_norm(X, R, W, eps, offset, casting_mode)
        Y, S, RSTD = ops.add_forward(X, R, W, eps, offset, casting_mode, row_mode)
        ctx.save_for_backward(S, W, RSTD)
        ctx.set_materialize_grads(False)  # a program may use one of the two
        ctx.settings = (eps, offset, casting_mode, row_mode)
        ctx.in_place = in_place
        return Y, S

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        needs_dx, needs_dr, needs_dw = ctx.needs_input_grad[:3]
        dX, dW = _gradients(ctx, grads, needs_dx or needs_dr, needs_dw)
        return dX if needs_dx else None, dX if needs_dr else None, dW, None, None, None, None, None


def _gradients(
    ctx: Any, grads: tuple[Any, ...], needs_dx: bool, needs_dw: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """dX and dW, or None for what is not needed.

    grads: what a backward was called with, (dY,) or (dY, dS), of which it has taken nothing yet.
    """
    compiling = torch.compiler.is_compiling()
    X, W, RSTD = ctx.saved_tensors  # X is S where a residual was added
    permitted = ctx.in_place and not compiling and not torch.is_grad_enabled()
    overwrites = permitted and needs_dx and ops.overwrites(X, W, *grads[1:]) and ownership.is_exclusive(grads)
    dY, dS = grads if len(grads) == 2 else (grads[0], None)
    eps, offset, casting_mode, _ = settings = ctx.settings
    dX: torch.Tensor | None = dS
    dW: torch.Tensor | None = None
    if dY is None:  # nothing has used Y
        pass
    elif torch._C._are_functorch_transforms_active():  # torch.func.vmap over this backward
        dX, dW = transforms.rms_norm_backward(dY, X, W, eps, offset, casting_mode, dS)
    elif torch.is_grad_enabled() and not compiling:  # create_graph: the operators' own derivatives
        dX, dW = ops.differentiable_backward(dY, X, W, RSTD, *settings, needs_dx, needs_dw, ds=dS)
    elif overwrites:
        dW = ops.backward_(dY, X, W, RSTD, *settings, needs_dw, ds=dS)
        dX = dY
    else:
        dX, dW = ops.backward(dY, X, W, RSTD, *settings, needs_dx, needs_dw, ds=dS)
    return dX if needs_dx else None, dW if needs_dw else None


def _is_traced(X: Any) -> bool:
    """Whether a transform or a recorder is at work that differentiates or records PyTorch's own operations only."""
    return (
        torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
        or transforms.is_masked(X)
    )


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
        X: (..., H), float16, bfloat16, float32 or float64, any strides; a jagged NestedTensor too.
        W: (H,), any of these dtypes, or None for no weight (offset is then ignored).
        eps: added to the mean square; one finite number, not negative, exact in the compute dtype.
        offset: one number, added to W in the compute dtype; 0.0 for Llama, 1.0 for Gemma.
        casting_mode: where values are rounded to X's dtype on the way: "llama" (X·RSTD), "gemma" (nothing but Y),
            "none" (every step). The compute dtype is float64 for float64 X, float32 otherwise.
        in_place: permits the backward to write dX over dY. It does so only where nobody else can see dY, so that the
            setting shows in memory alone.
        row_mode: None lets the shape choose the kernel variant, True forces row-wise, False block-wise.

    Returns:
        Y: shape and dtype of X, contiguous.

    Raises:
        TypeError: a dtype that is none of the four, no dense tensor, or a setting of the wrong type.
        ValueError: a shape, device or setting that cannot be computed; the message names both values.

    Formula: Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4, with eps inside the root.
    """
    if has_torch_function_variadic(X, W):  # torch.fx records the call; subclasses and modes see one function
        return handle_torch_function(
            liger_rms_norm, (X, W), X, W, eps, offset, casting_mode, in_place=in_place, row_mode=row_mode
        )
    if not torch.compiler.is_compiling():
        return LigerRMSNormFunction.apply(X, W, eps, offset, casting_mode, in_place, row_mode)
    eps, offset = check_settings(eps, offset, casting_mode, in_place, row_mode)
    if nested.is_jagged(X):
        return nested.map_values(liger_rms_norm, (X,), W, eps, offset, casting_mode, in_place, row_mode)
    check_inputs(X, W)
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return transforms.rms_norm(X, W, eps, offset, casting_mode)
    return ops.rms_norm_forward(X, W, eps, offset, casting_mode, row_mode)[0]


def liger_fused_add_rms_norm(
    X: torch.Tensor,
    R: torch.Tensor,
    W: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = True,
    row_mode: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """S = X + R, rounded to X's dtype, and Y, the RMSNorm of S: the bits of `X + R` and then `liger_rms_norm`.

    With gradients dY and dS, dX = dR = the norm's dX, not rounded yet, + dS, rounded once.

    Args:
        X: (..., H), float16, bfloat16, float32 or float64, any strides; a jagged NestedTensor too.
        R: the residual, shape, dtype and device of X, any strides.
        W, eps, offset, casting_mode, in_place, row_mode: see `liger_rms_norm`.

    Returns:
        (Y, S): shape and dtype of X, contiguous. S is kept for the backward: autograd raises where it was overwritten.

    Raises:
        TypeError, ValueError: as `liger_rms_norm`, and for R in another dtype, or of another shape or device than X.
    """
    if has_torch_function_variadic(X, R, W):  # torch.fx records the call; subclasses and modes see one function
        return handle_torch_function(
            liger_fused_add_rms_norm,
            (X, R, W),
            *(X, R, W, eps, offset, casting_mode),
            in_place=in_place,
            row_mode=row_mode,
        )
    if not torch.compiler.is_compiling():
        return LigerFusedAddRMSNormFunction.apply(X, R, W, eps, offset, casting_mode, in_place, row_mode)
    eps, offset = check_settings(eps, offset, casting_mode, in_place, row_mode)
    if nested.is_jagged(X):
        return nested.map_values(liger_fused_add_rms_norm, (X, R), W, eps, offset, casting_mode, in_place, row_mode)
    check_inputs(X, W)
    check_residual(R, X)
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return transforms.add_rms_norm(X, R, W, eps, offset, casting_mode)
    return ops.add_rms_norm_forward(X, R, W, eps, offset, casting_mode, row_mode)[:2]
