"""check(implementation, case) -> Verdict: run one cell and judge it, always in the same order.

It runs; each tensor has the right dtype, shape, special values, values and rounding points; the contract
holds, so nothing is written but what the specification permits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from references import numpy_reference, tolerances
from references.cases import Case, Inputs, make_inputs
from references.comparison import Comparison, Finding, Measure
from references.implementation import Implementation, Outputs
from references.layouts import Contract
from references.tolerances import Bound

TENSORS = ("y", "rstd", "dx", "dw")


@dataclass
class Verdict:
    """The outcome of one cell: "pass", "fail" or "unsupported" (with the reason)."""

    case: Case
    status: str = "pass"
    reason: str | None = None
    seconds: float = 0.0  # that the candidate took
    findings: list[Finding] = field(default_factory=list)
    measures: dict[str, Measure] = field(default_factory=dict)  # by tensor


def check(implementation: Implementation, case: Case) -> Verdict:
    """Run `implementation` on one cell and judge it. What the candidate raises becomes a finding."""
    inputs = make_inputs(case)
    started = time.perf_counter()
    outputs = implementation.run(case, inputs)
    verdict = Verdict(case, seconds=time.perf_counter() - started)
    if outputs.unsupported is not None:
        verdict.status, verdict.reason = "unsupported", outputs.unsupported
        return verdict
    verdict.findings += _run_findings(case, outputs)
    for comparison in compare(case, inputs, outputs):
        verdict.findings += comparison.findings()
        measure = comparison.measure()
        if measure is not None:
            verdict.measures[comparison.tensor] = measure
    if outputs.contract is not None:
        verdict.findings += _contract_findings(case, outputs.contract)
    verdict.status = "fail" if verdict.findings else "pass"
    return verdict


def check_all(
    implementation: Implementation, cases: Iterable[Case], on_verdict: Callable[[Verdict], object]
) -> list[Verdict]:
    """Check cell after cell and tell `on_verdict` of each. Interrupted (Ctrl-C), it returns what there is."""
    verdicts: list[Verdict] = []
    try:
        for case in cases:
            verdicts.append(check(implementation, case))
            on_verdict(verdicts[-1])
    except KeyboardInterrupt:
        pass
    return verdicts


def compare(case: Case, inputs: Inputs, outputs: Outputs) -> Iterator[Comparison]:
    """Each tensor that `outputs` holds beside what it should be."""
    about = _settings(case)
    y, rstd = numpy_reference.forward(inputs.x, inputs.w, **about)
    dx, dw = numpy_reference.backward(inputs.dy, inputs.x, inputs.w, **about)
    bounds = reference_bounds(case, inputs)
    exactness = case.data == "normal" and not case.structured
    for tensor, wanted in zip(TENSORS, (y, rstd, dx, dw), strict=True):
        got = getattr(outputs, tensor)
        if got is not None and wanted is not None:
            condition = _condition(case, inputs) if tensor == "dx" else None
            yield Comparison(tensor, got, wanted, bounds[tensor], str(case.casting_mode), exactness, condition)


def reference_bounds(case: Case, inputs: Inputs) -> dict[str, Bound]:
    """The oracle's values and the tolerances around them, by tensor; no "dw" without a weight."""
    about = _settings(case) | {"structured": case.structured}
    forward = tolerances.forward_bounds(inputs.x, inputs.w, **about)
    return forward | tolerances.backward_bounds(inputs.dy, inputs.x, inputs.w, **about)


@np.errstate(all="ignore")
def _condition(case: Case, inputs: Inputs) -> np.ndarray:
    """Σ|t| / |Σt| of each row's t = dY·(W + offset)·X, the sum inside dX: longdouble, X's shape but the last."""
    w = 1 if inputs.w is None else inputs.w.astype(np.longdouble) + case.offset
    terms = inputs.dy.astype(np.longdouble) * w * inputs.x.astype(np.longdouble)
    return np.abs(terms).sum(axis=-1) / np.abs(terms.sum(axis=-1))


def _settings(case: Case) -> dict[str, Any]:
    return {"eps": case.eps, "offset": case.offset, "casting_mode": str(case.casting_mode)}


def _run_findings(case: Case, outputs: Outputs) -> Iterator[Finding]:
    if outputs.error is not None:
        yield Finding("run", "y" if outputs.y is None else "dx", f"raised {outputs.error}")
        return
    if outputs.y is None:
        yield Finding("run", "y", "nothing was returned")
    elif outputs.y.shape == case.shape:  # no gradient can flow through another shape
        if outputs.dx is None:
            yield Finding("run", "dx", "no gradient was returned")
        if outputs.dw is None and case.w_dtype is not None:
            yield Finding("run", "dw", "no gradient was returned")
        if outputs.dw is not None and case.w_dtype is None:
            yield Finding("run", "dw", "a gradient was returned, but there is no weight")


def _contract_findings(case: Case, contract: Contract) -> Iterator[Finding]:
    """in_place permits writing dX to dY's storage where dY is dense; nothing else may be written."""
    may_write_dy = case.in_place and contract.dy_dense
    why = "in_place=False" if not case.in_place else "dY is not dense"
    for name in contract.changed:
        if name != "dy":
            yield Finding("contract", name, "was overwritten")
        elif not may_write_dy:
            yield Finding("contract", "dy", f"was overwritten, but {why}")
    for name in contract.changed_outside:
        yield Finding("contract", name, "storage outside the tensor was overwritten")
    for result, argument in contract.shares_storage:
        if (result, argument) != ("dx", "dy"):
            yield Finding("contract", result, f"shares the storage of {argument}")
        elif not may_write_dy:
            yield Finding("contract", "dx", f"shares the storage of dy, but {why}")
