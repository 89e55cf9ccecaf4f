"""What is checked: the axes, the cells of the matrix, a pairwise covering set, and the levels made of them.

`MATRIX` is the full product that the specification promises, at a tiny shape; `COVERING` takes every pair of values of
every two axes through shapes, layouts, data kinds and both kernel variants; `SMOKE` is the quick part of both.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterable
from typing import Any

from references.cells.cell import DATA, HUGE, LAYOUT_CODES, OUTLIER, TINY, Case, from_id
from references.cells.pairwise import Choice, covering_set
from references.spec import DTYPES, CastingMode

OFFSETS = (0.0, 1.0, 0.5)
WEIGHTS = ("same", "float32", "none")
COLUMNS = (1, 2, 3, 7, 16, 17, 64, 127, 128, 255, 256, 257, 1000, 4096, 4097, 65536)
ROWS = (1, 2, 0, 15, 16, 17, 33)
RANKS = (2, 1, 3, 4)
W_LAYOUTS = ("contiguous", "column_strided", "misaligned")
EPS = ("1e-6", "mean_square", "1e-5", "0", "1e3")
WIDEST_FOR_ALL_ROWS = 4097  # wider cells keep to two rows, row-wise: 16 rows in one tile would not fit a GPU
TINY_SHAPE = (2, 4, 41)


def _mean_square(data: str, dtype: str, columns: int) -> float:
    """About the mean of x² of a data kind, not a power of two: an eps of this size shows every eps error."""
    per_kind = {"heavy_tailed": 3.0, "outlier_column": 1 + OUTLIER**2 / columns}
    scale = {"tiny": TINY, "huge": HUGE}.get(data, {}).get(dtype, 1.0)
    return float(f"{0.7 * scale**2 * per_kind.get(data, 1.0):.1e}")


MATRIX_AXES: dict[str, tuple] = {
    "casting_mode": tuple(CastingMode),
    "offset": OFFSETS,
    "dtype": DTYPES,
    "in_place": (True, False),
    "weight": WEIGHTS,
}
COVERING_AXES: dict[str, tuple] = {
    **MATRIX_AXES,
    "columns": COLUMNS,
    "rows": ROWS,
    "rank": RANKS,
    "x_layout": tuple(LAYOUT_CODES),
    "dy_layout": tuple(LAYOUT_CODES),
    "w_layout": W_LAYOUTS,
    "data": DATA,
    "eps": EPS,
    "row_mode": (None, True, False),
}

# Without rows nothing is computed, and NaN spreads over all of dW: the other axes of such a cell hardly show.
HIDING = (("rows", 0), ("data", "non_finite"))


def compatible(one: Choice, other: Choice) -> bool:
    """Whether two choices (axis, value) can stand in one cell."""
    return _fits(*one, *other) and _fits(*other, *one)


def _fits(first: str, u: Any, second: str, v: Any) -> bool:
    if first == "rank" and second == "rows":
        return u > 1 or v == 1
    if first == "rank" and second in ("x_layout", "dy_layout"):
        least = {"row_strided": 2, "transposed": 2, "expanded": 2, "heads": 3}
        return u >= least.get(v, 1)
    if first == "columns" and u > WIDEST_FOR_ALL_ROWS:
        return {"rows": v in (1, 2), "row_mode": v is not False}.get(second, True)
    if first == "weight" and u == "none":
        return second != "w_layout" or v == "contiguous"
    if first == "eps" and u == "0":  # a zero row without eps is 0/0: one hand-written cell shows it
        return second != "data" or v != "zero_rows"
    return True


def _leading(rows: int, rank: int) -> tuple[int, ...]:
    """`rows` over `rank - 1` dimensions: 33 -> (33,), (3, 11), (1, 3, 11); 16 -> (16,), (4, 4), (2, 2, 4)."""
    if rank <= 2:
        return (rows,) * (rank - 1)
    inner = next(d for d in range(math.isqrt(rows), 0, -1) if rows % d == 0) if rows else 2
    outer = rows // inner
    return (*_leading(min(inner, outer), rank - 1), max(inner, outer))


def _matrix() -> Iterable[Case]:
    for mode, offset, dtype, in_place, weight in itertools.product(*MATRIX_AXES.values()):
        # Half the cells can see eps: with in_place off it is as large as the mean square.
        eps = 1e-6 if in_place else _mean_square("normal", dtype, TINY_SHAPE[-1])
        yield Case(mode, offset, dtype, weight, in_place, TINY_SHAPE, eps)


def _covering() -> Iterable[Case]:
    for row in covering_set(COVERING_AXES, compatible, HIDING):
        columns, rows, rank, eps = (row.pop(name) for name in ("columns", "rows", "rank", "eps"))
        value = _mean_square(row["data"], row["dtype"], columns) if eps == "mean_square" else float(eps)
        yield Case(**row, shape=(*_leading(rows, rank), columns), eps=value)
    # IEEE, not an error: RSTD = +inf and 0 · inf = NaN.
    yield Case(CastingMode.LLAMA, 0.0, "float32", "same", False, (2, 17), 0.0, data="zero_rows")


MATRIX: tuple[Case, ...] = tuple(_matrix())
COVERING: tuple[Case, ...] = tuple(_covering())


def _smoke() -> Iterable[Case]:
    by_axes = {tuple(getattr(case, axis) for axis in MATRIX_AXES): case for case in MATRIX}
    for row in covering_set(MATRIX_AXES, lambda one, other: True):
        yield by_axes[tuple(row[axis] for axis in MATRIX_AXES)]
    # 17 rows are one more than a block; 4,200 elements take the interpreter a fraction of a second.
    yield from (case for case in COVERING if case.n_rows <= 17 and math.prod(case.shape) <= 4200)


SMOKE: tuple[Case, ...] = tuple(_smoke())
LEVELS: dict[str, tuple[Case, ...]] = {"smoke": SMOKE, "matrix": MATRIX, "full": MATRIX + COVERING}


def find(case_id: str) -> Case:
    """The cell with this id: one of the levels, or any other that an id can name.

    Raises KeyError, naming the nearest id, where it is none.
    """
    by_id = {case.id: case for case in LEVELS["full"]}
    if case_id in by_id:
        return by_id[case_id]
    named = from_id(case_id)
    if named is None or named.id != case_id or not _possible(named):
        nearest = difflib.get_close_matches(case_id, by_id, n=1, cutoff=0)
        raise KeyError(f"no case {case_id!r}; the nearest is {nearest[0]!r}")
    return named


def _possible(case: Case) -> bool:
    layouts = (("x_layout", case.x_layout), ("dy_layout", case.dy_layout))
    return case.shape[-1] > 0 and all(_fits("rank", len(case.shape), *layout) for layout in layouts)
