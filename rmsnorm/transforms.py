"""RMSNorm for torch.func, dual numbers, torch.jit.trace and MaskedTensors: a composition of PyTorch operations.

vmap, grad, jvp and their compositions differentiate this composition to any order, where the operators and their fused
kernels know one derivative; a recorded program holds it instead of an operator that only this package knows. Values are
those of the casting mode, bit for bit those of `rmsnorm.eager`; derivatives take every rounding as the identity and
RSTD where it was rounded to, as the operators' backward does.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from rmsnorm.checks import check_forward, check_residual, compute_dtype


def is_masked(x: Any) -> bool:
    """Whether x is a MaskedTensor."""
    masked = sys.modules.get("torch.masked")
    return masked is not None and isinstance(x, masked.MaskedTensor)


def _straight_through(value: torch.Tensor, smooth: torch.Tensor) -> torch.Tensor:
    """The value of one tensor with the derivatives of another."""
    # A custom autograd.Function would say it shorter, but loses the second derivative of jvp over jvp.
    zero = smooth.detach() - smooth
    return torch.where(smooth.isfinite(), value - zero, value)  # -0.0 - 0.0 keeps its sign, -0.0 + 0.0 does not


def _rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if value.dtype == dtype:
        return value
    return _straight_through(value.detach().to(dtype).to(value.dtype), value)


def rms_norm(x: torch.Tensor, w: torch.Tensor | None, eps: float, offset: float, casting_mode: str) -> torch.Tensor:
    """y, shape and dtype of x. x: (..., n_cols); w: (n_cols,) or None. Raises as `rmsnorm.liger_rms_norm` does."""
    check_forward(x, w, eps, offset, casting_mode)
    return _normalized(x.to(compute_dtype(x.dtype)), x.dtype, w, eps, offset, casting_mode)


def add_rms_norm(
    x: torch.Tensor, r: torch.Tensor, w: torch.Tensor | None, eps: float, offset: float, casting_mode: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """y and s = x + r, shape and dtype of x; r: like x. Gradients of both are added before they are rounded."""
    check_forward(x, w, eps, offset, casting_mode)
    check_residual(r, x)
    c_dtype = compute_dtype(x.dtype)
    s_c = _rounded(x.to(c_dtype) + r.to(c_dtype), x.dtype)
    return _normalized(s_c, x.dtype, w, eps, offset, casting_mode), s_c.to(x.dtype)


def _normalized(
    x_c: torch.Tensor, dtype: torch.dtype, w: torch.Tensor | None, eps: float, offset: float, casting_mode: str
) -> torch.Tensor:
    """y, in dtype, of x_c, values of that dtype in the compute dtype."""
    rounds_all = casting_mode == "none"
    squares = x_c.pow(2)
    mean_square = (_rounded(squares, dtype) if rounds_all else squares).mean(-1, keepdim=True)
    if rounds_all:
        variance = _rounded(_rounded(mean_square, dtype) + eps, dtype)
        rounded = torch.rsqrt(variance.detach()).to(dtype).to(x_c.dtype)
        there = rounded.pow(-2) + (variance - variance.detach())
        rstd = _straight_through(rounded, torch.rsqrt(there))
    else:
        rstd = torch.rsqrt(mean_square + eps)
    y = x_c * rstd
    if casting_mode != "gemma":
        y = _rounded(y, dtype)
    if w is not None:
        w_c = w.to(x_c.dtype)
        if offset != 0.0:
            w_c = w_c + offset
        y = y * (_rounded(w_c, dtype) if rounds_all else w_c)
    return y.to(dtype)


def rms_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    eps: float,
    offset: float,
    casting_mode: str,
    ds: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """dx, like x, and dw, like w, of `rms_norm`, differentiable themselves; ds is added before dx is rounded."""

    def results(x: torch.Tensor, w: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        x_c = x.to(compute_dtype(x.dtype))
        y = _normalized(x_c, x.dtype, w, eps, offset, casting_mode)
        return (y,) if ds is None else (y, x_c.to(x.dtype))

    vjp = torch.func.vjp(results, *((x,) if w is None else (x, w)))[1]
    dx, *dw = vjp((dy,) if ds is None else (dy, ds))
    return dx, dw[0] if dw else None
