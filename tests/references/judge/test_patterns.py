"""Planted errors of a known place are described by that place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from references.arrays import numpy_dtype
from references.bounds.tolerances import forward_bounds
from references.cells.cell import Case
from references.judge.comparison import Comparison, Finding
from references.judge.patterns import pattern
from references.judge.verdict import Verdict
from references.report.explanation import explain
from references.report.files import as_json
from references.report.terminal import complaints
from references.spec import DTYPES

ROWS, COLUMNS = 32, 800
RNG = np.random.default_rng(7)
VALUE = RNG.standard_normal((ROWS, COLUMNS))


def wrong_in(
    rows: object, columns: object, change: Callable = lambda v: v + RNG.standard_normal(v.shape)
) -> str | None:
    got = VALUE.copy()
    where = np.ix_(np.arange(ROWS)[rows], np.arange(COLUMNS)[columns])
    got[where] = change(got[where])
    return pattern(got != VALUE, got, VALUE)


ALL = slice(None)


@pytest.mark.parametrize(
    ("rows", "columns", "says"),
    [
        (ALL, slice(512, None), "columns 512 and up: usually a mask or a chunk loop ends early"),
        (ALL, slice(777, None), "columns 777 and up: usually the end of the row is cut"),
        (ALL, slice(0, 64), "columns up to 63: usually the first chunk"),
        (ALL, slice(256, 512), "columns 256 to 511: usually one chunk is left out"),
        (ALL, slice(3, None, 8), "every 8th column from 3: usually a stride"),
        (ALL, [5], "column 5: usually one weight"),
        (ALL, [COLUMNS - 1], "column 799 (the last): usually one weight, one lane of a vector, or a mask"),
        (slice(24, None), ALL, "rows 24 and up: usually the grid"),
        ([7], ALL, "row 7: usually the RSTD or the address"),
        (slice(0, None, 4), ALL, "every 4th row from 0: usually the rows of a program"),
        (slice(16, None), slice(512, None), "columns 512 and up of rows 16 and up: usually a mask or a chunk loop"),
        ([7], slice(512, None), "columns 512 and up of row 7: usually"),
        ([2], [3], "column 3 of row 2: usually"),
        ([1, 2, 8, 20, 21], ALL, "5 of 32 rows: usually a term"),
        (ALL, ALL, "all elements: usually a term of the formula"),
    ],
)
def test_places(rows: object, columns: object, says: str) -> None:
    found = wrong_in(rows, columns)
    assert found is not None and found.startswith(says), found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda v: 2 * v, "all elements, by one factor 2: usually a constant"),
        (lambda v: v * np.sqrt(800 / 1024), "all elements, by one factor 0.884: usually a constant"),
        (lambda v: v * 1.0005 * (1 + 1e-6 * RNG.standard_normal(v.shape)), "all elements, by one factor 1.0005"),
        (lambda v: v * RNG.uniform(2, 3, (ROWS, 1)), "all elements, each row by a factor of its own: usually RSTD"),
        (
            lambda v: v * RNG.uniform(2, 3, COLUMNS),
            "all elements, each column by a factor of its own: usually the weig",
        ),
        (lambda v: v * np.nan, "all elements, all NaN: usually memory that nobody wrote"),
        (
            lambda v: (2 * v + 1).astype(np.float32),
            "all elements, each a float32 number: usually a computation in float32",
        ),
        (lambda v: 0 * v, "all elements, all 0: usually results that are never stored"),
    ],
)
def test_contents(change: Callable, says: str) -> None:
    found = wrong_in(ALL, ALL, change)
    assert found is not None and found.startswith(says), found


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_can_be_looked_at(dtype: str) -> None:
    got, value = (2 * VALUE).astype(numpy_dtype(dtype)), VALUE.astype(np.longdouble)
    assert pattern(got != value, got, value) in (
        "all elements, by one factor 2: usually a constant, such as the width that a mean divides by",
        "all elements, by one factor 2.00001: usually a constant, such as the width that a mean divides by",
    )


def test_a_tail_of_nan_says_both() -> None:
    assert wrong_in(ALL, slice(512, None), lambda v: v * np.nan) == (
        "columns 512 and up, all NaN: usually a mask or a chunk loop ends early"
    )


def test_some_of_a_pattern_may_be_right_by_chance() -> None:
    got = VALUE.copy()
    got[:, 512:] = np.where(RNG.random((ROWS, COLUMNS - 512)) < 0.9, VALUE[:, 512:] + 1, VALUE[:, 512:])
    assert str(pattern(got != VALUE, got, VALUE)).startswith("columns 512 and up")


def test_scattered_errors_have_no_place() -> None:
    wrong = RNG.random(VALUE.shape) < 0.26
    found = pattern(wrong, VALUE + wrong, VALUE)
    assert found is not None and f"{wrong.sum()} of {wrong.size} elements, scattered: usually a rounding" in found


def test_a_single_row_can_be_scattered_too() -> None:
    wrong = np.zeros(41, bool)
    wrong[[3, 4, 7, 15, 16, 29, 31]] = True
    found = pattern(wrong, VALUE[0, :41] + wrong, VALUE[0, :41])
    assert found is not None and found.startswith("7 of 41 elements, scattered: usually a rounding")


def test_a_float32_computed_in_16_bits() -> None:
    got = VALUE.astype(np.float16).astype(np.float32)
    assert str(pattern(got != VALUE, got, VALUE)).startswith("all elements, each a float16 number")
    some = np.where(RNG.random(VALUE.shape) < 0.3, got, VALUE.astype(np.float32))
    assert ", scattered, each a float16 number: usually a computation in float16" in str(
        pattern(some == got, some, VALUE)
    )


def test_nothing_wrong_and_a_single_element_say_nothing() -> None:
    assert pattern(np.zeros((2, 3), bool), np.ones((2, 3)), np.ones((2, 3))) is None
    assert pattern(np.ones((1, 1), bool), np.ones((1, 1)), np.zeros((1, 1))) is None


def test_one_value_a_row_has_rows_alone() -> None:
    value = RNG.uniform(1, 2, (ROWS, 1))
    got = value.copy()
    got[20:] = 0
    assert str(pattern(got != value, got, value)).startswith("rows 20 and up, all 0")


def test_findings_carry_the_pattern_to_every_report() -> None:
    x = RNG.standard_normal((2, 3, 128)).astype(np.float32)
    bounds = forward_bounds(x, None, eps=1e-6, offset=0.0, casting_mode="llama")
    wanted = {name: bounds[name].value.astype(np.float32) for name in ("y", "rstd")}
    y, rstd = wanted["y"].copy(), wanted["rstd"].copy()
    y[..., 64:] = 0
    rstd[1, 2] *= 2

    def only(tensor: str, got: np.ndarray) -> Finding:
        (finding,) = Comparison(tensor, got, wanted[tensor], bounds[tensor], "llama", exactness=True).findings()
        return finding

    finding = only("y", y)
    assert finding.pattern == "columns 64 and up, all 0: usually a mask or a chunk loop ends early"
    assert str(only("rstd", rstd).pattern).startswith("row 5 (the last): usually the RSTD")
    case = Case("llama", 0.0, "float32", "none", False, (2, 3, 128), 1e-6)
    verdict = Verdict(case, "fail", findings=[finding])
    assert (
        as_json([verdict], {"implementation": "a:norm", "device": "cpu"}, 1)["cells"][0]["findings"][0]["pattern"]
        == finding.pattern
    )
    assert finding.pattern in complaints([verdict])[-1] and finding.pattern in explain(verdict)[-1]
    assert str(dataclasses.replace(finding, pattern=None)) in str(finding)
