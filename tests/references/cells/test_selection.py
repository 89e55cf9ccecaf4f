"""Which cells are chosen: by dtype, by words joined as for pytest, with another seed."""

from __future__ import annotations

import pytest

from references.cells.cell import Case
from references.cells.selection import select

ONE = Case("llama", 0.0, "float16", "same", False, (2, 8), 1e-6)
TWO = Case("gemma", 0.0, "bfloat16", "same", True, (2, 8), 1e-6, data="tiny")
THREE = Case("none", 0.0, "float32", "same", True, (2, 8), 1e-6)
CELLS = (ONE, TWO, THREE)


@pytest.mark.parametrize(
    ("keyword", "chosen"),
    [
        ("", CELLS),
        ("  ", CELLS),
        ("gemma", (TWO,)),
        ("not gemma", (ONE, THREE)),
        ("gemma or llama", (ONE, TWO)),
        ("-inplace- and tiny", (TWO,)),
        ("-inplace- and not tiny", (THREE,)),
        ("llama or -inplace- and not tiny", (ONE, THREE)),  # `and` binds closer
        ("not tiny  and  not llama", (THREE,)),
        ("huge", ()),
        ("huge or nothing", ()),
    ],
)
def test_words_choose(keyword: str, chosen: tuple[Case, ...]) -> None:
    assert tuple(select(CELLS, keyword=keyword)) == chosen


def test_dtypes_and_words_choose_together_and_a_seed_is_that_of_all() -> None:
    assert select(CELLS, dtypes=("float16", "float32")) == [ONE, THREE]
    assert select(CELLS, dtypes=("float16",), keyword="gemma") == []
    assert [case.seed for case in select(CELLS, seed=3)] == [3, 3, 3]
    assert [case.seed for case in select(select(CELLS, seed=3), seed=0)] == [0, 0, 0]
    assert [case.seed for case in select(select(CELLS, seed=3))] == [3, 3, 3]
