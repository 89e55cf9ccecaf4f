"""One cell in detail: what came out at the worst element of each tensor, and what tolerances are made of."""

from __future__ import annotations

from collections.abc import Iterator

from references.judge.comparison import Measure
from references.judge.diagnosis import TITLES
from references.judge.verdict import Verdict
from references.report.summary import repetition


def explain(verdict: Verdict) -> list[str]:
    """Lines of text: the outcome, then for each tensor the worst element with every term, then the findings."""
    reason = f": {verdict.reason}" if verdict.reason else ""
    lines = [f"{verdict.case.id}: {verdict.status}{reason}"]
    if verdict.computes is not None:
        lines.append(f"its Y has the rounding of {verdict.computes}, claimed is {verdict.case.casting_mode}")
    if verdict.habit is not None:
        lines.append(verdict.habit)
    for tensor, measure in verdict.measures.items():
        lines += ["", *_tensor(tensor, measure)]
    if (repeated := repetition([verdict])) is not None:
        lines += ["", repeated]
    lines += ["", *(str(finding) for finding in verdict.findings)] if verdict.findings else []
    return lines


def _tensor(tensor: str, measure: Measure) -> Iterator[str]:
    yield (
        f"{TITLES[tensor]}: error / tolerance at most {measure.ratio:.3g}, median {measure.median_ratio:.3g}; "
        f"{measure.exact} of {measure.bounded} elements bit-exact, at most {measure.max_ulps} ulp off, "
        f"mean error {measure.bias:+.3f} ulp"
    )
    if measure.elements > measure.bounded:
        yield f"  {measure.elements - measure.bounded} elements out of the range of the bound: only their pattern"
    if measure.worst is None or measure.got is None or measure.oracle is None or measure.terms is None:
        return
    tolerance = sum(measure.terms.values())
    yield f"  worst element {list(measure.worst)}: got {measure.got!r}, the oracle says {measure.oracle!r}"
    yield f"  error {abs(measure.got - measure.oracle):.4g}, tolerance {tolerance:.4g}, made of"
    for name, term in sorted(measure.terms.items(), key=lambda item: -item[1]):
        share = term / tolerance if tolerance else 0.0
        yield f"    {name:<14} {term:.4g} ({share:.1%})"
