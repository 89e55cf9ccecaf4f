"""Every cell of the matrix and the covering set, with a residual too, on the kernels and on the CPU implementation."""

from __future__ import annotations

from typing import Any

import pytest

from references.candidates import loading
from references.candidates.outputs import Implementation
from references.candidates.profile import Profile
from references.cells.cell import Case
from references.cells.levels import COVERING, MATRIX
from references.judge.verdict import check

pytestmark = pytest.mark.torch
STREAM = Profile(residual=(True,))
CELLS = (*MATRIX, *COVERING, *STREAM.cells("matrix"), *STREAM.cells("smoke"))


def candidate(device: str, case: Case) -> Implementation:
    name = "liger_fused_add_rms_norm" if case.residual else "liger_rms_norm"
    return loading.load(f"rmsnorm:{name}", device=device)


def assert_passes(device: str, case: Case) -> None:
    verdict = check(candidate(device, case), case, STREAM if case.residual else Profile())
    assert verdict.status == "pass", "\n".join(str(finding) for finding in verdict.findings) or verdict.reason
    expected = {"y", "rstd", "dx"} | ({"dw"} if case.w_dtype is not None else set())
    expected |= {"s", "dr"} if case.residual else set()
    if 0 not in case.shape:
        assert set(verdict.measures) == expected, "a tensor was not compared"


@pytest.mark.interpret
@pytest.mark.parametrize("case", CELLS, ids=lambda case: case.id)
def test_interpreted_kernels(case: Case) -> None:
    assert_passes("cpu", case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CELLS, ids=lambda case: case.id)
def test_compiled_kernels(case: Case) -> None:
    assert_passes("cuda", case)


@pytest.mark.parametrize("case", CELLS, ids=lambda case: case.id)
def test_cpu_implementation(case: Case, monkeypatch: Any) -> None:
    from rmsnorm.fused import launch

    monkeypatch.setattr(launch, "INTERPRETED", False)
    assert_passes("cpu", case)


def test_an_absent_gradient_is_judged_where_zeros_are_the_same(monkeypatch: Any) -> None:
    """Where nothing arrives at Y, dX is dS; from zeros the norm of a row with a NaN would make NaN."""
    from rmsnorm.fused import launch

    monkeypatch.setattr(launch, "INTERPRETED", False)
    cases = [case for case in STREAM.cells("smoke") if case.n_rows > 1]
    for data in ("non_finite", "normal"):
        case = next(case for case in cases if case.data == data)
        verdict = check(candidate("cpu", case), case, STREAM, repeat=True)
        assert verdict.status == "pass", verdict.findings
