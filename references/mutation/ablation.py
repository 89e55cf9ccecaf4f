"""Which defence is needed for what: the mutants that nothing else notices, were this one switched off.

`python -m references.mutation.ablation` asks every curated mutant. A piece of evidence (a finding, a failing test)
needs some defences: a wrong RSTD in a cell of float64 needs the float64 cells and that RSTD is looked at. A failing
test needs what it belongs to; what else it needs shows when it runs again with that switched off. A mutant hangs on a
defence alone if every piece of evidence needs it, and on a pair if each needs one of the two, so evidence is gathered
until it hangs on none.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from references import cases, comparison, conformance
from references.cases import Case, Inputs, make_inputs
from references.comparison import Finding
from references.implementation import load
from references.mutation import catalogue, runner, stages
from references.mutation.mutant import CELLS, STATIC, VOTE, Mutant

BIT_EXACT = "bit-exact rate"
RSTD = "RSTD compared"
ENCLOSURE = "enclosure"
GUARD_BANDS = "guard bands"
GUARD_PAGES = "guard pages"
SPARSE = "sparse memory beyond 2^31"
EPS = "eps as large as the mean square"
NOISE = "noise weights"
LAYOUTS = "layouts"
RANGE = "range and special values"
FLOAT64 = "float64 cells"
VARIANTS = "forced variants and tiles"
CONTRACT = "contract checks"
RULES = "static rules"
OUTVOTE = "vote"
EAGER = "cells of the CPU implementation"
SECOND = "gradcheck"

PLAIN_EPS = 1e-6
SWITCHED = frozenset({BIT_EXACT, RSTD, ENCLOSURE, GUARD_BANDS, EPS, NOISE, FLOAT64})  # what tests can do without
# What looks at the same from two sides: each is missed where the other is off as well.
PAIRS = ((BIT_EXACT, ENCLOSURE), (GUARD_BANDS, GUARD_PAGES), (EPS, FLOAT64))


@dataclass(frozen=True)
class Evidence:
    """What was seen, the defences that it needs, and, of a test, whether it is still seen with others switched off."""

    what: str
    needs: frozenset[str]
    without: Callable[[frozenset[str]], bool] | None = None

    def hangs_on(self, defences: frozenset[str]) -> bool:
        """Whether it is gone when these are switched off."""
        if self.needs & defences:
            return True
        off = defences & SWITCHED
        return self.without is not None and bool(off) and not self.without(off)


DEFENCES = (
    BIT_EXACT, RSTD, ENCLOSURE, GUARD_BANDS, GUARD_PAGES, SPARSE, EPS, NOISE, LAYOUTS, RANGE, FLOAT64, VARIANTS,
    CONTRACT, RULES, OUTVOTE, EAGER, SECOND,
)  # fmt: skip

_HARD = "tests/test_hard_inputs.py"
# What a test belongs to: the first name that its selection contains.
TESTS = {
    STATIC: RULES,
    VOTE: OUTVOTE,
    "test_vote": OUTVOTE,
    "guard_pages": GUARD_PAGES,
    "beyond_int32": SPARSE,
    "layouts": LAYOUTS,
    "alignment": LAYOUTS,
    "one_stride": LAYOUTS,
    _HARD: RANGE,
    "test_tiles": VARIANTS,
    "split_rows": VARIANTS,
    "test_eager_cells": EAGER,
    "test_gradcheck": SECOND,
    "tests/": CONTRACT,
}
# Besides its own: the tests that could see a fault of these files.
ASKED = {
    name: (f"{_HARD} -k layouts or alignment or minus_zero", "tests/test_tiles.py") for name in ("kernels", "launch")
}
BLIND = ("checks", "module", "launcher", "config")  # cells of valid input reach none of these faults


def judge(noticed_by: str, then: list[str], device: str, result: Path, seed: int) -> None:
    """Gather evidence and write {"status": ..., "alone": [...], "evidence": [[needs, what], ...]}."""
    from references import interpreter

    interpreter.install()
    gathered: list[tuple[list[str], str]] = []
    hangs = [frozenset({defence}) for defence in DEFENCES] + [frozenset(pair) for pair in PAIRS]

    def write() -> None:  # after each piece: the next may be a crash
        found: dict[str, Any] = {"status": "survived", "alone": [], "pairs": [], "evidence": gathered}
        if gathered:
            alone = [defence for defence in DEFENCES if frozenset({defence}) in hangs]
            pairs = [pair for pair in PAIRS if frozenset(pair) in hangs and not set(pair) & set(alone)]
            found |= {"status": "killed", "alone": alone, "pairs": pairs}
        result.write_text(json.dumps(found))

    write()
    for evidence in _evidence(noticed_by, then, device, seed, result.with_suffix(".stage")):
        gathered.append((sorted(evidence.needs), evidence.what))
        hangs = [defences for defences in hangs if evidence.hangs_on(defences)]
        write()
        if not hangs:
            break


def crashed(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer of a mutant that ended its process: a crash is evidence too, and needs what it happened in."""
    if (answer.get("kill") or {}).get("by") not in ("crash", "timeout"):
        return answer
    at = answer["stage"]
    needed = next((defence for name, defence in TESTS.items() if name in at), None) if at != CELLS else None
    if not answer.get("evidence"):
        alone, pairs = [needed] if needed else [], []
    else:
        alone = [defence for defence in answer["alone"] if defence == needed]
        pairs = [pair for pair in answer["pairs"] if needed in pair]
    evidence = [*answer.get("evidence", []), ([needed] if needed else [], f"{at}: {answer['kill']['text']}")]
    return answer | {"alone": alone, "pairs": pairs, "evidence": evidence}


def _evidence(noticed_by: str, then: list[str], device: str, seed: int, at: Path) -> Iterator[Evidence]:
    """What is seen, source by source; `at` gets the name of the source that is being asked."""
    at.write_text(STATIC)
    kill = stages.static(device)
    if kill:
        yield Evidence(str(kill["text"]), frozenset({RULES}))
    selections = dict.fromkeys((noticed_by, *then))
    for selection in selections:
        at.write_text(selection)
        if selection == CELLS:
            yield from _of_cells(device, seed)
        elif selection != STATIC and (kill := _failure(selection, device, seed)):
            defence = next(defence for name, defence in TESTS.items() if name in selection)
            again = functools.partial(_fails_without, selection, device, seed)
            yield Evidence(f"{kill.get('where')}: {kill['text']}"[:200], frozenset({defence}), again)


def _failure(selection: str, device: str, seed: int) -> stages.Kill | None:
    (_, stage), *_ = stages.stages(selection, [], seed)
    try:
        return stage(device)
    except Exception as error:
        return stages.Kill(text=repr(error))


def _fails_without(selection: str, device: str, seed: int, off: frozenset[str]) -> bool:
    """Whether some of these tests still fail with defences switched off."""
    if FLOAT64 in off:
        node, _, expression = selection.partition(" -k ")
        selection = f"{node} -k {f'({expression}) and ' if expression else ''}not float64 and not f64"
    for name in [name for name in sys.modules if name.startswith("tests.test_")]:
        del sys.modules[name]  # they hold what is exchanged here
    with contextlib.ExitStack() as patches:
        for patch in _switched_off(off):
            patches.enter_context(patch)
        return _failure(selection, device, seed) is not None


def _switched_off(off: frozenset[str]) -> Iterator[Any]:
    """Patches: cases with a plain eps, ones as weights, findings that are not made."""
    if EPS in off:
        yield patch.object(cases, "Case", lambda *args, **kwargs: replace(Case(*args, **kwargs), eps=PLAIN_EPS))
    if NOISE in off:
        yield patch.object(cases, "make_inputs", _with_ones)
        yield patch.object(conformance, "make_inputs", _with_ones)
    if off & {BIT_EXACT, RSTD, ENCLOSURE, GUARD_BANDS}:
        findings, contract = comparison.Comparison.findings, conformance._contract_findings

        def kept(found: Iterable[Finding]) -> list[Finding]:
            return [finding for finding in found if not off & _needed_of(finding, normal=True)]

        yield patch.object(comparison.Comparison, "findings", lambda self: kept(findings(self)))
        yield patch.object(conformance, "_contract_findings", lambda *about: kept(contract(*about)))


def _with_ones(case: Case) -> Inputs:
    inputs = make_inputs(case)
    return inputs if inputs.w is None else replace(inputs, w=np.ones_like(inputs.w))


def _of_cells(device: str, seed: int) -> Iterator[Evidence]:
    """The judged cells, and each that shows something again with a plain eps, with ones as weight, and with both."""
    implementation = load(stages.TARGET, device=device)

    def findings(case: Case, noise: bool) -> list[Finding]:
        drawn = make_inputs if noise else _with_ones
        with patch.object(conformance, "make_inputs", drawn), stages.limited(stages.PATIENCE):
            return conformance.check(implementation, case).findings  # what hangs raises, and that is a finding

    for original in stages.judged_cells(seed):
        plain = replace(original, eps=PLAIN_EPS)
        for case, noise in dict.fromkeys(((original, True), (plain, False), (plain, True), (original, False))):
            shown = findings(case, noise)
            for finding in shown:
                yield Evidence(f"{case.id}: {finding}"[:200], _needed(case, noise, finding))
            if not shown and (case, noise) == (original, True):
                break


def _needed(case: Case, noise: bool, finding: Finding) -> frozenset[str]:
    """What must be switched on for this finding."""
    of_case = {
        NOISE: noise and case.weight != "none",
        EPS: case.eps != PLAIN_EPS,
        LAYOUTS: {case.x_layout, case.dy_layout, case.w_layout} != {"contiguous"},
        RANGE: case.data != "normal",
        FLOAT64: case.dtype == "float64",
        VARIANTS: case.row_mode is not None,
    }
    needed = frozenset(name for name, needed in of_case.items() if needed)
    return needed | _needed_of(finding, normal=case.data == "normal")


def _needed_of(finding: Finding, normal: bool) -> frozenset[str]:
    """What must be switched on for a finding of its kind. In normal data a NaN is one that was read beside a tensor."""
    special = finding.check == "special" and normal
    outside = finding.check == "contract" and "outside" in finding.message
    of_finding = {
        RSTD: finding.tensor == "rstd",
        BIT_EXACT: finding.check == "exact",
        ENCLOSURE: finding.check == "rounding",
        GUARD_BANDS: special or outside,
        CONTRACT: finding.check == "contract" and not outside,
    }
    return frozenset(name for name, needed in of_finding.items() if needed)


def asked(mutant: Mutant) -> Mutant:
    """The mutant, with what could see it besides its own check."""
    stem = Path(mutant.file).stem
    return replace(mutant, then=() if stem in BLIND else (CELLS, *ASKED.get(stem, ())))


def table(alone: dict[str, list[str]]) -> str:
    """Markdown: each defence and the mutants that it alone notices."""
    lines = ["| defence | alone | mutants |", "|---|---|---|"]
    for defence in DEFENCES:
        ids = [id for id, defences in alone.items() if defence in defences]
        lines.append(f"| {defence} | {len(ids)} | {', '.join(ids) or '–'} |")
    return "\n".join(lines)


def pairs_table(pairs: dict[str, list[list[str]]]) -> str:
    """Markdown: each pair and the mutants that one of the two must notice, though neither is alone with them."""
    lines = ["| switched off together | mutants that live | |", "|---|---|---|"]
    for pair in PAIRS:
        ids = [id for id, found in pairs.items() if sorted(pair) in found]
        lines.append(f"| {', '.join(pair)} | {len(ids)} | {', '.join(ids) or '–'} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="every piece of evidence")
    parser.add_argument("--only", action="append", metavar="ID", help="only this mutant; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    faults = [m for m in catalogue.select(arguments.only, "cpu") if m.equivalent is None]
    with runner.Judges() as judges:
        answers = judges.ask(map(asked, faults), __spec__.name, _tell, seed=arguments.seed)
    found = {mutant.id: crashed(answer) for mutant, answer in zip(faults, answers, strict=True)}
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    print(table({id: answer.get("alone", []) for id, answer in found.items()}))
    print(pairs_table({id: answer.get("pairs", []) for id, answer in found.items()}))
    unseen = [id for id, answer in found.items() if answer["status"] != "killed"]
    print(f"killed {len(found) - len(unseen)} of {len(found)}", *unseen)
    return 1 if unseen else 0


def _tell(mutant: Mutant, answer: dict[str, Any]) -> None:
    answer = crashed(answer)
    print(
        f"{mutant.id:5} {answer['processor']:5.1f} s {answer['status']}: {answer.get('alone')} {answer.get('pairs')}",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
