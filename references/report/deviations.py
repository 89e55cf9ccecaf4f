"""Findings of many cells gathered by kind, and put into words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from references.judge.diagnosis import COMPLAINTS, TITLES
from references.judge.verdict import Verdict
from references.report.summary import number
from references.spec import DTYPES


@dataclass(frozen=True)
class Deviation:
    """One kind of finding in one dtype."""

    check: str
    tensor: str
    dtype: str
    cells: int  # that show it
    of: int  # cells of that dtype that were judged
    worst: float | None  # the largest error / tolerance, where a value leaves its bound
    message: str  # of the worst cell
    case: str  # its id

    @property
    def complaint(self) -> str:
        """What is wrong, said of the tensor."""
        if self.check == "run":
            return f"is not computed ({self.message})"
        return COMPLAINTS.get(self.check, self.message)


def deviations(verdicts: Iterable[Verdict]) -> list[Deviation]:
    """The findings by check, tensor and dtype. Wrong values imply wrong bits, which are then not told again."""
    cells: dict[str, int] = defaultdict(int)
    kinds = defaultdict(list)
    for verdict in verdicts:
        cells[verdict.case.dtype] += verdict.status != "unsupported"
        wrong = {finding.tensor for finding in verdict.findings if finding.check == "value"}
        for finding in verdict.findings:
            if finding.check not in ("rounding", "exact") or finding.tensor not in wrong:
                check = "rounding" if finding.check == "exact" else finding.check
                kinds[check, finding.tensor, verdict.case.dtype].append((finding, verdict.case.id))
    result = []
    for (check, tensor, dtype), found in sorted(kinds.items(), key=_order):
        worst, case = max(found, key=lambda item: item[0].ratio or 0)
        ratio = worst.ratio if check == "value" else None
        shown = len({case for _, case in found})
        result.append(Deviation(check, tensor, dtype, shown, cells[dtype], ratio, worst.message, case))
    return result


def _order(kind: tuple[tuple[str, str, str], list]) -> tuple[bool, int, int]:
    """Wrong values first, tensors and dtypes in their usual order."""
    check, tensor, dtype = kind[0]
    tensors = list(TITLES)
    return check != "value", tensors.index(tensor) if tensor in tensors else len(tensors), DTYPES.index(dtype)


def in_words(found: Iterable[Deviation]) -> list[tuple[str, Deviation]]:
    """A sentence for each tensor and complaint, all dtypes together, with the worst of them."""
    kinds = defaultdict(list)
    for deviation in found:
        kinds[deviation.tensor, deviation.complaint].append(deviation)
    sentences = []
    for (tensor, complaint), group in kinds.items():
        parts = []
        for deviation in group:
            times = f" by up to {number(deviation.worst)} times" if deviation.worst is not None else ""
            parts.append(f"{deviation.dtype} in {deviation.cells} of {deviation.of} cells{times}")
        worst = max(group, key=lambda deviation: deviation.worst or 0)
        sentences.append((f"{TITLES.get(tensor, tensor)} {complaint}: {'; '.join(parts)}", worst))
    return sentences
