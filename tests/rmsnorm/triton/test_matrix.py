"""Every cell of the matrix and of the covering set, on the Triton kernels and on the CPU implementation."""

from __future__ import annotations

from typing import Any

import pytest

from references.candidates import loading
from references.cells.cell import Case
from references.cells.levels import COVERING, MATRIX
from references.judge.verdict import check

pytestmark = pytest.mark.torch
CELLS = MATRIX + COVERING


def candidate(device: str) -> loading.Implementation:
    return loading.load("rmsnorm:liger_rms_norm", device=device)


def assert_passes(device: str, case: Case) -> None:
    verdict = check(candidate(device), case)
    assert verdict.status == "pass", "\n".join(str(finding) for finding in verdict.findings) or verdict.reason
    expected = {"y", "rstd", "dx"} | ({"dw"} if case.w_dtype is not None else set())
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
