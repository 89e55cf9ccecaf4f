"""Verdicts: what a finding says, what is measured, and the contract, with candidates that come through the door."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from references import numpy_reference
from references.bounds.bound import Bound
from references.candidates.kinds import Candidate
from references.candidates.loading import load
from references.candidates.outputs import Outputs
from references.cells.cell import Case, make_inputs
from references.cells.levels import COVERING, MATRIX
from references.judge.comparison import Comparison
from references.judge.verdict import Verdict, check

GEMMA = Case("gemma", 0.5, "float32", "same", False, (2, 4, 41), 1e-5)


class Pair:
    """The NumPy reference with results changed by `alter(name, array)`."""

    def __init__(self, alter: Callable[[str, np.ndarray], np.ndarray]) -> None:
        self.alter = alter

    def forward(self, x, w, *, eps, offset, casting_mode):
        self.about = {"eps": eps, "offset": offset, "casting_mode": casting_mode}
        y, rstd = numpy_reference.forward(x, w, **self.about)
        return self.alter("y", y), self.alter("rstd", rstd)

    def backward(self, dy, x, w):
        dx, dw = numpy_reference.backward(dy, x, w, **self.about)
        return self.alter("dx", dx), None if dw is None else self.alter("dw", dw)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Verdict]:
    def judge(candidate: Any, case: Case = GEMMA) -> Verdict:
        module = types.ModuleType("a_candidate")
        module.it = candidate
        monkeypatch.setitem(sys.modules, "a_candidate", module)
        return check(load("a_candidate:it"), case)

    return judge


def test_a_finding_names_element_values_bits_ulps_ratio_and_term(judge: Callable[..., Verdict]) -> None:
    inputs = make_inputs(GEMMA)
    right, _ = numpy_reference.forward(inputs.x, inputs.w, eps=1e-5, offset=0.5, casting_mode="gemma")

    def alter(name: str, array: np.ndarray) -> np.ndarray:
        if name == "y":
            array[1, 2, 3] *= np.float32(1.001)
        return array

    verdict = judge(Pair(alter))
    assert verdict.status == "fail"
    (finding,) = verdict.findings
    wanted, got = right[1, 2, 3], right[1, 2, 3] * np.float32(1.001)
    assert (finding.check, finding.tensor, finding.index) == ("value", "y", (1, 2, 3))
    assert (finding.got, finding.wanted) == (float(got), float(wanted))
    assert finding.got_bits == f"0x{got.view(np.uint32):08x}"
    assert finding.wanted_bits == f"0x{wanted.view(np.uint32):08x}"
    assert finding.ulps == int(got.view(np.uint32)) - int(wanted.view(np.uint32))
    assert finding.ratio is not None and finding.ratio > 100
    assert finding.largest_term in verdict.measures["y"].terms
    for part in ("value: y[1, 2, 3]", "1 of 328", repr(float(got)), finding.wanted_bits, "ulp", "tolerance"):
        assert part in str(finding)
    measure = verdict.measures["y"]
    assert measure.worst == (1, 2, 3) and measure.ratio == pytest.approx(finding.ratio)
    assert measure.max_ulps == finding.ulps
    assert measure.exact == measure.bounded - 1 == 327


def test_bias_is_the_mean_error_in_ulps_of_the_result(judge: Callable[..., Verdict]) -> None:
    def up(name: str, array: np.ndarray) -> np.ndarray:
        return np.nextafter(array, array.dtype.type(np.inf)) if name == "y" else array

    case = dataclasses.replace(GEMMA, dtype="bfloat16")
    assert judge(Pair(lambda name, array: array), case).measures["y"].bias == pytest.approx(0, abs=0.1)
    assert judge(Pair(up), case).measures["y"].bias == pytest.approx(1, abs=0.1)


def test_the_exact_rate_is_demanded_where_no_enclosure_decides() -> None:
    wanted = np.ones(1000, np.float16)
    got = wanted.copy()
    got[::20] = np.nextafter(np.float16(1), np.float16(2))
    value = wanted.astype(np.longdouble)
    bound = Bound(value, {"rounding": value}, "float16")

    def findings(got: np.ndarray, demanded: bool = True) -> list[str]:
        return [str(f) for f in Comparison("y", got, wanted, bound, "gemma", demanded).findings()]

    assert findings(wanted) == []
    (low,) = findings(got)
    assert "0.9500 of the elements equal the reference" in low
    assert findings(got, demanded=False) == []
    far = wanted.copy()
    far[7] = np.float16(1.5)
    (single,) = findings(far)
    assert "y[7]" in single and "at most 1 ulp" in single


def test_a_result_within_the_tolerance_but_outside_the_enclosure_is_misrounded() -> None:
    wanted = np.ones(4, np.float16)
    got = wanted.copy()
    got[2] = np.nextafter(np.float16(1), np.float16(0))
    value = wanted.astype(np.longdouble)
    bound = Bound(value, {"rounding": value}, "float16", (wanted, wanted))
    (finding,) = Comparison("y", got, wanted, bound, "llama", exactness=False).findings()
    assert (finding.check, finding.index, finding.ulps) == ("rounding", (2,), 1)
    assert "rounding points of llama in 1 of 4" in finding.message
    assert Comparison("y", wanted, wanted, bound, "llama", exactness=False).findings() == []


@pytest.mark.parametrize(("got", "kind"), [(np.nan, "NaN"), (-np.inf, "infinity"), (1.0, "infinity"), (np.inf, None)])
def test_the_pattern_of_an_infinite_result(got: float, kind: str | None) -> None:
    wanted = np.full(3, np.inf, np.float32)
    result = np.array([np.inf, got, np.inf], np.float32)
    bound = Bound(wanted.astype(np.longdouble), {"rounding": np.ones(3, np.longdouble)}, "float32")
    findings = Comparison("dx", result, wanted, bound, "llama", exactness=False).findings()
    assert [(f.check, f.index) for f in findings] == ([] if kind is None else [("special", (1,))] * len(findings))
    assert kind is None or kind in " ".join(map(str, findings))


def test_where_bounds_do_not_apply_the_pattern_is_compared(judge: Callable[..., Verdict]) -> None:
    overflowing = next(c for c in COVERING if c.data == "huge" and c.dtype == "float16" and c.n_rows)
    case = dataclasses.replace(overflowing, casting_mode="none")  # x·x leaves float16
    verdict = judge(Pair(lambda name, array: array), case)
    assert verdict.status == "pass" and verdict.measures["y"].bounded < verdict.measures["y"].elements
    verdict = judge(Pair(lambda name, array: array + array.dtype.type(np.inf)), case)
    assert "infinity" in str(verdict.findings[0])
    assert verdict.measures["y"].ratio == np.inf


def test_without_rows_shapes_dtypes_and_a_zero_dw_are_checked(judge: Callable[..., Verdict]) -> None:
    case = dataclasses.replace(GEMMA, shape=(0, 5))
    assert judge(Pair(lambda name, array: array), case).status == "pass"
    verdict = judge(Pair(lambda name, array: array + (name == "dw")), case)
    assert [(f.check, f.tensor) for f in verdict.findings] == [("value", "dw")]
    verdict = judge(Pair(lambda name, array: array.astype(np.float64)), case)
    assert [(f.check, f.tensor) for f in verdict.findings] == [("dtype", t) for t in ("y", "rstd", "dx", "dw")]


def test_a_gradient_for_no_weight_is_a_finding() -> None:
    case = dataclasses.replace(GEMMA, weight="none")

    class Extra(Candidate):
        def _run(self, case: Case, inputs: Any, outputs: Outputs) -> None:
            outputs.y = outputs.dx = inputs.x
            outputs.dw = inputs.x

    everything = types.SimpleNamespace(meanings={"x", "w", "eps", "offset", "casting_mode"})
    verdict = check(Extra("extra", None, "cpu", everything), case)
    assert any("there is no weight" in f.message for f in verdict.findings)


@pytest.mark.torch
def test_what_a_signature_cannot_express_is_unsupported_not_passed(judge: Callable[..., Verdict]) -> None:
    verdict = judge(lambda x, w, eps: x)
    assert (verdict.status, verdict.reason) == ("unsupported", "no casting_mode argument")
    assert verdict.measures == {} and verdict.findings == []


@pytest.mark.torch
@pytest.mark.parametrize("case", MATRIX[::10], ids=lambda case: case.id)
def test_an_independent_torch_candidate_passes(case: Case) -> None:
    assert check(load("references.torch_reference"), case).findings == []


# The contract


def norm(write: Callable[..., Any], returns: Callable[..., Any] = lambda x, y: y) -> Any:
    """An autograd function over the torch reference; `write(x, dy, rstd, dx) -> dx` misbehaves in the backward."""
    import torch

    from references import torch_reference

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, eps, offset, casting_mode, in_place):
            ctx.about = {"eps": eps, "offset": offset, "casting_mode": casting_mode}
            y, rstd = torch_reference.forward(x, w, **ctx.about)
            ctx.save_for_backward(x, w, rstd)
            ctx.in_place = in_place
            return returns(x, y)

        @staticmethod
        def backward(ctx, dy):
            x, w, rstd = ctx.saved_tensors
            dx, dw = torch_reference.backward(dy, x, w, **ctx.about)
            return write(x, dy, rstd, dx, ctx.in_place), dw, None, None, None, None

    return Norm


def behaves(x, dy, rstd, dx, in_place):
    return dx


def over_dy(x, dy, rstd, dx, in_place):
    return dy.copy_(dx) if all(dy.stride()) else dx


def over_dy_if_allowed(x, dy, rstd, dx, in_place):
    return dy.copy_(dx) if in_place and dy.is_contiguous() else dx


def over_x(x, dy, rstd, dx, in_place):
    x.data[0, 0, 0] += 1
    return dx


def over_rstd(x, dy, rstd, dx, in_place):
    rstd.zero_()
    return dx


def over_padding(x, dy, rstd, dx, in_place):
    dy.as_strided((8,), (1,), 0).zero_()
    return dx


IN_PLACE = dataclasses.replace(GEMMA, in_place=True)
STRIDED = dataclasses.replace(IN_PLACE, dy_layout="column_strided")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("write", "case", "tensor", "says"),
    [
        (behaves, GEMMA, None, ""),
        (behaves, IN_PLACE, None, ""),
        (over_dy_if_allowed, GEMMA, None, ""),
        (over_dy_if_allowed, IN_PLACE, None, ""),
        (over_dy_if_allowed, STRIDED, None, ""),
        (over_dy, IN_PLACE, None, ""),
        (over_dy, GEMMA, "dy", "overwritten, but in_place=False"),
        (over_dy, GEMMA, "dx", "shares the storage of dy, but in_place=False"),
        (over_dy, STRIDED, "dy", "overwritten, but dY is not dense"),
        (over_dy, STRIDED, "dx", "but dY is not dense"),
        (over_x, IN_PLACE, "x", "overwritten"),
        (over_rstd, IN_PLACE, "rstd", "overwritten"),
        (over_padding, GEMMA, "dy", "outside the tensor"),
    ],
)
def test_what_may_be_written(
    judge: Callable[..., Verdict], write: Any, case: Case, tensor: str | None, says: str
) -> None:
    findings = [f for f in judge(norm(write), case).findings]
    if tensor is None:
        assert findings == []
    else:
        assert any(f.check == "contract" and f.tensor == tensor and says in f.message for f in findings)


@pytest.mark.torch
def test_the_input_itself_may_not_come_back(judge: Callable[..., Verdict]) -> None:
    verdict = judge(norm(behaves, returns=lambda x, y: x.view_as(x)))
    assert {(f.check, f.tensor) for f in verdict.findings} >= {("value", "y"), ("contract", "y")}


@pytest.mark.torch
def test_exceptions_become_findings_with_their_text(judge: Callable[..., Verdict]) -> None:
    def fails(x, dy, rstd, dx, in_place):
        raise RuntimeError("no gradient today")

    verdict = judge(norm(fails))
    assert [(f.check, f.tensor, f.message) for f in verdict.findings] == [
        ("run", "dx", "raised RuntimeError: no gradient today")
    ]
    assert verdict.measures["y"].ratio <= 1  # what was returned before is judged all the same


@pytest.mark.torch
def test_an_output_without_gradient_is_a_finding(judge: Callable[..., Verdict]) -> None:
    verdict = judge(lambda x, w, eps, offset, casting_mode: x.detach() * 1)
    assert ("run", "dx") in {(f.check, f.tensor) for f in verdict.findings}


def test_signed_errors_are_counted_in_quarter_ulps(judge: Callable[..., Verdict]) -> None:
    case = dataclasses.replace(GEMMA, dtype="bfloat16")
    spread = judge(Pair(lambda name, array: array), case).measures["y"]
    assert sum(spread.errors.values()) == spread.bounded
    assert set(spread.errors) == {-0.5, -0.25, 0.0, 0.25}  # one rounding to nearest
    upwards = judge(Pair(lambda name, array: array + 2 * np.abs(np.spacing(array))), case).measures["y"]
    assert min(upwards.errors) >= 0.75 and upwards.bias > 1.5  # an ulp is half as wide below a power of two
    far = judge(Pair(lambda name, array: array * 2), case).measures["y"].errors
    assert set(far) == {-4.25, 4.0}


@pytest.mark.parametrize("shape", [(2, 4, 41), (41,), (0, 41)])
def test_cancellation_is_measured_by_row(judge: Callable[..., Verdict], shape: tuple[int, ...]) -> None:
    measures = judge(Pair(lambda name, array: array), dataclasses.replace(GEMMA, shape=shape)).measures
    rows = measures["dx"].cancellation
    assert len(rows) == np.prod(shape[:-1]) and all(condition >= 1 and worst > 0 for condition, worst in rows)
    assert measures["y"].cancellation == ()
