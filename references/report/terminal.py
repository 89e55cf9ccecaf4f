"""Verdicts in a terminal: header, claims, table, findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from references.candidates.profile import Profile
from references.judge.verdict import TENSORS, Verdict
from references.report.summary import TITLES, Worst, severity, summarize, text

if TYPE_CHECKING:
    from rich.table import Table


EXAMPLES = 3  # findings shown of each kind


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


def _coloured(worst: Worst | None) -> str:
    colour = {"none": "dim", "low": "green", "high": "yellow", "over": "red"}[severity(worst)]
    return f"[{colour}]{text(worst).replace(', ', chr(10))}[/]"


def header(about: dict[str, Any]) -> str:
    """The environment in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    kernels = "Triton interpreted" if about["interpreted"] else "Triton compiled"
    return f"{about['implementation']} on {about['device']} ({kernels}); Python {about['python']}, {versions}"


def claims(profile: Profile, notes: Mapping[str, str]) -> list[str]:
    """The profile in lines of text, with what a probe found refused."""
    return [f"claims: {profile}", *(f"  {setting}: {reason}" for setting, reason in notes.items())]
