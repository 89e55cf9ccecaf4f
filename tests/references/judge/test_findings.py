"""What becomes a finding, and what it says: contract, repetition, parts of the results, refusals, precision."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from references import numpy_reference
from references.candidates.memory import Contract
from references.candidates.outputs import Outputs
from references.candidates.profile import Profile
from references.candidates.repetition import Behaviour
from references.cells.cell import Case, Inputs
from references.judge.verdict import Verdict, check, check_all, compare, plainest, reference_results

CASE = Case("gemma", 0.5, "float32", "same", False, (2, 5), 0.7)
UNTOUCHED = Contract((), (), (), dy_dense=True)


def right(case: Case, inputs: Inputs) -> Outputs:
    about: dict[str, Any] = {"eps": case.eps, "offset": case.offset, "casting_mode": case.casting_mode}
    y, rstd = numpy_reference.forward(inputs.x, inputs.w, **about)
    dx, dw = numpy_reference.backward(inputs.dy, inputs.x, inputs.w, **about)
    return Outputs(y, rstd, dx, dw, contract=UNTOUCHED)


@dataclass
class Standing:
    """A candidate whose results, behaviour and parts are what a test says."""

    results: Callable[[Case, Inputs], Outputs] = right
    behaves: Behaviour = field(default_factory=Behaviour)
    parts: Callable[[Case, Inputs], dict[str, Outputs]] = lambda case, inputs: {}
    name: str = "standing"
    device: str = "cpu"
    ignored: tuple[str, ...] = ()
    ran: list[Case] = field(default_factory=list)
    repeated: list[Case] = field(default_factory=list)

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        self.ran.append(case)
        return self.results(case, inputs)

    def behaviour(self, case: Case, inputs: Inputs) -> Behaviour:
        self.repeated.append(case)
        return self.behaves

    def partly(self, case: Case, inputs: Inputs) -> dict[str, Outputs]:
        return self.parts(case, inputs)


def told(verdict: Verdict) -> list[tuple[str, str, str]]:
    return [(f.check, f.tensor, f.message) for f in verdict.findings]


NO = "in_place=False"
THIN = "dY is not dense"


@pytest.mark.parametrize(
    ("contract", "in_place", "findings"),
    [
        (Contract(("dy",), (), (("dx", "dy"),), dy_dense=True), True, []),
        (Contract(("dy",), (), (), dy_dense=True), False, [("dy", f"was overwritten, but {NO}")]),
        (Contract(("dy",), (), (), dy_dense=False), True, [("dy", f"was overwritten, but {THIN}")]),
        (Contract(("dy",), (), (), dy_dense=False), False, [("dy", f"was overwritten, but {NO}")]),
        (Contract(("x", "w"), (), (), dy_dense=True), True, [("x", "was overwritten"), ("w", "was overwritten")]),
        (Contract((), ("dy",), (), dy_dense=True), True, [("dy", "storage outside the tensor was overwritten")]),
        (Contract((), (), (("y", "x"),), dy_dense=True), True, [("y", "shares the storage of x")]),
        (Contract((), (), (("dx", "x"),), dy_dense=True), True, [("dx", "shares the storage of x")]),
        (Contract((), (), (("dw", "dy"),), dy_dense=True), True, [("dw", "shares the storage of dy")]),
        (Contract((), (), (("dx", "dy"),), dy_dense=True), False, [("dx", f"shares the storage of dy, but {NO}")]),
        (Contract((), (), (("dx", "dy"),), dy_dense=False), True, [("dx", f"shares the storage of dy, but {THIN}")]),
    ],
)
def test_what_may_be_written_and_shared(contract: Contract, in_place: bool, findings: list[tuple[str, str]]) -> None:
    candidate = Standing(lambda case, inputs: replace(right(case, inputs), contract=contract))
    verdict = check(candidate, replace(CASE, in_place=in_place))
    assert told(verdict) == [("contract", *finding) for finding in findings]
    assert verdict.status == ("fail" if findings else "pass")


OLD = "other content at the same address gives the same bits: an old result came back"
OTHER = "a second run on the same content gives other bits"
ALONE = "a row has other bits alone than in the batch"


@pytest.mark.parametrize(
    ("behaves", "claims", "findings"),
    [
        (Behaviour(), {}, []),
        (Behaviour(batch_dependent=None), {"batch_invariant": True}, []),
        (Behaviour(unrepeated=("y", "dw")), {}, [("y", OTHER), ("dw", OTHER)]),
        (Behaviour(unrepeated=("y", "dw")), {"repeatable": False}, []),
        (Behaviour(stale=("dx",)), {"repeatable": False}, [("dx", OLD)]),
        (Behaviour(batch_dependent=("rstd",)), {}, []),
        (Behaviour(batch_dependent=("rstd",)), {"batch_invariant": True}, [("rstd", ALONE)]),
        (Behaviour(error="raised E"), {}, [("y", "run again on the same arguments, it raised E")]),
    ],
)
def test_what_repeated_runs_may_do(behaves: Behaviour, claims: dict[str, bool], findings: list[Any]) -> None:
    verdict = check(Standing(behaves=behaves), CASE, Profile(**claims), repeat=True)
    assert told(verdict) == [("repeat", *finding) for finding in findings]
    assert verdict.behaviour is behaves and verdict.status == ("fail" if findings else "pass")
    assert check(Standing(behaves=behaves), CASE, Profile(**claims)).behaviour is None


def test_without_rows_or_a_run_that_ended_nothing_is_repeated() -> None:
    candidate = Standing(behaves=Behaviour(stale=("y",)))
    assert check(candidate, replace(CASE, shape=(0, 5)), repeat=True).behaviour is None
    candidate.results = lambda case, inputs: replace(right(case, inputs), contract=None)
    assert check(candidate, CASE, repeat=True).behaviour is None
    assert candidate.repeated == []


def test_what_is_right_as_a_whole_has_to_be_right_in_part() -> None:
    def parts(case: Case, inputs: Inputs) -> dict[str, Outputs]:
        found = right(case, inputs)
        assert found.dx is not None
        return {
            "with W frozen": Outputs(dx=2 * found.dx),
            "without gradients": Outputs(y=found.y),
            "with X frozen": Outputs(error="E: no"),
            "interleaved": Outputs(died="hung"),
        }

    findings = told(check(Standing(parts=parts), CASE, repeat=True))
    assert [(check, tensor) for check, tensor, _ in findings] == [("repeat", "dx"), ("repeat", "y"), ("repeat", "y")]
    assert findings[0][2].startswith("with W frozen: ") and "10 of 10 elements" in findings[0][2]
    assert [message for *_, message in findings[1:]] == ["with X frozen it raised E: no", "interleaved it hung"]
    assert told(check(Standing(parts=parts), CASE)) == []


def test_what_is_missing_or_too_much() -> None:
    def without(**changes: Any) -> list[tuple[str, str, str]]:
        return told(check(Standing(lambda case, inputs: replace(right(case, inputs), **changes)), CASE))

    missing = "no gradient was returned"
    assert without(dx=None) == [("run", "dx", missing)] and without(dw=None) == [("run", "dw", missing)]
    assert without(dx=None, dw=None, forward_only=True) == []
    assert without(y=None) == [("run", "y", "nothing was returned")]
    assert without(y=None, dx=None, dw=None, error="E: no") == [("run", "y", "raised E: no")]
    assert without(dx=None, dw=None, error="E: no") == [("run", "dx", "raised E: no")]
    assert without(dx=None, dw=None, error="E: no", died="hung") == [("run", "dx", "hung")]
    assert without(rstd=None) == []


def test_a_missing_s_is_told_where_there_is_a_residual() -> None:
    case = replace(CASE, residual=True)

    def results(case: Case, inputs: Inputs) -> Outputs:
        return Outputs(**reference_results(case, inputs), contract=UNTOUCHED)

    def without(**changes: Any) -> list[tuple[str, str, str]]:
        return told(check(Standing(lambda case, inputs: replace(results(case, inputs), **changes)), case))

    assert without() == []
    assert without(s=None) == [("run", "s", "nothing was returned")]


def test_how_a_row_of_dx_cancels() -> None:
    """|1| + |-3| + |1| of a sum of -1: five; and one where nothing cancels."""
    x, w = np.array([[1, 1, -1], [1, 1, 1]], np.float32), np.array([0.5, 1.5, 0.5], np.float32)
    dy = np.array([[1, -1.5, -1], [1, 1, 1]], np.float32)
    case, inputs = replace(CASE, shape=(2, 3)), Inputs(x, w, dy)
    (dx,) = (found for found in compare(case, inputs, right(case, inputs)) if found.tensor == "dx")
    measure = dx.measure()
    assert measure is not None and [condition for condition, _ in measure.cancellation] == [5, 1]


def test_what_is_not_claimed_is_refused_or_right_or_wrong() -> None:
    profile, words = Profile(dtypes=("float16",)), "dtype float32 is not claimed"

    def found(**changes: Any) -> Verdict:
        return check(Standing(lambda case, inputs: replace(right(case, inputs), **changes)), CASE, profile)

    refused = found(y=None, dx=None, dw=None, error="TypeError: not this one: no")
    assert (refused.status, refused.reason) == ("unsupported", f"{words}; refused with TypeError")
    assert (found().status, found().reason) == ("unsupported", f"{words}; computed right all the same")
    wrong = found(y=np.zeros((2, 5), np.float32))
    assert wrong.status == "fail" and [f.check for f in wrong.findings] == ["refusal"]
    assert wrong.findings[0].message.startswith(f"{words}, and no error says so: value: y")
    lacking = found(unsupported="no such argument")
    assert (lacking.status, lacking.reason) == ("unsupported", "no such argument")


def in_float32(case: Case, inputs: Inputs) -> Outputs:
    narrow = Inputs(*(v if v is None else v.astype(np.float32) for v in (inputs.x, inputs.w, inputs.dy)))
    found = right(case, narrow)
    tensors = {name: getattr(found, name) for name in ("y", "rstd", "dx", "dw")}
    return replace(found, **{name: v if v is None else v.astype(np.float64) for name, v in tensors.items()})


@pytest.mark.parametrize("weight", ["same", "none"])
def test_float64_that_is_computed_in_float32_is_told_as_that(weight: str) -> None:
    case = replace(CASE, dtype="float64", weight=weight, shape=(8, 40))
    message = "computes float64 in float32"
    assert told(check(Standing(in_float32), case)) == [("precision", "y", message)]
    unclaimed = check(Standing(in_float32), case, Profile(dtypes=("float32",)))
    assert unclaimed.reason == "dtype float64 is not claimed; computed in float32" and unclaimed.findings == []

    def also_written(case: Case, inputs: Inputs) -> Outputs:
        return replace(in_float32(case, inputs), contract=Contract(("x",), (), (), dy_dense=True))

    assert told(check(Standing(also_written), case)) == [
        ("precision", "y", message),
        ("contract", "x", "was overwritten"),
    ]

    def one_off(case: Case, inputs: Inputs) -> Outputs:
        found = right(case, inputs)
        assert found.y is not None
        found.y[0, 0] = np.float32(found.y[0, 0])
        return found

    assert [check for check, *_ in told(check(Standing(one_off), case))] == ["value"], "one element is a wrong value"

    def both_wrong(case: Case, inputs: Inputs) -> Outputs:
        found = in_float32(case, inputs)
        assert found.y is not None
        return replace(found, y=1.5 * found.y)

    assert "precision" not in [check for check, *_ in told(check(Standing(both_wrong), case))]


def cells(**changes: Any) -> Case:
    return replace(CASE, **({"offset": 0.0, "shape": (4, 5)} | changes))


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (cells(), cells(shape=(1, 5))),
        (cells(offset=1.0), cells(data="tiny")),
        (cells(shape=(2, 5)), cells(offset=1.0)),
        (cells(), cells(shape=(65, 5))),
        (cells(shape=(64, 5)), cells(offset=1.0)),
        (cells(weight="none"), cells(offset=1.0)),
        (cells(), cells(weight="none")),
        (cells(x_layout="transposed"), cells(x_layout="transposed", w_layout="misaligned")),
        (cells(weight="none"), cells(dy_layout="transposed", w_layout="misaligned")),
        (cells(data="tiny"), cells(data="normal", shape=(1, 5))),
        (cells(offset=1.0), cells(shape=(65, 5))),
    ],
)
def test_the_plainest_cell_is_repeated(better: Case, worse: Case) -> None:
    for pair in ((better, worse), (worse, better)):
        assert plainest(pair) == {better}
    candidate = Standing()
    check_all(candidate, [worse, better], lambda verdict: None)
    assert candidate.ran == [worse, better] and candidate.repeated == [better]


def test_it_stops_at_the_failure_that_it_is_told_to() -> None:
    def wrong(case: Case, inputs: Inputs) -> Outputs:
        return replace(right(case, inputs), dw=None) if case.seed % 2 else right(case, inputs)

    cases = [replace(CASE, seed=seed) for seed in range(10)]
    for most, ended in ((0, 10), (1, 2), (2, 4), (9, 10)):
        seen: list[Verdict] = []
        found = check_all(Standing(wrong), cases, seen.append, max_failures=most)
        assert found == seen and [verdict.case.seed for verdict in found] == list(range(ended))
    assert len(check_all(Standing(wrong), cases, seen.append)) == 10, "unless it is told, it goes on"
    helped = check_all(Standing(), cases, lambda verdict: None, others=[Standing(), Standing()])
    assert [verdict.case for verdict in helped] == cases

    def breaks(case: Case, inputs: Inputs) -> Outputs:
        raise SystemExit("no")

    with pytest.raises(SystemExit, match="no"):
        check_all(Standing(), cases, lambda verdict: None, others=[Standing(breaks)])


def test_a_wrong_y_is_told_with_the_mode_that_it_shows() -> None:
    case = replace(CASE, dtype="bfloat16", shape=(8, 40))

    def of(mode: str) -> Verdict:
        return check(Standing(lambda case, inputs: right(replace(case, casting_mode=mode), inputs)), case)

    assert of("gemma").computes is None and of("gemma").status == "pass"
    assert of("llama").computes == "llama" and of("none").computes == "none"
    zero = check(Standing(lambda case, inputs: replace(right(case, inputs), y=0 * inputs.x)), case)
    assert zero.status == "fail" and zero.computes is None


def test_helpers_end_with_the_process() -> None:
    daemons: list[bool] = []

    def asked(case: Case, inputs: Inputs) -> Outputs:
        daemons.append(threading.current_thread().daemon)
        return right(case, inputs)

    cases = [replace(CASE, seed=seed) for seed in range(40)]
    check_all(Standing(), cases, lambda verdict: None, others=[Standing(asked)])
    assert daemons and all(daemons)
