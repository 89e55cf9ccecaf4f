"""A `check --json` file read back as verdicts."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from references.behaviour import Behaviour
from references.cases import Case
from references.comparison import Finding, Measure
from references.conformance import Verdict
from references.report import SCHEMA


def read(path: Path) -> tuple[list[Verdict], dict[str, Any]]:
    """The verdicts and the environment (`report.environment`) of a result.

    Raises:
        ValueError: it cannot be read, or is no result of `check --json` of this version; the message is one line.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path.name}: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or "cells" not in document:
        raise ValueError(f"{path.name} is not the result of `rmsnorm-verify check --json` of this version")
    return [_verdict(record) for record in document["cells"]], document["environment"]


def _verdict(record: dict[str, Any]) -> Verdict:
    about = record["case"]
    case = Case(**about | {"shape": tuple(about["shape"])})
    findings = [_restored(Finding, finding) for finding in record["findings"]]
    measures = {tensor: _measure(measure) for tensor, measure in record["measures"].items()}
    behaviour = record["behaviour"] and _restored(Behaviour, record["behaviour"])
    return Verdict(
        case, record["status"], record["reason"], record["seconds"], findings, measures, record["computes"], behaviour
    )


def _measure(record: dict[str, Any]) -> Measure:
    """JSON's keys are strings."""
    errors = {float(edge): count for edge, count in record["errors"].items()}
    rows = tuple((float(condition), float(worst)) for condition, worst in record["cancellation"])
    return replace(_restored(Measure, record), errors=errors, cancellation=rows)


def _restored(kind: type, record: dict[str, Any]) -> Any:
    """Without what is derived (an exact rate, a text); an index is a tuple, and infinity and NaN are numbers."""
    names = {field.name for field in fields(kind)}
    return kind(**{name: _value(value) for name, value in record.items() if name in names})


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return float(value) if value in ("inf", "-inf", "nan") else value
