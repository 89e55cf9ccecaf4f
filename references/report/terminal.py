"""Verdicts in a terminal: header, claims, diagnosis, table, what was not supported, findings."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from references.candidates.profile import Profile
from references.judge.diagnosis import TITLES, diagnose
from references.judge.verdict import TENSORS, Verdict
from references.report.summary import Worst, number, repro, severity, summarize
from references.spec import SIXTEEN_BITS

if TYPE_CHECKING:
    from rich.table import Table


EXAMPLES = 3  # findings shown of each kind
BUGS = 4  # diagnoses shown without --verbose


def diagnosis(verdicts: Sequence[Verdict], about: dict[str, Any], verbose: bool = False) -> list[str]:
    """What is wrong, each bug once, with the command that shows its simplest cell; no lines where all is well."""
    found = diagnose(verdicts)
    shown = found if verbose else found[:BUGS]
    lines = [line for one in shown for line in (str(one), f"  {repro(one.case, about)}")]
    return lines + [f"and {len(found) - len(shown)} more: --verbose shows them"] * (len(found) > len(shown))


def unsupported(verdicts: Iterable[Verdict]) -> list[str]:
    """The cells that could not be judged, in one line: how many, and why."""
    reasons = Counter(_short(str(v.reason)) for v in verdicts if v.status == "unsupported")
    if not reasons:
        return []
    told = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    return [f"unsupported, {reasons.total()} cells: {told}"]


def _short(reason: str) -> str:
    return reason.replace(" is not claimed; ", ": ")


def complaints(verdicts: Iterable[Verdict]) -> list[str]:
    """The findings by kind (check and tensor), with some examples of each."""
    kinds = defaultdict(list)
    for verdict in verdicts:
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
    """What was judged, a line a mode and dtype: the worst ratio of each tensor, in 16 bits with the bit-exact rate."""
    from rich import box
    from rich.table import Column, Table

    rows = summarize(v for v in verdicts if v.status != "unsupported")
    exposed = [tensor for tensor in TENSORS if any(tensor in row.worst for row in rows)]
    failed = ["deviate"] * any(row.failed for row in rows)
    columns = [Column(name, no_wrap=True) for name in ("mode", "dtype", "cells", *failed)]
    columns += [Column(TITLES[tensor]) for tensor in exposed]  # where it is narrow, a rate goes to a second line
    result = Table(
        *columns, box=box.SIMPLE, pad_edge=False, caption="largest error / bound, and bit-exact elements in 16 bits"
    )
    for row in rows:
        counts = [str(row.cells), *([f"[red]{row.failed}[/]" if row.failed else "0"] if failed else [])]
        worst = (_field(row.worst.get(tensor), row.dtype in SIXTEEN_BITS) for tensor in exposed)
        result.add_row(row.casting_mode, row.dtype, *counts, *worst)
    return result


def _field(worst: Worst | None, with_rate: bool) -> str:
    if worst is None:
        return "[dim]–[/]"
    rate = worst.exact_rate
    shown = number(worst.ratio) + (f" {math.floor(100 * rate)}%" if with_rate and rate is not None else "")
    return f"[red]{shown}[/]" if severity(worst) == "over" else shown


def header(about: dict[str, Any]) -> str:
    """The environment in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    kernels = "Triton interpreted" if about["interpreted"] else "Triton compiled"
    arrays = f", {about['arrays']} arrays" if about.get("arrays", "torch") != "torch" else f" ({kernels})"
    return f"{about['implementation']} on {about['device']}{arrays}; Python {about['python']}, {versions}"


def claims(profile: Profile, notes: Mapping[str, str], mode: str | None = None) -> list[str]:
    """The profile in lines of text, the mode that was found, and what a probe met where something is not claimed."""
    lines = [f"claims: {profile}"]
    if mode is not None:
        lines.append(f"  casting mode {mode}")
    told: dict[str, list[str]] = defaultdict(list)
    for setting, reason in notes.items():
        if not setting.startswith("casting_modes ") and reason != "no offset argument":
            told[" ".join(reason.split())].append(setting)
    return lines + [f"  {', '.join(settings)}: {reason}" for reason, settings in told.items()]
