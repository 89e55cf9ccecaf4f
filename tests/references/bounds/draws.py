"""The judge judged: are the bounds of `tolerances` sound, and are they tight?

`python -m tests.references.bounds.draws --draws 30000` draws inputs over modes, dtypes, shapes, kinds of data and
orders of summation. A stand-in for a candidate, with IEEE arithmetic and the drawn order of sums,
computes each, and the largest error / tolerance of every mode, dtype and tensor is printed. Sound is at
most 1; where nothing comes near 1, mistakes would pass. In every third draw a gradient arrives at the norm's input as
well, as in a residual stream: dR is its dX, and S the sum of X and dY.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from references.arrays import numpy_dtype
from references.bounds import tolerances
from references.bounds.rounding import Arithmetic, pairwise_depth, partials_depth, sequential_depth, tree_depth
from references.spec import DTYPES, ROUNDING_POINTS, CastingMode, compute_dtype

TENSORS = ("y", "s", "rstd", "dx", "dr", "dw")
COLUMNS = (1, 2, 3, 7, 16, 63, 64, 127, 128, 255, 300, 1024, 2048, 4097)
ROWS = (1, 2, 3, 8, 33, 257, 1024)
LARGEST = 12_000  # elements of a draw: longdouble is slow
TIGHT = 0.05  # in each cell the largest error / tolerance lies above
PARTIALS = 16  # strided partial sums, as the programs of a dW kernel make them


def _sequential(terms: np.ndarray) -> np.ndarray:
    return np.add.accumulate(terms, axis=-1)[..., -1] if terms.shape[-1] else terms.sum(-1)


def _tree(terms: np.ndarray) -> np.ndarray:
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[..., :1])], axis=-1)
        terms = terms[..., 0::2] + terms[..., 1::2]
    return terms[..., 0]


def _strided(terms: np.ndarray) -> np.ndarray:
    missing = -terms.shape[-1] % PARTIALS
    padded = np.concatenate([terms, np.zeros((*terms.shape[:-1], missing), terms.dtype)], axis=-1)
    parts = padded.reshape(*terms.shape[:-1], -1, PARTIALS)
    return _tree(_sequential(np.swapaxes(parts, -1, -2)))


# name → the sum over the last axis, and its depth
ORDERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[int], int]]] = {
    "pairwise": (lambda terms: np.ascontiguousarray(terms).sum(-1), pairwise_depth),
    "sequential": (_sequential, sequential_depth),
    "tree": (_tree, tree_depth),
    "strided": (_strided, partial(partials_depth, partials=PARTIALS)),
}

DATA = ("normal", "positive", "student", "outlier", "tiny", "aligned", "constant", "alternating")
STRUCTURED = ("aligned", "constant", "alternating")


@dataclass(frozen=True)
class Draw:
    """One input and how it is summed."""

    dtype: str
    w_dtype: str
    casting_mode: str
    data: str
    order: str
    n_rows: int
    n_cols: int
    eps: float
    offset: float
    seed: int

    @property
    def structured(self) -> bool:
        return self.data in STRUCTURED

    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """dy, x: (n_rows, n_cols) in dtype; w: (n_cols,) in w_dtype."""
        rng = np.random.default_rng(self.seed)
        shape = (self.n_rows, self.n_cols)
        x, dy = rng.standard_normal(shape), rng.standard_normal(shape)
        w = 1 + 0.3 * rng.standard_normal(self.n_cols)
        match self.data:
            case "positive":
                x, dy = np.abs(x) + 0.1, np.abs(dy) + 0.1
            case "student":
                x, dy = rng.standard_t(2, shape), rng.standard_t(2, shape)
            case "outlier":
                x[:, rng.integers(self.n_cols)] *= 200
            case "tiny":
                x *= 1e-3
            case "aligned":
                dy = x / w
            case "constant":
                x, dy = np.full(shape, x[:1, :1]), np.full(shape, dy[:1, :1])
            case "alternating":
                x, dy = np.abs(x[:1, :1]) * (-1.0) ** np.arange(self.n_cols), np.full(shape, dy[:1, :1])
                x = np.broadcast_to(x, shape)
        dtype = numpy_dtype(self.dtype)
        return dy.astype(dtype), x.astype(dtype), w.astype(numpy_dtype(self.w_dtype))

    @np.errstate(all="ignore")
    def candidate(self) -> dict[str, np.ndarray]:
        """What an implementation with this order of sums returns."""
        dy, x, w = self.inputs()
        add, _ = ORDERS[self.order]
        points = ROUNDING_POINTS[CastingMode(self.casting_mode)]
        c = numpy_dtype(compute_dtype(self.dtype))

        def at(point: bool, value: np.ndarray) -> np.ndarray:
            return value.astype(x.dtype).astype(c) if point else value

        wide, grad = x.astype(c), dy.astype(c)
        mean_square = at(points.mean_square, add(at(points.squares, wide * wide)) / c.type(self.n_cols))
        rstd = at(points.rstd, 1 / np.sqrt(at(points.variance, mean_square + c.type(self.eps))))[:, None]
        x_hat = at(points.x_hat, wide * rstd)
        weight = at(points.weight, w.astype(c) + c.type(self.offset))
        m = grad * weight
        dot = add(m * wide)[:, None]
        d_norm = rstd * (m - wide * rstd**2 * dot / c.type(self.n_cols))
        found = {
            "y": (x_hat * weight).astype(x.dtype),
            "rstd": rstd[:, 0],
            "dx": d_norm.astype(x.dtype),
            "dw": add((grad * x_hat).T).astype(w.dtype),
        }
        if self.residual:
            ds = self.ds(found["dx"]).astype(c)
            between = rstd * m + ds - rstd**3 * wide * dot / c.type(self.n_cols)
            found["dr"] = (d_norm + ds if self.seed % 2 else between).astype(x.dtype)
            found["s"] = (wide + grad).astype(x.dtype)
        return found

    @property
    def residual(self) -> bool:
        """Whether a gradient arrives at the norm's input as well."""
        return self.seed % 3 == 0

    def ds(self, dx: np.ndarray) -> np.ndarray:
        """That gradient, as large as dX; in half of the draws it nearly cancels dX."""
        noise = np.random.default_rng(self.seed + 1).standard_normal(dx.shape)
        size = np.abs(dx.astype(float)).max(initial=0)
        return (noise * size if self.seed // 3 % 2 else noise * size * 2.0**-9 - dx.astype(float)).astype(dx.dtype)

    def bounds(self, arithmetic: Arithmetic | None = None) -> dict[str, tolerances.Bound]:
        """The bounds for the arithmetic of the candidate, or for another."""
        depth = ORDERS[self.order][1]
        options: dict[str, Any] = {
            "eps": self.eps,
            "offset": self.offset,
            "casting_mode": self.casting_mode,
            "structured": self.structured,
            "arithmetic": arithmetic or Arithmetic(column_depth=depth, row_depth=depth),
        }
        dy, x, w = self.inputs()
        bounds = tolerances.forward_bounds(x, w, **options) | tolerances.backward_bounds(dy, x, w, **options)
        if self.residual:
            ds = self.ds(self.candidate()["dx"])
            bounds |= tolerances.stream_bounds(x, dy, arithmetic=options["arithmetic"])
            bounds["dr"] = tolerances.backward_bounds(dy, x, w, ds=ds, **options)["dr"]
        return bounds


def draws(count: int, seed: int) -> Iterator[Draw]:
    """Draws that go through modes and dtypes in turn and through everything else at random."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        mode, dtype = list(CastingMode)[index % 3], DTYPES[index // 3 % 4]
        n_cols = int(rng.choice(COLUMNS))
        yield Draw(
            dtype=dtype,
            w_dtype=str(rng.choice([dtype, dtype, *DTYPES])),
            casting_mode=str(mode),
            data=str(rng.choice(DATA)),
            order=str(rng.choice(list(ORDERS))),
            n_rows=min(int(rng.choice(ROWS)), max(1, LARGEST // n_cols)),
            n_cols=n_cols,
            eps=float(rng.choice([1e-6, 1e-5, 0.7])),
            offset=float(rng.choice([0.0, 1.0, 0.5, 0.1])),
            seed=int(rng.integers(2**32)),
        )


@dataclass
class Cell:
    """What a mode, dtype and tensor showed."""

    ratio: float = 0.0  # largest error / tolerance
    worst: Draw | None = None
    elements: int = 0
    outside: int = 0  # elements to which no bound applies
    decided: int = 0  # elements with one right answer
    misrounded: int = 0  # elements outside the enclosure


def measure(sample: Iterator[Draw]) -> dict[tuple[str, str, str], Cell]:
    """The largest ratios by (mode, dtype, tensor)."""
    cells: dict[tuple[str, str, str], Cell] = {}
    for draw in sample:
        got, bounds = draw.candidate(), draw.bounds()
        for tensor, bound in bounds.items():
            # dW rounds to w's dtype: its cell is the one of x only where both agree.
            if tensor == "dw" and draw.w_dtype != draw.dtype:
                continue
            cell = cells.setdefault((draw.casting_mode, draw.dtype, tensor), Cell())
            ratio = float(np.max(bound.ratio(got[tensor]), where=bound.applies, initial=0))
            if ratio > cell.ratio:
                cell.ratio, cell.worst = ratio, draw
            cell.elements += bound.value.size
            cell.outside += int((~bound.applies).sum())
            cell.decided += int(bound.decided.sum())
            cell.misrounded += int(bound.misrounded(got[tensor]).sum())
    return cells


def many_rows(n_rows: int, n_cols: int, order: str, seed: int) -> float:
    """The largest error / tolerance of a float32 dW over so many rows, summed in an order that is declared."""
    draw = Draw("float32", "float32", "llama", "normal", order, n_rows, n_cols, 1e-5, 0.5, seed)
    return float(draw.bounds()["dw"].ratio(draw.candidate()["dw"]).max())


def table(cells: dict[tuple[str, str, str], Cell]) -> str:
    """The cells as text, one a line."""
    lines = [f"{'mode':6} {'dtype':9} {'tensor':6} {'ratio':>6} {'decided':>8} {'misrounded':>10}  worst draw"]
    for (mode, dtype, tensor), cell in sorted(cells.items()):
        share = cell.decided / max(cell.elements, 1)
        lines.append(f"{mode:6} {dtype:9} {tensor:6} {cell.ratio:6.3f} {share:8.2%} {cell.misrounded:10}  {cell.worst}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=30_000, help="of the float32 dW in each order of summation")
    parser.add_argument("--columns", type=int, default=64, help="of the same")
    arguments = parser.parse_args()
    cells = measure(draws(arguments.draws, arguments.seed))
    print(table(cells))
    sums = {order: many_rows(arguments.rows, arguments.columns, order, arguments.seed) for order in ORDERS}
    print(
        f"float32 dW over {arguments.rows} rows: " + ", ".join(f"{order} {ratio:.3f}" for order, ratio in sums.items())
    )
    ratios = [*(cell.ratio for cell in cells.values()), *sums.values()]
    sound = max(ratios) <= 1 and not any(cell.misrounded for cell in cells.values())
    tight = min(ratios) > TIGHT
    print(f"{'sound' if sound else 'UNSOUND'}, {'tight' if tight else 'LOOSE'}")
    return 0 if sound and tight else 1


if __name__ == "__main__":
    sys.exit(main())
