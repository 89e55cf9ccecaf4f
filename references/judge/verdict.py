"""check(implementation, case) -> Verdict: run one cell and judge it, always in the same order.

It runs; each tensor has the right dtype, shape, special values, values and rounding points; the contract
holds, so nothing is written but what the specification permits, and results follow from the inputs alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from references import numpy_reference
from references.bounds import modes, tolerances
from references.bounds.rounding import SEQUENTIAL, Arithmetic
from references.bounds.tolerances import Bound
from references.candidates.memory import Contract
from references.candidates.outputs import RESULTS, WITHOUT_GRADIENTS, Implementation, Outputs
from references.candidates.profile import Profile
from references.candidates.repetition import Behaviour
from references.cells.cell import Case, Inputs, in_float32, make_inputs
from references.judge import habits, stream_habits
from references.judge.comparison import Comparison, Finding, Measure

MANY_ROWS = 64  # such a cell takes long to repeat in an interpreter
TENSORS = RESULTS  # in the order in which they are judged and told
RESIDUAL = ("s", "dr")  # those that only a residual brings
EVERYTHING = Profile(residual=(False, True))


@dataclass
class Verdict:
    """The outcome of one cell: "pass", "fail" or "unsupported" (with the reason)."""

    case: Case
    status: str = "pass"
    reason: str | None = None
    seconds: float = 0.0  # that the candidate took
    findings: list[Finding] = field(default_factory=list)
    measures: dict[str, Measure] = field(default_factory=dict)  # by tensor
    computes: str | None = None  # the other casting mode that a wrong Y shows
    habit: str | None = None  # what explains wrong numbers, where it is known
    behaviour: Behaviour | None = None  # where several runs were made
    explained: tuple[str, ...] = ()  # the tensors in which the habit explains them


def check(
    implementation: Implementation, case: Case, profile: Profile = EVERYTHING, *, repeat: bool = False
) -> Verdict:
    """Run `implementation` on one cell and judge it. What the candidate raises becomes a finding.

    Args:
        implementation: the candidate.
        case: the cell.
        profile: what the candidate claims. A cell that it does not claim has to be refused with an error; it counts
            as unsupported, and fails where a wrong result comes instead.
        repeat: run the cell nine times more, to see whether bits repeat, results follow the inputs, and nothing changes
            where a gradient is not needed or another forward comes between.
    """
    inputs = make_inputs(case)
    outputs = implementation.run(case, inputs)
    verdict = Verdict(case, seconds=outputs.seconds)
    unclaimed = profile.unclaimed(case)
    if outputs.unsupported is not None:
        verdict.status, verdict.reason = "unsupported", outputs.unsupported
        return verdict
    if unclaimed is not None and outputs.error is not None:
        verdict.status, verdict.reason = "unsupported", f"{unclaimed}; refused with {outputs.error.partition(':')[0]}"
        return verdict
    verdict.findings += _run_findings(case, outputs, profile.gradients and not outputs.forward_only)
    for comparison in compare(case, inputs, outputs, profile.arithmetic):
        verdict.findings += comparison.findings()
        measure = comparison.measure()
        if measure is not None:
            verdict.measures[comparison.tensor] = measure
    if outputs.contract is not None:
        verdict.findings += _contract_findings(case, outputs.contract)
    # A computation in float32 errs in most elements; one that is off, or a row, is a wrong value.
    if any(m.median_ratio > 1 for m in verdict.measures.values()) and _in_float32(case, inputs, outputs, profile):
        verdict.findings = _as_precision(verdict.findings)
    if unclaimed is not None:
        return _unrefused(verdict, unclaimed)
    if any(f.check in NUMBERS | BITS and f.tensor != "rstd" for f in verdict.findings):
        if case.residual:
            known = stream_habits.habit(case, inputs, outputs, reference_results(case, inputs))
        else:
            known = habits.habit(case, inputs, outputs)
        verdict.habit, verdict.explained = known or (None, ())
    if outputs.y is not None and any((f.check, f.tensor) in WRONG_Y for f in verdict.findings):
        shown = modes.computed_mode(case, inputs, outputs.y, profile.arithmetic)
        verdict.computes = shown if shown != case.casting_mode else None
    if repeat and case.n_rows and outputs.contract is not None:
        verdict.behaviour = implementation.behaviour(case, inputs)
        verdict.findings += _behaviour_findings(profile, verdict.behaviour)
        partly = implementation.partly(case, inputs)
        asked = {way: found for way, found in partly.items() if profile.gradients or way == WITHOUT_GRADIENTS}
        verdict.findings += _partly_findings(case, inputs, asked, profile)
    verdict.status = "fail" if verdict.findings else "pass"
    return verdict


PRECISION = "computes float64 in float32"
NO_GRADIENT = "no gradient was returned"
NUMBERS = {"value", "special"}
BITS = {"rounding", "exact"}
WRONG_Y = {("value", "y"), ("rounding", "y"), ("exact", "y")}


def check_all(
    implementation: Implementation,
    cases: Iterable[Case],
    on_verdict: Callable[[Verdict], object],
    profile: Profile = EVERYTHING,
    *,
    max_failures: int = 0,
    others: Sequence[Implementation] = (),
) -> list[Verdict]:
    """Check cell after cell and tell `on_verdict` of each. Interrupted (Ctrl-C), it returns what there is.

    The plainest cell of each casting mode and dtype is run several times.

    Args:
        implementation, profile: as for `check`.
        cases: the cells, in whose order the verdicts come.
        on_verdict: told of each verdict.
        max_failures: stop at so many failed cells; 0 never does.
        others: the same candidate in further processes, which take cells too.
    """
    cases = list(cases)
    repeated = plainest(cases)
    verdicts: dict[int, Verdict] = {}
    waiting = iter(enumerate(cases))
    turn = threading.Lock()
    broken: list[BaseException] = []
    ended = threading.Event()

    def work(candidate: Implementation) -> None:
        while not ended.is_set():
            with turn:
                number, case = next(waiting, (None, None))
            if number is None or case is None:
                return
            verdict = check(candidate, case, profile, repeat=case in repeated)
            with turn:
                verdicts[number] = verdict
                on_verdict(verdict)
                if max_failures and sum(v.status == "fail" for v in verdicts.values()) >= max_failures:
                    ended.set()

    def guarded(candidate: Implementation) -> None:
        try:
            work(candidate)
        except BaseException as error:
            broken.append(error)
            ended.set()

    helpers = [threading.Thread(target=guarded, args=(other,), daemon=True) for other in others]
    for thread in helpers:
        thread.start()
    try:
        work(implementation)
        for thread in helpers:
            thread.join()
    except KeyboardInterrupt:
        ended.set()
    if broken:
        raise broken[0]
    return [verdicts[number] for number in sorted(verdicts)]


def plainest(cases: Iterable[Case]) -> set[Case]:
    """The cell of each casting mode and dtype with the fewest unusual settings; one with rows."""

    def unusual(case: Case) -> tuple[bool, bool, bool, bool, int]:
        others = sum(layout != "contiguous" for layout in case.layouts) + (case.weight != "same")
        return case.n_rows < 2, case.data != "normal", case.n_rows > MANY_ROWS, case.offset != 0, others

    found: dict[tuple[str, str], Case] = {}
    for case in sorted((case for case in cases if case.n_rows), key=unusual):
        found.setdefault((str(case.casting_mode), case.dtype), case)
    return set(found.values())


def compare(case: Case, inputs: Inputs, outputs: Outputs, arithmetic: Arithmetic = SEQUENTIAL) -> Iterator[Comparison]:
    """Each tensor that `outputs` holds beside what it should be."""
    inputs = replace(inputs, **{name: np.zeros_like(getattr(inputs, name)) for name in outputs.absent})
    bounds = reference_bounds(case, inputs, arithmetic)
    exactness = case.data == "normal" and not case.structured
    for tensor, wanted in reference_results(case, inputs).items():
        got = getattr(outputs, tensor)
        if got is not None and wanted is not None:
            condition = _condition(case, inputs) if tensor == "dx" else None
            yield Comparison(tensor, got, wanted, bounds[tensor], str(case.casting_mode), exactness, condition)


def reference_results(case: Case, inputs: Inputs) -> dict[str, np.ndarray | None]:
    """The NumPy reference's results by tensor, in the order of `TENSORS`; dw is None without a weight."""
    x, w, dy, r, ds = inputs.x, inputs.w, inputs.dy, inputs.r, inputs.ds
    about = _settings(case)
    if r is None or ds is None:
        y, rstd = numpy_reference.forward(x, w, **about)
        dx, dw = numpy_reference.backward(dy, x, w, **about)
        return {"y": y, "rstd": rstd, "dx": dx, "dw": dw}
    y, s, rstd = numpy_reference.FusedAdd.forward(x, r, w, **about)
    dx, dr, dw = numpy_reference.FusedAdd.backward(dy, ds, x, r, w, **about)
    return {"y": y, "s": s, "rstd": rstd, "dx": dx, "dr": dr, "dw": dw}


def reference_bounds(case: Case, inputs: Inputs, arithmetic: Arithmetic = SEQUENTIAL) -> dict[str, Bound]:
    """The oracle's values and the tolerances around them, by tensor; no "dw" without a weight."""
    about = _settings(case) | {"structured": case.structured, "arithmetic": arithmetic}
    bounds = tolerances.forward_bounds(inputs.normed, inputs.w, **about)
    if inputs.r is not None:
        bounds |= tolerances.stream_bounds(inputs.x, inputs.r, arithmetic=arithmetic)
    return bounds | tolerances.backward_bounds(inputs.dy, inputs.normed, inputs.w, ds=inputs.ds, **about)


@np.errstate(all="ignore")
def _condition(case: Case, inputs: Inputs) -> np.ndarray:
    """Σ|t| / |Σt| of each row's t = dY·(W + offset)·X (or S), the sum inside dX: longdouble, X's shape but the last."""
    w = 1 if inputs.w is None else inputs.w.astype(np.longdouble) + case.offset
    terms = inputs.dy.astype(np.longdouble) * w * inputs.normed.astype(np.longdouble)
    return np.abs(terms).sum(axis=-1) / np.abs(terms.sum(axis=-1))


def _settings(case: Case) -> dict[str, Any]:
    return {"eps": case.eps, "offset": case.offset, "casting_mode": str(case.casting_mode)}


def _run_findings(case: Case, outputs: Outputs, gradients: bool) -> Iterator[Finding]:
    if outputs.error is not None or outputs.died is not None:
        message = f"raised {outputs.error}" if outputs.died is None else outputs.died
        yield Finding("run", "y" if outputs.y is None else "dx", message)
        return
    if outputs.y is None:
        yield Finding("run", "y", "nothing was returned")
    elif case.residual and outputs.s is None:
        yield Finding("run", "s", "nothing was returned")
    elif outputs.y.shape == case.shape:  # no gradient can flow through another shape
        if outputs.dx is None and gradients:
            yield Finding("run", "dx", NO_GRADIENT)
        if outputs.dr is None and case.residual and gradients:
            yield Finding("run", "dr", NO_GRADIENT)
        if outputs.dw is None and case.w_dtype is not None and gradients:
            yield Finding("run", "dw", NO_GRADIENT)
        if outputs.dw is not None and case.w_dtype is None:
            yield Finding("run", "dw", "a gradient was returned, but there is no weight")


@np.errstate(all="ignore")
def _in_float32(case: Case, inputs: Inputs, outputs: Outputs, profile: Profile) -> bool:
    """Whether results of float64 X that are wrong are right for the same X in float32."""
    if case.dtype != "float64" or outputs.y is None:
        return False
    single = replace(case, dtype="float32", weight="float32" if case.w_dtype == "float64" else case.weight)
    narrowed = {name: getattr(outputs, name) for name in TENSORS}
    rounded = {
        name: value.astype(np.float32) if value is not None and value.dtype == np.float64 else value
        for name, value in narrowed.items()
    }
    return any(
        not any(comparison.findings() for comparison in compare(single, narrow, Outputs(**rounded), profile.arithmetic))
        for narrow in in_float32(inputs)
    )


def _as_precision(findings: list[Finding]) -> list[Finding]:
    """Wrong numbers told as what they are."""
    first = next(finding for finding in findings if finding.check in NUMBERS)
    told = Finding("precision", first.tensor, PRECISION)
    return [told, *(finding for finding in findings if finding.check not in NUMBERS)]


def _partly_findings(case: Case, inputs: Inputs, results: dict[str, Outputs], profile: Profile) -> Iterator[Finding]:
    """What is right where everything is asked for has to be right where a part is."""
    for way, outputs in results.items():
        if outputs.error is not None or outputs.died is not None:
            yield Finding("repeat", "y", f"{way} it {f'raised {outputs.error}' if outputs.error else outputs.died}")
        for tensor in outputs.missing:
            yield Finding("repeat", tensor, f"{way}: no gradient was returned")
        for comparison in compare(case, inputs, outputs, profile.arithmetic):
            for finding in comparison.findings()[:1]:
                yield replace(finding, check="repeat", message=f"{way}: {finding.message}")


def _unrefused(verdict: Verdict, unclaimed: str) -> Verdict:
    """What was not claimed and yet computed: right it is merely unsupported, wrong it should have been refused."""
    if not verdict.findings:
        verdict.status, verdict.reason = "unsupported", f"{unclaimed}; computed right all the same"
    elif {finding.check for finding in verdict.findings if finding.message != NO_GRADIENT} == {"precision"}:
        verdict.status, verdict.reason, verdict.findings = "unsupported", f"{unclaimed}; computed in float32", []
    else:
        worst = verdict.findings[0]
        message = f"{unclaimed}, and no error says so: {worst}"
        verdict.status, verdict.findings = "fail", [Finding("refusal", worst.tensor, message)]
    return verdict


def _behaviour_findings(profile: Profile, behaviour: Behaviour) -> Iterator[Finding]:
    """Bits have to repeat unless the profile says that they don't; what the batch does is judged where claimed."""
    if behaviour.error is not None:
        yield Finding("repeat", "y", f"run again on the same arguments, it {behaviour.error}")
    for name in behaviour.stale:
        yield Finding("repeat", name, "other content at the same address gives the same bits: an old result came back")
    for name in behaviour.unrepeated if profile.repeatable else ():
        yield Finding("repeat", name, "a second run on the same content gives other bits")
    for name in (behaviour.batch_dependent or ()) if profile.batch_invariant else ():
        yield Finding("repeat", name, "a row has other bits alone than in the batch")


def _contract_findings(case: Case, contract: Contract) -> Iterator[Finding]:
    """in_place permits writing dX, which is dR too, to dY's storage where dY is dense; nothing else may be written."""
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
        if argument != "dy" or result not in ("dx", "dr"):
            yield Finding("contract", result, f"shares the storage of {argument}")
        elif not may_write_dy:
            yield Finding("contract", result, f"shares the storage of dy, but {why}")
