"""What a diagnosis says: every setting in its words and at its limit, written out; which findings are one fault."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from references.candidates.repetition import Behaviour
from references.cells.cell import Case
from references.judge.comparison import Finding
from references.judge.diagnosis import Diagnosis, diagnose
from references.judge.verdict import Verdict

PLAIN = Case("llama", 0.5, "float32", "same", False, (4, 40), 1e-6)
LEAVES = Finding("value", "y", "is off")


def verdicts(cases: Iterable[Case], *findings: Finding, **about: Any) -> list[Verdict]:
    return [Verdict(case, "fail" if findings else "pass", findings=list(findings), **about) for case in cases]


def one(found: list[Diagnosis]) -> Diagnosis:
    (diagnosis,) = found
    return diagnosis


def cells(changes: Iterable[dict[str, Any]]) -> list[Case]:
    return [replace(PLAIN, **change) for change in changes]


def columns(*sizes: int) -> list[dict[str, Any]]:
    return [{"shape": (4, size)} for size in sizes]


def rows(*sizes: int) -> list[dict[str, Any]]:
    return [{"shape": (size, 40)} for size in sizes]


def each(axis: str, *values: Any) -> list[dict[str, Any]]:
    return [{axis: value} for value in values]


def weights(*dtypes: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"dtype": dtype, "weight": weight} for dtype, weight in dtypes]


F16, B16, F32, F64 = "float16", "bfloat16", "float32", "float64"
SETTINGS: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]] = [  # words, cells that fail, cells that pass
    ("X is float16", each("dtype", F16), each("dtype", B16, F32, F64)),
    ("X is not float64", each("dtype", F16, B16, F32), each("dtype", F64)),
    ("X has 16 bits", each("dtype", F16, B16), each("dtype", F32, F64)),
    ("the mode is gemma", each("casting_mode", "gemma"), each("casting_mode", "llama", "none")),
    ("the mode is not llama", each("casting_mode", "gemma", "none"), each("casting_mode", "llama")),
    ("W is bfloat16", each("weight", B16), each("weight", "same", F16, "none")),
    ("W is missing", each("weight", "none"), each("weight", "same", B16)),
    ("W is not missing", each("weight", "same", B16), each("weight", "none")),
    (
        "W has another dtype than X",
        weights((F32, B16), (F16, F32), (B16, F16)),
        weights((F32, "same"), (F16, "same"), (B16, "same"), (F32, "none"), (F16, "none")),
    ),
    (
        "W has X's dtype",
        weights((F32, "same"), (F16, "same"), (B16, "same")),
        weights((F32, B16), (F16, F32), (B16, F16), (F32, "none"), (F16, "none")),
    ),
    ("W has 16 bits", each("weight", F16, B16), each("weight", "same", "none", F64)),
    ("the offset is 1", each("offset", 1.0), each("offset", 0.0, 0.5)),
    (
        "the offset is not 0",
        each("offset", 1.0, 0.5, -0.5),
        [*each("offset", 0.0), *({"offset": offset, "weight": "none"} for offset in (1.0, 0.5, -0.5))],
    ),
    ("in_place is on", each("in_place", True), each("in_place", False)),
    ("in_place is off", each("in_place", False), each("in_place", True)),
    ("row_mode is False", each("row_mode", False), each("row_mode", None, True)),
    (
        "X is not contiguous",
        each("x_layout", "row_strided", "transposed"),
        each("x_layout", "contiguous", "misaligned"),
    ),
    (
        "dY is not contiguous",
        each("dy_layout", "row_strided", "transposed"),
        each("dy_layout", "contiguous", "misaligned"),
    ),
    ("dY is stored by heads", each("dy_layout", "heads"), each("dy_layout", "contiguous", "transposed")),
    ("X is row-strided", each("x_layout", "row_strided"), each("x_layout", "contiguous", "transposed")),
    ("W is misaligned", each("w_layout", "misaligned"), each("w_layout", "contiguous", "column_strided")),
    ("the data is heavy tailed", each("data", "heavy_tailed"), each("data", "normal", "tiny")),
    # of noise the mean square counts as 0.7
    ("eps is as large as the mean square", each("eps", 0.0351, 0.7, 7.1), each("eps", 0.0349, 1e-6)),
    ("eps is larger than the mean square", each("eps", 7.1, 1e3), each("eps", 6.9, 0.7, 1e-6)),
    ("eps is 0", each("eps", 0.0), each("eps", 1e-6, 1e3)),
    ("X has rank 3", each("shape", (2, 2, 40)), each("shape", (4, 40), (1, 2, 2, 40))),
    ("there are 17 columns or more", columns(17, 33, 64), columns(15, 16)),
    ("there are fewer than 17 columns", columns(15, 16), columns(17, 33, 64)),
    ("there are 16 columns", columns(16), columns(15, 17, 32)),
    ("there is 1 column", columns(1), [{"shape": (4, 40), "x_layout": "transposed"}, *columns(2, 3)]),
    ("there are 17 rows or more", rows(17, 33), rows(15, 16)),
    ("there are fewer than 17 rows", rows(15, 16), rows(17, 33)),
    ("there are 16 rows", rows(16), rows(15, 17)),
    ("the columns are no power of two", columns(3, 5, 17, 40), columns(2, 4, 16, 32, 64)),
    ("the columns are a power of two", columns(2, 4, 16, 32, 64), columns(3, 5, 17, 40)),
    ("the columns are 3 · 2^k", columns(3, 6, 96), columns(2, 5, 9, 16, 40, 100)),
    ("the columns are odd", columns(3, 5, 17, 41), columns(2, 4, 6, 16, 40, 100)),
    (
        "X is float16 and the mode is gemma",
        [{"dtype": F16, "casting_mode": "gemma"}],
        [{"dtype": F16}, {"casting_mode": "gemma"}, {}],
    ),
]


@pytest.mark.parametrize(("words", "wrong", "right"), SETTINGS, ids=[words for words, *_ in SETTINGS])
def test_a_setting_is_told_in_its_words(words: str, wrong: list[dict], right: list[dict]) -> None:
    found = one(diagnose(verdicts(cells(wrong), LEAVES) + verdicts(cells(right))))
    singular = words.replace("there is 1 column", "there are fewer than 2 columns")  # the same cells
    assert found.where == f"wherever {singular}"
    assert all(map(found.setting, cells(wrong))) and not any(map(found.setting, cells(right)))
    assert (found.kind, found.tensors, found.complaint) == ("numbers", ("y",), "leaves its bound")
    assert (found.cells, found.judged) == (frozenset(cells(wrong)), len(wrong) + len(right))


def where(n_f16: tuple[int, int], n_f32: tuple[int, int]) -> str:
    """(fail, pass) of cells of float16 and of float32, which nothing else tells apart."""
    judged = []
    for dtype, (fails, passes) in ((F16, n_f16), (F32, n_f32)):
        cases = [replace(PLAIN, dtype=dtype, seed=seed) for seed in range(fails + passes)]
        judged += verdicts(cases[:fails], LEAVES) + verdicts(cases[fails:])
    return one(diagnose(judged)).where


@pytest.mark.parametrize(
    ("n_f16", "n_f32", "words"),
    [
        ((4, 0), (4, 0), "everywhere"),
        ((4, 0), (0, 4), "wherever X is float16"),
        ((4, 0), (1, 4), "wherever X is float16, and elsewhere too"),
        ((3, 1), (0, 4), "only where X is float16"),
        ((3, 1), (1, 4), "mostly where X is float16"),
        ((1, 7), (1, 7), "in some cells that no setting tells apart"),
        ((4, 1), (5, 2), "nearly everywhere"),  # 9 of 12 are three quarters
        ((4, 2), (4, 2), "mostly where X is float16"),
        ((6, 0), (0, 2), "wherever X is float16"),  # three quarters, but told exactly
    ],
)
def test_how_well_a_setting_tells(n_f16: tuple[int, int], n_f32: tuple[int, int], words: str) -> None:
    assert where(n_f16, n_f32) == words


def found_of(*findings: Finding, **about: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.kind, one.tensors) for one in diagnose(verdicts([PLAIN], *findings, **about))]


def off(tensor: str, check: str = "value", message: str = "is off") -> Finding:
    return Finding(check, tensor, message)


def test_what_follows_from_another_fault_is_not_told() -> None:
    assert found_of(off("y"), off("rstd"), off("dx"), off("dw")) == [("numbers", ("y",))]
    assert found_of(off("rstd"), off("dx")) == [("numbers", ("rstd",))]
    assert found_of(off("dx"), off("dw")) == [("numbers", ("dx", "dw"))], "the same complaint in the same place"
    assert found_of(off("dx"), off("dx", "rounding"), off("dx", "special")) == [("numbers", ("dx",))]
    assert found_of(off("y"), off("dx", "run", "raised")) == [("run", ("dx",))]
    assert found_of(off("dx"), off("dx", "repeat", "other bits")) == [("numbers", ("dx",))]
    assert found_of(off("dx", "repeat", "other bits"), behaviour=Behaviour(unrepeated=("dx",))) == [("repeat", ("dx",))]
    assert found_of(off("dy", "contract", "overwritten"), off("y")) == [("numbers", ("y",)), ("contract", ("dy",))]
    assert diagnose(verdicts([PLAIN])) == []


@pytest.mark.parametrize(
    ("dtype", "few", "told"),
    [
        (F32, 2, [("y", "dx")]),  # a quarter
        (F32, 3, [("y",), ("dx",)]),
        (F16, 3, [("y", "dx")]),  # where all others have the fault too
        (F16, 4, [("y", "dx")]),  # half
        (F16, 5, [("y",), ("dx",)]),
    ],
)
def test_in_few_cells_other_wrong_numbers_are_the_same_fault(dtype: str, few: int, told: list[tuple[str, ...]]) -> None:
    sixteen = [replace(PLAIN, dtype=F16, seed=seed) for seed in range(8)]
    others = [replace(PLAIN, dtype=dtype, seed=seed) for seed in range(8, 8 + few)]
    right = [replace(PLAIN, dtype=F64, seed=seed) for seed in range(8)]
    judged = verdicts(sixteen, off("y")) + verdicts(others, off("dx")) + verdicts(right)
    assert [found.tensors for found in diagnose(judged)] == told


def test_a_diagnosis_in_words() -> None:
    pattern = Finding("value", "dx", "is off", pattern="rows 24 and up: usually the grid")
    halves = [replace(PLAIN, dtype=dtype, seed=seed) for dtype, seed in itertools.product((F16, F32), range(2))]
    found = one(diagnose(verdicts(halves[:2], pattern, off("dw")) + verdicts(halves[2:])))
    assert str(found) == (
        "dX (and dW) leaves its bound wherever X is float16 (2 of 4 cells): rows 24 and up: usually the grid"
    )
    assert str(one(diagnose(verdicts([PLAIN], off("dx", "run", "raised  E:\n no"))))) == (
        "dX is not computed (raised E: no) everywhere (1 of 1 cells)"
    )
    (long,) = diagnose(verdicts([PLAIN], off("dy", "contract", "n" * 161)))
    assert long.complaint == "n" * 157 + "…"
    assert one(diagnose(verdicts([PLAIN], off("dy", "contract", "n" * 160)))).complaint == "n" * 160


def test_a_mode_is_named_where_most_of_the_cells_compute_it() -> None:
    cases = [replace(PLAIN, seed=seed) for seed in range(4)]

    def how(computing: int) -> str | None:
        return one(
            diagnose(verdicts(cases[:computing], off("y"), computes="gemma") + verdicts(cases[computing:], off("y")))
        ).how

    assert how(3) == "it has the rounding points of gemma"
    assert how(2) is None  # half are not most


def test_the_simplest_cell_is_shown() -> None:
    simple = replace(PLAIN, offset=0.0)
    odd = [
        replace(simple, shape=(0, 4)),
        replace(simple, offset=1.0, shape=(1, 2)),
        replace(simple, weight="none", shape=(1, 2)),
        replace(simple, row_mode=True, shape=(1, 2)),
        replace(simple, data="tiny", shape=(1, 2)),
        replace(simple, x_layout="transposed", shape=(1, 2)),
        replace(simple, dy_layout="expanded", shape=(1, 2)),
        replace(simple, w_layout="misaligned", shape=(1, 2)),
        replace(simple, shape=(5, 1)),
        replace(simple, shape=(4, 41)),
    ]
    assert one(diagnose(verdicts([*odd, simple], LEAVES))).case == simple
