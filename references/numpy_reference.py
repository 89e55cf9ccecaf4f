"""RMSNorm in NumPy: the specification's table, one line a step, and the backward in closed form.

Source: specification, sections 3 (rounding points) and 6 (the residual stream, `FusedAdd`), and
docs/judge/derivation.md (gradients). Everything happens in
the compute dtype c, float32 or for float64 input float64; rounding to X's dtype is a cast there and back.
Overflow, 0·inf and 1/0 give what IEEE says, without a warning: a row whose squares overflow has RSTD 0, a
zero row with eps 0 has RSTD inf and Y NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

MODES = ("llama", "gemma", "none")


@np.errstate(all="ignore")
def forward(
    x: np.ndarray, w: np.ndarray | None, *, eps: float, offset: float, casting_mode: str
) -> tuple[np.ndarray, np.ndarray]:
    """Y and RSTD.

    Args:
        x: (..., H), float16|bfloat16|float32|float64.
        w: (H,), any of these, or None: no weight, and the offset is ignored.
        eps: at least 0, finite.
        offset: added to w.
        casting_mode: "llama", "gemma" or "none".

    Returns:
        y: (..., H), x's dtype; rstd: (...), c.

    Raises:
        TypeError: x or w has another dtype.
        ValueError: the shapes do not fit, H is 0, eps is negative or not finite, or the mode is unknown.
    """
    _check(x, w, eps, casting_mode)
    rstd, x_hat, w_shifted = _normalized(x, w, eps, offset, casting_mode)
    return (x_hat * w_shifted).astype(x.dtype), rstd[..., 0]


@np.errstate(all="ignore")
def backward(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray | None, *, eps: float, offset: float, casting_mode: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """dX and dW.

    Args:
        dy: (..., H), x's shape and dtype.
        x, w, eps, offset, casting_mode: as in `forward`.

    Returns:
        dx: (..., H), x's dtype; dw: (H,), w's dtype, or None where w is None.

    Raises:
        TypeError, ValueError: as in `forward`, or dy has another shape than x.
    """
    dx, dw = _gradients(dy, x, w, eps, offset, casting_mode)
    return dx.astype(x.dtype), dw


@np.errstate(all="ignore")
def add(x: np.ndarray, r: np.ndarray) -> np.ndarray:
    """The residual stream R(x + r), the sum in c.

    Args:
        x, r: (..., H), one shape and one dtype.

    Raises:
        TypeError, ValueError: dtypes or shapes differ.
    """
    _same("r", r, x)
    c = _compute_dtype(x)
    return (x.astype(c) + r.astype(c)).astype(x.dtype)


class FusedAdd:
    """The residual stream s = R(x + r) and its norm."""

    @staticmethod
    def forward(
        x: np.ndarray, r: np.ndarray, w: np.ndarray | None, *, eps: float, offset: float, casting_mode: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Y, S and RSTD.

        Args:
            x, r: (..., H), one shape and one dtype.
            w, eps, offset, casting_mode: as in `numpy_reference.forward`.

        Returns:
            y, s: (..., H), x's dtype; rstd: (...), c.

        Raises:
            TypeError, ValueError: as in `add` and `numpy_reference.forward`.
        """
        s = add(x, r)
        y, rstd = forward(s, w, eps=eps, offset=offset, casting_mode=casting_mode)
        return y, s, rstd

    @staticmethod
    @np.errstate(all="ignore")
    def backward(
        dy: np.ndarray,
        ds: np.ndarray,
        x: np.ndarray,
        r: np.ndarray,
        w: np.ndarray | None,
        *,
        eps: float,
        offset: float,
        casting_mode: str,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """dX, dR and dW: dX = dR = R(dNorm + dS), dNorm being the norm's dX before its rounding.

        Args:
            dy, ds: (..., H), x's shape and dtype: what arrives at Y and at S; zeros where nothing does.
            x, r, w, eps, offset, casting_mode: as in `forward`.

        Raises:
            TypeError, ValueError: as in `forward`, or dy or ds has another shape or dtype than x.
        """
        s = add(x, r)
        _same("ds", ds, x)
        d_norm, dw = _gradients(dy, s, w, eps, offset, casting_mode)
        dx = (d_norm + ds.astype(d_norm.dtype)).astype(x.dtype)
        return dx, dx.copy(), dw


def _gradients(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray | None, eps: float, offset: float, casting_mode: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """dX in c, before its rounding, and dW."""
    _check(x, w, eps, casting_mode)
    if dy.shape != x.shape:
        raise ValueError(f"dy has shape {dy.shape} but x has {x.shape}")
    rstd, x_hat, w_shifted = _normalized(x, w, eps, offset, casting_mode)
    n_cols = x.shape[-1]
    dy_c, x_c = dy.astype(rstd.dtype), x.astype(rstd.dtype)
    m = dy_c * w_shifted
    dot = (m * x_c).sum(-1, keepdims=True)
    dx = rstd * (m - x_c * rstd**2 * dot / n_cols)
    if w is None:
        return dx, None
    # NumPy adds the terms of a row pairwise but rows one after the other, so rows become columns.
    columns = np.ascontiguousarray((dy_c * x_hat).reshape(-1, n_cols).T)
    return dx, columns.sum(-1).astype(w.dtype)


def _normalized(
    x: np.ndarray, w: np.ndarray | None, eps: float, offset: float, casting_mode: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray | float]:
    """rstd (..., 1), x̂ (..., H) and w' (H,) in c, each rounded to x's dtype where the mode says so."""
    c = _compute_dtype(x)

    def rounded(*modes: str) -> Callable[[np.ndarray], np.ndarray]:
        return (lambda v: v.astype(x.dtype).astype(c)) if casting_mode in modes else (lambda v: v)

    x_c = x.astype(c)
    squares = rounded("none")(x_c * x_c)
    mean_square = rounded("none")(squares.sum(-1, keepdims=True) / c.type(x.shape[-1]))
    variance = rounded("none")(mean_square + c.type(eps))
    rstd = rounded("none")(1 / np.sqrt(variance))
    x_hat = rounded("llama", "none")(x_c * rstd)
    if w is None:
        return rstd, x_hat, c.type(1)
    w_c = w.astype(c)
    # Offset 0 adds nothing: -0.0 + 0.0 would be +0.0, and transformers' Llama keeps the sign.
    return rstd, x_hat, rounded("none")(w_c + c.type(offset) if offset else w_c)


def _compute_dtype(x: np.ndarray) -> np.dtype:
    return np.dtype(np.float64 if x.dtype == np.float64 else np.float32)


def _same(name: str, array: np.ndarray, x: np.ndarray) -> None:
    if array.shape != x.shape:
        raise ValueError(f"{name} has shape {array.shape} but x has {x.shape}")
    if array.dtype != x.dtype:
        raise TypeError(f"{name} is {array.dtype.name} but x is {x.dtype.name}")


def _check(x: np.ndarray, w: np.ndarray | None, eps: float, casting_mode: str) -> None:
    floats = tuple(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)))
    for name, array in (("x", x), ("w", w)):
        if array is not None and array.dtype not in floats:
            raise TypeError(f"{name} must be {', '.join(f.name for f in floats)}, not {array.dtype.name}")
    if casting_mode not in MODES:
        raise ValueError(f"casting_mode must be one of {', '.join(MODES)}, not {casting_mode!r}")
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x needs a last dimension of at least 1, not shape {x.shape}")
    if w is not None and w.shape != x.shape[-1:]:
        raise ValueError(f"w has shape {w.shape} but x has {x.shape}: w must be {x.shape[-1:]}")
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps must be finite and at least 0, not {eps!r}")
