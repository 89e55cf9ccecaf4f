"""Results read back, and two of them side by side."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from references.candidates.loading import load
from references.cells.cell import Case
from references.cells.levels import SMOKE
from references.judge.comparison import Finding, Measure
from references.judge.verdict import Verdict, check
from references.report import files
from references.report.files import as_json
from references.report.regression import Comparison, compare, conclusion

CELL = Case("llama", 0.0, "bfloat16", "same", True, (2, 8), 1e-6)
WIDE = dataclasses.replace(CELL, dtype="float32")
ABOUT: dict[str, Any] = {"implementation": "a:b", "device": "cpu"}


def verdict(ratio: float, exact: int = 10_000, status: str = "pass", case: Case = CELL) -> Verdict:
    return Verdict(case, status, measures={"y": Measure(10_000, 10_000, ratio, ratio, exact, 1, 0.0)})


def one(before: Verdict, after: Verdict, factor: float = 2.0) -> Comparison:
    return compare([before], [after], factor)


def test_results_survive_the_file(tmp_path: Path) -> None:
    judged = [check(load("references.numpy_reference"), case) for case in SMOKE[:4]]
    judged.append(Verdict(CELL, "unsupported", "no offset argument"))
    judged.append(verdict(float("inf"), status="fail"))
    nan, inf = float("nan"), float("inf")
    judged[-1].findings.append(
        Finding("special", "y", "NaN differs", (0, 1), nan, 1.0, "0x7fc0", "0x3f80", 9, inf, "rstd")
    )
    (tmp_path / "r.json").write_text(json.dumps(as_json(judged, ABOUT, 9)))
    verdicts, about = files.read(tmp_path / "r.json")
    assert about == ABOUT
    assert as_json(verdicts, about, 9) == as_json(judged, ABOUT, 9)
    assert str(verdicts[-1].findings[0]) == str(judged[-1].findings[0])
    assert verdicts[0].case == judged[0].case and verdicts[0].measures["dx"].errors == judged[0].measures["dx"].errors


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 0, "cells": []}', '{"schema": 1, "peers": []}'])
def test_another_file_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=r"x\.json") as caught:
        files.read(tmp_path / "x.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ratios", "better", "worse"),
    [((0.3, 0.59), False, False), ((0.3, 0.61), False, True), ((0.61, 0.3), True, False), ((0.01, 0.09), False, False)],
)
def test_a_ratio_counts_where_it_grew_by_the_factor(ratios: tuple[float, float], better: bool, worse: bool) -> None:
    found = one(*map(verdict, ratios))
    (change,) = found.tensors
    assert (change.better, change.worse, found.worse) == (better, worse, worse)
    assert change.where == ("llama", "bfloat16", "Y")
    assert not one(*map(verdict, ratios), factor=10).worse


def test_bits_count_in_16_bits_alone() -> None:
    assert one(verdict(0.5), verdict(0.5, exact=9_980)).worse
    assert not one(verdict(0.5), verdict(0.5, exact=9_995)).worse
    assert one(verdict(0.5, exact=9_980), verdict(0.5)).tensors[0].better
    assert not one(verdict(0.5, case=WIDE), verdict(0.5, exact=50, case=WIDE)).worse


@pytest.mark.parametrize(
    ("statuses", "worse"),
    [(("pass", "fail"), True), (("pass", "unsupported"), True), (("fail", "pass"), False), (("fail", "fail"), None)],
)
def test_a_cell_counts_where_its_status_changed(statuses: tuple[str, str], worse: bool | None) -> None:
    found = one(*(verdict(0.5, status=status) for status in statuses))
    assert [change.worse for change in found.cells] == ([] if worse is None else [worse])
    assert found.worse is bool(worse)
    if worse is not None:
        assert conclusion(found)[0] == f"{CELL.id}: {statuses[0]} → {statuses[1]}, {'worse' if worse else 'better'}"


def test_cells_that_only_one_has_are_counted_and_not_compared() -> None:
    found = compare([verdict(0.1), verdict(0.1, case=WIDE)], [verdict(0.1)], 2.0)
    assert (found.common, found.only_before, found.only_after) == (1, 1, 0)
    assert [change.where[1] for change in found.tensors] == ["bfloat16"]
    assert conclusion(found) == ["1 cells in both, 1 only in the first, 0 only in the second: nothing is worse"]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    app = pytest.importorskip("references.cli").app
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, ratio in (("a", 0.3), ("b", 0.9), ("other", 0.3)):
        case = WIDE if name == "other" else CELL
        result = as_json([verdict(ratio, case=case)], ABOUT, 1)
        (tmp_path / f"{name}.json").write_text(json.dumps(result))

    def code(*names: str, **options: str) -> int:
        with pytest.raises(SystemExit) as stopped:
            app(["compare", *(str(tmp_path / f"{name}.json") for name in names)], prog_name="rmsnorm-verify")
        return int(stopped.value.code or 0)

    assert (code("a", "a"), code("a", "b"), code("b", "a")) == (0, 1, 0)
    out = capsys.readouterr().out
    assert "a.json" in out and "0.90" in out and "something is worse" in out
    assert code("a", "missing") == 2 and "cannot read missing.json" in capsys.readouterr().err
    assert code("a", "other") == 2 and "no cell is in both" in capsys.readouterr().err
