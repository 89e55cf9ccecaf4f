"""Verdicts as a summary, a terminal table, Markdown and JSON. The HTML page is `page.py`."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from references.cases import Case
from references.conformance import EVERYTHING, TENSORS, Verdict
from references.implementation import Implementation
from references.profile import Profile
from references.spec import DTYPES, CastingMode

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = 1
TITLES = {"y": "Y", "rstd": "RSTD", "dx": "dX", "dw": "dW"}
LIBRARIES = ("rmsnorm", "numpy", "ml_dtypes", "torch", "triton", "jax")
LOOSE = 0.05  # of its bound: a tensor that stays below hardly tests it
EXAMPLES = 3  # findings shown of each kind


@dataclass(frozen=True)
class Worst:
    """One tensor over several cells."""

    ratio: float  # the largest error / tolerance
    exact: int
    bounded: int  # elements; `exact` of them equal the reference bit for bit (of dW: where W has X's dtype)

    @property
    def exact_rate(self) -> float | None:
        return self.exact / self.bounded if self.bounded else None


@dataclass(frozen=True)
class Row:
    """One casting mode and dtype: the worst over its cells, by tensor; a tensor that is never exposed is missing."""

    casting_mode: str
    dtype: str
    cells: int
    failed: int
    unsupported: int
    worst: dict[str, Worst]


def summarize(verdicts: Iterable[Verdict]) -> list[Row]:
    """A row for each casting mode and dtype that occurs, in the specification's order."""
    groups = defaultdict(list)
    for verdict in verdicts:
        groups[str(verdict.case.casting_mode), verdict.case.dtype].append(verdict)
    rows = []
    for mode in CastingMode:
        for dtype in DTYPES:
            group = groups.get((str(mode), dtype), [])
            worst = {}
            for tensor in TENSORS:
                ran = [v for v in group if tensor in v.measures]
                # A float32 dW of 16-bit X has other bits in every sum: it says nothing of the rounding points.
                alike = [v.measures[tensor] for v in ran if tensor != "dw" or v.case.w_dtype == dtype]
                if ran:
                    worst[tensor] = Worst(
                        max(v.measures[tensor].ratio for v in ran),
                        sum(m.exact for m in alike),
                        sum(m.bounded for m in alike),
                    )
            failed, unsupported = (sum(v.status == s for v in group) for s in ("fail", "unsupported"))
            if group:
                rows.append(Row(str(mode), dtype, len(group), failed, unsupported, worst))
    return rows


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """0: conforms; 1: deviates somewhere; 3: no cell could be run."""
    statuses = {verdict.status for verdict in verdicts}
    return 1 if "fail" in statuses else 0 if "pass" in statuses else 3


def conclusion(verdicts: Sequence[Verdict], expected: int) -> str:
    """How many cells there were and what became of them, in one line."""
    count = {status: sum(v.status == status for v in verdicts) for status in ("pass", "fail", "unsupported")}
    line = f"{count['pass']} of {expected} cells pass, {count['fail']} deviate, {count['unsupported']} unsupported"
    return line + (f"; interrupted after {len(verdicts)}" if len(verdicts) < expected else "")


def repro(case: Case, about: dict[str, Any]) -> str:
    """The command that runs one cell again and takes it apart."""
    device = "" if about["device"] == "cpu" else " --device cuda"
    target = f"{about['implementation']} --casting-mode {case.casting_mode}{device}"
    return f"rmsnorm-verify explain {case.id} {target}"


def repetition(verdicts: Iterable[Verdict]) -> str | None:
    """What the repeated cells show, in one line; None where none was repeated."""
    shown = [verdict.behaviour for verdict in verdicts if verdict.behaviour is not None]
    if not shown:
        return None
    repeat = sum(not b.unrepeated and b.error is None for b in shown)
    batches = [b for b in shown if b.batch_dependent is not None]
    alone = sum(not b.batch_dependent and b.error is None for b in batches)
    return (
        f"of {len(shown)} cells run again {repeat} give the same bits; "
        f"of {len(batches)} with a row run alone {alone} give that row the bits that it has in the batch"
    )


def complaints(verdicts: Iterable[Verdict]) -> list[str]:
    """The findings by kind (check and tensor), and the reasons for unsupported cells: some examples of each."""
    kinds = defaultdict(list)
    for verdict in verdicts:
        if verdict.status == "unsupported":
            kinds[f"unsupported: {verdict.reason}"].append(verdict.case.id)
        if verdict.computes is not None:
            kinds[f"computes {verdict.computes} rounding, claimed {verdict.case.casting_mode}"].append(verdict.case.id)
        for finding in verdict.findings:
            kinds[f"{finding.check}: {TITLES.get(finding.tensor, finding.tensor)}"].append(
                f"{verdict.case.id}: {finding}"
            )
    lines = []
    for kind, texts in kinds.items():
        lines += [f"{kind} ({len(texts)})", *(f"  {text}" for text in texts[:EXAMPLES])]
        lines += [f"  … and {len(texts) - EXAMPLES} more"] * (len(texts) > EXAMPLES)
    return lines


def table(verdicts: Sequence[Verdict]) -> Table:
    """The summary for a terminal: the worst ratio over the bit-exact rate, one line a mode and dtype."""
    from rich.table import Table

    result = Table("mode", "dtype", "cells", *TITLES.values(), caption="error / tolerance, bit-exact elements")
    for row in summarize(verdicts):
        cells = [_coloured(row.worst.get(tensor)) for tensor in TENSORS]
        count = str(row.cells)
        count += f"\n[red]{row.failed} deviate[/]" if row.failed else ""
        count += f"\n[dim]{row.unsupported} unsupported[/]" if row.unsupported else ""
        result.add_row(row.casting_mode, row.dtype, count, *cells)
    return result


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The summary as a Markdown table, for documents."""
    lines = [
        f"| mode | dtype | cells | {' | '.join(TITLES.values())} |",
        f"|{'---|' * (3 + len(TITLES))}",
    ]
    for row in summarize(verdicts):
        cells = [text(row.worst.get(tensor)) for tensor in TENSORS]
        lines.append(f"| {row.casting_mode} | {row.dtype} | {row.cells} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def text(worst: Worst | None) -> str:
    """ "0.96, 100.00 %"; an en dash where there is nothing."""
    if worst is None:
        return "–"
    return number(worst.ratio) + ("" if worst.exact_rate is None else f", {percent(worst.exact_rate)}")


def number(ratio: float) -> str:
    """Two decimals, or three digits where it is large."""
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.3g}"


def percent(rate: float) -> str:
    """Never rounded up to 100 %: one different element must show."""
    return f"{math.floor(rate * 10_000) / 100:.2f} %"


def severity(worst: Worst | None) -> str:
    """ "none", "low" (at most half of the tolerance), "high" (within it) or "over"."""
    if worst is None:
        return "none"
    return "over" if worst.ratio > 1 else "high" if worst.ratio > 0.5 else "low"


def _coloured(worst: Worst | None) -> str:
    colour = {"none": "dim", "low": "green", "high": "yellow", "over": "red"}[severity(worst)]
    return f"[{colour}]{text(worst).replace(', ', chr(10))}[/]"


def environment(
    implementation: Implementation,
    interpreted: bool,
    profile: Profile = EVERYTHING,
    notes: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """What the numbers depend on: implementation, claims, device, versions, command; no paths.

    `notes` says by setting what a probe met.
    """
    about = {
        "implementation": implementation.name,
        "ignored_arguments": list(implementation.ignored),
        "profile": profile.as_dict(),
        "probe": dict(notes),
    }
    return about | machine(implementation.device, interpreted)


def machine(device: str, interpreted: bool) -> dict[str, Any]:
    """The part of it that does not depend on the implementation."""
    return {
        "device": _device_name(device),
        "interpreted": interpreted,
        "python": platform.python_version(),
        "versions": {name: version for name in LIBRARIES if (version := _version(name))},
        "system": f"{platform.system()} {platform.machine()}",
        "command": " ".join(["rmsnorm-verify", *(os.path.basename(a) for a in sys.argv[1:])]),
        "seeds": "from the case ids",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def header(about: dict[str, Any]) -> str:
    """The environment in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    kernels = "Triton interpreted" if about["interpreted"] else "Triton compiled"
    return f"{about['implementation']} on {about['device']} ({kernels}); Python {about['python']}, {versions}"


def claims(profile: Profile, notes: Mapping[str, str]) -> list[str]:
    """The profile in lines of text, with what a probe found refused."""
    return [f"claims: {profile}", *(f"  {setting}: {reason}" for setting, reason in notes.items())]


def as_json(verdicts: Sequence[Verdict], about: dict[str, Any], expected: int) -> dict[str, Any]:
    """Everything, with one record a cell; infinities and NaN are strings, because JSON has none."""
    document = {
        "schema": SCHEMA,
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


def _device_name(device: str) -> str:
    if device != "cuda":
        return device
    import torch

    return torch.cuda.get_device_name()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
