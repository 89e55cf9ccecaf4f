"""One diagnosis of many failing cells: what is wrong, wherever which setting is met, and the simplest such cell.

A vote: each setting that a cell may have (a dtype, a layout, from how many columns on, …) is asked how well it tells
the failing cells from the passing ones. What one bug does to several tensors in many cells is told once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from references.cells.cell import Case
from references.cells.levels import mean_square
from references.judge.comparison import Finding
from references.judge.verdict import NO_GRADIENT, PRECISION, Verdict
from references.spec import SIXTEEN_BITS

SECOND = 0.1  # by so much a second setting must tell more than one alone
FEW = 0.25  # of the cells with wrong numbers: other wrong numbers in so few are the same fault
NEARLY_ALL = 0.75  # of the cells: what right ones among them have in common is chance
NEARLY = 0.5  # F₁ from which a setting is worth telling
LARGE_EPS = 0.05  # of the mean square: smaller ones hardly show
TITLES = {"y": "Y", "s": "S", "rstd": "RSTD", "dx": "dX", "dr": "dR", "dw": "dW"}
COMPLAINTS = {  # what a check found, said of a tensor; others speak for themselves
    "value": "leaves its bound",
    "special": "differs in NaN, infinity or the sign of zero",
    "rounding": "has bits that its mode's rounding points cannot give",
    "exact": "has bits that its mode's rounding points cannot give",
}
ORDER = ("run", "dtype", "shape", "precision", "value", "special", "contract", "repeat", "refusal", "rounding", "exact")


@dataclass(frozen=True)
class Diagnosis:
    """One bug, as far as the cells tell bugs apart."""

    kind: str  # "numbers", or the check that found it
    tensors: tuple[str, ...]  # that show it
    complaint: str  # "leaves its bound"
    where: str  # "wherever X is float16"
    setting: Callable[[Case], bool]  # whether a cell lies there
    score: float  # how well that tells the cells that show it from the others: F₁, less SECOND for a second setting
    how: str | None  # where its elements lie, or what explains them
    cells: frozenset[Case]  # that show it
    judged: int
    case: Case  # the simplest of them

    @property
    def what(self) -> str:
        """Tensors and complaint."""
        if self.kind == "precision":
            return PRECISION
        first, *others = (TITLES.get(tensor, tensor) for tensor in self.tensors)
        also = f" (and {', '.join(others)})" if others else ""
        return f"{first}{also} {self.complaint}"

    def __str__(self) -> str:
        cells = f"{len(self.cells)} of {self.judged} cells"
        return f"{self.what} {self.where} ({cells})" + (f": {self.how}" if self.how else "")


Group = Sequence[tuple[Verdict, Finding]]  # cells that show the same


def diagnose(verdicts: Sequence[Verdict]) -> list[Diagnosis]:
    """The bugs, the one that most cells show first; none where nothing deviates."""
    judged = [v for v in verdicts if v.status in ("pass", "fail")]
    symptoms: dict[tuple[str, str], list[tuple[Verdict, Finding]]] = {}
    for verdict in judged:
        for symptom, finding in _symptoms(verdict).items():
            symptoms.setdefault(symptom, []).append((verdict, finding))
    found: list[Diagnosis] = []
    for group in _united(sorted(symptoms.values(), key=len, reverse=True), judged):
        one = _diagnosis(group, judged)
        cause = next((i for i, larger in enumerate(found) if _explains(larger, one)), None)
        if cause is None:
            found.append(one)
        else:
            tensors = tuple(dict.fromkeys((*found[cause].tensors, *one.tensors)))
            cells = found[cause].cells | one.cells
            found[cause] = replace(found[cause], tensors=tensors, cells=cells)
    return sorted(found, key=lambda diagnosis: -len(diagnosis.cells))


def _united(groups: Sequence[Group], judged: Sequence[Verdict]) -> list[Group]:
    """Groups of wrong numbers as one where a setting tells both together better than any tells either.

    A fault may show in Y in some cells and, hidden by Y's rounding, in dX alone in others.
    """
    united: list[Group] = []
    for group in groups:
        for i, larger in enumerate(united):
            both = [*larger, *group]
            if {_kind(finding) for _, finding in both} == {"numbers"}:
                together = _diagnosis(both, judged).score
                if together > max(_diagnosis(larger, judged).score, _diagnosis(group, judged).score):
                    united[i] = both
                    break
        else:
            united.append(group)
    return united


def _explains(larger: Diagnosis, smaller: Diagnosis) -> bool:
    """Whether wrong numbers in few cells are what a fault does that is met in many: where all of them have its setting.

    The same complaint in the same place is one fault in any case: dX and dW alike.
    """
    if (larger.complaint, larger.where) == (smaller.complaint, smaller.where):
        return True
    if larger.kind != "numbers" or smaller.kind not in ("numbers", "precision", "refusal"):
        return False
    share = len(smaller.cells) / len(larger.cells)
    return share <= FEW or (share <= 0.5 and all(map(larger.setting, smaller.cells)))


def _symptoms(verdict: Verdict) -> dict[tuple[str, str], Finding]:
    """What is wrong with a cell, by kind and tensor, without what follows from another of its faults.

    Numbers that are wrong in several ways are one fault; where Y's are wrong, so are the gradients'; where RSTD's are,
    Y's too; where S's and Y's are, Y is of that S; and whatever is wrong the first time is wrong again when it is
    repeated.
    """
    found: dict[tuple[str, str], Finding] = {}
    for finding in sorted(verdict.findings, key=lambda finding: ORDER.index(finding.check)):
        found.setdefault((_kind(finding), finding.tensor), finding)
    if any(kind == "run" for kind, _ in found):
        return {symptom: finding for symptom, finding in found.items() if symptom[0] == "run"}
    wrong = [tensor for tensor in ("s", "y", "rstd") if ("numbers", tensor) in found]
    if wrong and wrong != ["s"]:
        cause = wrong[0]
        found = {s: finding for s, finding in found.items() if s[0] != "numbers" or s[1] == cause}
    if len(found) > sum(kind == "repeat" for kind, _ in found):
        found = {s: finding for s, finding in found.items() if s[0] != "repeat"}
    if verdict.habit is not None:  # a fault of its own, and the same one in all that it explains
        others = {s: f for s, f in found.items() if s not in [("numbers", tensor) for tensor in verdict.explained]}
        first = next(f for f in verdict.findings if f.tensor in verdict.explained)
        found = others | {(verdict.habit, verdict.explained[0]): first}
    return found


def _diagnosis(group: Group, judged: Sequence[Verdict]) -> Diagnosis:
    """What is wrong in these cells. Those that fail otherwise say nothing of it and have no vote."""
    cells = frozenset(verdict.case for verdict, _ in group)
    tensors = tuple(sorted({finding.tensor for _, finding in group}, key=lambda name: [*TITLES, name].index(name)))
    kind = _kind(group[0][1])
    asked = [v for v in judged if kind != "repeat" or v.behaviour is not None]
    voters = [v.case for v in asked if v.case in cells or (v.case.n_rows and _shows(v, tensors))]
    where, setting, score = _where(voters, cells)
    # What is odd about the simplest cell is its shape; how a fault looks is seen better in a larger one.
    _, finding = max(group, key=lambda item: (item[0].case.plain, min(math.prod(item[0].case.shape), 400)))
    other = Counter(verdict.computes for verdict, _ in group if verdict.computes)
    habits = Counter(verdict.habit for verdict, _ in group if verdict.habit)
    how = finding.pattern if finding.check in COMPLAINTS else None
    if habits and any(set(tensors) & set(verdict.explained) for verdict, _ in group):
        how = habits.most_common(1)[0][0]
    elif other and other.most_common(1)[0][1] > len(group) / 2:
        how = f"it has the rounding points of {other.most_common(1)[0][0]}"
    elif finding.message == NO_GRADIENT and where == "everywhere":
        how = "a kernel for inference is judged with --forward-only"
    simplest = min((verdict.case for verdict, _ in group), key=_oddness)
    complaint = _complaint(group, tensors[0])
    return Diagnosis(kind, tensors, complaint, where, setting, score, how, cells, len(asked), simplest)


def _kind(finding: Finding) -> str:
    return "numbers" if finding.check in COMPLAINTS else finding.check


def _shows(verdict: Verdict, tensors: Sequence[str]) -> bool:
    """Whether a cell passes, or fails in a way that leaves these tensors to be judged."""
    return not any(f.check == "run" or f.tensor in (*tensors, "y", "rstd") for f in verdict.findings)


def _complaint(group: Sequence[tuple[Verdict, Finding]], tensor: str) -> str:
    """What is wrong, said of the tensor: values before bits, the commonest message of others."""
    checks = {finding.check for _, finding in group}
    for check, complaint in COMPLAINTS.items():
        if check in checks:
            return "is not the rounded sum of X and R" if (check, tensor) == ("rounding", "s") else complaint
    message = Counter(_one_line(finding.message) for _, finding in group).most_common(1)[0][0]
    return f"is not computed ({message})" if "run" in checks else message


def _one_line(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 160 else f"{line[:157]}…"


def _oddness(case: Case) -> tuple:
    """Least for the simplest cell: plain noise without oddities, few rows, few columns."""
    layouts = sum(layout != "contiguous" for layout in case.layouts)
    odd = layouts + (case.offset != 0) + (case.weight != "same") + (case.row_mode is not None) + (case.data != "normal")
    return case.n_rows == 0, odd, case.n_rows, case.shape[-1], case.id


Setting = tuple[str, Callable[[Case], bool]]  # words, and whether a cell has it


def _where(cases: Sequence[Case], wrong: Set[Case]) -> tuple[str, Callable[[Case], bool], float]:
    """The setting, or the two, that tell the failing cells best from the others: in words, as a test, and how well."""
    if len(wrong) == len(cases):
        return "everywhere", lambda case: True, 1.0

    def score(setting: Setting) -> float:  # F₁
        covered = [case for case in cases if setting[1](case)]
        return 2 * sum(case in wrong for case in covered) / (len(covered) + len(wrong))

    settings = _settings(cases)
    nowhere: Setting = ("", lambda case: False)
    best = max(settings, key=score, default=nowhere)
    pair = max((_both(best, other) for other in settings), key=score, default=best)
    told = score(best)
    if score(pair) > told + SECOND:
        best, told = pair, score(pair) - SECOND
    if score(best) < NEARLY:
        return "in some cells that no setting tells apart", lambda case: False, told
    inside = [case in wrong for case in cases if best[1](case)]
    outside = [case in wrong for case in cases if not best[1](case)]
    if len(wrong) >= NEARLY_ALL * len(cases) and not (all(inside) and not any(outside)):
        return "nearly everywhere", lambda case: True, told
    if all(inside):
        words = f"wherever {best[0]}" + ", and elsewhere too" * any(outside)
    else:
        words = f"{'mostly' if any(outside) else 'only'} where {best[0]}"
    return words, best[1], told


def _both(one: Setting, other: Setting) -> Setting:
    return f"{one[0]} and {other[0]}", lambda case: one[1](case) and other[1](case)


def _settings(cases: Sequence[Case]) -> list[Setting]:
    """Every setting that some cells have and others have not."""
    candidates = (*_dtypes_and_modes(cases), *_memory(cases), *_content(cases), *_sizes(cases))
    return [(words, test) for words, test in candidates if 0 < sum(map(test, cases)) < len(cases)]


def _dtypes_and_modes(cases: Sequence[Case]) -> Iterator[Setting]:
    yield from _each(cases, lambda case: case.dtype, "X is {}", "X is not {}")
    yield "X has 16 bits", lambda case: case.dtype in SIXTEEN_BITS
    yield from _each(cases, lambda case: str(case.casting_mode), "the mode is {}", "the mode is not {}")
    yield from _each(cases, lambda case: case.w_dtype or "missing", "W is {}", "W is not {}")
    yield "W has another dtype than X", lambda case: case.w_dtype not in (None, case.dtype)
    yield "W has X's dtype", lambda case: case.w_dtype == case.dtype
    yield "W has 16 bits", lambda case: case.w_dtype in SIXTEEN_BITS
    yield from _each(cases, lambda case: f"{case.offset:g}" if case.w_dtype else "ignored", "the offset is {}")
    yield "the offset is not 0", lambda case: case.offset != 0 and case.w_dtype is not None
    yield "in_place is on", lambda case: case.in_place
    yield "in_place is off", lambda case: not case.in_place
    yield from _each(cases, lambda case: str(case.row_mode), "row_mode is {}")
    yield "there is a residual", lambda case: case.residual
    yield "there is no residual", lambda case: not case.residual


def _memory(cases: Sequence[Case]) -> Iterator[Setting]:
    layouts: dict[str, Callable[[Case], str]] = {
        "X": lambda case: case.x_layout,
        "dY": lambda case: case.dy_layout,
        "W": lambda case: case.w_layout,
        "R": lambda case: case.r_layout,  # contiguous where there is none
        "dS": lambda case: case.ds_layout,
    }
    for tensor, layout in layouts.items():
        yield f"{tensor} is not contiguous", _differs(layout, "contiguous", "misaligned")
        for name in dict.fromkeys(map(layout, cases)):
            laid = "stored by heads" if name == "heads" else name.replace("_", "-")
            yield f"{tensor} is {laid}", _equals(layout, name)


def _content(cases: Sequence[Case]) -> Iterator[Setting]:
    yield from _each(cases, lambda case: case.data.replace("_", " "), "the data is {}")
    yield "eps is as large as the mean square", lambda case: _share_of_eps(case) >= LARGE_EPS
    yield "eps is larger than the mean square", lambda case: _share_of_eps(case) > 10
    yield "eps is 0", lambda case: case.eps == 0


def _sizes(cases: Sequence[Case]) -> Iterator[Setting]:
    yield from _each(cases, lambda case: len(case.shape), "X has rank {}")
    sizes: dict[str, Callable[[Case], int]] = {
        "columns": lambda case: case.shape[-1],
        "rows": lambda case: case.n_rows,
    }
    for name, size in sizes.items():
        values = sorted(set(map(size, cases)))
        for value in values[1:]:
            yield f"there are {value} {name} or more", _at_least(size, value)
            yield f"there are fewer than {value} {name}", _less_than(size, value)
        for value in values:
            yield (
                f"there {'is' if value == 1 else 'are'} {value} {name[: -1 if value == 1 else None]}",
                _equals(size, value),
            )
    yield "the columns are no power of two", lambda case: not _power_of_two(case.shape[-1])
    yield "the columns are a power of two", lambda case: _power_of_two(case.shape[-1])
    yield "the columns are 3 · 2^k", lambda case: case.shape[-1] % 3 == 0 and _power_of_two(case.shape[-1] // 3)
    yield "the columns are odd", lambda case: case.shape[-1] % 2 == 1


def _each(cases: Sequence[Case], key: Callable[[Case], Any], words: str, negated: str = "") -> Iterator[Setting]:
    """A setting for each value that occurs, and one for its absence where words for that are given."""
    for value in dict.fromkeys(map(key, cases)):
        yield words.format(value), _equals(key, value)
        if negated:
            yield negated.format(value), _differs(key, value)


def _equals(key: Callable[[Case], Any], value: Any) -> Callable[[Case], bool]:
    return lambda case: key(case) == value


def _differs(key: Callable[[Case], Any], *values: Any) -> Callable[[Case], bool]:
    return lambda case: key(case) not in values


def _at_least(key: Callable[[Case], int], value: int) -> Callable[[Case], bool]:
    return lambda case: key(case) >= value


def _less_than(key: Callable[[Case], int], value: int) -> Callable[[Case], bool]:
    return lambda case: key(case) < value


def _power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _share_of_eps(case: Case) -> float:
    """eps over the mean of x², roughly."""
    return case.eps / max(mean_square(case.data, case.dtype, case.shape[-1]), 1e-300)
