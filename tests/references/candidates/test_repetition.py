"""Several runs of one cell: bits that do not repeat, results that outlive their inputs, rows that see the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from references import arrays
from references.candidates.loading import Implementation, load
from references.candidates.memory import Arguments
from references.candidates.repetition import Behaviour, observe
from references.cells.cell import LAYOUT_CODES, Case, Inputs, make_inputs
from references.cells.levels import MATRIX, SMOKE
from references.judge.verdict import check, plainest, reference_results

CASE = Case("gemma", 0.5, "float32", "same", True, (3, 2, 41), 0.7)


@pytest.mark.torch
@pytest.mark.parametrize("layout", LAYOUT_CODES)
@pytest.mark.parametrize("library", ["torch", "numpy", pytest.param("jax", marks=pytest.mark.jax)])
def test_refilled_arguments_hold_the_new_content_at_the_old_address(library: str, layout: str) -> None:
    case = dataclasses.replace(CASE, x_layout=layout, dy_layout=layout)
    inputs = make_inputs(case)
    arguments = Arguments(case, inputs, library, "cpu")
    before = dict(arguments.views)
    changed = Inputs(-inputs.x, inputs.w, 2 * inputs.dy)
    if library != "jax" and layout != "expanded":
        arguments.views["dy"][...] = 7  # as an in-place backward leaves it
    arguments.refill(changed)
    for name in ("x", "w", "dy"):
        np.testing.assert_array_equal(arrays.to_numpy(arguments.views[name]), getattr(changed, name))
        assert (arguments.views[name] is before[name]) == (library != "jax")
    contract = arguments.observe({}, {})
    assert contract.changed == contract.changed_outside == ()


@pytest.mark.torch
def test_a_norm_is_steady(candidate: Callable[..., Implementation]) -> None:
    implementation = load("references.torch_reference")
    assert implementation.behaviour(CASE, make_inputs(CASE)) == Behaviour()
    row = dataclasses.replace(CASE, shape=(41,))
    assert implementation.behaviour(row, make_inputs(row)) == Behaviour(batch_dependent=None)


def norm(forward: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def function(x, w, eps, offset, casting_mode):
        y = torch.nn.functional.rms_norm(x, x.shape[-1:], w + offset, eps)
        return y + (forward(x, y.detach()) - y.detach())  # the value of `forward`, the gradient of y

    return function


@pytest.mark.torch
def test_a_cache_by_address_is_stale(candidate: Callable[..., Implementation]) -> None:
    cache: dict[int, Any] = {}
    cached = norm(lambda x, y: cache.setdefault(x.data_ptr(), y.clone()))
    verdict = check(candidate(cached), CASE, repeat=True)
    assert verdict.behaviour is not None and "y" in verdict.behaviour.stale
    assert ("repeat", "y") in {(finding.check, finding.tensor) for finding in verdict.findings}
    assert check(candidate(cached), CASE).behaviour is None


@pytest.mark.torch
def test_an_error_in_a_later_run_is_a_finding(candidate: Callable[..., Implementation]) -> None:
    calls: list[int] = []

    def third(x, y):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return y

    verdict = check(candidate(norm(third)), CASE, repeat=True)
    (finding,) = [f for f in verdict.findings if f.check == "repeat"]
    assert finding.message == "run again on the same arguments, it raised RuntimeError: out of memory"


def test_one_plain_cell_of_each_mode_and_dtype_is_repeated() -> None:
    for cases in (MATRIX, SMOKE):
        chosen = plainest(cases)
        kinds = {(str(case.casting_mode), case.dtype) for case in cases}
        assert len(chosen) == len(kinds) == 12
        assert {(str(case.casting_mode), case.dtype) for case in chosen} == kinds
        assert all(case.n_rows > 1 and case.data == "normal" for case in chosen)
    assert {(case.offset, case.weight) for case in plainest(MATRIX)} == {(0.0, "same")}
    assert plainest([dataclasses.replace(CASE, shape=(0, 41))]) == set()


class Depends:
    """Results that are right but for one tensor, which a number of its own shows at one call."""

    def __init__(self, tensor: str, when: Callable[[int, Case], bool]) -> None:
        self.tensor, self.when, self.calls = tensor, when, 0

    def __call__(self, case: Case, arguments: Any) -> dict[str, np.ndarray | None]:
        inputs = {name: np.array(view) for name, view in arguments.views.items()}
        found = dict(reference_results(case, Inputs(**inputs)))
        self.calls += 1
        if self.when(self.calls, case):
            value = found[self.tensor]
            assert value is not None
            value.flat[-1] = np.nextafter(value.flat[-1], np.float32(np.inf))
        return found


def observed(tensor: str, when: Callable[[int, Case], bool], case: Case = CASE) -> Behaviour:
    def arrange(case: Case, inputs: Inputs) -> Arguments:
        return Arguments(case, inputs, "numpy", "cpu")

    return observe(case, make_inputs(case), arrange, Depends(tensor, when))


@pytest.mark.parametrize("tensor", ["y", "rstd", "dx", "dw"])
def test_each_tensor_is_asked_for_each_behaviour(tensor: str) -> None:
    assert observed(tensor, lambda call, case: False) == Behaviour()
    assert observed(tensor, lambda call, case: True) == Behaviour()
    third = observed(tensor, lambda call, case: call == 3)
    assert third.unrepeated == (tensor,)
    alone = observed(tensor, lambda call, case: case.n_rows == 1)
    assert alone.batch_dependent == (() if tensor == "dw" else (tensor,)), "dW is a sum over the batch"


@pytest.mark.parametrize("tensor", ["y", "s", "rstd", "dx", "dr", "dw"])
def test_each_tensor_with_a_residual_is_asked_for_each_behaviour(tensor: str) -> None:
    case = dataclasses.replace(CASE, residual=True)
    assert observed(tensor, lambda call, case: False, case) == Behaviour()
    assert observed(tensor, lambda call, case: call == 3, case).unrepeated == (tensor,)
    alone = observed(tensor, lambda call, case: case.n_rows == 1, case)
    assert alone.batch_dependent == (() if tensor == "dw" else (tensor,))
