"""What may come out, bit for bit: intervals pushed through the rounding points of a casting mode.

The only freedom that the specification leaves is in the compute dtype: the order of sums and a few unit
roundoffs. Rounding is monotone, so R([a, b]) = [R(a), R(b)], and an interval far narrower than the spacing of
X's dtype becomes a single number unless a rounding boundary lies inside it. So in 16 bits nearly every
element has one right answer, whatever the order of the sums, and a rounding at another point shows where
no relative tolerance could see it.
"""

from __future__ import annotations

import numpy as np

from references.bounds.rounding import ErrorModel

Interval = tuple[np.ndarray, np.ndarray]


def rounded(model: ErrorModel, interval: Interval, dtype: str) -> Interval:
    """The interval in dtype."""
    return model.cast(interval[0], dtype), model.cast(interval[1], dtype)


def stored(model: ErrorModel, interval: Interval) -> Interval:
    """The interval rounded to X's dtype, in longdouble again."""
    lowest, highest = rounded(model, interval, model.dtype)
    return lowest.astype(np.longdouble), highest.astype(np.longdouble)


def scaled(model: ErrorModel, interval: Interval, factor: np.ndarray) -> Interval:
    """The exact products with a known factor. An IEEE product is their rounding, which is monotone as well."""
    ends = interval[0] * factor, interval[1] * factor
    flushed = model.compute.floor if model.arithmetic.flushes_subnormals else 0
    return np.minimum(*ends) - flushed, np.maximum(*ends) + flushed


def rstd(model: ErrorModel, x: np.ndarray, eps: float, value: np.ndarray, error: np.ndarray) -> Interval:
    """RSTD: value·(1 ± error), or in `none` the chain of its roundings."""
    if not (model.points.rstd and model.storage.unit):
        return value * (1 - error), value * (1 + error)
    unit, n_cols = model.compute.unit, x.shape[-1]
    squares, _ = stored(model, (x * x, x * x))
    total = squares.sum(-1, keepdims=True)
    freedom = model.summation(squares, -1, model.arithmetic.column_depth(n_cols))

    def within(lowest: np.ndarray, highest: np.ndarray, units: float) -> Interval:
        return stored(model, (lowest * (1 - units * unit), highest * (1 + units * unit)))

    lowest, highest = within((total - freedom) / n_cols, (total + freedom) / n_cols, model.arithmetic.c_div)
    lowest, highest = within(lowest + eps, highest + eps, 2)  # eps is rounded, then the sum
    return within(1 / np.sqrt(highest), 1 / np.sqrt(lowest), model.arithmetic.c_rs)


def x_hat(model: ErrorModel, x: np.ndarray, rstd: Interval) -> Interval:
    """x̂ as it enters Y and dW."""
    lowest, highest = scaled(model, rstd, x)
    if model.points.x_hat:
        return stored(model, (lowest, highest))
    return lowest - model.compute.of(lowest), highest + model.compute.of(highest)
