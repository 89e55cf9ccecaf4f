"""The mutants themselves: each fits today's files, a fixed sample is noticed. `python -m tests.mutation` runs all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation import automatic, catalogue, runner
from tests.mutation.mutant import CELLS, STATIC, VOTE, Mutant, NotApplicable

ROOT = Path(__file__).parents[2]
BY_ID = {mutant.id: mutant for mutant in catalogue.MUTANTS}


def test_ids_are_unique_and_there_are_enough() -> None:
    faults = [mutant for mutant in catalogue.MUTANTS if mutant.equivalent is None and not mutant.gpu_only]
    assert len(BY_ID) == len(catalogue.MUTANTS)
    assert len(faults) >= 100


@pytest.mark.parametrize("mutant", catalogue.MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutant_changes_its_file_in_one_place_and_python_still_reads_it(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    mutated = mutant.applied_to(text)  # raises where the text is not there, or not once: it has to follow the file
    assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text))


@pytest.mark.parametrize("mutant", catalogue.MUTANTS, ids=lambda mutant: mutant.id)
def test_what_should_notice_a_mutant_exists(mutant: Mutant) -> None:
    node, _, _ = mutant.noticed_by.partition(" -k ")
    path, _, name = node.partition("::")
    assert mutant.noticed_by in (STATIC, CELLS, VOTE) or f"def {name}" in (ROOT / path).read_text()


def test_every_reference_and_every_judged_file_has_faults() -> None:
    files = {mutant.file for mutant in catalogue.MUTANTS if mutant.equivalent is None}
    fused = ("kernels", "few_rows_kernels", "split_kernels", "plans", "launch", "variant", "tiles")
    assert {f"rmsnorm/fused/{name}.py" for name in fused} <= files
    assert {f"rmsnorm/{name}.py" for name in ("ops", "function", "eager", "checks", "module")} <= files
    assert {f"references/{name}_reference.py" for name in ("numpy", "torch", "jax")} <= files
    more = ("transforms", "ownership", "nested", "measure", "hub", "tensor_parallel", "fused/interpreter")
    assert {f"rmsnorm/{name}.py" for name in more} <= files


def test_automatic_mutants_fit_and_the_list_of_survivors_fits_them() -> None:
    mutants = automatic.every_mutant(ROOT)
    assert len({mutant.id for mutant in mutants}) == len(mutants) > 500
    texts = {mutant.file: (ROOT / mutant.file).read_text() for mutant in mutants}
    trees = {file: ast.dump(ast.parse(text)) for file, text in texts.items()}
    for mutant in mutants:
        assert ast.dump(ast.parse(mutant.applied_to(texts[mutant.file]))) != trees[mutant.file], mutant
    assert automatic.complaints(mutants) == []


@pytest.mark.parametrize("part", automatic.PARTS)
def test_the_sample_is_always_the_same_and_has_every_operator_of_every_file(part: str) -> None:
    sample, every = automatic.sample(ROOT, part), automatic.every_mutant(ROOT, part)
    assert sample == automatic.sample(ROOT, part)
    assert automatic.LIMIT * 0.95 <= len(sample) <= automatic.LIMIT * 1.1  # no operator of a file is left out
    assert {automatic._stratum(mutant) for mutant in sample} == {automatic._stratum(mutant) for mutant in every}


def test_an_automatic_mutant_is_the_text_at_its_place() -> None:
    edits = {
        (edit.operator, edit.new)
        for edit in automatic._Edits("def f(a):\n    while a < -(-a // 2):\n        a += 1\n").found
    }
    assert edits == {
        ("comparison", "<="),
        ("condition", "not (a < -(-a // 2))"),
        ("arithmetic", ""),
        ("arithmetic", "*"),
        ("arithmetic", "-="),
        ("constant", "3"),
        ("constant", "2"),
    }


def test_a_mutant_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("a = 1\na = 1\n")
    for old in ("a = 1", "b = 1"):
        with pytest.raises(NotApplicable, match=r"times in file\.py"):
            Mutant("X", "file.py", old, "a = 2", "none").apply(tmp_path)
    with pytest.raises(NotApplicable, match=r"at 3 in file\.py"):
        Mutant("X", "file.py", "a = 1", "a = 2", "none", at=3).apply(tmp_path)
    Mutant("X", "file.py", "a = 1", "a = 2", "none", at=6).apply(tmp_path)
    assert (tmp_path / "file.py").read_text() == "a = 1\na = 2\n"


@pytest.mark.mutation
@pytest.mark.interpret
@pytest.mark.jax
def test_a_sample_is_noticed_by_what_should_notice_it() -> None:
    results = runner.run([BY_ID[id] for id in catalogue.SAMPLE], depth=1)
    assert [str(result) for result in results if result.status != "killed"] == []


@pytest.mark.mutation
@pytest.mark.interpret
def test_what_is_no_fault_survives_and_what_does_not_import_is_no_kill() -> None:
    control = next(mutant for mutant in catalogue.MUTANTS if mutant.id == "F28")
    broken = Mutant("X1", "rmsnorm/fused/kernels.py", "import triton\n", "import tritron\n", "it does not import")
    crashes = Mutant(
        "X2", "rmsnorm/fused/tiles.py", "MAX_FUSED_COLS = 65536", "import os; os.abort()", "it crashes on import"
    )
    statuses = [result.status for result in runner.run([control, broken, crashes], depth=1)]
    assert statuses == ["survived", "broken", "broken"]


@pytest.mark.mutation
@pytest.mark.interpret
def test_a_suite_that_fails_without_a_fault_is_refused() -> None:
    broken = Mutant(
        "X3", "rmsnorm/fused/kernels.py", "import triton\n", "import tritron\n", "none", "tests/test_none.py"
    )
    with pytest.raises(runner.SuiteFails, match="nothing is planted"):
        runner.run([broken], depth=1)
