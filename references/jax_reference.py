"""RMSNorm in jax: the direct formula, differentiated by `jax.vjp`.

Source: specification, sections 3 and 6 (`FusedAdd`). No gradient formula stands here; jax derives them. Everything
happens in the compute dtype (float64 for float64 input, else float32) on the CPU, under strict dtype promotion, so
that no conversion happens unseen. A rounding changes the value and not the derivative, which sees the identity.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)  # else float64 silently becomes float32


def _on_cpu_strictly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run on the CPU, IEEE arithmetic in the order written, with implicit dtype conversion an error."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        cpu = jax.devices("cpu")[0]
        with jax.default_device(cpu), jax.numpy_dtype_promotion("strict"):
            return function(*(a if a is None else jax.device_put(a, cpu) for a in args), **kwargs)

    return wrapped


@_on_cpu_strictly
def forward(
    x: jax.Array, w: jax.Array | None, *, eps: float, offset: float, casting_mode: str
) -> tuple[jax.Array, jax.Array]:
    """Y and RSTD.

    Args:
        x: (..., H), float16|bfloat16|float32|float64.
        w: (H,), any of these, or None: no weight, and the offset is ignored.
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
    y, rstd = _rms_norm(*_compute_dtype(x, w), x.dtype, eps, offset, casting_mode)
    return y.astype(x.dtype), rstd


@_on_cpu_strictly
def backward(
    dy: jax.Array, x: jax.Array, w: jax.Array | None, *, eps: float, offset: float, casting_mode: str
) -> tuple[jax.Array, jax.Array | None]:
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
        raise ValueError(f"dy has shape {dy.shape} but x has {x.shape}")

    def y_of(wide_x: jax.Array, wide_w: jax.Array | None) -> jax.Array:
        return _rms_norm(wide_x, wide_w, x.dtype, eps, offset, casting_mode)[0]

    y, vjp = jax.vjp(y_of, *_compute_dtype(x, w))
    dx, dw = vjp(dy.astype(y.dtype))
    return dx.astype(x.dtype), None if w is None else dw.astype(w.dtype)


class FusedAdd:
    """The residual stream s = R(x + r) and its norm, differentiated through the addition."""

    @staticmethod
    @_on_cpu_strictly
    def forward(
        x: jax.Array, r: jax.Array, w: jax.Array | None, *, eps: float, offset: float, casting_mode: str
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Y, S and RSTD.

        Args:
            x, r: (..., H), one shape and one dtype.
            w, eps, offset, casting_mode: as in `jax_reference.forward`.

        Returns:
            y, s: (..., H), x's dtype; rstd: (...), float64 for float64 x, else float32.

        Raises:
            TypeError, ValueError: as in `jax_reference.forward`, or r has another shape or dtype than x.
        """
        _check(x, w, eps, casting_mode)
        _same("r", r, x)
        wide_x, wide_w = _compute_dtype(x, w)
        s = _stream(wide_x, r.astype(wide_x.dtype), x.dtype)
        y, rstd = _rms_norm(s, wide_w, x.dtype, eps, offset, casting_mode)
        return y.astype(x.dtype), s.astype(x.dtype), rstd

    @staticmethod
    @_on_cpu_strictly
    def backward(
        dy: jax.Array,
        ds: jax.Array,
        x: jax.Array,
        r: jax.Array,
        w: jax.Array | None,
        *,
        eps: float,
        offset: float,
        casting_mode: str,
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """dX, dR and dW.

        Args:
            dy, ds: (..., H), x's shape and dtype: what arrives at Y and at S; zeros where nothing does.
            x, r, w, eps, offset, casting_mode: as in `forward`.

        Raises:
            TypeError, ValueError: as in `forward`, or dy or ds has another shape or dtype than x.
        """
        _check(x, w, eps, casting_mode)
        for name, array in (("r", r), ("dy", dy), ("ds", ds)):
            _same(name, array, x)

        def y_and_s_of(wide_x: jax.Array, wide_r: jax.Array, wide_w: jax.Array | None) -> tuple[jax.Array, jax.Array]:
            s = _stream(wide_x, wide_r, x.dtype)
            return _rms_norm(s, wide_w, x.dtype, eps, offset, casting_mode)[0], s

        wide_x, wide_w = _compute_dtype(x, w)
        (y, s), vjp = jax.vjp(y_and_s_of, wide_x, r.astype(wide_x.dtype), wide_w)
        dx, dr, dw = vjp((dy.astype(y.dtype), ds.astype(s.dtype)))
        return dx.astype(x.dtype), dr.astype(x.dtype), None if w is None else dw.astype(w.dtype)


def _compute_dtype(x: jax.Array, w: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
    compute = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    return x.astype(compute), None if w is None else w.astype(compute)


@jax.custom_jvp
def _with_derivative_of(smooth: jax.Array, value: jax.Array) -> jax.Array:
    """A value whose derivative is that of another one."""
    return value


_with_derivative_of.defjvp(lambda primals, tangents: (primals[1], tangents[0]))


def _to_storage(value: jax.Array, storage: Any) -> jax.Array:
    """Rounded to a dtype, in the wider one; to the derivative it is the identity."""
    return _with_derivative_of(value, jax.lax.stop_gradient(value).astype(storage).astype(value.dtype))


def _stream(x: jax.Array, r: jax.Array, storage: Any) -> jax.Array:
    """x + r, both in the compute dtype, rounded to x's own."""
    return _to_storage(x + r, storage)


def _rms_norm(
    x: jax.Array, w: jax.Array | None, storage: Any, eps: float, offset: float, casting_mode: str
) -> tuple[jax.Array, jax.Array]:
    """Y before its last rounding, and RSTD, from x and w in the compute dtype; storage is x's own."""

    def to_storage(value: jax.Array) -> jax.Array:
        return _to_storage(value, storage)

    def as_is(value: jax.Array) -> jax.Array:
        return value

    round_all = {"llama": as_is, "gemma": as_is, "none": to_storage}[casting_mode]
    round_x_hat = {"llama": to_storage, "gemma": as_is, "none": to_storage}[casting_mode]

    mean_square = round_all(jnp.sum(round_all(x * x), axis=-1, keepdims=True) / x.shape[-1])
    variance = round_all(mean_square + eps)
    rstd = round_all(1.0 / jnp.sqrt(variance))
    if casting_mode == "none":
        # The slope of 1/√v is taken where RSTD was rounded to, as the specification's dX takes it.
        fixed = jax.lax.stop_gradient(rstd)
        there = 1.0 / fixed**2 + (variance - jax.lax.stop_gradient(variance))
        there = jnp.where(jnp.isfinite(variance), there, variance)
        rstd = _with_derivative_of(1.0 / jnp.sqrt(there), fixed)
    y = round_x_hat(x * rstd)
    if w is not None:
        scale = round_all(w + offset if offset else w)  # -0.0 + 0.0 would be +0.0
        y = y * jnp.broadcast_to(scale, y.shape)
    return y, jnp.squeeze(rstd, axis=-1)


def _same(name: str, array: jax.Array, x: jax.Array) -> None:
    if array.shape != x.shape:
        raise ValueError(f"{name} has shape {array.shape} but x has {x.shape}")
    if array.dtype != x.dtype:
        raise TypeError(f"{name} is {array.dtype.name} but x is {x.dtype.name}")


def _check(x: jax.Array, w: jax.Array | None, eps: float, casting_mode: str) -> None:
    floats = ("float16", "bfloat16", "float32", "float64")
    for name, array in (("x", x), ("w", w)):
        if array is not None and array.dtype.name not in floats:
            raise TypeError(f"{name} must be {', '.join(floats)}, not {array.dtype.name}")
    if casting_mode not in ("llama", "gemma", "none"):
        raise ValueError(f"casting_mode must be one of llama, gemma, none, not {casting_mode!r}")
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x needs a last dimension of at least 1, not shape {x.shape}")
    if w is not None and w.shape != x.shape[-1:]:
        raise ValueError(f"w has shape {w.shape} but x has {x.shape}: w must be {x.shape[-1:]}")
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps must be finite and at least 0, not {eps!r}")
