"""What may come out, bit for bit: intervals pushed through the rounding points of a casting mode.

The only freedom that the specification leaves is in the compute dtype: the order of sums and a few unit
roundoffs. Rounding is monotone, so R([a, b]) = [R(a), R(b)], and an interval far narrower than the spacing of
X's dtype becomes a single number unless a rounding boundary lies inside it. So in 16 bits nearly every
element has one right answer, whatever the order of the sums, and a rounding at another point shows where
no relative tolerance could see it.
"""

from __future__ import annotations

import numpy as np

from references.rounding import ErrorModel, Rounding

Interval = tuple[np.ndarray, np.ndarray]


def widened(interval: Interval, amount: np.ndarray) -> Interval:
    return interval[0] - amount, interval[1] + amount


def rounded(model: ErrorModel, interval: Interval, dtype: str) -> Interval:
    """The interval in dtype."""
    return model.cast(interval[0], dtype), model.cast(interval[1], dtype)


def rstd(model: ErrorModel, x: np.ndarray, eps: float, value: np.ndarray, error: np.ndarray) -> Interval:
    """RSTD: value·(1 ± error), or in `none` the chain of its roundings."""
    if not (model.points.rstd and model.storage.unit):
        return value * (1 - error), value * (1 + error)
    unit, n_cols = model.compute.unit, x.shape[-1]
    squares = model.cast(x * x, model.dtype).astype(np.longdouble)
    total = squares.sum(-1, keepdims=True)
    sums = widened((total, total), model.summation(squares, -1, model.arithmetic.column_depth(n_cols)))

    def stored(interval: Interval, units: float) -> Interval:
        lowest, highest = interval[0] * (1 - units * unit), interval[1] * (1 + units * unit)
        lowest, highest = rounded(model, (lowest, highest), model.dtype)
        return lowest.astype(np.longdouble), highest.astype(np.longdouble)

    lowest, highest = stored((sums[0] / n_cols, sums[1] / n_cols), model.arithmetic.c_div)
    lowest, highest = stored(
        (lowest + eps, highest + eps), 2
    )  # eps rounds to the compute dtype, then the sum
    return stored((1 / np.sqrt(highest), 1 / np.sqrt(lowest)), model.arithmetic.c_rs)


def scaled(interval: Interval, factor: np.ndarray, rounding: Rounding) -> Interval:
    """The product with an exactly known factor, computed with one rounding."""
    ends = interval[0] * factor, interval[1] * factor
    lowest, highest = np.minimum(*ends), np.maximum(*ends)
    return lowest - rounding.of(lowest), highest + rounding.of(highest)


def x_hat(model: ErrorModel, x: np.ndarray, rstd: Interval) -> Interval:
    """x̂ as it enters Y and dW."""
    product = scaled(rstd, x, model.compute)
    if not model.points.x_hat:
        return product
    lowest, highest = rounded(model, product, model.dtype)
    return lowest.astype(np.longdouble), highest.astype(np.longdouble)
