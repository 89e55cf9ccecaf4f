"""One cell: its settings, the id that names it, and its seeded inputs.

Inputs are logical values: `candidates/memory.py` puts them in memory.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from references import numpy_reference
from references.arrays import numpy_dtype
from references.spec import FLOATS, CastingMode

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
DATA = (
    "normal",
    "heavy_tailed",
    "outlier_column",
    "constant_rows",
    "tiny",
    "large",
    "huge",
    "zero_rows",
    "non_finite",
    "overflowing",  # weights so large that some of Y lie beyond X's dtype
)

# Scale of the data kinds at the ends of the range: the squares stay inside the compute dtype. float16's leave
# float16 itself, which is what casting mode "none" specifies there. The cubes of large ones stay inside too, those of
# huge ones don't: autograd's RSTD³ vanishes.
TINY = {"float16": 2.0**-10, "bfloat16": 1e-12, "float32": 1e-12, "float64": 1e-100}
LARGE = {"float16": 2.0**10, "bfloat16": 1e12, "float32": 1e12, "float64": 1e100}
HUGE = {"float16": 2.0**10, "bfloat16": 1e15, "float32": 1e15, "float64": 1e100}
OUTLIER = 200.0  # one channel this much larger than the rest


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
    residual: bool = False  # Y is the norm of S = R(X + R), and both are returned
    r_layout: str = "contiguous"
    ds_layout: str = "contiguous"

    @property
    def id(self) -> str:
        """All axes, in order: gemma-off1-bf16-wf32-inplace-2x4x41-normal-eps1e-06-xc-dyc-wc-auto-s0.

        With a residual the layouts of R and dS stand behind those: …-xc-dyc-wc-rc-dsc-auto-s0.
        """
        residual = (f"r{LAYOUT_CODES[self.r_layout]}", f"ds{LAYOUT_CODES[self.ds_layout]}") if self.residual else ()
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
            *residual,
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
    def layouts(self) -> tuple[str, ...]:
        """Of X, dY and W, and with a residual of R and dS."""
        return (self.x_layout, self.dy_layout, self.w_layout, *((self.r_layout, self.ds_layout) * self.residual))

    @property
    def plain(self) -> bool:
        """True for noise that lies contiguous in memory."""
        return self.data == "normal" and set(self.layouts) == {"contiguous"}

    @property
    def structured(self) -> bool:
        """True where rounding errors repeat instead of averaging out: equal columns or equal rows."""
        return self.data == "constant_rows" or "expanded" in self.layouts


@dataclass(frozen=True)
class Inputs:
    """Logical values. x, dy: (..., H) in the case's dtype; w: (H,) in the weight's dtype, or None.

    With a residual r and ds, what arrives at S: like x; without one None.
    """

    x: np.ndarray
    w: np.ndarray | None
    dy: np.ndarray
    r: np.ndarray | None = None
    ds: np.ndarray | None = None

    @property
    def normed(self) -> np.ndarray:
        """What the norm is of: X, with a residual S."""
        return self.x if self.r is None else numpy_reference.add(self.x, self.r)


def make_inputs(case: Case) -> Inputs:
    """Seeded from `case.id`: the same values on every machine; noise weights, dense random dY and dS, R like X."""
    digest = hashlib.sha256(case.id.encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    x = _x_values(case, rng)
    dy = rng.standard_normal(case.shape)
    w = None
    if case.w_dtype is not None:
        w = rng.standard_normal(case.shape[-1])
        if case.data == "overflowing":
            w = _overflowing(w, min(FLOATS[case.dtype].max, FLOATS[case.w_dtype].max))
        w = w.astype(numpy_dtype(case.w_dtype))

    def laid(values: np.ndarray, layout: str) -> np.ndarray:
        shown = _repeat_first_row(values) if layout == "expanded" else values  # a stride of 0 shows one row everywhere
        return shown.astype(numpy_dtype(case.dtype))

    x, dy = laid(x, case.x_layout), laid(dy, case.dy_layout)
    if not case.residual:
        return Inputs(x, w, dy)
    r, ds = _x_values(case, rng), rng.standard_normal(case.shape)
    return Inputs(x, w, dy, laid(r, case.r_layout), laid(ds, case.ds_layout))


def in_float32(inputs: Inputs) -> Iterator[Inputs]:
    """The same values rounded to float32, W where it is wider than that.

    With a residual once more, the sum made before it is rounded: in X's place beside zeros.
    """
    w = inputs.w.astype(np.float32) if inputs.w is not None and inputs.w.dtype == np.float64 else inputs.w
    r, ds = (None if values is None else values.astype(np.float32) for values in (inputs.r, inputs.ds))
    yield Inputs(inputs.x.astype(np.float32), w, inputs.dy.astype(np.float32), r, ds)
    if r is not None:
        yield Inputs(inputs.normed.astype(np.float32), w, inputs.dy.astype(np.float32), np.zeros_like(r), ds)


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
    elif case.data == "large":
        rows *= LARGE[case.dtype]
    elif case.data == "huge":
        rows *= HUGE[case.dtype]
    elif case.data == "zero_rows":
        rows[::2] *= 0.0  # keeps the signs: zeros of both kinds
    elif case.data == "non_finite":
        for row, value in zip(range(case.n_rows), (np.inf, np.nan, -np.inf), strict=False):
            rows[row, case.shape[-1] // 2] = value
    return rows.reshape(case.shape)


def _overflowing(w: np.ndarray, largest: float) -> np.ndarray:
    """Of every four weights one is half of the largest number: x̂ of 2 and more overflow."""
    return np.where(np.arange(len(w)) % 4 == 0, np.copysign(largest / 2, w), w)


def _repeat_first_row(values: np.ndarray) -> np.ndarray:
    rows = values.reshape(-1, values.shape[-1])
    return np.broadcast_to(rows[:1], rows.shape).reshape(values.shape)


_ID = re.compile(
    rf"(?P<casting_mode>{'|'.join(CastingMode)})-off(?P<offset>.+)-(?P<dtype>[a-z0-9]+)-w(?P<weight>[a-z0-9]+)"
    r"-(?P<in_place>inplace|notinplace)-(?P<shape>\d+(x\d+)*)-(?P<data>[a-z_]+)-eps(?P<eps>.+)"
    r"-x(?P<x_layout>[a-z]+)-dy(?P<dy_layout>[a-z]+)-w(?P<w_layout>[a-z]+)"
    r"(-r(?P<r_layout>[a-z]+)-ds(?P<ds_layout>[a-z]+))?-(?P<row_mode>[a-z]+)-s(?P<seed>\d+)"
)


def from_id(case_id: str) -> Case | None:
    """The cell that an id names, or None where it is none; whether such a cell makes sense is not asked."""
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
            part["r_layout"] is not None,
            layouts[part["r_layout"] or LAYOUT_CODES["contiguous"]],
            layouts[part["ds_layout"] or LAYOUT_CODES["contiguous"]],
        )
    except (KeyError, ValueError):
        return None
