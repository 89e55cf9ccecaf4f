"""What is measured and how a finding reads: written out."""

from __future__ import annotations

import numpy as np
import pytest

from references.bounds.bound import Bound
from references.judge.comparison import Comparison, Finding, _quarters


def test_errors_are_counted_by_quarter_ulps_and_beyond_four_together() -> None:
    ulps = np.array([-100, -4.25, -4.24, -4.0, -0.25, -0.1, 0, 0.24, 0.25, 3.99, 4.0, 100], np.longdouble)
    assert _quarters(ulps) == {-4.25: 3, -4.0: 1, -0.25: 2, 0.0: 2, 0.25: 1, 3.75: 1, 4.0: 2}
    assert _quarters(ulps[:0]) == {}


@pytest.mark.parametrize("tensor", ["y", "rstd", "dx", "dw"])
def test_the_sign_of_zero_counts_in_y_alone(tensor: str) -> None:
    def special(got: float, wanted: float) -> list[str]:
        values = np.full(4, wanted, np.float32)
        found = values.copy()
        found[2] = got
        bound = Bound(values.astype(np.longdouble), {"a": np.full(4, 1, np.longdouble)}, "float32")
        findings = Comparison(tensor, found, values, bound, "llama", False).findings()
        return [f.message for f in findings if f.check == "special"]

    signs = ["sign of zero differs in 1 of 4 elements"] if tensor == "y" else []
    assert special(0.0, -0.0) == special(-0.0, 0.0) == signs
    assert special(0.0, 0.0) == special(-0.0, -0.0) == special(0.0, -0.5) == special(-0.5, 0.5) == []


def test_a_finding_reads_as_a_sentence() -> None:
    whole = Finding("value", "y", "is off", (1, 2), 1.5, 1.25, "0x3fc0", "0x3fa0", 32, 7.5, "rstd", "row 3: the grid")
    start = "value: y[1, 2]: is off; got 1.5 (0x3fc0), wanted 1.25 (0x3fa0), 32 ulp apart, 7.5 of the tolerance"
    assert str(whole) == f"{start}, whose largest term is rstd; row 3: the grid"
    bare = Finding("value", "y", "is off", (1, 2), 1.5, 1.25, "0x3fc0", "0x3fa0", 32, 7.5)
    assert str(bare) == start
    assert str(Finding("run", "dx", "raised E")) == "run: dx: raised E"


@pytest.mark.parametrize("got", [np.ones(4, np.float16), np.ones((2, 2), np.float32), np.ones(3, np.float16)])
def test_of_another_dtype_or_shape_nothing_is_measured(got: np.ndarray) -> None:
    wanted = np.ones(4, np.float32)
    bound = Bound(wanted.astype(np.longdouble), {"a": np.ones(4, np.longdouble)}, "float32")
    assert Comparison("y", got, wanted, bound, "llama", False).measure() is None
    assert Comparison("y", wanted, wanted, bound, "llama", False).measure() is not None
