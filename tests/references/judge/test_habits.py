"""Known habits are told from programs that have them, written as people write them, and from nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from references import arrays, numpy_reference
from references.candidates.outputs import Outputs
from references.cells.cell import Case, Inputs, make_inputs
from references.judge.habits import habit
from references.judge.verdict import check

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

CASE = Case("llama", 0.0, "bfloat16", "same", False, (40, 100), 1e-6)


def narrow_product(x: Any, w: Any, eps: float) -> Any:
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def converted_twice(x: Any, w: Any, eps: float) -> Any:
    rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return (w.float() * (x.float() * rstd)).to(x.dtype)


def both(x: Any, w: Any, eps: float) -> Any:
    rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return w * (x.float() * rstd).to(x.dtype)


def gradient(program: Callable[..., Any], case: Case, inputs: Inputs) -> np.ndarray:
    x, w, dy = (arrays.to_torch(value) for value in (inputs.x, inputs.w, inputs.dy))
    x = x.clone().requires_grad_()
    program(x, w, case.eps).backward(dy)
    return arrays.to_numpy(x.grad)


def told(dx: np.ndarray | None, case: Case = CASE) -> str | None:
    found = habit(case, make_inputs(case), Outputs(dx=dx))
    assert found is None or found[1] == ("dx", "dw")
    return found[0] if found else None


def right(case: Case) -> np.ndarray:
    inputs = make_inputs(case)
    about: dict[str, Any] = {"eps": case.eps, "offset": case.offset, "casting_mode": case.casting_mode}
    return numpy_reference.backward(inputs.dy, inputs.x, inputs.w, **about)[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("program", "says"),
    [
        (narrow_product, "autograd rounds dY·W to X's dtype"),
        (converted_twice, "X is converted twice (`x.float()` in two places)"),
        (both, "X is converted twice, and autograd rounds dY·W"),
    ],
)
def test_a_habit_is_told_from_a_program_that_has_it(program: Callable[..., Any], says: str, dtype: str) -> None:
    case = replace(CASE, dtype=dtype)
    found = told(gradient(program, case, make_inputs(case)), case)
    assert found is not None and found.startswith(says) and found.endswith("docs/judge/peers.md#what-stands-out")


def test_of_twenty_elements_nineteen_are_explained() -> None:
    dx = gradient(narrow_product, CASE, make_inputs(CASE))
    mine = told(dx)
    wrong = dx.copy().reshape(-1)
    wrong[:400] *= 4  # one in ten
    assert mine is not None and told(wrong.reshape(dx.shape)) is None
    wrong = dx.copy().reshape(-1)
    wrong[:120] *= 4  # three in a hundred
    assert told(wrong.reshape(dx.shape)) == mine


def test_what_is_right_or_wrong_otherwise_has_no_habit() -> None:
    assert told(right(CASE)) is None
    assert told(2 * right(CASE)) is None
    assert told(None) is None
    assert told(gradient(narrow_product, CASE, make_inputs(CASE)).astype(np.float32)) is None
    assert told(gradient(narrow_product, CASE, make_inputs(CASE))[:1]) is None
    for dtype in ("float32", "float64"):
        case = replace(CASE, dtype=dtype)
        assert told(2 * right(case), case) is None
    empty = replace(CASE, shape=(0, 100))
    assert told(right(empty), empty) is None


def first_term(case: Case, shift: float = 0.0) -> np.ndarray:
    """dY·(W + shift)·RSTD: what is left of dX where RSTD³ is 0."""
    inputs = make_inputs(case)
    w = 1.0 if inputs.w is None else inputs.w.astype(np.float64) + shift
    rstd = 1 / np.sqrt(np.square(inputs.x.astype(np.float64)).mean(-1, keepdims=True) + case.eps)
    return (inputs.dy * w * rstd).astype(np.float32)


@pytest.mark.parametrize("change", [{}, {"weight": "none"}, {"offset": 1.0}, {"weight": "bfloat16"}])
def test_a_cube_that_vanishes_is_told_from_a_projection_that_is_wrong(change: dict[str, Any]) -> None:
    case = replace(CASE, dtype="float32", data="huge", **change)
    found = told(first_term(case, case.offset), case)
    assert found is not None and found.startswith("autograd computes RSTD³") and "#what-stands-out" in found
    assert told(right(case), case) is None and told(1.1 * first_term(case, case.offset), case) is None
    if case.offset:
        assert told(first_term(case), case) is None
    ordinary = replace(case, data="normal")
    assert told(first_term(ordinary, case.offset), ordinary) is None


def test_a_verdict_on_a_wrong_dx_tells_its_habit() -> None:
    class Habitual:
        name, device, ignored = "habitual", "cpu", ()

        def run(self, case: Case, inputs: Inputs) -> Outputs:
            about: dict[str, Any] = {"eps": case.eps, "offset": case.offset, "casting_mode": case.casting_mode}
            y, rstd = numpy_reference.forward(inputs.x, inputs.w, **about)
            _, dw = numpy_reference.backward(inputs.dy, inputs.x, inputs.w, **about)
            return Outputs(y, rstd, gradient(narrow_product, case, inputs), dw)

    verdict = check(Habitual(), CASE)
    assert verdict.status == "fail" and verdict.explained == ("dx", "dw")
    assert verdict.habit is not None and verdict.habit.startswith("autograd rounds dY·W to X's dtype")
