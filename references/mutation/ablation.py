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

PLAIN_EPS = 1e-6
Evidence = tuple[frozenset[str], str]  # the defences that it needs; what was seen

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


def _evidence(noticed_by: str, then: list[str], device: str, seed: int) -> Iterator[Evidence]:
    kill = stages.static(device)
    if kill:
        yield frozenset({RULES}), str(kill["text"])
    selections = dict.fromkeys((noticed_by, *then))
    for selection in selections:
        if selection == CELLS:
            yield from _of_cells(device, seed)
        elif selection != STATIC:
            (_, stage), *_ = stages.stages(selection, [], seed)
            try:
                kill = stage(device)
            except Exception as error:
                kill = stages.Kill(text=repr(error))
            if kill:
                defence = next(defence for name, defence in TESTS.items() if name in selection)
                yield frozenset({defence}), f"{kill.get('where')}: {kill['text']}"[:200]


def _of_cells(device: str, seed: int) -> Iterator[Evidence]:
    """The judged cells, and each that shows something again with a plain eps, with ones as weight, and with both."""
    implementation = load(stages.TARGET, device=device)
    drawn = make_inputs

    def with_ones(case: Case) -> Inputs:
        inputs = drawn(case)
        return inputs if inputs.w is None else replace(inputs, w=np.ones_like(inputs.w))

    def findings(case: Case, noise: bool) -> list[Finding]:
        conformance.make_inputs = drawn if noise else with_ones
        with stages.limited(stages.PATIENCE):  # what hangs raises, and that is a finding
            return conformance.check(implementation, case).findings

    for original in stages.judged_cells(seed):
        plain = replace(original, eps=PLAIN_EPS)
        for case, noise in dict.fromkeys(((original, True), (plain, False), (plain, True), (original, False))):
            shown = findings(case, noise)
            for finding in shown:
                yield _needed(case, noise, finding), f"{case.id}: {finding}"[:200]
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
    special = finding.check == "special" and case.data == "normal"  # the NaN around a tensor was read
    outside = finding.check == "contract" and "outside" in finding.message
    of_finding = {
        RSTD: finding.tensor == "rstd",
        BIT_EXACT: finding.check == "exact",
        ENCLOSURE: finding.check == "rounding",
        GUARD_BANDS: special or outside,
        CONTRACT: finding.check == "contract" and not outside,
    }
    return frozenset(name for name, needed in (of_case | of_finding).items() if needed)


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
