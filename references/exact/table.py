"""The specification's table in the field, once: what Y, RSTD, dX and dW are, and what they would be for other formulas.

A `Formula` says where values are rounded to X's dtype and in what order things are done. The three casting modes are
`formula(mode)`; everything else is a deviation that a search can find and name. Nothing here is shared with the
references: they are proven against this.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from references.arrays import numpy_dtype
from references.exact.field import Field, pattern_dtype
from references.spec import ROUNDING_POINTS, CastingMode, RoundingPoints, compute_dtype


@dataclass(frozen=True)
class Problem:
    """Patterns of x, dy (n_rows, n_cols) in `dtype` and of w (n_cols,) in `w_dtype`, or None, and two numbers.

    With a residual also of r and ds, like x.
    """

    x: np.ndarray
    w: np.ndarray | None
    dy: np.ndarray
    dtype: str
    w_dtype: str | None
    eps: float
    offset: float
    r: np.ndarray | None = None
    ds: np.ndarray | None = None


@dataclass(frozen=True)
class Formula:
    """The forward's rounding points and order, then the backward's; the defaults are the specification's."""

    points: RoundingPoints
    eps: str = "inside"  # | "rounded" to x's dtype, as JAX does | "outside" of the root | "left out"
    width: str = "columns"  # | "padded" to a power of two | "columns - 1": what the sum of squares is divided by
    order: str = "x_hat * w"  # | "(x * w) * rstd" | "x * (rstd * w)"
    offset: str = "added"  # | "after rounding": to the rounded w or product | "left out"
    m: bool = False  # dY·w' rounded
    products: bool = False  # dY·x̂ rounded before it is summed over rows
    dw_x_hat: bool | None = None  # x̂ rounded in dW; None: as in the forward
    projection: bool = True  # dX has its second term
    ds: str = "added"  # | "after rounding" of dX | "left out": what arrives at S, with a residual
    dx_parts: bool = False  # dX is the rounded sum of two rounded terms, as where x was widened twice

    def named(self) -> tuple[str, ...]:
        """What differs from the specification's order, in words."""
        words = []
        if self.eps != "inside":
            words.append(
                {"left out": "eps is left out", "outside": "eps is added outside of the root"}.get(
                    self.eps, "eps is rounded"
                )
            )
        if self.width != "columns":
            words.append(
                "the mean is over the padded width" if self.width == "padded" else "the mean divides by one column less"
            )
        if self.order != "x_hat * w":
            words.append(f"the order is {self.order}")
        if self.offset != "added":
            words.append(
                "the offset is left out" if self.offset == "left out" else "the offset is added after rounding"
            )
        if self.m:
            words.append("dX rounds dY·w'")
        if self.dx_parts:
            words.append("dX adds two terms that were rounded before")
        if self.ds != "added":
            words.append("dX leaves out dS" if self.ds == "left out" else "dX adds dS after its rounding")
        if not self.projection:
            words.append("dX lacks the term of RSTD's derivative")
        if self.products:
            words.append("dW rounds dY·x̂ before the sum over rows")
        if self.dw_x_hat is not None:
            words.append("dW takes x̂ rounded" if self.dw_x_hat else "dW takes x̂ unrounded")
        return tuple(words)


def formula(mode: str) -> Formula:
    """The specification's formula of a casting mode."""
    return Formula(ROUNDING_POINTS[CastingMode(mode)])


def rounded_points(points: RoundingPoints) -> tuple[str, ...]:
    """The names of the points that round."""
    return tuple(f.name for f in fields(points) if getattr(points, f.name))


def forward(field: Field, problem: Problem, formula: Formula) -> dict[str, np.ndarray]:
    """Patterns of y (n_rows, n_cols), with a residual of s, in x's dtype and rstd (n_rows,) in the compute dtype."""
    y, parts = _forward(field, problem, formula)
    results = {
        "y": _store(field, y, problem.dtype, problem),
        "rstd": field.encode(parts["rstd"][:, 0], compute_dtype(problem.dtype)),
    }
    return results if problem.r is None else results | {"s": _store(field, parts["x"], problem.dtype, problem)}


def backward(field: Field, problem: Problem, formula: Formula) -> dict[str, np.ndarray]:
    """Patterns of dx, like x, with a residual of dr, which is dx, and of dw, like w, unless w is None."""
    _, parts = _forward(field, problem, formula)
    x, rstd, w, n_cols, dy = parts["x"], parts["rstd"], parts["w"], parts["n_cols"], _load(field, problem, "dy")
    multiply = field.multiply
    m = dy if w is None else multiply(dy, w)
    m = field.round(m, problem.dtype) if formula.m else m
    dot = field.sum(multiply(m, x), axis=1, keepdims=True)
    through_rstd = multiply(multiply(x, parts["slope"]), field.divide(dot, n_cols))
    terms = [multiply(rstd, m), multiply(rstd, through_rstd if formula.projection else np.zeros_like(x))]
    if formula.dx_parts:
        terms = [field.round(term, problem.dtype) for term in terms]
    dx = field.subtract(*terms)
    if problem.ds is not None and formula.ds != "left out":
        dx = field.round(dx, problem.dtype) if formula.ds == "after rounding" else dx
        dx = field.add(dx, _load(field, problem, "ds"))
    results = {"dx": _store(field, dx, problem.dtype, problem)}
    if problem.ds is not None:
        results["dr"] = results["dx"]
    if problem.w_dtype is not None:
        x_hat = multiply(x, rstd)
        if formula.points.x_hat if formula.dw_x_hat is None else formula.dw_x_hat:
            x_hat = field.round(x_hat, problem.dtype)
        products = multiply(dy, x_hat)
        products = field.round(products, problem.dtype) if formula.products else products
        results["dw"] = _store(field, field.sum(products, axis=0), problem.w_dtype, problem)
    return results


def evaluate(field: Field, problem: Problem, formula: Formula) -> dict[str, np.ndarray]:
    """y, rstd, dx, with a weight dw, and with a residual s and dr."""
    return forward(field, problem, formula) | backward(field, problem, formula)


def variance(field: Field, problem: Problem, formula: Formula) -> np.ndarray:
    """What the formula takes the root of, (n_rows, 1)."""
    return _forward(field, problem, formula)[1]["variance"]


def _forward(field: Field, problem: Problem, formula: Formula) -> tuple[np.ndarray, dict[str, Any]]:
    points, add, multiply = formula.points, field.add, field.multiply

    def rounded(point: bool, value: np.ndarray) -> np.ndarray:
        return field.round(value, problem.dtype) if point else value

    c = compute_dtype(problem.dtype)
    eps, offset = (field.decode(field.constant(number, c), c) for number in (problem.eps, problem.offset))
    if formula.eps == "rounded":
        constant = field.constant(numpy_dtype(problem.dtype).type(problem.eps), problem.dtype)
        eps = field.decode(constant, problem.dtype)
    x = _load(field, problem, "x")
    if problem.r is not None:
        x = field.round(add(x, _load(field, problem, "r")), problem.dtype)
    n_cols = np.asarray(_width(x.shape[1], formula.width), np.uint64)
    squares = rounded(points.squares, multiply(x, x))
    mean_square = rounded(points.mean_square, field.divide(field.sum(squares, axis=1, keepdims=True), n_cols))
    value = rounded(points.variance, add(mean_square, eps) if formula.eps in ("inside", "rounded") else mean_square)
    root = field.root(value)
    rstd = rounded(points.rstd, field.power(add(root, eps) if formula.eps == "outside" else root, -1))
    # -dRSTD/dv, times two and divided by RSTD: RSTD², taken where RSTD was rounded to.
    slope = multiply(rstd, rstd) if formula.eps != "outside" else field.divide(rstd, root)
    parts: dict[str, Any] = {"x": x, "rstd": rstd, "variance": value, "slope": slope, "n_cols": n_cols, "w": None}
    x_hat = rounded(points.x_hat, multiply(x, rstd))
    if problem.w is None:
        return x_hat, parts
    w = _load(field, problem, "w")
    if formula.offset == "added":
        w = rounded(points.weight, add(w, offset))
    elif formula.offset == "after rounding":
        w = add(rounded(points.weight, w), offset)
    else:
        w = rounded(points.weight, w)
    parts["w"] = w
    if formula.order == "(x * w) * rstd":  # the point x̂ is the product that is made first
        return multiply(rounded(points.x_hat, multiply(x, w)), rstd), parts
    if formula.order == "x * (rstd * w)":
        return multiply(x, rounded(points.x_hat, multiply(rstd, w))), parts
    return multiply(x_hat, w), parts


def _width(n_cols: int, width: str) -> int:
    return {"columns": n_cols, "padded": 1 << (n_cols - 1).bit_length(), "columns - 1": max(1, n_cols - 1)}[width]


def _load(field: Field, problem: Problem, name: str) -> np.ndarray:
    return field.decode(getattr(problem, name), problem.w_dtype if name == "w" else problem.dtype)  # type: ignore[arg-type]


def _store(field: Field, value: np.ndarray, dtype: str, problem: Problem) -> np.ndarray:
    """Round once to the dtype of a result, from the compute dtype."""
    c = compute_dtype(problem.dtype)
    return field.cast(value.astype(pattern_dtype(c)), c, dtype)
