"""What rounding does to one number and to a sum: the pieces from which `tolerances` builds its bounds.

Sums have two bounds. The deterministic one, ((1+u)^depth - 1)·Σ|t|, holds for all data and all orders. Where
the roundings are independent with mean zero, the partial sums form a martingale and LAMBDA·u·√depth takes the
place of depth·u (Higham & Mary 2019, Ipsen & Zhou 2020, Hallman & Ipsen 2023). docs/judge/derivation.md says when
which one holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from references.arrays import numpy_dtype
from references.spec import FLOATS, ROUNDING_POINTS, CastingMode, RoundingPoints, compute_dtype

# Hoeffding: a sum of independent errors, each below one unit, exceeds 4·√Σunit² with probability
# 2·exp(-8); real rounding errors have a deviation of about 0.4 units, which makes it ten deviations.
LAMBDA = 4.0


def sequential_depth(n: int) -> int:
    """Additions that an addend goes through in a sum of n terms; no order of summation has more."""
    return max(n - 1, 0)


def pairwise_depth(n: int) -> int:
    """The same for NumPy's pairwise sum: 8 strided sums over up to 128 terms, then a balanced tree."""
    return min(sequential_depth(n), 19 + math.ceil(math.log2(max(n / 128, 1))))


def tree_depth(n: int) -> int:
    """The same for a balanced tree."""
    return math.ceil(math.log2(max(n, 1)))


def partials_depth(n: int, partials: int) -> int:
    """The same for `partials` strided sums, one term after the other, and a balanced tree over them."""
    return sequential_depth(math.ceil(n / partials)) + tree_depth(min(n, partials))


@dataclass(frozen=True)
class Arithmetic:
    """What a candidate declares of its arithmetic; by default IEEE, sums in any order."""

    c_div: float = 1.0  # unit roundoffs lost by Σ/N
    c_rs: float = 2.0  # and by 1/√v: one for the root, one for the division
    column_depth: Callable[[int], int] = sequential_depth  # of the sums along a row
    row_depth: Callable[[int], int] = sequential_depth  # of the sum over rows in dW
    flushes_subnormals: bool = False  # results below the smallest normal number become 0 (never in float16)


# Nothing known: sums in any order, and room for CUDA's approximate division (measured: 1.30 ulp, which is
# up to 2.6 unit roundoffs) and reciprocal square root (1.51 ulp, up to 3.0); every mantissa is tried by
# tests/rmsnorm/triton/test_exhaustive.py.
SEQUENTIAL = Arithmetic(c_div=4.0, c_rs=4.0)
NUMPY = Arithmetic(column_depth=pairwise_depth, row_depth=pairwise_depth)


@dataclass(frozen=True)
class Rounding:
    """Rounding to nearest: moves a number by at most unit·|v|, or by floor where the result is subnormal."""

    unit: np.longdouble
    floor: np.longdouble
    normal: np.longdouble  # below it lie the subnormal numbers

    @classmethod
    def to(cls, dtype: str, arithmetic: Arithmetic) -> Rounding:
        """Rounding to a dtype of `spec.FLOATS`."""
        number = FLOATS[dtype]
        flushes = arithmetic.flushes_subnormals and dtype != "float16"
        floor = np.longdouble(number.smallest_normal if flushes else number.smallest_subnormal)
        return cls(
            np.longdouble(number.unit_roundoff),
            floor if flushes else floor / 2,
            np.longdouble(number.smallest_normal),
        )

    def of(self, value: np.ndarray) -> np.ndarray:
        """The most by which it moves value."""
        return np.maximum(self.unit * np.abs(value), self.floor)


NO_ROUNDING = Rounding(np.longdouble(0), np.longdouble(0), np.longdouble(0))


@dataclass(frozen=True)
class ErrorModel:
    """How a candidate's arithmetic errs on one input: what rounds where, and how errors add up."""

    dtype: str  # X's
    compute_dtype: str
    points: RoundingPoints
    structured: bool
    arithmetic: Arithmetic
    compute: Rounding
    storage: Rounding  # to X's dtype, from the compute dtype

    @classmethod
    def create(cls, dtype: str, casting_mode: str, structured: bool, arithmetic: Arithmetic) -> ErrorModel:
        """The model of a casting mode for X's dtype.

        Raises:
            ValueError: the mode or the dtype is unknown.
        """
        compute = compute_dtype(dtype)
        return cls(
            dtype=dtype,
            compute_dtype=compute,
            points=ROUNDING_POINTS[CastingMode(casting_mode)],
            structured=structured,
            arithmetic=arithmetic,
            compute=Rounding.to(compute, arithmetic),
            storage=NO_ROUNDING if dtype == compute else Rounding.to(dtype, arithmetic),
        )

    def cast(self, value: np.ndarray, dtype: str) -> np.ndarray:
        """Value rounded to dtype by way of the compute dtype.

        Two roundings, and still right for the ends of an interval: both are monotone, and the numbers
        between the ends that a candidate can hold are compute-dtype numbers, which the first rounding
        leaves where they are.
        """
        return value.astype(numpy_dtype(self.compute_dtype)).astype(numpy_dtype(dtype))

    def shifted_weight(self, w: np.ndarray | None, offset: float, n_cols: int) -> np.ndarray:
        """w' as specified, bit for bit: one IEEE addition in the compute dtype, which `none` rounds again."""
        if w is None:
            return np.ones(n_cols, np.longdouble)
        compute = numpy_dtype(self.compute_dtype)
        shifted = w.astype(compute) + compute.type(offset)
        return (self.cast(shifted, self.dtype) if self.points.weight else shifted).astype(np.longdouble)

    def added(self, x: np.ndarray, r: np.ndarray) -> np.ndarray:
        """The residual stream as specified, bit for bit: one IEEE addition in the compute dtype, rounded to X's."""
        compute = numpy_dtype(self.compute_dtype)
        return (x.astype(compute) + r.astype(compute)).astype(numpy_dtype(self.dtype))

    def independent(self, errors: np.ndarray, axis: int) -> np.ndarray:
        """The most that errors, each bounded by its entry, add up to: independent ones, or structured."""
        worst = np.abs(errors).sum(axis, keepdims=True)
        if self.structured:
            return worst
        return np.minimum(worst, LAMBDA * np.sqrt((errors * errors).sum(axis, keepdims=True)))

    def rounded(self, rounding: Rounding, values: np.ndarray, axis: int, scale: np.ndarray | float = 1.0) -> np.ndarray:
        """The most that rounding each of values changes Σ scale·values.

        A subnormal result errs by at most floor, and at most by the value itself: it may vanish. Small
        values all vanish in the same direction, so that these errors never count as independent.
        """
        size = np.abs(values)
        vanishing = np.where(size < rounding.normal, np.minimum(size, rounding.floor), 0)
        return self.independent(rounding.unit * size * scale, axis) + (vanishing * np.abs(scale)).sum(
            axis, keepdims=True
        )

    def summation(self, terms: np.ndarray, axis: int, depth: int) -> np.ndarray:
        """The most that additions, up to depth of them in a row, change Σ terms.

        On every level of a tree of independent terms the squares of the partial sums add up to about Σt² +
        (Σt)².
        """
        absolute = np.abs(terms).sum(axis, keepdims=True)
        worst = np.expm1(depth * self.compute.unit) * absolute
        if self.structured:
            return worst
        spread = np.hypot(np.sqrt((terms * terms).sum(axis, keepdims=True)), terms.sum(axis, keepdims=True))
        likely = LAMBDA * np.sqrt(np.longdouble(depth)) * self.compute.unit
        return np.minimum(worst, likely * np.minimum(absolute, spread))
