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
from references.candidates.repetition import Behaviour
from references.cells.cell import LAYOUT_CODES, Case, Inputs, make_inputs
from references.cells.levels import MATRIX, SMOKE
from references.judge.verdict import check, plainest

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
