"""The truth: RMSNorm and its gradients without rounding, in longdouble, and once more in 50 digits.

    r = (Σ x²/N + eps)^-1/2     x̂ = x·r     w' = w + offset     y = x̂·w'
    m = dY·w'     dX = r·(m − x·r²·Σ(m·x)/N)     dW = Σ over rows of dY·x̂

With a residual the stream s stands for x, and dX = dR has dS added.
The casting mode does not appear: modes are rounding, and nothing is rounded here. The derivation is in
docs/judge/derivation.md. x87 longdouble has 11 bits more than float64 and a range that no square of a float64
leaves; where
longdouble is float64 (Windows, macOS on ARM) the bounds of float64 data cannot be checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

_DIGITS = 50


@dataclass(frozen=True)
class Forward:
    """In longdouble, y and x_hat: (..., H); rstd: (...); w_shifted = w': (H,), ones without a weight."""

    y: np.ndarray
    rstd: np.ndarray
    x_hat: np.ndarray
    w_shifted: np.ndarray


@dataclass(frozen=True)
class Backward:
    """In longdouble, dx (dS added) and m = dY·w': (..., H); dw: (H,) or None; dot = Σ m·x: (...); the forward pass."""

    dx: np.ndarray
    dw: np.ndarray | None
    m: np.ndarray
    dot: np.ndarray
    forward: Forward


@np.errstate(all="ignore")  # 0·inf and 1/0 are answers here
def forward(x: np.ndarray, w: np.ndarray | None, *, eps: float, offset: float) -> Forward:
    """RMSNorm without rounding.

    Args:
        x: (..., H), any float dtype.
        w: (H,), any float dtype, or None: no weight, and the offset is ignored.
        eps: at least 0, finite.
        offset: added to w.

    Raises:
        ValueError: the shapes do not fit, H is 0, or eps is negative or not finite.
    """
    _check(x, w, eps)
    x = x.astype(np.longdouble)
    w_shifted = np.ones(x.shape[-1], np.longdouble) if w is None else w.astype(np.longdouble) + offset
    rstd = 1 / np.sqrt((x * x).sum(-1) / x.shape[-1] + np.longdouble(eps))
    x_hat = x * rstd[..., None]
    return Forward(y=x_hat * w_shifted, rstd=rstd, x_hat=x_hat, w_shifted=w_shifted)


@np.errstate(all="ignore")
def add(x: np.ndarray, r: np.ndarray) -> np.ndarray:
    """The residual stream before its rounding: x + r, (..., H). Raises ValueError where the shapes differ."""
    _same_shape("r", r, x)
    return x.astype(np.longdouble) + r.astype(np.longdouble)


@np.errstate(all="ignore")
def backward(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray | None, *, eps: float, offset: float, ds: np.ndarray | None = None
) -> Backward:
    """The gradients of Σ dy·y, and with ds of Σ dy·y + Σ ds·x, without rounding.

    Args:
        dy: (..., H), x's shape.
        x, w, eps, offset: as in `forward`; with a residual x is the stream, as rounded.
        ds: (..., H), the gradient that arrives at the stream itself; None: none does.

    Raises:
        ValueError: as in `forward`, or dy or ds has another shape than x.
    """
    primal = forward(x, w, eps=eps, offset=offset)
    _same_shape("dy", dy, x)
    x, dy = x.astype(np.longdouble), dy.astype(np.longdouble)
    rstd = primal.rstd[..., None]
    m = dy * primal.w_shifted
    dot = (m * x).sum(-1)
    dx = rstd * (m - x * rstd**2 * (dot / x.shape[-1])[..., None])
    if ds is not None:
        _same_shape("ds", ds, x)
        dx = dx + ds.astype(np.longdouble)
    dw = None if w is None else (dy * primal.x_hat).reshape(-1, x.shape[-1]).sum(0)
    return Backward(dx=dx, dw=dw, m=m, dot=dot, forward=primal)


def mp_forward(x: np.ndarray, w: np.ndarray | None, *, eps: float, offset: float) -> tuple[np.ndarray, np.ndarray]:
    """y and rstd by plain loops in 50 digits, rounded to longdouble: for tiny inputs of finite numbers."""
    import mpmath

    _check(x, w, eps)
    y, rstd = np.empty(x.shape, np.longdouble), np.empty(x.shape[:-1], np.longdouble)
    with mpmath.workdps(_DIGITS):
        weight = _mp_weight(mpmath, w, offset, x.shape[-1])
        for row in np.ndindex(*x.shape[:-1]):
            xs, r = _mp_row(mpmath, x[row], eps)
            rstd[row] = _to_longdouble(mpmath, r)
            y[row] = [_to_longdouble(mpmath, a * r * b) for a, b in zip(xs, weight, strict=True)]
    return y, rstd


def mp_backward(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray | None, *, eps: float, offset: float, ds: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """dx (ds added) and dw by plain loops in 50 digits, rounded to longdouble: for tiny inputs of finite numbers."""
    import mpmath

    _check(x, w, eps)
    n_cols = x.shape[-1]
    dx = np.empty(x.shape, np.longdouble)
    with mpmath.workdps(_DIGITS):
        weight = _mp_weight(mpmath, w, offset, n_cols)
        dw = [mpmath.mpf(0)] * n_cols
        for row in np.ndindex(*x.shape[:-1]):
            xs, r = _mp_row(mpmath, x[row], eps)
            gs = [mpmath.mpf(float(g)) for g in dy[row]]
            dot = mpmath.fsum(g * b * a for g, b, a in zip(gs, weight, xs, strict=True))
            for j in range(n_cols):
                # ∂y_k/∂x_j = w'_k (δ_jk r − x_k x_j r³/N), summed over k by hand.
                through_s = 0 if ds is None else mpmath.mpf(float(ds[*row, j]))
                through_y = gs[j] * weight[j] * r - xs[j] * r**3 * dot / n_cols
                dx[*row, j] = _to_longdouble(mpmath, through_y + through_s)
                dw[j] += gs[j] * xs[j] * r
        return dx, None if w is None else np.array([_to_longdouble(mpmath, v) for v in dw])


def _mp_weight(mpmath: Any, w: np.ndarray | None, offset: float, n_cols: int) -> list[Any]:
    if w is None:
        return [mpmath.mpf(1)] * n_cols
    return [mpmath.mpf(float(v)) + mpmath.mpf(offset) for v in w]


def _mp_row(mpmath: Any, row: np.ndarray, eps: float) -> tuple[list[Any], Any]:
    xs = [mpmath.mpf(float(v)) for v in row]
    return xs, 1 / mpmath.sqrt(mpmath.fsum(v * v for v in xs) / len(xs) + mpmath.mpf(eps))


def _to_longdouble(mpmath: Any, value: Any) -> np.longdouble:
    return np.longdouble(mpmath.nstr(value, 25))  # 25 digits determine 64 bits


def _same_shape(name: str, array: np.ndarray, x: np.ndarray) -> None:
    if array.shape != x.shape:
        raise ValueError(f"{name} has shape {array.shape} but x has {x.shape}")


def _check(x: np.ndarray, w: np.ndarray | None, eps: float) -> None:
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x needs a last dimension of at least 1, not shape {x.shape}")
    if w is not None and w.shape != x.shape[-1:]:
        raise ValueError(f"w has shape {w.shape} but x has {x.shape}: w must be {x.shape[-1:]}")
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps must be finite and at least 0, not {eps!r}")
