"""Several runs of one cell: bits that do not repeat, results that outlive their inputs, rows that see the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from references import arrays
from references.candidates.loading import load
from references.candidates.memory import Arguments
from references.candidates.outputs import Implementation
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


def scripted(*runs: dict[str, Any]) -> Behaviour:
    """What is observed where call after call has these results; a tensor that is not named is None."""
    left = iter(runs)

    def arrange(case: Case, inputs: Inputs) -> Arguments:
        return Arguments(case, inputs, "numpy", "cpu")

    def run(case: Case, arguments: Any) -> dict[str, np.ndarray | None]:
        return dict.fromkeys(("y", "rstd", "dx", "dw")) | next(left)

    return observe(CASE, make_inputs(CASE), arrange, run)


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("content", "tells"),
    [
        ([1.0, 0.0, 0.0], True),
        ([-1.0, NAN, INF], True),
        ([0.0, 0.0, -0.0], False),  # it would be the same of any input
        ([NAN, NAN, NAN], False),
        ([INF, -INF, 0.0], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("tensor", ["y", "dx", "dw", "rstd"])
def test_the_same_of_other_inputs_is_stale_where_it_tells_inputs_apart(
    tensor: str, content: list[float], tells: bool
) -> None:
    value = {tensor: np.array(content, np.float32)}
    found = scripted(value, value, value, value)
    assert found.stale == ((tensor,) if tells and tensor != "rstd" else ()), "1/rms is even in X"
    assert found.unrepeated == ()


OTHER_NAN = np.array([0x7FC00001], np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("first", "again", "same"),
    [
        (np.float32([1, 2]), np.float32([1, 2]), True),
        (np.float32([1, 2]), np.float32([2, 2]), False),
        (np.float32([1, 2]), np.float32([1, 3]), False),
        (np.float32([0]), np.float32([-0.0]), False),
        (np.float32([NAN]), OTHER_NAN, True),  # all NaN are one
        (np.float32([NAN]), np.float32([1]), False),
        (np.float32([1]), np.float32([NAN]), False),
        (np.float32([1, 2]), np.float32([1, 2, 3]), False),
        (np.float32([1, 2]), np.float32([[1], [2]]), False),
        (np.float32([0]), np.float64([0]), False),
        (np.float32([0]), np.float16([0]), False),
        (np.float32([1, 2]), None, False),
    ],
)
def test_bits_repeat_or_not(first: np.ndarray, again: np.ndarray | None, same: bool) -> None:
    found = scripted({"y": first}, {"y": None}, {"y": again}, {"y": first})
    assert found.unrepeated == (() if same else ("y",)) and found.stale == ()


@pytest.mark.parametrize("tensor", ["y", "rstd", "dx"])
def test_a_row_alone_has_the_shape_of_one_row_and_its_bits(tensor: str) -> None:
    shape = CASE.shape if tensor != "rstd" else CASE.shape[:-1]
    batch = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    row = batch[-1:, -1:]

    def dependent(alone: np.ndarray | None, batch: np.ndarray = batch) -> bool:
        found = scripted(*3 * [{tensor: batch}], {tensor: alone})
        assert found.batch_dependent is not None
        return tensor in found.batch_dependent

    assert not dependent(row)
    assert dependent(row + 1) and dependent(None)
    assert dependent(batch[:1, :1]), "the first row is not the last"
    assert dependent(row.reshape(-1)), "a row that lost its dimensions"
    assert not dependent(row, batch.reshape(-1)), "a wrong shape is a finding of its own"


@pytest.mark.parametrize(("n_rows", "asked"), [(0, False), (1, False), (2, True)])
def test_a_row_is_run_alone_where_it_is_not_alone(n_rows: int, asked: bool) -> None:
    case = dataclasses.replace(CASE, shape=(n_rows, 5))
    found = observed("y", lambda call, case: False, case)
    assert found.batch_dependent == (() if asked else None)


@pytest.mark.parametrize("tensor", ["y", "s", "rstd", "dx", "dr", "dw"])
def test_each_tensor_with_a_residual_is_asked_for_each_behaviour(tensor: str) -> None:
    case = dataclasses.replace(CASE, residual=True)
    assert observed(tensor, lambda call, case: False, case) == Behaviour()
    assert observed(tensor, lambda call, case: call == 3, case).unrepeated == (tensor,)
    alone = observed(tensor, lambda call, case: case.n_rows == 1, case)
    assert alone.batch_dependent == (() if tensor == "dw" else (tensor,))
