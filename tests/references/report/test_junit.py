"""A JUnit file says of every cell what became of it, and its counts are those of the cells."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from references.cells.cell import Case
from references.judge.comparison import Finding
from references.judge.verdict import Verdict
from references.report.junit import as_junit

CASE = Case("llama", 0.0, "float32", "same", False, (2, 8), 1e-6)


def test_every_cell_is_a_test_and_counts_are_those_of_the_cells() -> None:
    first, second = Finding("value", "y", "is off"), Finding("contract", "dy", "is \x1b[1mwritten\x00 over")
    verdicts = [
        Verdict(CASE, seconds=0.25),
        Verdict(CASE, "fail", seconds=0.5, findings=[first, second]),
        Verdict(CASE, "unsupported", "no such argument"),
        Verdict(CASE, "fail", seconds=1.0, findings=[second]),
        Verdict(CASE, "unsupported", "neither"),
        Verdict(CASE, "unsupported", "nor \x1b"),
    ]
    text = as_junit(verdicts, "mine:norm")
    assert text.startswith("<?xml") and text.endswith("</testsuite>\n")
    suite = ET.fromstring(text)
    assert suite.attrib == {
        "name": "mine:norm",
        "tests": "6",
        "failures": "2",
        "skipped": "3",
        "errors": "0",
        "time": "1.750",
    }
    assert [case.attrib for case in suite] == [
        {"classname": "mine:norm", "name": CASE.id, "time": time}
        for time in ("0.250", "0.500", "0.000", "1.000", "0.000", "0.000")
    ]
    assert [[(child.tag, child.get("message")) for child in case] for case in suite] == [
        [],
        [("failure", "value: y: is off")],
        [("skipped", "no such argument")],
        [("failure", "contract: dy: is ?[1mwritten? over")],
        [("skipped", "neither")],
        [("skipped", "nor ?")],
    ]
    body = suite[1][0].text or ""
    assert "is off" in body and "is ?[1mwritten? over" in body and "\n" in body
