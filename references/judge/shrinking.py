"""The smallest shape that still fails alike: each dimension bisected, each shape judged anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from references.cells.cell import Case
from references.judge.verdict import Verdict


def shrink(judge: Callable[[Case], Verdict], verdict: Verdict) -> Verdict:
    """Bisect the dimensions one after the other, as long as one of the same findings (check and tensor) stays.

    Args:
        judge: judges a cell through the door that `verdict` came from.
        verdict: a failed cell with at least one element.

    Returns:
        The verdict of the smallest shape found; `verdict` itself where every smaller one that was tried passes.
    """
    wanted = _kinds(verdict)
    for axis in range(len(verdict.case.shape)):
        passes, fails = 0, verdict.case.shape[axis]
        while fails - passes > 1:
            middle = (passes + fails) // 2
            shape = verdict.case.shape
            tried = judge(replace(verdict.case, shape=(*shape[:axis], middle, *shape[axis + 1 :])))
            if wanted & _kinds(tried):
                verdict, fails = tried, middle
            else:
                passes = middle
    return verdict


def _kinds(verdict: Verdict) -> set[tuple[str, str]]:
    return {(finding.check, finding.tensor) for finding in verdict.findings}
