"""Where a check says no: a planted result just outside each limit fails, and one just inside passes."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from references import numpy_reference
from references.arrays import numpy_dtype
from references.bounds.bound import Bound
from references.candidates.memory import Contract
from references.candidates.outputs import Outputs
from references.cells.cell import Case, Inputs
from references.judge.comparison import Comparison, Finding
from references.judge.verdict import check

TENSORS = ("y", "rstd", "dx", "dw")
DTYPES = ("float16", "bfloat16", "float32", "float64")
CONTRACT = Contract((), (), (), dy_dense=True)


def at(dtype: str, factor: float) -> tuple[Comparison, np.ndarray]:
    """A tensor of ones with a tolerance of 1/8, of which one element misses its value by `factor` tolerances."""
    kind = numpy_dtype(dtype)
    value = np.ones((3, 4), np.longdouble)
    got = np.ones((3, 4), kind)
    got[1, 2] = 1 + factor / 8
    assert float(got[1, 2]) == 1 + factor / 8, "the factor is no number of the dtype"
    bound = Bound(value, {"a": value / 16, "b": value / 16}, dtype)
    return Comparison("y", got, np.ones((3, 4), kind), bound, "llama", False), got


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [-1.125, -0.875, 0.875, 1.0, 1.125])
def test_a_value_fails_beyond_its_tolerance(factor: float, dtype: str, tensor: str) -> None:
    comparison = dataclasses.replace(at(dtype, factor)[0], tensor=tensor)
    findings = [f for f in comparison.findings() if f.check == "value"]
    assert [(f.tensor, f.index) for f in findings] == ([(tensor, (1, 2))] if abs(factor) > 1 else [])
    measure = comparison.measure()
    assert measure is not None
    assert measure.ratio == abs(factor) and measure.worst == (1, 2)
    assert (measure.elements, measure.bounded, measure.exact) == (12, 12, 11)
    if findings:
        assert findings[0].ratio == abs(factor)
        assert "in 1 of 12 elements" in findings[0].message


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32"))
@pytest.mark.parametrize("steps", [-2, -1, 0, 1, 2])
def test_bits_fail_beyond_their_enclosure(steps: int, dtype: str, tensor: str) -> None:
    kind = numpy_dtype(dtype)
    one = np.ones((3, 4), kind)
    step = float(ml_dtypes.finfo(kind).eps)
    low, high = (one + np.array(d * step, kind) for d in (-1, 1))
    got = one.copy()
    got[0, 3] = 1 + steps * step
    bound = Bound(one.astype(np.longdouble), {"a": one.astype(np.longdouble)}, dtype, (low, high))
    findings = Comparison(tensor, got, one, bound, "llama", False).findings()
    assert [(f.check, f.index) for f in findings] == ([("rounding", (0, 3))] if abs(steps) > 1 else [])


@pytest.mark.parametrize("wrong", range(7))
def test_the_exact_rate_of_bfloat16_is_999_in_1000(wrong: int) -> None:
    one = np.ones(5000, ml_dtypes.bfloat16)
    got = one.copy()
    got[:wrong] = 1 + 2.0**-7
    bound = Bound(one.astype(np.longdouble), {"a": one.astype(np.longdouble)}, "bfloat16")
    findings = Comparison("y", got, one, bound, "gemma", True).findings()
    # 5 of 5,000, or by chance 0.5 + 4·√0.5 + 2: the larger is 5
    assert [f.check for f in findings] == (["exact"] if wrong > 5 else [])


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", "0x0000"), ("float32", 8 * "0"), ("float64", 16 * "0")])
def test_bits_are_told_in_all_their_digits(dtype: str, bits: str) -> None:
    kind = numpy_dtype(dtype)
    one = np.ones((3, 4), kind)
    got = one.copy()
    got[1, 2] = 0
    bound = Bound(one.astype(np.longdouble), {"a": one.astype(np.longdouble) / 8}, dtype)
    (found,) = Comparison("y", got, one, bound, "llama", False).findings()
    assert (found.index, found.got_bits) == ((1, 2), f"0x{bits.removeprefix('0x')}")


@pytest.mark.parametrize(("steps", "counts"), [(1, True), (2, False)])
def test_bits_count_where_no_more_than_two_roundings_are_open(steps: int, counts: bool) -> None:
    """Ends of an enclosure that are two representable numbers apart, or four."""
    one = np.ones(5000, ml_dtypes.bfloat16)
    got = one + ml_dtypes.bfloat16(2.0**-7)
    low = one - ml_dtypes.bfloat16(steps * 2.0**-8)
    high = one + ml_dtypes.bfloat16(steps * 2.0**-7)
    bound = Bound(one.astype(np.longdouble), {"a": one.astype(np.longdouble)}, "bfloat16", (low, high))
    checks = [f.check for f in Comparison("y", got, one, bound, "gemma", True).findings()]
    assert checks == (["exact"] if counts else [])


def test_the_pattern_of_too_many_ulps_is_of_those_elements_alone() -> None:
    """A row two ulps off, where one is allowed, and an element of another row that is one ulp off."""
    one = np.ones((100, 50), ml_dtypes.bfloat16)
    got = one.copy()
    got[7], got[30, 4] = 1 + 2.0**-6, 1 + 2.0**-7
    bound = Bound(one.astype(np.longdouble), {"a": one.astype(np.longdouble)}, "bfloat16")
    rate, ulps = Comparison("y", got, one, bound, "gemma", True).findings()
    assert rate.pattern is not None and "scattered" in rate.pattern
    assert ulps.message == "at most 1 ulp from the reference is allowed"
    assert ulps.pattern is not None and ulps.pattern.startswith("row 7, by one factor 1.0156"), ulps.pattern


@dataclasses.dataclass
class Altered:
    """The NumPy reference, of which one result is missing, or has an element moved."""

    tensor: str = ""
    factor: float = 0.0
    name: str = "altered"
    device: str = "cpu"
    ignored: tuple[str, ...] = ()

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        about: dict[str, Any] = {"eps": case.eps, "offset": case.offset, "casting_mode": case.casting_mode}
        y, rstd = numpy_reference.forward(inputs.x, inputs.w, **about)
        dx, dw = numpy_reference.backward(inputs.dy, inputs.x, inputs.w, **about)
        found = Outputs(y, rstd, dx, dw, contract=CONTRACT)
        if self.tensor and self.factor == 0:
            return dataclasses.replace(found, **{self.tensor: None})
        if self.tensor:
            from references.judge.verdict import reference_bounds

            bound = reference_bounds(case, inputs)[self.tensor]
            got = getattr(found, self.tensor)
            # A number at about `factor` tolerances from the truth, by the sign that leads away from zero.
            index = int(np.argmax(np.abs(bound.value)))
            far = bound.value.flat[index] * (
                1 + self.factor * bound.tolerance.flat[index] / abs(bound.value.flat[index])
            )
            got.flat[index] = far
        return found


@pytest.mark.parametrize(("dtype", "weight"), list(itertools.product(DTYPES, ("same", *DTYPES))))
def test_each_gradient_is_missed_beside_every_dtype_of_the_weight(dtype: str, weight: str) -> None:
    case = Case("llama", 0.5, dtype, weight, False, (2, 5), 0.7)
    assert check(Altered(), case).status == "pass"
    for tensor in ("dx", "dw"):
        verdict = check(Altered(tensor), case)
        assert [(f.check, f.tensor, f.message) for f in verdict.findings] == [
            ("run", tensor, "no gradient was returned")
        ]
        assert verdict.status == "fail"
    verdict = check(Altered("y"), case)
    assert ("run", "y", "nothing was returned") in [(f.check, f.tensor, f.message) for f in verdict.findings]


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("mode", ("llama", "gemma", "none"))
def test_a_cell_fails_where_one_element_is_beyond_its_bound(mode: str, dtype: str, tensor: str) -> None:
    # Several numbers fit into a bound of these dtypes, so that a factor can be hit: at most a spacing off.
    case = Case(mode, 0.5, dtype, "same", False, (33, 257), 0.7, data="constant_rows")
    assert check(Altered(), case).status == "pass"
    outside = check(Altered(tensor, 1.5), case)
    (finding,) = [f for f in outside.findings if (f.check, f.tensor) == ("value", tensor)]
    assert finding.ratio is not None and 1 < finding.ratio < 2.5
    inside = check(Altered(tensor, 0.9), case)
    assert [f for f in inside.findings if f.check == "value"] == []


def test_a_finding_of_any_tensor_fails_the_cell() -> None:
    case = Case("gemma", 0.5, "float32", "same", False, (2, 5), 0.7)
    for tensor in TENSORS:
        verdict = check(Altered(tensor, 1e6), case)
        assert verdict.status == "fail" and {f.tensor for f in verdict.findings} == {tensor}


def test_a_pattern_is_one_element_or_none() -> None:
    value = np.full(4, np.inf, np.longdouble)
    wanted = value.astype(np.float32)
    bound = Bound(value, {"a": np.ones(4, np.longdouble)}, "float32")

    def found(*values: float) -> list[Finding]:
        return Comparison("dx", np.array(values, np.float32), wanted, bound, "llama", False).findings()

    assert found(np.inf, np.inf, np.inf, np.inf) == []
    for got, name in ((np.nan, "NaN"), (-np.inf, "infinity"), (1.0, "infinity")):
        (finding, *_) = found(np.inf, got, np.inf, np.inf)
        assert finding.message.startswith(f"{name} differs in 1 of 4 elements") and finding.index == (1,)
