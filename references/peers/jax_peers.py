"""JAX peers: functions of (x, w, eps), x (..., H), w (H,) or None, and their vector-Jacobian products."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported

Norm = Callable[[jax.Array, Any, float], jax.Array]


@dataclass(frozen=True)
class Differentiated:
    """A forward and the backward that JAX derives from it."""

    norm: Norm

    def forward(self, x: jax.Array, w: jax.Array | None, eps: float) -> jax.Array:
        return self.norm(x, w, eps)

    def backward(self, dy: jax.Array, x: jax.Array, w: jax.Array | None, eps: float) -> tuple:
        y, pull_back = jax.vjp(lambda x, w: self.norm(x, w, eps), x, w)
        return pull_back(dy.astype(y.dtype))


@Differentiated
def flax_linen(x: jax.Array, w: jax.Array | None, eps: float) -> jax.Array:
    from flax import linen

    module = linen.RMSNorm(epsilon=eps, use_scale=w is not None, dtype=x.dtype)
    y: Any = module.apply({} if w is None else {"params": {"scale": w}}, x)
    return y


@Differentiated
def flax_nnx(x: jax.Array, w: jax.Array | None, eps: float) -> jax.Array:
    from flax import nnx

    module = nnx.RMSNorm(x.shape[-1], epsilon=eps, use_scale=w is not None, dtype=x.dtype, rngs=nnx.Rngs(0))
    if w is not None:
        module.scale = nnx.Param(w)
    return module(x)


@Differentiated
def haiku(x: jax.Array, w: jax.Array | None, eps: float) -> jax.Array:
    import haiku as hk

    norm = hk.transform(lambda x: hk.RMSNorm(axis=-1, eps=eps, create_scale=w is not None)(x))
    return norm.apply({} if w is None else {"rms_norm": {"scale": w}}, None, x)


@Differentiated
def equinox(x: jax.Array, w: jax.Array | None, eps: float) -> jax.Array:
    import equinox as eqx

    module = eqx.nn.RMSNorm(x.shape[-1], eps, use_weight=w is not None, use_bias=False)
    if w is not None:
        module = eqx.tree_at(lambda m: m.weight, module, w)
    rows = x.reshape(-1, x.shape[-1])
    return jax.vmap(module)(rows).reshape(x.shape)


@Differentiated
def keras(x: jax.Array, w: jax.Array, eps: float) -> jax.Array:
    from keras.layers import RMSNormalization

    layer = RMSNormalization(epsilon=eps, dtype=str(x.dtype))
    layer.build(x.shape)
    y, _ = layer.stateless_call([w], [], x)
    return y
