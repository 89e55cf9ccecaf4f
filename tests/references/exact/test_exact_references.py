"""The references are proven, not voted: each equals the specification's table in every element, in every mode.

NumPy's closed form of the backward, what jax.vjp makes of the formula and what PyTorch's autograd makes of it are one
and the same element everywhere: the closed form is the derivative.
"""

from __future__ import annotations

import itertools
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


def numpy_program() -> Program:
    return Program("numpy", "numpy", *closed(numpy_reference), takes_mode=True)


def torch_program() -> Program:
    from references import torch_reference

    return Program("torch", "torch", *closed(torch_reference), takes_mode=True)


def jax_program() -> Program:
    from references import jax_reference

    return Program("jax", "jax", *closed(jax_reference), takes_mode=True)


def closed(reference: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(x: Any, w: Any, s: Any) -> Any:
        return reference.forward(x, w, eps=s.eps, offset=s.offset, casting_mode=s.casting_mode)

    def backward(dy: Any, x: Any, w: Any, rstd: Any, s: Any) -> Any:
        return reference.backward(dy, x, w, eps=s.eps, offset=s.offset, casting_mode=s.casting_mode)

    return forward, backward


PROGRAMS = [
    pytest.param(numpy_program, id="numpy"),
    pytest.param(torch_program, id="torch", marks=pytest.mark.torch),
    pytest.param(jax_program, id="jax", marks=pytest.mark.jax),
]


def differences(
    program: Program, mode: str, dtype: str, w_dtype: str | None, offset: float, seed: int
) -> dict[str, int]:
    field = Field(PRIMES[seed % len(PRIMES)], seed, splits=dtype == "float64")
    formula = table.formula(mode)
    problem = draw.draw(field, SHAPE, dtype, w_dtype, eps=0.3, offset=offset, formulas=[formula], seed=seed)
    wanted = table.evaluate(field, problem, formula)
    got = run(field, program, problem, mode)
    assert set(got) == set(wanted)
    return differing(field, problem, wanted, got)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", list(CastingMode))
@pytest.mark.parametrize("make", PROGRAMS)
def test_reference_is_the_table(make: Callable[[], Program], mode: str, dtype: str) -> None:
    program = make()
    for seed, (offset, weight) in enumerate(itertools.product(OFFSETS, WEIGHTS)):
        w_dtype = dtype if weight == "same" else weight
        assert differences(program, mode, dtype, w_dtype, offset, seed) == {}, (offset, w_dtype)


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


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_reference_shows(fault: str) -> None:
    import inspect
    import types

    old, new, wrong = FAULTS[fault]
    source = inspect.getsource(numpy_reference)
    assert source.count(old) == 1
    module = types.ModuleType("faulty")
    exec(compile(source.replace(old, new), "faulty", "exec"), module.__dict__)
    program = Program("faulty", "numpy", *closed(module), takes_mode=True)
    assert wrong <= set(differences(program, "llama", "bfloat16", "bfloat16", -0.3, 1))
