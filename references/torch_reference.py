"""RMSNorm in eager PyTorch, differentiated by autograd.

Source: specification, sections 3 and 6 (`FusedAdd`). No gradient formula stands here; the tape derives them.
Everything happens in the compute dtype (float64 for float64 input, else float32) on the device of the input. A
rounding changes the value and not the derivative, which sees the identity.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@torch.no_grad()
def forward(x: Tensor, w: Tensor | None, *, eps: float, offset: float, casting_mode: str) -> tuple[Tensor, Tensor]:
    """Y and RSTD.

    Args:
        x: (..., H), float16|bfloat16|float32|float64.
        w: (H,), any of these, on x's device, or None: no weight, and the offset is ignored.
        eps: at least 0, finite.
        offset: added to w.
        casting_mode: "llama", "gemma" or "none".

    Returns:
        y: (..., H), x's dtype; rstd: (...), float64 for float64 x, else float32.

    Raises:
        TypeError: x or w has another dtype.
        ValueError: the shapes do not fit, H is 0, eps is negative or not finite, or the mode is unknown.
    """
    _check(x, w, eps, casting_mode)
    wide_x, wide_w = _widen(x), None if w is None else w.to(_widen(x).dtype)
    y, rstd = _rms_norm(wide_x, wide_w, x.dtype, eps, offset, casting_mode)
    return y.to(x.dtype), rstd


def backward(
    dy: Tensor, x: Tensor, w: Tensor | None, *, eps: float, offset: float, casting_mode: str
) -> tuple[Tensor, Tensor | None]:
    """dX and dW.

    Args:
        dy: (..., H), x's shape and dtype.
        x, w, eps, offset, casting_mode: as in `forward`.

    Returns:
        dx: (..., H), x's dtype; dw: (H,), w's dtype, or None where w is None.

    Raises:
        TypeError, ValueError: as in `forward`, or dy has another shape than x.
    """
    _check(x, w, eps, casting_mode)
    if dy.shape != x.shape:
        raise ValueError(f"dy has shape {tuple(dy.shape)} but x has {tuple(x.shape)}")
    wide_x = _widen(x).detach().clone().requires_grad_()
    wide_w = None if w is None else w.detach().to(wide_x.dtype).clone().requires_grad_()
    with torch.enable_grad():
        y, _ = _rms_norm(wide_x, wide_w, x.dtype, eps, offset, casting_mode)
    wanted = (wide_x,) if wide_w is None else (wide_x, wide_w)
    dx, *dw = torch.autograd.grad(y, wanted, dy.detach().to(y.dtype))
    return dx.to(x.dtype), None if w is None else dw[0].to(w.dtype)


class FusedAdd:
    """The residual stream s = R(x + r) and its norm; the tape goes through the addition."""

    @staticmethod
    @torch.no_grad()
    def forward(
        x: Tensor, r: Tensor, w: Tensor | None, *, eps: float, offset: float, casting_mode: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Y, S and RSTD.

        Args:
            x, r: (..., H), one shape and one dtype, on one device.
            w, eps, offset, casting_mode: as in `torch_reference.forward`.

        Returns:
            y, s: (..., H), x's dtype; rstd: (...), float64 for float64 x, else float32.

        Raises:
            TypeError, ValueError: as in `torch_reference.forward`, or r has another shape or dtype than x.
        """
        _check(x, w, eps, casting_mode)
        _same("r", r, x)
        s = _cast(_widen(x) + _widen(r), x.dtype)
        y, rstd = _rms_norm(s, None if w is None else w.to(s.dtype), x.dtype, eps, offset, casting_mode)
        return y.to(x.dtype), s.to(x.dtype), rstd

    @staticmethod
    def backward(
        dy: Tensor,
        ds: Tensor,
        x: Tensor,
        r: Tensor,
        w: Tensor | None,
        *,
        eps: float,
        offset: float,
        casting_mode: str,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """dX, dR and dW.

        Args:
            dy, ds: (..., H), x's shape and dtype: what arrives at Y and at S; zeros where nothing does.
            x, r, w, eps, offset, casting_mode: as in `forward`.

        Raises:
            TypeError, ValueError: as in `forward`, or dy or ds has another shape or dtype than x.
        """
        _check(x, w, eps, casting_mode)
        for name, tensor in (("r", r), ("dy", dy), ("ds", ds)):
            _same(name, tensor, x)
        wide_x, wide_r = (_widen(t).detach().clone().requires_grad_() for t in (x, r))
        wide_w = None if w is None else w.detach().to(wide_x.dtype).clone().requires_grad_()
        with torch.enable_grad():
            s = _cast(wide_x + wide_r, x.dtype)
            y, _ = _rms_norm(s, wide_w, x.dtype, eps, offset, casting_mode)
        wanted = (wide_x, wide_r) if wide_w is None else (wide_x, wide_r, wide_w)
        arriving = [gradient.detach().to(y.dtype) for gradient in (dy, ds)]
        dx, dr, *dw = torch.autograd.grad((y, s), wanted, arriving)
        return dx.to(x.dtype), dr.to(x.dtype), None if w is None else dw[0].to(w.dtype)


def _widen(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


class _Unseen(torch.autograd.Function):
    """A value that replaces another one without the tape's seeing it: the derivative is the other one's."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, smooth: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, grads[0]


def _unseen(value: Tensor, smooth: Tensor) -> Tensor:
    return _Unseen.apply(value.detach(), smooth)


def _cast(value: Tensor, storage: torch.dtype) -> Tensor:
    """Rounded to a dtype, in the wider one; the tape sees the identity."""
    return _unseen(value.detach().to(storage).to(value.dtype), value)


def _rms_norm(
    x: Tensor, w: Tensor | None, storage: torch.dtype, eps: float, offset: float, casting_mode: str
) -> tuple[Tensor, Tensor]:
    """Y before its last rounding, and RSTD, from x and w in the compute dtype; storage is x's own."""

    def cast(value: Tensor) -> Tensor:
        return _cast(value, storage)

    everywhere = casting_mode == "none"
    squares = x.square()
    if everywhere:
        squares = cast(squares)
    mean_square = squares.sum(-1, keepdim=True) / x.shape[-1]
    if everywhere:
        mean_square = cast(mean_square)
    variance = mean_square + eps
    if everywhere:
        variance = cast(variance)
    rstd = variance.sqrt().reciprocal()
    if everywhere:
        rounded = cast(rstd).detach()
        # The slope of 1/√v is taken where RSTD was rounded to, as the specification's dX takes it.
        there = rounded.square().reciprocal() + (variance - variance.detach())
        there = torch.where(variance.isfinite(), there, variance)
        rstd = _unseen(rounded, there.sqrt().reciprocal())
    x_hat = x * rstd
    if everywhere or casting_mode == "llama":
        x_hat = cast(x_hat)
    if w is None:
        return x_hat, rstd.squeeze(-1)
    weight = w + offset if offset else w  # -0.0 + 0.0 would be +0.0
    if everywhere:
        weight = cast(weight)
    return x_hat * weight, rstd.squeeze(-1)


def _same(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.shape != x.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)} but x has {tuple(x.shape)}")
    if tensor.dtype != x.dtype:
        raise TypeError(f"{name} is {tensor.dtype} but x is {x.dtype}")


def _check(x: Tensor, w: Tensor | None, eps: float, casting_mode: str) -> None:
    for name, tensor in (("x", x), ("w", w)):
        if tensor is not None and tensor.dtype not in _FLOATS:
            raise TypeError(f"{name} must be {', '.join(map(str, _FLOATS))}, not {tensor.dtype}")
    if casting_mode not in ("llama", "gemma", "none"):
        raise ValueError(f"casting_mode must be one of llama, gemma, none, not {casting_mode!r}")
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x needs a last dimension of at least 1, not shape {tuple(x.shape)}")
    if w is not None and w.shape != x.shape[-1:]:
        raise ValueError(f"w has shape {tuple(w.shape)} but x has {tuple(x.shape)}: w must be {tuple(x.shape[-1:])}")
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps must be finite and at least 0, not {eps!r}")
