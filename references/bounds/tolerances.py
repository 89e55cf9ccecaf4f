"""How far a result may lie from the truth: bounds derived from the inputs, element by element, never chosen.

Each bound is against the unrounded longdouble oracle and is a sum of named terms, one for each thing that
rounds; docs/judge/derivation.md derives them. `e` is always the relative error of RSTD, one number a row.
"""

from __future__ import annotations

import math

import numpy as np

from references import oracle
from references.arrays import dtype_name
from references.bounds import enclosure
from references.bounds.bound import Bound
from references.bounds.rounding import NO_ROUNDING, NUMPY, SEQUENTIAL, Arithmetic, ErrorModel, Rounding
from references.spec import FLOATS, ROUNDING_POINTS, CastingMode

__all__ = [
    "NUMPY",
    "SEQUENTIAL",
    "Arithmetic",
    "Bound",
    "backward_bounds",
    "exact_rate",
    "exact_ulps",
    "forward_bounds",
    "stream_bounds",
]


def exact_rate(tensor: str, dtype: str, casting_mode: str, size: int) -> float | None:
    """The least share of elements equal to `numpy_reference` bit for bit, for data without cancellation.

    999 in 1000 for bfloat16, 995 in 1000 for float16 (specification, section 3). Right results differ ten
    times less often than that, in one element of p: of n elements, n·p + 4·√(n·p) + 2 may differ by chance (a
    Poisson count stays within that in all but 1e-5 of cases), the larger allowance in a small tensor. Where
    sums cancel the rate has no meaning; `Bound.misrounded` needs no rate and holds everywhere.

    Args:
        tensor: "y", "rstd", "dx", "dr", "dw"; "s" needs no rate, all of its bits being one sum's.
        dtype: the tensor's.
        casting_mode: "llama", "gemma" or "none".
        size: elements compared.

    Returns:
        None where nothing is demanded: wider dtypes, RSTD, the gradients of `none`, tensors so small that the
        allowance is all of them.

    Raises:
        ValueError: the mode is unknown.
    """
    allowed_share = {"bfloat16": 1e-3, "float16": 5e-3}.get(dtype)
    mode = CastingMode(casting_mode)
    if allowed_share is None or tensor in ("rstd", "s") or (tensor != "y" and mode is CastingMode.NONE):
        return None
    by_chance = allowed_share / 10 * size
    allowed = max(allowed_share * size, math.floor(by_chance + 4 * math.sqrt(by_chance) + 2))
    return 1 - allowed / size if allowed < size else None


def exact_ulps(tensor: str, dtype: str, casting_mode: str) -> int | None:
    """The most ulps by which an element may differ where `exact_rate` is demanded; None where it is not.

    One: the last rounding fell the other way. Two in Y where x̂ is rounded as well: a flip of x̂ moves Y by the
    same relative amount, less than two ulps of Y, and numbers less than two ulps apart round to at most two
    apart. No limit for dW there: a flip moves one summand by its ulp, which is many ulps of a sum that
    cancels.
    """
    if exact_rate(tensor, dtype, casting_mode, 10**6) is None:
        return None
    if not ROUNDING_POINTS[CastingMode(casting_mode)].x_hat:
        return 1
    return {"y": 2, "dx": 1, "dr": 1}.get(tensor)


@np.errstate(all="ignore")
def stream_bounds(x: np.ndarray, r: np.ndarray, *, arithmetic: Arithmetic = SEQUENTIAL) -> dict[str, Bound]:
    """The bound of S = R(x + r), in which nothing is free: its bits are those of the addition.

    Args:
        x, r: (..., H), one shape and dtype.
        arithmetic: what is known of the candidate's.

    Returns:
        {"s": (..., H)}

    Raises:
        ValueError: shapes or dtype do not fit.
    """
    model = ErrorModel.create(dtype_name(x), CastingMode.GEMMA, False, arithmetic)
    truth = oracle.add(x, r)
    s = model.added(x, r)
    vanishes = arithmetic.flushes_subnormals & (np.abs(truth) < FLOATS[model.dtype].smallest_normal)
    bits = np.where(vanishes, np.minimum(s, 0), s), np.where(vanishes, np.maximum(s, 0), s)
    # Of two roundings the first changes nothing: c holds the sum of two 16-bit numbers, or rounds it innocuously.
    rounding = model.storage if model.storage.unit else model.compute
    return {"s": Bound(truth, {"rounding": rounding.of(truth)}, model.dtype, bits)}


@np.errstate(all="ignore")  # outside the range of the dtypes infinities and NaN mean: does not apply
def forward_bounds(
    x: np.ndarray,
    w: np.ndarray | None,
    *,
    eps: float,
    offset: float,
    casting_mode: str,
    structured: bool = False,
    arithmetic: Arithmetic = SEQUENTIAL,
) -> dict[str, Bound]:
    """The bounds of Y and RSTD.

    Args:
        x: (..., H), float16|bfloat16|float32|float64.
        w: (H,), any of these, or None.
        eps, offset: as the candidate gets them.
        casting_mode: "llama", "gemma" or "none".
        structured: the roundings are not independent (constant rows, alternating signs), so that only the
            deterministic bounds hold.
        arithmetic: what is known of the candidate's.

    Returns:
        {"y": (..., H), "rstd": (...)}

    Raises:
        ValueError: shapes, eps, dtype or mode do not fit.
    """
    model = ErrorModel.create(dtype_name(x), casting_mode, structured, arithmetic)
    truth = oracle.forward(x, w, eps=eps, offset=offset)
    x = x.astype(np.longdouble)
    weight = model.shifted_weight(w, offset, x.shape[-1])
    e = _rstd_error(model, x, eps)
    terms = {
        "rstd": e * np.abs(truth.y),
        "x_hat": np.abs(truth.w_shifted) * _x_hat_rounding(model).of(truth.x_hat),
        "weight": np.abs(truth.x_hat * (weight - truth.w_shifted)),
        "arithmetic": np.abs(truth.w_shifted) * model.compute.of(truth.x_hat) + model.compute.of(truth.y),
        "rounding": model.storage.of(truth.y),
    }
    y_bits = rstd_bits = None
    if model.storage.unit:
        rstd = enclosure.rstd(model, x, eps, truth.rstd[..., None], e)
        y = enclosure.scaled(model, enclosure.x_hat(model, x, rstd), weight)
        y_bits = enclosure.rounded(model, y, model.dtype)
        if model.points.rstd:
            rstd_bits = enclosure.rounded(model, (rstd[0][..., 0], rstd[1][..., 0]), model.compute_dtype)
    terms = _grown(terms, (1 + e) * (1 + 4 * model.storage.unit), x.shape)
    return {
        "y": Bound(truth.y, terms, model.dtype, y_bits),
        "rstd": Bound(truth.rstd, {"rstd": e[..., 0] * truth.rstd}, model.compute_dtype, rstd_bits),
    }


@np.errstate(all="ignore")
def backward_bounds(
    dy: np.ndarray,
    x: np.ndarray,
    w: np.ndarray | None,
    *,
    eps: float,
    offset: float,
    casting_mode: str,
    structured: bool = False,
    arithmetic: Arithmetic = SEQUENTIAL,
    ds: np.ndarray | None = None,
) -> dict[str, Bound]:
    """The bounds of dX and dW for a backward that uses the RSTD of its own forward.

    Args:
        dy: (..., H), x's dtype.
        x, w, eps, offset, casting_mode, structured, arithmetic: as in `forward_bounds`; with a residual x is S.
        ds: (..., H), x's dtype: what arrives at S, where there is a residual.

    Returns:
        {"dx": (..., H), "dw": (H,)}, without "dw" where w is None; with ds also "dr", which is "dx"

    Raises:
        ValueError: shapes, eps, dtype or mode do not fit.
    """
    model = ErrorModel.create(dtype_name(x), casting_mode, structured, arithmetic)
    truth = oracle.backward(dy, x, w, eps=eps, offset=offset, ds=ds)
    x, dy = x.astype(np.longdouble), dy.astype(np.longdouble)
    e = _rstd_error(model, x, eps)
    weight = model.shifted_weight(w, offset, x.shape[-1])
    bounds = {"dx": _dx_bound(model, dy, x, weight, eps, truth, e, ds)}
    if ds is not None:
        bounds["dr"] = bounds["dx"]
    if w is not None:
        bounds["dw"] = _dw_bound(model, dy, x, dtype_name(w), eps, truth, e)
    return bounds


def _rstd_error(model: ErrorModel, x: np.ndarray, eps: float) -> np.ndarray:
    """The relative error of RSTD: (..., 1), infinite where a square or a sum leaves its dtype's range."""
    points, n_cols = model.points, x.shape[-1]
    squares = x * x
    mean = squares.mean(-1, keepdims=True)
    variance = mean + eps
    total_error = model.rounded(model.compute, squares, -1)
    total_error += model.summation(squares, -1, model.arithmetic.column_depth(n_cols))
    if points.squares:
        total_error += model.rounded(model.storage, squares, -1)
    error = total_error / n_cols + model.arithmetic.c_div * model.compute.of(mean)
    # eps is rounded to the compute dtype, then the sum is.
    error += model.compute.of(np.asarray(eps)) + model.compute.of(variance)
    for point, value in ((points.mean_square, mean), (points.variance, variance)):
        if point:
            error += model.storage.of(value)
    relative = np.minimum(error / variance, 1)
    e = np.expm1(-0.5 * np.log1p(-relative))  # the worst case of 1/√v; half of relative, where that is small
    e += (model.arithmetic.c_rs * model.compute.unit + points.rstd * model.storage.unit) * (1 + e)
    held = FLOATS[model.dtype if points.squares else model.compute_dtype]  # squares and variance are held in it
    fits = np.maximum(squares.max(-1, keepdims=True), variance + error) <= held.max * (1 - held.unit_roundoff)
    fits &= squares.sum(-1, keepdims=True) + total_error <= FLOATS[model.compute_dtype].max
    return np.where(fits, e, np.inf)


def _dx_bound(
    model: ErrorModel,
    dy: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    eps: float,
    truth: oracle.Backward,
    e: np.ndarray,
    ds: np.ndarray | None,
) -> Bound:
    """dX about the truth, with ds added; its enclosure about what the rounded RSTD and w (w' as rounded) make of it."""
    rstd = truth.forward.rstd[..., None]
    growth = (1 + e) ** 3 * (1 + 4 * model.storage.unit)
    terms = _dx_terms(model, dy, x, truth.forward.w_shifted, w - truth.forward.w_shifted, rstd, e)
    arriving = np.zeros_like(x) if ds is None else ds.astype(np.longdouble)
    if ds is not None:  # added last, or between the two terms of dNorm
        terms["sum"] = model.compute.of(truth.dx) + model.compute.unit * np.abs(arriving)
    terms["rounding"] = model.storage.of(truth.dx)
    bits = None
    if model.storage.unit:
        lowest, highest = enclosure.rstd(model, x, eps, rstd, e)
        rstd, e = (lowest + highest) / 2, (highest - lowest) / (highest + lowest)
        m = dy * w
        dx = rstd * (m - x * rstd**2 * (m * x).mean(-1, keepdims=True)) + arriving
        freedom = sum(
            _dx_terms(model, dy, x, w, np.zeros_like(w), rstd, e).values(), terms.get("sum", np.zeros_like(x))
        )
        freedom = freedom * ((1 + e) ** 3 * (1 + 16 * model.compute.unit))
        bits = enclosure.rounded(model, (dx - freedom, dx + freedom), model.dtype)
    may_overflow = np.isfinite(truth.dx) & np.isfinite(e) & np.isinf(terms["range"])
    return Bound(truth.dx, _grown(terms, growth, x.shape), model.dtype, bits, may_overflow)


def _dx_terms(
    model: ErrorModel,
    dy: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    deviation: np.ndarray,
    rstd: np.ndarray,
    e: np.ndarray,
) -> dict[str, np.ndarray]:
    """What moves dX = r·m - z, where m = dY·w and z = r³·x·Σ(m·x)/N, before its rounding.

    rstd errs by e relative to itself, w by deviation.
    """
    n_cols, u = x.shape[-1], model.compute.unit
    m = dy * w
    products = m * x
    dot = products.sum(-1, keepdims=True)
    slope = rstd**3 * x / n_cols  # ∂z/∂dot
    z = slope * dot
    by_dot = model.summation(products, -1, model.arithmetic.column_depth(n_cols))
    by_dot = by_dot + model.independent(2 * u * products, -1)
    return {
        # RSTD enters as r·m and as r³·(…): to first order its error moves both, and partly cancels.
        "rstd": e * np.abs(rstd * m - 3 * z) + np.abs(z) * (3 * e**2 + e**3),
        "weight": rstd * np.abs(dy * deviation) + np.abs(slope * (dy * deviation * x).sum(-1, keepdims=True)),
        "dot": np.abs(slope) * by_dot,
        "arithmetic": u * (3 * rstd * np.abs(m) + (6 + model.arithmetic.c_div) * np.abs(z)),
        # A product that becomes subnormal loses up to floor, and is multiplied by what stands beside it; beside the
        # last one, by RSTD, nothing stands.
        "underflow": model.compute.floor
        * (1 + rstd * ((1 + np.abs(x)) * (1 + np.abs(dot) / n_cols) + 2 * rstd**2 * np.abs(x))),
        "range": _range_term(
            model,
            np.abs(m).max(-1, keepdims=True),  # one that is infinite reaches the whole row
            np.abs(products).sum(-1, keepdims=True),
            rstd**2 * (1 + np.abs(x)) * (1 + np.abs(dot)),
            rstd * np.abs(m),
        ),
    }


def _dw_bound(
    model: ErrorModel,
    dy: np.ndarray,
    x: np.ndarray,
    w_dtype: str,
    eps: float,
    truth: oracle.Backward,
    e: np.ndarray,
) -> Bound:
    """dW = Σ over rows of p = dY·x̂."""
    assert truth.dw is not None
    x, dy, x_hat, e = (v.reshape(-1, v.shape[-1]) for v in (x, dy, truth.forward.x_hat, e))
    p, worst_e = dy * x_hat, e.max(initial=0)
    narrows = FLOATS[w_dtype].unit_roundoff > model.compute.unit
    rounding = Rounding.to(w_dtype, model.arithmetic) if narrows else NO_ROUNDING
    from_rstd = np.abs(p * e).sum(0, keepdims=True)
    if not model.structured:  # what all rows share scales dW, the rest is independent
        from_rstd = np.minimum(from_rstd, model.independent(p * e, 0) + worst_e * np.abs(truth.dw))
    total = np.abs(p).sum(0, keepdims=True)
    terms = {
        "rstd": from_rstd,
        "x_hat": model.rounded(_x_hat_rounding(model), x_hat, 0, scale=dy),
        "sum": model.summation(p, 0, model.arithmetic.row_depth(len(x))),
        "arithmetic": model.independent(2 * model.compute.unit * p, 0)
        + model.compute.floor * (np.abs(dy) + 1).sum(0, keepdims=True),
        "rounding": rounding.of(truth.dw),
        "range": _range_term(model, total),
    }
    growth = (1 + worst_e) * (1 + 4 * max(model.storage.unit, rounding.unit))
    terms = {name: term[0] for name, term in _grown(terms, growth, (1, x.shape[-1])).items()}
    bits = None
    if rounding.unit:
        rstd = enclosure.rstd(model, x, eps, truth.forward.rstd.reshape(-1, 1), e)
        lowest, highest = enclosure.scaled(model, enclosure.x_hat(model, x, rstd), dy)
        freedom = terms["sum"] + terms["arithmetic"]
        bits = enclosure.rounded(model, (lowest.sum(0) - freedom, highest.sum(0) + freedom), w_dtype)
    may_overflow = np.isfinite(truth.dw) & np.isfinite(worst_e) & np.isinf(terms["range"])
    return Bound(truth.dw, terms, w_dtype, bits, may_overflow)


def _x_hat_rounding(model: ErrorModel) -> Rounding:
    return model.storage if model.points.x_hat else NO_ROUNDING


def _range_term(model: ErrorModel, *intermediates: np.ndarray) -> np.ndarray:
    """0, or infinite where an intermediate result may overflow: no bound holds there."""
    worst = np.max(np.broadcast_arrays(*intermediates), axis=0)
    return np.where(worst <= FLOATS[model.compute_dtype].max / 2, 0, np.inf)


def _grown(terms: dict[str, np.ndarray], growth: np.ndarray, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Terms enlarged by what one error does to another: the products that first-order terms leave out."""
    return {name: np.broadcast_to(term * growth, shape) for name, term in terms.items()}
