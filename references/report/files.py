"""Verdicts as JSON, written and read back, and the one way to read what a command wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from references.candidates.repetition import Behaviour
from references.cells.cell import Case
from references.judge.comparison import Finding, Measure
from references.judge.diagnosis import diagnose
from references.judge.verdict import Verdict
from references.report.summary import conclusion, exit_code, repro

SCHEMA = 2


def as_json(
    verdicts: Sequence[Verdict], about: dict[str, Any], expected: int, unjudged: Sequence[str] = ()
) -> dict[str, Any]:
    """Everything, the diagnosis first, one record a cell; infinities and NaN are strings, because JSON has none."""
    document = {
        "schema": SCHEMA,
        "verdict": conclusion(verdicts, expected, unjudged),
        "status": exit_code(verdicts, unjudged),
        "diagnosis": [
            {
                "tensors": found.tensors,
                "what": found.what,
                "where": found.where,
                "how": found.how,
                "cells": len(found.cells),
                "of": found.judged,
                "case": found.case.id,
                "text": str(found),
                "command": repro(found.case, about),
            }
            for found in diagnose(verdicts)
        ],
        "environment": about,
        "complete": len(verdicts) == expected,
        "cells": [_record(verdict) for verdict in verdicts],
    }
    return finite(document)


def _record(verdict: Verdict) -> dict[str, Any]:
    measures = {
        tensor: asdict(measure) | {"exact_rate": measure.exact_rate} for tensor, measure in verdict.measures.items()
    }
    return {
        "id": verdict.case.id,
        "case": asdict(verdict.case),
        "status": verdict.status,
        "reason": verdict.reason,
        "seconds": verdict.seconds,
        "computes": verdict.computes,
        "habit": verdict.habit,
        "explained": verdict.explained,
        "behaviour": asdict(verdict.behaviour) if verdict.behaviour is not None else None,
        "measures": measures,
        "findings": [asdict(finding) | {"text": str(finding)} for finding in verdict.findings],
    }


def finite(value: Any) -> Any:
    """A copy for strict JSON: infinities and NaN are strings, which `float` reads."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read(path: Path) -> tuple[list[Verdict], dict[str, Any]]:
    """The verdicts and the environment (`report.environment.environment`) of a result.

    Raises:
        ValueError: it cannot be read, or is no result of `check --json` of this version; the message is one line.
    """
    document = load(
        path, "`rmsnorm-verify check --json` of this version", lambda found: is_document(found, SCHEMA, "cells")
    )
    return [_verdict(record) for record in document["cells"]], document["environment"]


def load(path: Path, written_by: str, is_one: Callable[[Any], bool]) -> Any:
    """JSON from a file. Raises ValueError, in one line, where it cannot be read or is something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path.name}: {error}") from error
    if not is_one(found):
        raise ValueError(f"{path.name} is not the result of {written_by}")
    return found


def is_document(found: Any, schema: int, key: str) -> bool:
    return isinstance(found, dict) and found.get("schema") == schema and key in found


def _verdict(record: dict[str, Any]) -> Verdict:
    about = record["case"]
    case = Case(**about | {"shape": tuple(about["shape"])})
    findings = [_restored(Finding, finding) for finding in record["findings"]]
    measures = {tensor: _measure(measure) for tensor, measure in record["measures"].items()}
    behaviour = record["behaviour"] and _restored(Behaviour, record["behaviour"])
    return Verdict(
        case,
        record["status"],
        record["reason"],
        record["seconds"],
        findings,
        measures,
        record["computes"],
        record["habit"],
        behaviour,
        tuple(record.get("explained", ())),
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
