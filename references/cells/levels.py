"""What is checked: the axes, the cells of the matrix, pairwise covering sets, and the levels made of them.

A level is drawn within what a candidate claims (`draw`): the matrix is the full product of the settings that the
specification promises, at a tiny shape; the covering sets take every pair of values of every two axes through shapes,
layouts, data kinds and both kernel variants, small ones for "smoke", all of them for "full".
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from references.cells.cell import DATA, HUGE, LARGE, LAYOUT_CODES, OUTLIER, TINY, Case, from_id
from references.cells.pairwise import Choice, covering_set
from references.spec import DTYPES, CastingMode

OFFSETS = (0.0, 1.0, 0.5)
WEIGHTS = ("same", "float32", "none")
COLUMNS = (1, 2, 3, 7, 16, 17, 64, 96, 127, 128, 255, 256, 257, 1000, 3072, 4096, 4097, 65536)
ROWS = (1, 2, 0, 15, 16, 17, 33)
RANKS = (2, 1, 3, 4)
W_LAYOUTS = ("contiguous", "column_strided", "misaligned")
EPS = ("1e-6", "mean_square", "1e-5", "0", "1e3")
WIDEST_FOR_ALL_ROWS = 4097  # wider cells keep to two rows, row-wise: 16 rows in one tile would not fit a GPU
TINY_SHAPE = (2, 4, 41)


def mean_square(data: str, dtype: str, columns: int) -> float:
    """About the mean of x² of a data kind, not a power of two: an eps of this size shows every eps error."""
    per_kind = {"heavy_tailed": 3.0, "outlier_column": 1 + OUTLIER**2 / columns}
    scale = {"tiny": TINY, "large": LARGE, "huge": HUGE}.get(data, {}).get(dtype, 1.0)
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
    "offset": (*OFFSETS, -0.5),
    "weight": (*WEIGHTS, "bfloat16", "float16"),
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
# With a residual two more: cells that are drawn from these axes too are cells with one.
RESIDUAL_AXES: dict[str, tuple] = {"r_layout": tuple(LAYOUT_CODES), "ds_layout": tuple(LAYOUT_CODES)}

# What a smoke cell may be: 17 rows are one more than a block; 4,200 elements take the interpreter part of a second.
SMALL: dict[str, tuple] = {
    "columns": (1, 2, 7, 17, 64, 96, 128, 257, 1000, 4097),
    "rows": (1, 2, 0, 16, 17),
    "row_mode": (None, True, False),
    "data": tuple(kind for kind in DATA if kind != "huge"),
}
MANY = ((129, 7), (40_001, 7))  # rows and columns: more than sums in one chunk, more than one grid or one tile of them
ELEMENTS = 4200

# Without rows nothing is computed, and NaN spreads over all of dW: the other axes of such a cell hardly show.
HIDING = (("rows", 0), ("data", "non_finite"))


def compatible(one: Choice, other: Choice) -> bool:
    """Whether two choices (axis, value) can stand in one cell."""
    return _fits(*one, *other) and _fits(*other, *one)


def _fits(first: str, u: Any, second: str, v: Any) -> bool:
    if first == "rank" and second == "rows":
        return u > 1 or v == 1
    if first == "rank" and second in ("x_layout", "dy_layout", *RESIDUAL_AXES):
        least = {"row_strided": 2, "transposed": 2, "expanded": 2, "heads": 3}
        return u >= least.get(v, 1)
    if first == "columns" and u > WIDEST_FOR_ALL_ROWS:
        return {"rows": v in (1, 2), "row_mode": v is not False}.get(second, True)
    if first == "weight" and u == "none":
        return (second != "w_layout" or v == "contiguous") and (second != "data" or v != "overflowing")
    if first == "weight" and u not in WEIGHTS:  # narrower than a compute dtype, and not X's twin
        return second != "dtype" or v in ({"float16", "bfloat16", "float32"} - {u})
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


def draw(level: str, axes: Mapping[str, tuple] = COVERING_AXES) -> tuple[Case, ...]:
    """The cells of a level within what is claimed.

    Args:
        level: "smoke", "matrix" or "full".
        axes: for each axis of `COVERING_AXES` the values that are claimed, at least one; with those of
            `RESIDUAL_AXES` every cell has a residual.
    """
    axes = _possible_values(axes)
    matrix = tuple(_matrix(axes))
    if level == "matrix":
        return matrix
    smoke = (*_pairs_of(matrix, axes), *_small_covering(axes), *_many_rows(axes, *MANY[0], axes["dtype"]))
    if level == "smoke":
        return tuple(dict.fromkeys(smoke))
    # One dtype: the number of a row does not depend on it, and an interpreter takes half a minute.
    by_hand = (*_many_rows(axes, *MANY[1], axes["dtype"][:1]), *_zero_rows_without_eps(axes))
    return tuple(dict.fromkeys((*matrix, *_covering(axes, compatible), *smoke, *by_hand)))


def _possible_values(axes: Mapping[str, tuple]) -> dict[str, tuple]:
    """Without the values that go with no value of another axis."""
    found = {name: tuple(values) for name, values in axes.items()}
    while True:
        kept = {
            name: tuple(v for v in values if all(_has_partner((name, v), found, other) for other in found))
            for name, values in found.items()
        }
        if kept == found:
            return found
        found = kept


def _has_partner(choice: Choice, axes: Mapping[str, tuple], other: str) -> bool:
    return other == choice[0] or any(compatible(choice, (other, value)) for value in axes[other])


def _tiny_shape(axes: Mapping[str, tuple]) -> tuple[int, ...]:
    """`TINY_SHAPE`, or what is nearest to it among the claims."""
    step = math.gcd(*axes["columns"])
    columns = min(TINY_SHAPE[-1] * step, max(axes["columns"]))
    rank = min(axes["rank"], key=lambda rank: abs(rank - len(TINY_SHAPE)))
    return {1: (), 2: (8,), 3: (2, 4), 4: (1, 2, 4)}[rank] + (columns,)


def _matrix(axes: Mapping[str, tuple]) -> Iterable[Case]:
    shape = _tiny_shape(axes)
    promised = {name: tuple(v for v in axes[name] if v in values) or axes[name] for name, values in MATRIX_AXES.items()}
    for mode, offset, dtype, in_place, weight in itertools.product(*promised.values()):
        if not compatible(("weight", weight), ("dtype", dtype)):
            continue
        # Half the cells can see eps: with in_place off it is as large as the mean square.
        eps = 1e-6 if in_place else mean_square("normal", dtype, shape[-1])
        yield Case(mode, offset, dtype, weight, in_place, shape, eps, residual=_residual(axes))


def _pairs_of(matrix: Iterable[Case], axes: Mapping[str, tuple]) -> Iterable[Case]:
    """The part of the matrix in which every pair of its settings appears."""
    by_axes = {tuple(getattr(case, axis) for axis in MATRIX_AXES): case for case in matrix}
    settings = {axis: tuple(dict.fromkeys(key[i] for key in by_axes)) for i, axis in enumerate(MATRIX_AXES)}
    for row in covering_set(settings, lambda one, other: True):
        yield by_axes[tuple(row[axis] for axis in MATRIX_AXES)]


def _small_covering(axes: Mapping[str, tuple]) -> Iterable[Case]:
    """Every pair among those values of the axes that a smoke cell may have; where an axis has none, its smallest."""
    small = {name: tuple(v for v in axes[name] if v in values) for name, values in SMALL.items()}
    columns = small["columns"] or (min(axes["columns"]),)
    rows = small["rows"] or (min(axes["rows"]),)
    elements = max(ELEMENTS, min(columns) * min(filter(None, rows), default=1))

    def fits(one: Choice, other: Choice) -> bool:
        sizes = dict((one, other))
        return sizes.get("rows", 1) * sizes.get("columns", 1) <= elements and compatible(one, other)

    fitting = tuple(n for n in rows if n * min(columns) <= elements)
    yield from _covering(_possible_values({**axes, **small, "columns": columns, "rows": fitting}), fits)


def _covering(axes: Mapping[str, tuple], fits: Callable[[Choice, Choice], bool]) -> Iterable[Case]:
    for row in covering_set(axes, fits, HIDING):
        columns, rows, rank, eps = (row.pop(name) for name in ("columns", "rows", "rank", "eps"))
        value = mean_square(row["data"], row["dtype"], columns) if eps == "mean_square" else float(eps)
        yield Case(**row, shape=(*_leading(rows, rank), columns), eps=value, residual=_residual(axes))


def _residual(axes: Mapping[str, tuple]) -> bool:
    return RESIDUAL_AXES.keys() <= axes.keys()


def _zero_rows_without_eps(axes: Mapping[str, tuple]) -> Iterable[Case]:
    """IEEE, not an error: RSTD = +inf and 0 · inf = NaN."""
    case = Case(
        CastingMode.LLAMA, 0.0, "float32", "same", False, (2, 17), 0.0, data="zero_rows", residual=_residual(axes)
    )
    if 17 in axes["columns"] and all(getattr(case, name) in axes[name] for name in MATRIX_AXES):
        yield case


def _many_rows(axes: Mapping[str, tuple], rows: int, columns: int, dtypes: Iterable[str]) -> Iterable[Case]:
    """Many short rows, in these dtypes."""
    mode, offset, weight, in_place = (axes[name][0] for name in ("casting_mode", "offset", "weight", "in_place"))
    step = math.gcd(*axes["columns"])
    if 2 in axes["rank"] and columns * step <= max(axes["columns"]):
        for dtype in dtypes:
            shape = (rows, columns * step)
            yield Case(mode, offset, dtype, weight, in_place, shape, 1e-6, residual=_residual(axes))


LEVELS: dict[str, tuple[Case, ...]] = {level: draw(level) for level in ("smoke", "matrix", "full")}
SMOKE, MATRIX = LEVELS["smoke"], LEVELS["matrix"]
COVERING = tuple(case for case in LEVELS["full"] if case not in set(MATRIX))


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
    layouts = ((name, getattr(case, name)) for name in ("x_layout", "dy_layout", *RESIDUAL_AXES))
    return case.shape[-1] > 0 and all(_fits("rank", len(case.shape), *layout) for layout in layouts)
