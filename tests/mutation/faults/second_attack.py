"""Faults that we invented after those of another hand, unlike any of the catalogue; each of these lived when it came.

Q in the package, V in the judge.
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant

HOST = "tests/rmsnorm/triton/test_host_contract.py"
CONVERT = "tests/rmsnorm/models/test_convert.py"
DIAGNOSIS = "tests/references/judge/test_diagnosis.py"

MUTANTS = (
    Mutant(
        "Q01",
        "rmsnorm/convert.py",
        '"zeros" if measured.offset else "ones"',
        '"ones"',
        "a replaced norm resets its weight to ones whatever its offset",
        CONVERT,
    ),
    Mutant(
        "Q02",
        "rmsnorm/nested.py",
        "        x.lengths(),\n",
        "        None,\n",
        "jagged rows with holes between them lose their lengths",
        "tests/rmsnorm/torch/test_programs.py -k jagged",
    ),
    Mutant(
        "Q03",
        "rmsnorm/function.py",
        "cls).apply(X, W, eps, offset, casting_mode, in_place, row_mode)",
        "cls).apply(X, W, eps, offset, casting_mode, in_place, None)",
        "with gradients row_mode is ignored",
        HOST + " -k every_setting",
    ),
    Mutant(
        "Q04",
        "rmsnorm/measure.py",
        "module._forward_pre_hooks or ",
        "",
        "a norm is replaced and its pre-hooks are lost",
        CONVERT,
    ),
    Mutant(
        "V01",
        "references/judge/diagnosis.py",
        "case.w_dtype not in (None, case.dtype)",
        "case.w_dtype != case.dtype",
        "no weight counts as one of another dtype",
        DIAGNOSIS,
    ),
    Mutant(
        "V02",
        "references/judge/diagnosis.py",
        'yield f"there are fewer than {value} {name}"',
        'yield f"there are at most {value} {name}"',
        "the size from which a fault is met is told one too high",
        DIAGNOSIS,
    ),
    Mutant(
        "V03",
        "references/report/junit.py",
        'skipped=str(count["unsupported"])',
        'skipped="0"',
        "a JUnit file counts no cell that is not supported",
        "tests/references/report/test_junit.py",
    ),
    Mutant(
        "V04",
        "references/report/terminal.py",
        "{reasons.total()} cells",
        "{len(reasons)} cells",
        "reasons are counted as cells",
        "tests/references/report/test_report.py -k supported",
    ),
    Mutant(
        "V05",
        "references/cells/selection.py",
        "return any(all(map(term,",
        "return all(all(map(term,",
        "words that `or` joins must all fit",
        "tests/references/cells/test_selection.py",
    ),
)
