"""What is checked: the axes, the cells of the matrix, a pairwise covering set, and their seeded inputs.

A `Case` is one cell. `MATRIX` is the full product that the specification promises, at a tiny shape;
`COVERING` takes every pair of values of every two axes through shapes, layouts, data kinds and both kernel
variants; `SMOKE` is the quick part of both. Inputs are logical values: `layouts.py` puts them in memory.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from references.pairwise import Choice, covering_set
from references.spec import DTYPES, CastingMode

SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
LAYOUT_CODES = {
    "contiguous": "c",
    "row_strided": "rs",  # rows lie further apart than their length: padding between them
    "column_strided": "cs",  # [..., ::2]
    "transposed": "t",  # the last two dimensions swapped in memory
    "misaligned": "m",  # starts one element into its storage
    "heads": "h",  # (batch, heads, seq, dim) stored as (batch, seq, heads, dim)
    "expanded": "e",  # one row seen many times: stride 0
}
VARIANTS = {None: "auto", True: "row", False: "block"}

OFFSETS = (0.0, 1.0, 0.5)
WEIGHTS = ("same", "float32", "none")
COLUMNS = (1, 2, 3, 7, 16, 17, 64, 127, 128, 255, 256, 257, 1000, 4096, 4097, 65536)
ROWS = (1, 2, 0, 15, 16, 17, 33)
RANKS = (2, 1, 3, 4)
W_LAYOUTS = ("contiguous", "column_strided", "misaligned")
DATA = (
    "normal",
    "heavy_tailed",
    "outlier_column",
    "constant_rows",
    "tiny",
    "huge",
    "zero_rows",
    "non_finite",
)
EPS = ("1e-6", "mean_square", "1e-5", "0", "1e3")
WIDEST_FOR_ALL_ROWS = 4097  # wider cells keep to two rows, row-wise: 16 rows in one tile would not fit a GPU

# Scale of the data kinds at the ends of the range: the squares stay inside the compute dtype. float16's leave
# float16 itself, which is what casting mode "none" specifies there.
TINY = {"float16": 2.0**-10, "bfloat16": 1e-12, "float32": 1e-12, "float64": 1e-100}
HUGE = {"float16": 2.0**10, "bfloat16": 1e15, "float32": 1e15, "float64": 1e100}
OUTLIER = 200.0  # one channel this much larger than the rest
TINY_SHAPE = (2, 4, 41)


@dataclass(frozen=True)
class Case:
    """One cell. `weight` is "same" (X's dtype), "none" or a dtype name; `row_mode` None means any variant."""

    casting_mode: str
    offset: float
    dtype: str
    weight: str
    in_place: bool
    shape: tuple[int, ...]
    eps: float
    data: str = "normal"
    x_layout: str = "contiguous"
    dy_layout: str = "contiguous"
    w_layout: str = "contiguous"
    row_mode: bool | None = None
    seed: int = 0

    @property
    def id(self) -> str:
        """All axes, in order: gemma-off1-bf16-wf32-inplace-2x4x41-normal-eps1e-06-xc-dyc-wc-auto-s0."""
        parts = (
            str(self.casting_mode),
            f"off{self.offset:g}",
            SHORT[self.dtype],
            f"w{SHORT.get(self.weight, self.weight)}",
            "inplace" if self.in_place else "notinplace",
            "x".join(map(str, self.shape)),
            self.data,
            f"eps{self.eps:g}",
            f"x{LAYOUT_CODES[self.x_layout]}",
            f"dy{LAYOUT_CODES[self.dy_layout]}",
            f"w{LAYOUT_CODES[self.w_layout]}",
            VARIANTS[self.row_mode],
            f"s{self.seed}",
        )
        return "-".join(parts)

    @property
    def w_dtype(self) -> str | None:
        """Name of the weight's dtype, None without a weight."""
        return {"same": self.dtype, "none": None}.get(self.weight, self.weight)

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def structured(self) -> bool:
        """True where rounding errors repeat instead of averaging out: equal columns or equal rows."""
        return self.data == "constant_rows" or "expanded" in (self.x_layout, self.dy_layout)


@dataclass(frozen=True)
class Inputs:
    """Logical values. x, dy: (..., H) in the case's dtype; w: (H,) in the weight's dtype, or None."""

    x: np.ndarray
    w: np.ndarray | None
    dy: np.ndarray


def make_inputs(case: Case) -> Inputs:
    """Seeded from `case.id`: the same values on every machine; noise weights, dense random dY."""
    digest = hashlib.sha256(case.id.encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    x = _x_values(case, rng)
    dy = rng.standard_normal(case.shape)
    # A stride of 0 shows one row everywhere.
    if case.x_layout == "expanded":
        x = _repeat_first_row(x)
    if case.dy_layout == "expanded":
        dy = _repeat_first_row(dy)
    w = None
    if case.w_dtype is not None:
        w = rng.standard_normal(case.shape[-1]).astype(_numpy_dtype(case.w_dtype))
    return Inputs(x.astype(_numpy_dtype(case.dtype)), w, dy.astype(_numpy_dtype(case.dtype)))


def _x_values(case: Case, rng: np.random.Generator) -> np.ndarray:
    rows = rng.standard_normal((case.n_rows, case.shape[-1]))
    if case.data == "heavy_tailed":
        rows = rng.standard_t(3, rows.shape)
    elif case.data == "outlier_column":
        rows[:, case.shape[-1] // 3] *= OUTLIER
    elif case.data == "constant_rows":
        rows = np.repeat(
            rng.choice((-1, 1), (case.n_rows, 1)) * rng.uniform(0.5, 2, (case.n_rows, 1)), rows.shape[1], 1
        )
    elif case.data == "tiny":
        rows *= TINY[case.dtype]
    elif case.data == "huge":
        rows *= HUGE[case.dtype]
    elif case.data == "zero_rows":
        rows[::2] *= 0.0  # keeps the signs: zeros of both kinds
    elif case.data == "non_finite":
        for row, value in zip(range(case.n_rows), (np.inf, np.nan, -np.inf), strict=False):
            rows[row, case.shape[-1] // 2] = value
    return rows.reshape(case.shape)


def _repeat_first_row(values: np.ndarray) -> np.ndarray:
    rows = values.reshape(-1, values.shape[-1])
    return np.broadcast_to(rows[:1], rows.shape).reshape(values.shape)


def _numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


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


_ID = re.compile(
    rf"(?P<casting_mode>{'|'.join(CastingMode)})-off(?P<offset>.+)-(?P<dtype>[a-z0-9]+)-w(?P<weight>[a-z0-9]+)"
    r"-(?P<in_place>inplace|notinplace)-(?P<shape>\d+(x\d+)*)-(?P<data>[a-z_]+)-eps(?P<eps>.+)"
    r"-x(?P<x_layout>[a-z]+)-dy(?P<dy_layout>[a-z]+)-w(?P<w_layout>[a-z]+)-(?P<row_mode>[a-z]+)-s(?P<seed>\d+)"
)


def find(case_id: str) -> Case:
    """The cell with this id: one of the levels, or any other that an id can name.

    Raises KeyError, naming the nearest id, where it is none.
    """
    by_id = {case.id: case for case in LEVELS["full"]}
    if case_id in by_id:
        return by_id[case_id]
    named = _named(case_id)
    if named is None or named.id != case_id or not _possible(named):
        nearest = difflib.get_close_matches(case_id, by_id, n=1, cutoff=0)
        raise KeyError(f"no case {case_id!r}; the nearest is {nearest[0]!r}")
    return named


def _named(case_id: str) -> Case | None:
    match = _ID.fullmatch(case_id)
    if match is None:
        return None
    part = match.groupdict()
    dtypes = {short: dtype for dtype, short in SHORT.items()}
    layouts = {code: layout for layout, code in LAYOUT_CODES.items()}
    try:
        return Case(
            part["casting_mode"],
            float(part["offset"]),
            dtypes[part["dtype"]],
            ({"same": "same", "none": "none"} | dtypes)[part["weight"]],
            part["in_place"] == "inplace",
            tuple(map(int, part["shape"].split("x"))),
            float(part["eps"]),
            DATA[DATA.index(part["data"])],
            layouts[part["x_layout"]],
            layouts[part["dy_layout"]],
            layouts[part["w_layout"]],
            {name: mode for mode, name in VARIANTS.items()}[part["row_mode"]],
            int(part["seed"]),
        )
    except (KeyError, ValueError):
        return None


def _possible(case: Case) -> bool:
    layouts = (("x_layout", case.x_layout), ("dy_layout", case.dy_layout))
    return case.shape[-1] > 0 and all(_fits("rank", len(case.shape), *layout) for layout in layouts)
