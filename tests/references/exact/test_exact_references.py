"""The references are proven, not voted: each equals the specification's table in every element, in every mode.

NumPy's closed form of the backward, what jax.vjp makes of the formula and what PyTorch's autograd makes of it are one
and the same element everywhere: the closed form is the derivative.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any

import pytest

from references import numpy_reference
from references.exact import draw, table
from references.exact.field import PRIMES, Field
from references.exact.program import Program, differing, run
from references.spec import DTYPES, CastingMode

OFFSETS, WEIGHTS = (0.0, -0.3), ("same", "float32", "float16", None)
SHAPE = (3, 7)


def program(library: str, residual: bool = False) -> Program:
    reference = importlib.import_module(f"references.{library}_reference")
    pair = reference.FusedAdd if residual else reference
    return Program(library, library, *closed(pair), takes_mode=True, residual=residual)


def closed(reference: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(*called: Any) -> Any:
        *inputs, s = called
        return reference.forward(*inputs, eps=s.eps, offset=s.offset, casting_mode=s.casting_mode)

    def backward(*called: Any) -> Any:
        *inputs, _rstd, s = called
        return reference.backward(*inputs, eps=s.eps, offset=s.offset, casting_mode=s.casting_mode)

    return forward, backward


LIBRARIES = ["numpy", pytest.param("torch", marks=pytest.mark.torch), pytest.param("jax", marks=pytest.mark.jax)]


def differences(
    program: Program, mode: str, dtype: str, w_dtype: str | None, offset: float, seed: int
) -> dict[str, int]:
    field = Field(PRIMES[seed % len(PRIMES)], seed, splits=dtype == "float64")
    formula = table.formula(mode)
    about: dict[str, Any] = {"eps": 0.3, "offset": offset, "seed": seed, "residual": program.residual}
    problem = draw.draw(field, SHAPE, dtype, w_dtype, formulas=[formula], **about)
    wanted = table.evaluate(field, problem, formula)
    got = run(field, program, problem, mode)
    assert set(got) == set(wanted)
    return differing(field, problem, wanted, got)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", list(CastingMode))
@pytest.mark.parametrize("library", LIBRARIES)
def test_reference_is_the_table(library: str, mode: str, dtype: str) -> None:
    for seed, (offset, weight) in enumerate(itertools.product(OFFSETS, WEIGHTS)):
        w_dtype = dtype if weight == "same" else weight
        assert differences(program(library), mode, dtype, w_dtype, offset, seed) == {}, (offset, w_dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", list(CastingMode))
@pytest.mark.parametrize("library", LIBRARIES)
def test_reference_with_a_residual_is_the_table(library: str, mode: str, dtype: str) -> None:
    for seed, (offset, weight) in enumerate([(-0.3, "same"), (0.0, "float32"), (0.0, None)]):
        w_dtype = dtype if weight == "same" else weight
        assert differences(program(library, residual=True), mode, dtype, w_dtype, offset, seed) == {}, w_dtype


FAULTS = {
    "x_hat": ('rounded("llama", "none")(x_c * rstd)', 'rounded("none")(x_c * rstd)', {"y", "dw"}),
    "projection": ("rstd**2 * dot", "rstd * dot", {"dx"}),
    "variance": (
        'rounded("none")(mean_square + c.type(eps))',
        "mean_square + c.type(eps) * c.type(1.0001)",
        {"y", "rstd"},
    ),
    "one row": ("columns.sum(-1)", "columns[:, 1:].sum(-1)", {"dw"}),
}
RESIDUAL_FAULTS = {
    "dS dropped": ("(d_norm + ds.astype(d_norm.dtype))", "d_norm", {"dx", "dr"}),
    "dS after rounding": ("(d_norm + ds", "(d_norm.astype(x.dtype).astype(d_norm.dtype) + ds", {"dx", "dr"}),
    "S is X": ("(x.astype(c) + r.astype(c))", "x", {"y", "s", "rstd", "dx", "dr", "dw"}),
    "norm of X": ("y, rstd = forward(s, w,", "y, rstd = forward(x, w,", {"y", "rstd"}),
    "dW of X": ("_gradients(dy, s, w,", "_gradients(dy, x, w,", {"dx", "dr", "dw"}),
}


@pytest.mark.parametrize("fault", [*FAULTS, *RESIDUAL_FAULTS])
def test_a_fault_in_a_reference_shows(fault: str) -> None:
    residual = fault in RESIDUAL_FAULTS
    old, new, wrong = (FAULTS | RESIDUAL_FAULTS)[fault]
    source = inspect.getsource(numpy_reference)
    assert source.count(old) == 1
    module = types.ModuleType("faulty")
    exec(compile(source.replace(old, new), "faulty", "exec"), module.__dict__)
    pair = module.FusedAdd if residual else module
    program = Program("faulty", "numpy", *closed(pair), takes_mode=True, residual=residual)
    assert wrong <= set(differences(program, "llama", "bfloat16", "bfloat16", -0.3, 1))
