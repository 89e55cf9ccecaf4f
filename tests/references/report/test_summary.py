"""Numbers and words of the summary, at their limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from references.candidates.profile import Profile
from references.candidates.repetition import Behaviour
from references.cells.cell import Case
from references.judge.comparison import Measure
from references.judge.verdict import Verdict
from references.report import summary
from references.report.summary import Worst, conclusion, exit_code, number, percent, repetition, repro, text, unjudged

CASE = Case("gemma", 0.0, "float32", "same", False, (2, 8), 1e-6)


def measures(*tensors: str) -> dict[str, Measure]:
    return {t: Measure(16, 16, 0.5, 0.25, 16, 0, 0.0) for t in tensors}


@pytest.mark.parametrize(
    ("ratio", "words"), [(0.125, "0.12"), (1.005, "1.00"), (99.99, "99.99"), (100, "100"), (123456, "1.23e+05")]
)
def test_a_ratio_has_two_decimals_or_three_digits(ratio: float, words: str) -> None:
    assert number(ratio) == words


def test_rates_and_fields() -> None:
    assert [percent(rate) for rate in (0.0, 0.5, 0.99995, 1.0)] == ["0.00 %", "50.00 %", "99.99 %", "100.00 %"]
    assert Worst(0.5, 3, 4).exact_rate == 0.75 and Worst(0.5, 0, 0).exact_rate is None
    assert (text(None), text(Worst(0.5, 0, 0)), text(Worst(0.5, 3, 4))) == ("–", "0.50", "0.50, 75.00 %")
    assert summary.LOOSE == 0.05


@pytest.mark.parametrize(
    ("tensors", "forward_alone"), [(("y",), True), (("y", "rstd"), True), (("y", "dx"), False), (("y", "dw"), False)]
)
def test_a_forward_alone_is_told_as_that(tensors: tuple[str, ...], forward_alone: bool) -> None:
    verdict = replace(several(1, 0, 0)[0], measures=measures(*tensors))
    assert ("the forward alone" in conclusion([verdict], 1)) is forward_alone


def several(passed: int, failed: int, unsupported: int) -> list[Verdict]:
    reasons = ["no weight", *["no offset"] * (unsupported - 1)]
    return [
        *(Verdict(CASE, measures=measures("y", "dx", "dw")) for _ in range(passed)),
        *(Verdict(CASE, "fail") for _ in range(failed)),
        *(Verdict(CASE, "unsupported", reasons[i]) for i in range(unsupported)),
    ]


@pytest.mark.parametrize(
    ("counts", "missing", "words", "code"),
    [
        ((3, 0, 0), [], "conforms: 3 cells pass", 0),
        ((3, 0, 2), [], "conforms: 3 cells pass; 2 unsupported", 0),
        ((3, 2, 0), [], "deviates: in 2 of 5 cells", 1),
        ((0, 2, 4), [], "deviates: in 2 of 2 cells; 4 unsupported", 1),
        ((0, 0, 4), [], "nothing judged: no offset; 4 unsupported", 3),
        ((0, 0, 0), [], "nothing judged: no cell was run", 3),
        (
            (3, 0, 0),
            ["dW", "float16"],
            "not judged as a whole: dW, float16 claimed, but no cell of it could be judged",
            3,
        ),
        ((3, 1, 0), ["dW"], "deviates: in 1 of 4 cells", 1),
        ((0, 0, 3), ["dW"], "nothing judged: no offset; 3 unsupported", 3),
    ],
)
def test_the_conclusion_and_the_status(counts: tuple[int, int, int], missing: list[str], words: str, code: int) -> None:
    verdicts = several(*counts)
    assert conclusion(verdicts, len(verdicts), missing) == words
    assert (
        conclusion(verdicts, len(verdicts) + 1, missing) == f"{words}; ended after {sum(counts)} of {sum(counts) + 1}"
    )
    assert exit_code(verdicts, missing) == code


def test_what_is_claimed_and_not_judged() -> None:
    none, half = replace(CASE, casting_mode="none"), replace(CASE, dtype="float16")
    cases = [CASE, none, half]
    whole = [Verdict(case, measures=measures("y", "dx", "dw")) for case in cases]
    assert unjudged(whole, cases, Profile()) == []
    assert unjudged(whole[:1], cases, Profile()) == ["float16", "none"]
    assert unjudged(whole[:2], cases, Profile(dtypes=("float32",))) == []
    assert unjudged([], cases, Profile()) == ["float32", "float16", "gemma", "none"]
    refused = [whole[0], Verdict(none, "unsupported", "no"), Verdict(half, "unsupported", "no")]
    assert unjudged(refused, cases, Profile()) == ["float16", "none"]

    def half_of_the_gradients(*tensors: str, status: str = "pass", weight: str = "same") -> list[str]:
        case = replace(CASE, weight=weight)
        return unjudged([Verdict(case, status, measures=measures(*tensors))], [case], Profile())

    assert half_of_the_gradients("y", "dx") == ["dW"]
    assert half_of_the_gradients("y", "dx", status="fail") == []  # the cell says itself what is missing
    assert half_of_the_gradients("y", "dx", weight="none") == []
    assert half_of_the_gradients("y") == []  # no gradients are claimed
    assert half_of_the_gradients("y", "dx", "dw") == []


def test_the_command_that_shows_a_cell_again() -> None:
    def command(**about: Any) -> str:
        return repro(CASE, {"implementation": "m:f", "device": "cpu"} | about)

    start = f"rmsnorm-verify explain {CASE.id} m:f"
    assert command() == f"{start} --casting-mode gemma"
    assert command(takes_mode=True) == start
    assert command(takes_mode=True, device="cuda", arrays="torch") == f"{start} --device cuda"
    assert command(takes_mode=True, arrays="jax") == f"{start} --arrays jax"
    assert command(device="cuda", arrays="jax") == f"{start} --casting-mode gemma --device cuda --arrays jax"


def test_what_the_repeated_cells_show_is_counted() -> None:
    assert repetition([Verdict(CASE)]) is None
    behaviours = [
        Behaviour(),
        Behaviour(unrepeated=("y",)),
        Behaviour(batch_dependent=("dx",)),
        Behaviour(batch_dependent=None),
        Behaviour(error="raised E"),
    ]
    told = repetition([Verdict(CASE), *(Verdict(CASE, behaviour=one) for one in behaviours)])
    assert told == (
        "of 5 cells run again 3 give the same bits; of 4 with a row run alone 2 give that row the bits that it has in "
        "the batch"
    )
