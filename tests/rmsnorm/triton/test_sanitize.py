"""The sanitizer's driver, without a sanitizer: what it reads from the tools' output, and what it runs."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from rmsnorm.fused.plans import are_few  # noqa: E402
from rmsnorm.fused.tiles import MAX_FUSED_COLS, Processors, is_row_wise, split_config  # noqa: E402
from tests.rmsnorm.triton import sanitize  # noqa: E402

H200 = Processors(count=132, shared_memory=232448, cooperative=True)
CLEAN = {"memcheck": "ERROR SUMMARY: 0 errors", "initcheck": "ERROR SUMMARY: 0 errors"}
CLEAN["racecheck"] = "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
FAULTY = {"memcheck": "ERROR SUMMARY: 1024 errors", "initcheck": "ERROR SUMMARY: 1 error"}
FAULTY["racecheck"] = "RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"


@pytest.mark.parametrize("tool", sanitize.TOOLS)
def test_errors_are_counted(tool: str) -> None:
    assert sanitize.errors_in(f"========= {CLEAN[tool]}\n", tool) == 0
    assert sanitize.errors_in(f"========= {FAULTY[tool]}\n", tool) > 0
    assert sanitize.errors_in("========= Error: device not supported", tool) is None


def test_a_report_is_found_among_the_tool_s_lines() -> None:
    report = {"launches": {"rms_norm_forward_kernel": 3}, "findings": []}
    output = f"========= COMPUTE-SANITIZER\n{sanitize.REPORT}{json.dumps(report)}\n========= ERROR SUMMARY: 0 errors"
    assert sanitize.report_in(output) == report
    assert sanitize.report_in("========= COMPUTE-SANITIZER")["findings"]


@pytest.mark.parametrize(
    "changes",
    [{"errors": 1}, {"errors": None}, {"findings": ["dx is wrong"]}, {"planted_errors": 0}, {"planted_errors": None}],
    ids=str,
)
def test_what_fails(changes: dict) -> None:
    record = {"tool": "memcheck", "errors": 0, "findings": [], "planted_errors": 4}
    assert sanitize.passed(record)
    assert not sanitize.passed(record | changes)


def test_cases_reach_every_kernel_and_layout() -> None:
    cases = sanitize.CASES
    assert all(case.shape[-1] <= MAX_FUSED_COLS for case in cases)
    assert {case.row_mode for case in cases} >= {None, False}
    assert {case.x_layout for case in cases} >= {"contiguous", "row_strided", "misaligned", "heads", "column_strided"}
    itemsize = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
    row_wise = [case for case in cases if is_row_wise("backward", case.shape[-1], itemsize[case.dtype], case.row_mode)]
    split = [case for case in row_wise if split_config(case.shape[-1], itemsize[case.dtype], H200)]
    assert {case.dtype for case in split} == {"float16", "bfloat16", "float32", "float64"}
    assert (
        {case.residual for case in split} == {case.residual for case in row_wise if case not in split} == {False, True}
    )
    many = [case for case in cases if not are_few(case.n_rows, case.shape[-1], H200)]
    assert len({is_row_wise("backward", case.shape[-1], itemsize[case.dtype], case.row_mode) for case in many}) == 2


@pytest.mark.interpret
def test_a_share_runs_and_is_judged() -> None:
    with_residual = next(case for case in sanitize.CASES if case.residual)
    report = sanitize.run_cases((*sanitize.CASES[12:14], with_residual), "cpu")
    assert report["findings"] == []
    kernels = {"rms_norm_forward_kernel", "rms_norm_backward_few_rows_kernel"}
    assert set(report["launches"]) >= kernels
