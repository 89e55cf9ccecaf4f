"""Two results side by side, on the cells that both have: what changed, and whether it is worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from references.judge.diagnosis import TITLES
from references.judge.verdict import TENSORS, Verdict
from references.report.summary import LOOSE, Worst, summarize, text
from references.spec import SIXTEEN_BITS

if TYPE_CHECKING:
    from rich.table import Table

ORDER = {"pass": 0, "unsupported": 1, "fail": 2}  # a later status is worse
RATE = 0.001  # of the elements of a 16-bit tensor: as many may differ between two right results


@dataclass(frozen=True)
class Change:
    """One tensor over the common cells of a casting mode and dtype, or one cell whose status changed."""

    where: tuple[str, ...]  # mode, dtype, tensor's title; or the cell's id
    before: str
    after: str
    better: bool = False
    worse: bool = False

    @property
    def mark(self) -> str:
        return " and ".join(word for word in ("better", "worse") if getattr(self, word))


@dataclass(frozen=True)
class Comparison:
    """All changes, and how many cells could be compared."""

    tensors: list[Change]
    cells: list[Change]
    common: int
    judged: int  # of them in both results
    only_before: int
    only_after: int

    @property
    def worse(self) -> bool:
        return any(change.worse for change in (*self.tensors, *self.cells))


def compare(before: Sequence[Verdict], after: Sequence[Verdict], factor: float) -> Comparison:
    """Compare by cell id.

    A tensor is worse where its largest error / bound grew by more than `factor` (from `report.LOOSE` at least, below
    which bounds are hardly used), or where of a 16-bit one fewer elements are bit-exact by more than `RATE`; a cell
    where it passed, or was not supported, and now deviates, or where it passed and is not supported any more.
    """
    by_id = [{verdict.case.id: verdict for verdict in verdicts} for verdicts in (before, after)]
    common = [case_id for case_id in by_id[0] if case_id in by_id[1]]
    pairs = [(by_id[0][case_id], by_id[1][case_id]) for case_id in common]
    tensors = []
    rows = (summarize(pair[side] for pair in pairs) for side in (0, 1))
    for old, new in zip(*rows, strict=True):  # the same cells, so the same modes and dtypes
        for tensor in TENSORS:
            a, b = old.worst.get(tensor), new.worst.get(tensor)
            if a or b:
                where = (old.casting_mode, old.dtype, TITLES[tensor])
                better, worse = (_worse(*sides, old.dtype, factor) for sides in ((b, a), (a, b)))
                tensors.append(Change(where, text(a), text(b), better, worse))
    cells = []
    for first, second in pairs:
        step = ORDER[second.status] - ORDER[first.status]
        if step:
            cells.append(Change((first.case.id,), first.status, second.status, better=step < 0, worse=step > 0))
    judged = sum("unsupported" not in (first.status, second.status) for first, second in pairs)
    return Comparison(tensors, cells, len(pairs), judged, len(by_id[0]) - len(pairs), len(by_id[1]) - len(pairs))


def table(comparison: Comparison, names: tuple[str, str]) -> Table:
    """For a terminal: every tensor, what changed marked."""
    from rich.table import Table

    result = Table("mode", "dtype", "tensor", *names, "", caption="error / tolerance, bit-exact elements")
    for change in comparison.tensors:
        style = "red" if change.worse else "green" if change.better else None
        result.add_row(*change.where, change.before, change.after, change.mark, style=style)
    return result


def conclusion(comparison: Comparison) -> list[str]:
    """Lines: the cells whose status changed, and how many were compared."""
    lines = [f"{change.where[0]}: {change.before} → {change.after}, {change.mark}" for change in comparison.cells]
    alone = f"{comparison.only_before} only in the first, {comparison.only_after} only in the second"
    outcome = "something is worse" if comparison.worse else "nothing is worse"
    return [*lines, f"{comparison.common} cells in both, {alone}: {outcome}"]


def _worse(old: Worst | None, new: Worst | None, dtype: str, factor: float) -> bool:
    """A tensor that is not exposed is neither better nor worse."""
    if old is None or new is None:
        return False
    lost = (old.exact_rate or 0) - (new.exact_rate or 0) if dtype in SIXTEEN_BITS else 0
    return new.ratio > factor * max(old.ratio, LOOSE) or lost > RATE
