"""Which defence is needed for what: the mutants that nothing else notices, were this one switched off.

`python -m references.mutation.ablation` asks every curated mutant. A piece of evidence (a finding, a failing test)
needs some defences: a wrong RSTD in a cell of float64 needs the float64 cells and that RSTD is looked at. A mutant
hangs on a defence alone if every piece of evidence needs it, so evidence is gathered until they share none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from references import conformance
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

DEFENCES = (
    BIT_EXACT, RSTD, ENCLOSURE, GUARD_BANDS, GUARD_PAGES, SPARSE, EPS, NOISE, LAYOUTS, RANGE, FLOAT64, VARIANTS,
    CONTRACT, RULES, OUTVOTE, EAGER, SECOND,
)  # fmt: skip

_HARD = "tests/test_hard_inputs.py"
_VALUES = "values or overflows or upstream or minus_zero"
_STRIDES = "layouts or alignment or overlapping or summed_loss"
# What a test belongs to; the first that fits. In this order they are asked.
TESTS = (
    ("tests/test_tiles.py", VARIANTS),
    (f"{_HARD} -k {_STRIDES}", LAYOUTS),
    (f"{_HARD} -k {_VALUES}", RANGE),
    (f"{_HARD}::test_guard_pages", GUARD_PAGES),
    (f"{_HARD}::test_beyond_int32", SPARSE),
    ("tests/test_launch.py -k tiles or split_rows", VARIANTS),
    ("tests/test_launch.py -k one_stride", LAYOUTS),
    ("tests/test_launch.py", CONTRACT),
    ("tests/test_host_contract.py", CONTRACT),
    ("tests/test_errors.py", CONTRACT),
    ("tests/test_in_place.py", CONTRACT),
    ("tests/test_module.py", CONTRACT),
    ("tests/test_vote.py", OUTVOTE),
    ("tests/test_eager_cells.py", EAGER),
    ("tests/test_gradcheck.py", SECOND),
    (STATIC, RULES),
    (VOTE, OUTVOTE),
)
_KERNELS = TESTS[:5]
_HOST = (*TESTS[1:3], TESTS[8], TESTS[0])
# file → the tests that could see a fault there; the mutant's own comes first anyway.
ASKED = {"kernels": _KERNELS, "split_kernels": _KERNELS, "launch": _HOST, "launcher": _HOST, "config": _HOST}
ASKED |= {"ops": _HOST, "function": _HOST, "eager": (TESTS[13], TESTS[14])}


def judge(noticed_by: str, then: list[str], device: str, result: Path, seed: int) -> None:
    """Gather evidence and write {"status": ..., "alone": [...], "evidence": [[needs, what], ...]}."""
    from references import interpreter

    interpreter.install()
    result.with_suffix(".stage").write_text("evidence")
    gathered: list[tuple[list[str], str]] = []
    common: frozenset[str] | None = None
    for needs, what in _evidence(noticed_by, then, device, seed):
        gathered.append((sorted(needs), what))
        common = needs if common is None else common & needs
        if not common:
            break
    status = "survived" if common is None else "killed"
    result.write_text(json.dumps({"status": status, "alone": sorted(common or ()), "evidence": gathered}))


def _evidence(noticed_by: str, then: list[str], device: str, seed: int) -> Iterator[tuple[frozenset[str], str]]:
    kill = stages.static(device)
    if kill:
        yield frozenset({RULES}), str(kill["text"])
    yield from _of_cells(device, seed)
    for selection in dict.fromkeys((noticed_by, *then)):
        if selection in (STATIC, CELLS):
            continue
        (_, stage), *_ = stages.stages(selection, [], seed)
        try:
            kill = stage(device)
        except Exception as error:
            kill = stages.Kill(text=repr(error))
        if kill:
            yield frozenset({_defence(selection)}), f"{kill.get('where')}: {kill['text']}"[:200]


def _defence(selection: str) -> str:
    """The defence that a test belongs to."""
    exact = dict(TESTS).get(selection)
    if exact:
        return exact
    for name in ("guard_pages", "beyond_int32", "layouts", "alignment", "one_stride", "minus_zero", "split_rows"):
        if name in selection:
            return next(defence for test, defence in TESTS if name in test)
    return next(
        defence for test, defence in TESTS if test.partition(" ")[0] == selection.partition(" ")[0].partition("::")[0]
    )


def _of_cells(device: str, seed: int) -> Iterator[tuple[frozenset[str], str]]:
    """Every judged cell four times: with a plain eps or not, with ones as weight or not."""
    implementation = load(stages.TARGET, device=device)
    drawn = make_inputs

    def with_ones(case: Case) -> Inputs:
        inputs = drawn(case)
        return inputs if inputs.w is None else replace(inputs, w=np.ones_like(inputs.w))

    for noise, plain_eps in ((False, True), (True, True), (False, False), (True, False)):
        for original in stages.judged_cells(seed):
            case = replace(original, eps=1e-6) if plain_eps else original
            if not plain_eps and original.eps == 1e-6:
                continue
            conformance.make_inputs = drawn if noise else with_ones
            with stages.limited(stages.PATIENCE):  # what hangs raises, and that is a finding
                verdict = conformance.check(implementation, case)
            needs = {NOISE} if noise and case.weight != "none" else set()
            needs |= {EPS} if not plain_eps else set()
            needs |= {LAYOUTS} if {case.x_layout, case.dy_layout, case.w_layout} != {"contiguous"} else set()
            needs |= {RANGE} if case.data != "normal" else set()
            needs |= {FLOAT64} if case.dtype == "float64" else set()
            needs |= {VARIANTS} if case.row_mode is not None else set()
            for finding in verdict.findings:
                yield frozenset(needs | _needs(finding, case)), f"{case.id}: {finding}"[:200]


def _needs(finding: Finding, case: Case) -> set[str]:
    needs = {RSTD} if finding.tensor == "rstd" else set()
    if finding.check == "contract":
        return needs | {GUARD_BANDS if "outside" in finding.message else CONTRACT}
    if finding.check == "special" and case.data == "normal":  # the NaN around a tensor was read
        return needs | {GUARD_BANDS}
    return needs | {"exact": {BIT_EXACT}, "rounding": {ENCLOSURE}}.get(finding.check, set())


def asked(mutant: Mutant) -> Mutant:
    """The mutant, with the tests that could see it."""
    return replace(mutant, then=tuple(test for test, _ in ASKED.get(Path(mutant.file).stem, ())))


def table(alone: dict[str, list[str]]) -> str:
    """Markdown: each defence and the mutants that it alone notices."""
    lines = ["| defence | alone | mutants |", "|---|---|---|"]
    for defence in DEFENCES:
        ids = [id for id, defences in alone.items() if defence in defences]
        lines.append(f"| {defence} | {len(ids)} | {', '.join(ids) or '–'} |")
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
    found = {mutant.id: answer for mutant, answer in zip(faults, answers, strict=True)}
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    print(table({id: answer.get("alone", []) for id, answer in found.items()}))
    unseen = [id for id, answer in found.items() if answer["status"] != "killed"]
    print(f"killed {len(found) - len(unseen)} of {len(found)}", *unseen)
    return 1 if unseen else 0


def _tell(mutant: Mutant, answer: dict[str, Any]) -> None:
    print(
        f"{mutant.id:5} {answer['processor']:5.1f} s {answer['status']}: {answer.get('alone')}",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
