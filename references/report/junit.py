"""Verdicts as a JUnit file, which CI systems read."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from references.judge.verdict import Verdict
from references.report.explanation import explain


def as_junit(verdicts: Sequence[Verdict], name: str) -> str:
    """One test case a cell, in a suite that has the candidate's name."""
    count = {status: sum(v.status == status for v in verdicts) for status in ("fail", "unsupported")}
    seconds = sum(v.seconds for v in verdicts)
    suite = ET.Element(
        "testsuite",
        name=name,
        tests=str(len(verdicts)),
        failures=str(count["fail"]),
        skipped=str(count["unsupported"]),
        errors="0",
        time=f"{seconds:.3f}",
    )
    for verdict in verdicts:
        case = ET.SubElement(suite, "testcase", classname=name, name=verdict.case.id, time=f"{verdict.seconds:.3f}")
        if verdict.status == "fail":
            worst = str(verdict.findings[0])
            ET.SubElement(case, "failure", message=_printable(worst)).text = _printable("\n".join(explain(verdict)))
        elif verdict.status == "unsupported":
            ET.SubElement(case, "skipped", message=_printable(str(verdict.reason)))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """Without the control characters that XML has no way to write."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
