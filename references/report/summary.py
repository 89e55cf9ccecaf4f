"""Verdicts as a summary: worst ratios and bit-exact rates by mode and dtype, the conclusion, the exit status."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from references.candidates.profile import Profile
from references.cells.cell import Case
from references.judge.diagnosis import TITLES
from references.judge.verdict import RESIDUAL, TENSORS, Verdict
from references.spec import DTYPES, CastingMode

LOOSE = 0.05  # of its bound: a tensor that stays below hardly tests it


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


def exit_code(verdicts: Sequence[Verdict], unjudged: Sequence[str] = ()) -> int:
    """0: conforms; 1: deviates somewhere; 3: no cell could be run, or none of something that is claimed."""
    statuses = {verdict.status for verdict in verdicts}
    return 1 if "fail" in statuses else 0 if "pass" in statuses and not unjudged else 3


def unjudged(verdicts: Sequence[Verdict], cases: Iterable[Case], profile: Profile) -> list[str]:
    """Dtypes, casting modes and gradients that are claimed in these cells and of which none was judged."""
    asked = [case for case in cases if profile.unclaimed(case) is None]
    judged = [v for v in verdicts if v.status != "unsupported"]
    missing = [
        *_missing((case.dtype for case in asked), (v.case.dtype for v in judged)),
        *_missing((str(case.casting_mode) for case in asked), (str(v.case.casting_mode) for v in judged)),
    ]
    # Whoever computes one gradient claims the other; a cell that fails says itself what is missing.
    measured = {tensor for v in judged for tensor in v.measures}
    passed = judged and all(v.status == "pass" for v in judged)
    if passed and "dx" in measured and "dw" not in measured and any(case.w_dtype for case in asked):
        missing.append("dW")
    return missing


def _missing(asked: Iterable[str], judged: Iterable[str]) -> list[str]:
    found = set(judged)
    return [name for name in dict.fromkeys(asked) if name not in found]


def conclusion(verdicts: Sequence[Verdict], expected: int, unjudged: Sequence[str] = ()) -> str:
    """The verdict in words, with the numbers of cells, in one line."""
    count = {status: sum(v.status == status for v in verdicts) for status in ("pass", "fail", "unsupported")}
    judged = count["pass"] + count["fail"]
    if count["fail"]:
        words = f"deviates: in {count['fail']} of {judged} cells"
    elif not count["pass"]:
        words = f"nothing judged: {_commonest_reason(verdicts)}"
    elif unjudged:
        words = f"not judged as a whole: {', '.join(unjudged)} claimed, but no cell of it could be judged"
    else:
        measured = {tensor for v in verdicts for tensor in v.measures}
        alone = ", the forward alone" if "y" in measured and not measured & {"dx", "dw"} else ""
        words = f"conforms{alone}: {judged} cells pass"
    words += f"; {count['unsupported']} unsupported" if count["unsupported"] else ""
    return words + (f"; ended after {len(verdicts)} of {expected}" if len(verdicts) < expected else "")


def _commonest_reason(verdicts: Sequence[Verdict]) -> str:
    reasons = Counter(str(v.reason) for v in verdicts)
    return reasons.most_common(1)[0][0] if reasons else "no cell was run"


def repro(case: Case, about: dict[str, Any]) -> str:
    """The command that runs one cell again and takes it apart."""
    options = "" if about.get("takes_mode") else f" --casting-mode {case.casting_mode}"
    options += "" if about["device"] == "cpu" else " --device cuda"
    options += f" --arrays {about['arrays']}" if about.get("arrays", "torch") != "torch" else ""
    return f"rmsnorm-verify explain {case.id} {about['implementation']}{options}"


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


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The summary as a Markdown table, for documents."""
    rows = summarize(verdicts)
    tensors = columns(tensor for row in rows for tensor in row.worst)
    lines = [
        f"| mode | dtype | cells | {' | '.join(TITLES[tensor] for tensor in tensors)} |",
        f"|{'---|' * (3 + len(tensors))}",
    ]
    for row in rows:
        cells = [text(row.worst.get(tensor)) for tensor in tensors]
        lines.append(f"| {row.casting_mode} | {row.dtype} | {row.cells} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def columns(measured: Iterable[str]) -> tuple[str, ...]:
    """The tensors that a table has a column for: those of a residual only where they were measured."""
    found = set(measured)
    return tuple(tensor for tensor in TENSORS if tensor in found or tensor not in RESIDUAL)


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
