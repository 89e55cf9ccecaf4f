"""Random patterns for a problem, drawn until everything that is rooted is positive.

In the field a sum of squares is positive or negative as a coin falls, and of a negative number v only √v·√v = -v is
known: a program that takes 1/v for RSTD² would differ there from one that takes RSTD·RSTD, though both are right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from references.exact.field import SCALES, Field, pattern_dtype
from references.exact.table import Formula, Problem, variance


def patterns(field: Field, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Patterns of non-zero numbers, each as likely as the others; 16-bit ones are ±squares of the format."""
    if dtype not in SCALES:
        return rng.integers(1, field.prime, shape).astype(pattern_dtype(dtype))
    sign = rng.integers(0, 2, shape) << field.magnitude_bits
    return (rng.integers(1, field.limit, shape) | sign).astype(np.uint16)


def draw(
    field: Field,
    shape: tuple[int, int],
    dtype: str,
    w_dtype: str | None,
    *,
    eps: float,
    offset: float,
    formulas: Sequence[Formula],
    seed: int = 0,
    residual: bool = False,
) -> Problem:
    """A problem of (n_rows, n_cols) in whose rows every formula roots a positive number; with a residual r and ds."""
    rng = np.random.default_rng((seed, field.prime, *shape))
    n_rows, n_cols = shape
    w = None if w_dtype is None else patterns(field, rng, (n_cols,), w_dtype)
    rows = np.empty((2 if residual else 1, 0, n_cols), pattern_dtype(dtype))
    while rows.shape[1] < n_rows:
        more = patterns(field, rng, (len(rows), 4 * n_rows + 4, n_cols), dtype)
        x, *r = more
        trial = Problem(x, None, x, dtype, None, eps, offset, *r)
        good = np.ones(len(x), bool)
        for formula in formulas:
            good &= field.positive(variance(field, trial, formula))[:, 0]
        rows = np.concatenate((rows, more[:, good]), axis=1)
    x, *r = rows[:, :n_rows]
    dy, *ds = (patterns(field, rng, shape, dtype) for _ in rows)
    return Problem(x, w, dy, dtype, w_dtype, eps, offset, *r, *ds)
