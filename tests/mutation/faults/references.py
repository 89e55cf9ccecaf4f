"""Faults of each reference: the two others must outvote it, and the vote must name it."""

from __future__ import annotations

from tests.mutation.mutant import VOTE, Mutant

NUMPY, TORCH, JAX = (f"references/{name}_reference.py" for name in ("numpy", "torch", "jax"))

MUTANTS = (
    Mutant(
        "RN1",
        NUMPY,
        'variance = rounded("none")(mean_square + c.type(eps))',
        'variance = rounded("none")(mean_square)',
        "eps is left out",
        VOTE,
    ),
    Mutant(
        "RN2",
        NUMPY,
        'x_hat = rounded("llama", "none")(x_c * rstd)',
        'x_hat = rounded("none")(x_c * rstd)',
        "llama does not round x_hat",
        VOTE,
    ),
    Mutant(
        "RN3",
        NUMPY,
        "dx = rstd * (m - x_c * rstd**2 * dot / n_cols)",
        "dx = rstd * (m + x_c * rstd**2 * dot / n_cols)",
        "the projection has the wrong sign",
        VOTE,
    ),
    Mutant("RN4", NUMPY, "(dy_c * x_hat).reshape", "(m * x_hat).reshape", "dW contains the weight", VOTE),
    Mutant("RN5", NUMPY, "w_c + c.type(offset) if", "w_c if", "the offset is left out", VOTE),
    Mutant("RT1", TORCH, "variance = mean_square + eps", "variance = mean_square + eps * eps", "eps is squared", VOTE),
    Mutant("RT2", TORCH, 'if everywhere or casting_mode == "llama":', "if True:", "gemma rounds x_hat", VOTE),
    Mutant("RT3", TORCH, "weight = w + offset", "weight = w + 1.0", "the offset is always 1", VOTE),
    Mutant("RT4", TORCH, "dy.detach().to(y.dtype))", "dy.detach().to(y.dtype).abs())", "the gradient of |dY|", VOTE),
    Mutant(
        "RT5",
        TORCH,
        "there = rounded.square().reciprocal() + (variance - variance.detach())",
        "there = rounded.square().reciprocal() + 2 * (variance - variance.detach())",
        "the derivative of rstd is doubled in none",
        VOTE,
    ),
    Mutant(
        "RJ1",
        JAX,
        "axis=-1, keepdims=True) / x.shape[-1])",
        "axis=-1, keepdims=True) / (x.shape[-1] - 1))",
        "the mean divides by n - 1",
        VOTE,
    ),
    Mutant(
        "RJ2",
        JAX,
        '"gemma": as_is, "none": to_storage}[casting_mode]\n    round_x_hat',
        '"gemma": to_storage, "none": to_storage}[casting_mode]\n    round_x_hat',
        "gemma rounds as none does",
        VOTE,
    ),
    Mutant(
        "RJ3",
        JAX,
        "y = y * jnp.broadcast_to(scale, y.shape)",
        "y = y * jnp.broadcast_to(jax.lax.stop_gradient(scale), y.shape)",
        "dW is zero",
        VOTE,
    ),
    Mutant(
        "RJ4",
        JAX,
        "rstd = _with_derivative_of(1.0 / jnp.sqrt(there), fixed)",
        "rstd = fixed",
        "none has no projection",
        VOTE,
    ),
    Mutant(
        "RJ5",
        JAX,
        'jax.config.update("jax_enable_x64", True)',
        'jax.config.update("jax_enable_x64", False)',
        "float64 is float32",
        "tests/references/test_vote.py -k switches_64_bits",
    ),
)
