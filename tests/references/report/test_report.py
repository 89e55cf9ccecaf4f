"""The report says what the verdicts say: table, Markdown, JSON, page, exit status."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from references.candidates.repetition import Behaviour
from references.cells.cell import Case
from references.judge.comparison import Finding, Measure
from references.judge.verdict import Verdict
from references.report import page
from references.report.environment import environment
from references.report.explanation import explain
from references.report.files import SCHEMA, as_json
from references.report.summary import (
    Worst,
    conclusion,
    exit_code,
    markdown,
    percent,
    repetition,
    repro,
    severity,
    summarize,
)
from references.report.terminal import complaints, header, table, unsupported

LLAMA = Case("llama", 0.0, "bfloat16", "same", True, (2, 8), 1e-6)
GEMMA = Case("gemma", 1.0, "float32", "same", True, (2, 64), 1e-6)


def measure(ratio: float, exact: int = 16, bounded: int = 16) -> Measure:
    return Measure(
        elements=16,
        bounded=bounded,
        ratio=ratio,
        median_ratio=ratio / 2,
        exact=exact,
        max_ulps=3,
        bias=0.25,
        worst=(1, 2),
        got=1.5,
        oracle=1.25,
        terms={"rounding": 0.125, "rstd": 0.25},
    )


def verdicts() -> list[Verdict]:
    finding = Finding("value", "y", "outside <the> tolerance", (1, 2), 1.5, 1.25, "0x3fc0", "0x3fa0", 32, 7.5, "rstd")
    return [
        Verdict(LLAMA, measures={"y": measure(0.25), "dw": measure(0.75, exact=15)}),
        Verdict(LLAMA, "fail", findings=[finding] * 5, measures={"y": measure(7.5, exact=8), "dw": measure(0.5)}),
        Verdict(GEMMA, measures={"y": measure(0.125, exact=0, bounded=0), "rstd": measure(float("inf"))}),
        Verdict(GEMMA, "unsupported", "no offset argument"),
    ]


ABOUT: dict[str, Any] = {
    "implementation": "a:<b>",
    "device": "cpu",
    "interpreted": True,
    "python": "3",
    "versions": {"numpy": "2"},
}


def test_the_summary_takes_the_worst_and_pools_the_rates() -> None:
    llama, gemma = summarize(verdicts())
    assert (llama.casting_mode, llama.dtype, llama.cells, llama.failed, llama.unsupported) == (
        "llama",
        "bfloat16",
        2,
        1,
        0,
    )
    assert llama.worst == {"y": Worst(7.5, 24, 32), "dw": Worst(0.75, 31, 32)}
    assert (gemma.failed, gemma.unsupported) == (0, 1)
    assert gemma.worst["y"].exact_rate is None


def test_a_weight_of_another_dtype_counts_for_the_ratio_alone() -> None:
    case = dataclasses.replace(LLAMA, weight="float32")
    other = Verdict(case, measures={"dw": measure(0.875, exact=3)})
    (row,) = summarize([verdicts()[0], other])
    assert row.worst["dw"] == Worst(0.875, 15, 16)


def test_markdown() -> None:
    assert markdown(verdicts()).splitlines() == [
        "| mode | dtype | cells | Y | RSTD | dX | dW |",
        "|---|---|---|---|---|---|---|",
        "| llama | bfloat16 | 2 | 7.50, 75.00 % | – | – | 0.75, 96.87 % |",
        "| gemma | float32 | 2 | 0.12 | inf, 100.00 % | – | – |",
    ]


def test_a_rate_below_one_never_reads_100_percent() -> None:
    assert percent(1 - 1e-9) == "99.99 %"
    assert percent(1.0) == "100.00 %"


@pytest.mark.parametrize(
    ("ratio", "name"), [(None, "none"), (0.5, "low"), (0.51, "high"), (1.0, "high"), (1.01, "over")]
)
def test_severity(ratio: float | None, name: str) -> None:
    assert severity(None if ratio is None else Worst(ratio, 1, 1)) == name


def test_exit_codes() -> None:
    passed, failed, _, unsupported = verdicts()
    assert exit_code([passed, unsupported]) == 0
    assert exit_code([passed, failed, unsupported]) == 1
    assert exit_code([unsupported]) == exit_code([]) == 3


def test_the_conclusion_counts_and_says_when_it_was_cut_short() -> None:
    assert conclusion(verdicts(), 4) == "deviates: in 1 of 3 cells; 1 unsupported"
    assert conclusion(verdicts(), 9).endswith("; ended after 4 of 9")
    assert conclusion(verdicts()[:1], 1) == "conforms: 1 cells pass"
    assert conclusion(verdicts()[3:], 1) == "nothing judged: no offset argument; 1 unsupported"


def test_complaints_are_grouped_with_examples() -> None:
    lines = complaints(verdicts())
    assert lines[0] == "value: Y (5)"
    assert lines[1].startswith(f"  {LLAMA.id}: value: y[1, 2]: outside <the> tolerance; got 1.5 (0x3fc0)")
    assert "7.5 of the tolerance, whose largest term is rstd" in lines[1]
    assert lines[4] == "  … and 2 more"
    assert lines[5:] == []
    assert unsupported(verdicts()) == ["unsupported, 1 cells: no offset argument (1)"]


def test_what_is_not_supported_is_counted_by_reason_the_commonest_first() -> None:
    reasons = (
        "no offset argument",
        "dtype float64 is not claimed; refused with E",
        *2 * ["dtype float64: refused with E"],
    )
    told = unsupported([*verdicts()[:2], *(Verdict(GEMMA, "unsupported", reason) for reason in reasons)])
    assert told == ["unsupported, 4 cells: dtype float64: refused with E (3); no offset argument (1)"]
    assert unsupported(verdicts()[:2]) == []


def test_the_terminal_table_shows_every_row() -> None:
    console = pytest.importorskip("rich.console").Console(width=100, record=True, file=io.StringIO())
    console.print(table(verdicts()))
    shown = console.export_text()
    for part in ("llama", "gemma", "7.50 75%", "deviate", "RSTD"):
        assert part in shown


def test_json_is_strict_and_has_a_record_a_cell() -> None:
    document = as_json(verdicts(), ABOUT, 9)
    read = json.loads(json.dumps(document, allow_nan=False))
    assert read["schema"] == SCHEMA and read["complete"] is False
    assert read["environment"] == ABOUT
    first, second, third, fourth = read["cells"]
    assert first["id"] == LLAMA.id and first["case"]["shape"] == [2, 8]
    assert first["measures"]["dw"]["exact_rate"] == 15 / 16
    assert second["findings"][0]["wanted_bits"] == "0x3fa0" and "y[1, 2]" in second["findings"][0]["text"]
    assert third["measures"]["rstd"]["ratio"] == "inf"
    assert (fourth["status"], fourth["reason"]) == ("unsupported", "no offset argument")


def test_what_repeated_cells_show_is_one_line() -> None:
    assert repetition(verdicts()) is None
    behaviours = [
        Behaviour(),
        Behaviour(unrepeated=("dw",), batch_dependent=("y",)),
        Behaviour(batch_dependent=None),
        Behaviour(error="died of SIGSEGV"),
    ]
    assert repetition([Verdict(LLAMA, behaviour=behaviour) for behaviour in behaviours]) == (
        "of 4 cells run again 2 give the same bits; "
        "of 3 with a row run alone 1 give that row the bits that it has in the batch"
    )


class OnCpu:
    name, device, ignored = "a:b", "cpu", ("row_mode",)
    takes_mode, arrays = True, "torch"


def test_the_environment_has_versions_and_no_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/tool", "check", "a:b", "--json", "/somewhere/else/out.json"])
    about = environment(OnCpu(), interpreted=False)
    assert about["command"] == "rmsnorm-verify check a:b --json out.json"
    assert about["ignored_arguments"] == ["row_mode"]
    assert about["versions"]["numpy"] in header(about)
    assert "compiled" in header(about) and "interpreted" in header(ABOUT)


def test_the_page_is_self_contained_and_escaped() -> None:
    html = page.page(verdicts(), ABOUT, 4)
    assert "a:&lt;b&gt;" in html and "<b>" not in html and "&lt;the&gt;" in html
    assert '<td class="over">7.50 ✗<small>75.00 %</small></td>' in html and '<td class="none">–</td>' in html
    assert not re.search(r'(src|href)="(?!#)|@import|url\((?!#)', html)
    assert "Deviates: in 1 of 3 cells; 1 unsupported." in html


def test_the_page_begins_with_the_outcome_in_words() -> None:
    failed, passed, nothing = (page.page(some, ABOUT, 1) for some in (verdicts()[:2], verdicts()[:1], verdicts()[3:]))
    assert "<strong>Deviates: in 1 of 2 cells; ended" not in failed and "<strong>Deviates: in 1 of 2 cells" in failed
    assert (
        "<li>Y leaves its bound in some cells that no setting tells apart (1 of 2 cells)<pre>rmsnorm-verify" in failed
    )
    assert "<strong>Conforms: 1 cells pass.</strong>" in passed and "<details>" not in passed
    assert "<strong>Nothing judged: no offset argument" in nothing and "no offset argument: 1 cells" in nothing
    assert 'id="matrix"' not in nothing and nothing.index("Not supported") < nothing.index('id="cells"')
    for html in (failed, passed):
        assert html.index("verdict") < html.index('id="matrix"') < html.index('id="cells"')


def test_failures_come_first_among_the_cells_and_counts_beside_the_dtype() -> None:
    html = page.page(verdicts(), ABOUT, 4)
    statuses = re.findall(r'<tr title="[^"]*"><td class="\w+">(\w+)', html)
    assert statuses == ["fail", "pass", "pass", "unsupported"]
    assert "<td>bfloat16</td><td>2<small>1 deviate</small></td>" in html


def test_the_mode_that_is_really_computed_is_told_first() -> None:
    failed = dataclasses.replace(verdicts()[1], computes="gemma")
    html = page.page([failed], ABOUT, 1)
    assert "<ul><li>Y leaves its bound everywhere (1 of 1 cells): it has the rounding points of gemma" in html


def test_a_failure_comes_with_its_element_and_a_command() -> None:
    html = page.page(verdicts(), ABOUT, 4)
    assert "got 1.5 (0x3fc0), wanted 1.25" in html
    assert f"<pre>rmsnorm-verify explain {LLAMA.id} a:&lt;b&gt; --casting-mode llama</pre>" in html
    assert repro(LLAMA, ABOUT | {"device": "NVIDIA H200"}).endswith("--casting-mode llama --device cuda")


def test_a_hardly_used_bound_is_named() -> None:
    loose = [dataclasses.replace(verdicts()[0], measures={"y": measure(0.04), "dw": measure(0.5)})]
    assert "<li>llama, bfloat16, Y: 0.04, 100.00 %</li>" in page.page(loose, ABOUT, 1)
    assert "Tightness" not in page.page(verdicts()[:1], ABOUT, 1)


def test_every_cell_is_in_the_table() -> None:
    html = page.page(verdicts(), ABOUT, 4)
    assert html.count(f'<tr title="{LLAMA.id}">') == 2 and html.count(f'<tr title="{GEMMA.id}">') == 2
    assert 'data-value="Infinity">inf</td>' in html and 'data-value="-1">–</td>' in html
    assert "<td>bfloat16</td><td>0</td><td>same</td><td>2x8</td><td>normal</td><td>c c c</td><td>1e-06</td>" in html


def test_planted_faults_are_a_matrix_of_place_and_notice(tmp_path: Path) -> None:
    def fault(file: str, by: str | None, equivalent: str | None = None) -> dict[str, Any]:
        about = {"file": file, "equivalent": equivalent}
        return {"mutant": about, "status": "killed" if by else "survived", "by": by}

    results = [fault("a.py", "tolerance"), fault("a.py", "tolerance"), fault("b.py", None), fault("b.py", None, "same")]
    (tmp_path / "m.json").write_text(json.dumps(results))
    html = page.page(verdicts(), ABOUT, 4, page.read_mutants(tmp_path / "m.json"))
    assert "2 of 3 were noticed" in html
    assert '<th scope="row">a.py</th><td>2</td><td></td>' in html
    assert '<th scope="row">b.py</th><td></td><td class=over>1</td>' in html
    (tmp_path / "m.json").write_text("{}")
    with pytest.raises(ValueError, match=r"not the result of `python -m tests\.mutation"):
        page.read_mutants(tmp_path / "m.json")


def test_plots_are_inline_svg_and_the_same_every_time() -> None:
    pytest.importorskip("matplotlib")
    html = page.page(verdicts(), ABOUT, 4)
    drawings = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    assert len(drawings) == 3  # no dX, so no picture of its cancellation
    for drawing in drawings:
        xml.etree.ElementTree.fromstring(drawing)
    assert html == page.page(verdicts(), ABOUT, 4)


def test_without_matplotlib_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "Plots need matplotlib" in page.page(verdicts(), ABOUT, 4)


def test_the_explanation_names_every_term() -> None:
    lines = "\n".join(explain(verdicts()[1]))
    for part in (LLAMA.id, "fail", "worst element [1, 2]", "got 1.5", "oracle says 1.25", "tolerance 0.375"):
        assert part in lines
    assert lines.index("rstd           0.25 (66.7%)") < lines.index("rounding       0.125 (33.3%)")
    assert explain(verdicts()[3]) == [f"{GEMMA.id}: unsupported: no offset argument"]
