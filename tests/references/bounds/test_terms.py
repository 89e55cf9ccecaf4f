"""The terms of the bounds for rows so simple that each can be worked out by hand, beside docs/judge/derivation.md.

x̂ is ±1 and RSTD 1/2, so that every product and sum is a small number; u is the unit roundoff of float32, U of bfloat16.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from references.bounds import tolerances
from references.bounds.rounding import Arithmetic

u, U = 2.0**-24, 2.0**-8
X = np.array([[2, -2, 2, 2], [-2, -2, 2, -2]], np.float32)
DY = np.array([[1, 2, -1, 4], [-1, 1, 1, 1]], np.float32)
W = np.array([1, 0.5, 2, 1], np.float32)
# dY·W is (1, 1, -2, 4) and (-1, .5, 2, 1); its products with X sum to 4 and 3, without signs to 16 and 9.
# z = RSTD³·X·Σ/4 is ±1/4 and ±3/16.
ARITHMETIC = Arithmetic(c_div=1, c_rs=2)


def terms(
    dtype: Any = np.float32, mode: str = "gemma", w: np.ndarray | None = W, w_dtype: Any = None, **more: Any
) -> dict[str, dict[str, np.ndarray]]:
    """By tensor and name, in units of u."""
    x, dy = X.astype(dtype), DY.astype(dtype)
    w = None if w is None else w.astype(w_dtype or dtype)
    about = {"eps": 0.0, "offset": 0.0, "casting_mode": mode, "structured": True, "arithmetic": ARITHMETIC} | more
    bounds = tolerances.forward_bounds(x, w, **about) | tolerances.backward_bounds(dy, x, w, **about)
    return {
        tensor: {name: np.asarray(term / u, float) for name, term in bound.terms.items()}
        for tensor, bound in bounds.items()
    }


# The hand adds errors and multiplies none: it leaves out at most five products of a term with an error of 16u.
# They only add to the term; below, float64's own roundings may show.
LEFT_OUT, FLOAT64 = 5 * 16 * u, 2.0**-48


def close(found: np.ndarray, wanted: Any) -> None:
    assert (found >= np.multiply(wanted, 1 - FLOAT64)).all(), (found, wanted)
    assert (found <= np.multiply(wanted, 1 + LEFT_OUT)).all(), (found, wanted)


def test_of_float32_every_term_is_a_few_roundings() -> None:
    found = terms()
    # Σx² errs by 16u for the squares and 3·16u for three additions, the mean by a quarter, and by 4u for the division;
    # the variance by 4u: 24u of 4. RSTD by half of 6u, and by 2u for its own operations.
    e = 5
    assert {tensor: set(of) for tensor, of in found.items()} == {
        "y": {"rstd", "x_hat", "weight", "arithmetic", "rounding"},
        "rstd": {"rstd"},
        "dx": {"rstd", "weight", "dot", "arithmetic", "underflow", "range", "rounding"},
        "dw": {"rstd", "x_hat", "sum", "arithmetic", "rounding", "range"},
    }
    close(found["rstd"]["rstd"], e / 2)
    y = np.array([1, 0.5, 2, 1])
    close(found["y"]["rstd"], e * y)
    close(found["y"]["arithmetic"], 2 * y)  # x̂, then its product with W
    close(found["dx"]["rstd"], e * np.array([[0.25, 1.25, 1.75, 1.25], [0.0625, 0.8125, 0.4375, 1.0625]]))
    close(found["dx"]["dot"], [[(3 * 16 + 2 * 16) / 16], [(3 * 9 + 2 * 9) / 16]])  # |RSTD³·X/4| is 1/16
    m, z = np.array([[1, 1, 2, 4], [1, 0.5, 2, 1]]), np.array([[1 / 4], [3 / 16]])
    close(found["dx"]["arithmetic"], 3 * m / 2 + (6 + 1) * z)
    step = 2.0**-150 / u
    close(found["dx"]["underflow"], step * (1 + np.array([[0.5 * (3 * 2 + 1)], [0.5 * (3 * 1.75 + 1)]])))
    p = np.array([2, 3, 2, 5])  # Σ|dY·x̂| over both rows
    close(found["dw"]["rstd"], e * p)
    close(found["dw"]["sum"], p)
    close(found["dw"]["arithmetic"], 2 * p)
    for tensor, name in (("y", "x_hat"), ("y", "weight"), ("y", "rounding"), ("dx", "weight"), ("dx", "range")):
        close(found[tensor][name], 0)
    for tensor, name in (("dx", "rounding"), ("dw", "x_hat"), ("dw", "rounding"), ("dw", "range")):
        close(found[tensor][name], 0)


def test_a_gradient_of_nothing_may_still_be_a_subnormal_number() -> None:
    x, dy = X, np.zeros_like(DY)
    about: dict[str, Any] = {"eps": 0.0, "offset": 0.0, "casting_mode": "llama", "arithmetic": ARITHMETIC}
    bounds = tolerances.backward_bounds(dy, x, W, **about)
    close(np.asarray(bounds["dw"].terms["arithmetic"] * 2.0**140, float), 2 * 2.0**-10)
    bounds = tolerances.backward_bounds(dy + 3, x, W, **about)
    assert (bounds["dw"].terms["arithmetic"] > 2 * u).all()


def test_what_is_declared_of_the_arithmetic_is_what_counts() -> None:
    exact = Arithmetic(c_div=0, c_rs=0, column_depth=lambda n: 0, row_depth=lambda n: 0)
    found = terms(arithmetic=exact)
    close(found["rstd"]["rstd"], (4 + 4) / 4 / 2 / 2)  # the squares and the variance
    close(found["dx"]["dot"], [[2 * 16 / 16], [2 * 9 / 16]])
    close(found["dw"]["sum"], 0)
    close(terms(arithmetic=Arithmetic(c_div=10, c_rs=2))["rstd"]["rstd"], (5 + 9 / 2) / 2)
    close(terms(arithmetic=Arithmetic(c_div=1, c_rs=10))["rstd"]["rstd"], (5 + 8) / 2)
    close(
        terms(arithmetic=Arithmetic(c_div=1, c_rs=2, column_depth=lambda n: 10 * n))["rstd"]["rstd"], (5 + 37 / 2) / 2
    )
    close(terms(arithmetic=Arithmetic(row_depth=lambda n: 10 * n))["dw"]["sum"], 20 * np.array([2, 3, 2, 5]))


def test_eps_is_rounded_and_so_is_its_sum() -> None:
    found = terms(eps=12.0)  # the variance is 16, RSTD 1/4; the mean errs by 20u, eps by 12u, the variance by 16u
    close(found["rstd"]["rstd"], (48 / 16 / 2 + 2) / 4)


@pytest.mark.parametrize("mode", ["llama", "gemma", "none"])
def test_of_bfloat16_the_roundings_to_x_come_first(mode: str) -> None:
    found = terms(ml_dtypes.bfloat16, mode)
    relative = 6 * u + 3 * U if mode == "none" else 6 * u  # squares, mean and variance are rounded to bfloat16
    e = (1 - relative) ** -0.5 - 1
    e += (2 * u + (U if mode == "none" else 0)) * (1 + e)
    y, grown = np.array([1, 0.5, 2, 1]), (1 + e) * (1 + 4 * U)
    rounds = mode != "gemma"
    close(found["rstd"]["rstd"] * u, e / 2)
    close(found["y"]["rstd"] * u, e * y * grown)
    close(found["y"]["x_hat"] * u, U * y * grown * rounds)
    close(found["y"]["rounding"] * u, U * y * grown)
    dx = np.abs(
        np.array([[1, 1, -2, 4], [-1, 0.5, 2, 1]]) / 2 - np.array([[1, -1, 1, 1], [-0.75, -0.75, 0.75, -0.75]]) / 4
    )
    close(found["dx"]["rounding"] * u, U * dx * (1 + e) ** 3 * (1 + 4 * U))
    z = np.array([[1 / 4], [3 / 16]])
    by_rstd = np.array([[0.25, 1.25, 1.75, 1.25], [0.0625, 0.8125, 0.4375, 1.0625]])
    close(found["dx"]["rstd"] * u, (e * by_rstd + z * (3 * e**2 + e**3)) * (1 + e) ** 3 * (1 + 4 * U))
    dw, p = np.abs([1 + 1, -2 - 1, -1 + 1, 4 - 1]), np.array([2, 3, 2, 5])
    close(found["dw"]["rounding"] * u, np.maximum(U * dw, 2.0**-134) * grown)  # half a subnormal step
    close(found["dw"]["x_hat"] * u, U * p * grown * rounds)


@pytest.mark.parametrize(
    ("mode", "w_dtype", "moved"),
    [
        ("none", np.float32, 2.0**-9),  # 1 + 2^-9 is rounded to 1, and so on for the others by their size
        ("none", ml_dtypes.bfloat16, 2.0**-9),
        ("llama", np.float32, 0),
        ("gemma", ml_dtypes.bfloat16, 0),
    ],
)
def test_the_weight_that_none_rounds_moves_y_and_dx(mode: str, w_dtype: Any, moved: float) -> None:
    ones = np.ones(4, np.float32)
    found = terms(ml_dtypes.bfloat16, mode, ones, w_dtype, offset=2.0**-9)
    relative = 6 * u + 3 * U if mode == "none" else 6 * u
    e = (1 - relative) ** -0.5 - 1
    e += (2 * u + (U if mode == "none" else 0)) * (1 + e)
    grown = (1 + 4 * U) * (1 + e)
    close(found["y"]["weight"] * u, moved * grown)
    # RSTD·|dY·moved| and |RSTD³·X/4·Σ dY·moved·X|: Σ dY·X is 4 and 2
    by_row = np.abs(DY) / 2 + np.array([[2 - 4 - 2 + 8], [2 - 2 + 2 - 2]]) / 16
    close(found["dx"]["weight"] * u, moved * by_row * grown * (1 + e) ** 2)


def test_without_a_weight_it_is_one() -> None:
    ones = np.ones(4, np.float32)
    for tensor, of in terms(w=None).items():
        for name, term in of.items():
            close(term, terms(w=ones)[tensor][name])


@pytest.mark.parametrize("sign", [1, -1])
def test_independent_rows_share_what_moves_rstd_alike(sign: int) -> None:
    """Of 100 rows dW errs by e·|dW| for what they share, and by 4·√100·e for the rest; never by more than 100·e."""
    n = 100
    x = np.full((n, 4), 2, np.float32)
    dy = np.where(np.arange(n) % 2, sign, 1)[:, None] * np.ones((1, 4), np.float32)
    about: dict[str, Any] = {"eps": 0.0, "offset": 0.0, "casting_mode": "gemma", "arithmetic": ARITHMETIC}
    found = tolerances.backward_bounds(dy.astype(np.float32), x, W, structured=False, **about)["dw"].terms
    # Σx² of independent squares errs by 4·√(4·16)·u, which is more than 16u, and by 4·√3·u·16, more than 3·16u.
    e = 5 * u
    close(np.asarray(found["rstd"], float), min(n, 40 + abs(dy[:, 0].sum())) * e)
    close(np.asarray(found["arithmetic"], float), 2 * 40 * u)
    close(np.asarray(found["sum"], float), 4 * 99**0.5 * u * min(100, np.hypot(10, dy[:, 0].sum())))


@pytest.mark.parametrize(
    ("w_dtype", "roundoff"), [(np.float16, 2.0**-11), (ml_dtypes.bfloat16, U), (np.float32, 0), (np.float64, 0)]
)
def test_dw_is_rounded_where_w_is_narrower_than_the_compute_dtype(w_dtype: Any, roundoff: float) -> None:
    found = terms(w_dtype=w_dtype)["dw"]
    close(found["rounding"][[0, 1, 3]] * u, roundoff * np.array([2, 3, 3]) * (1 + 4 * roundoff))
    assert (found["rounding"][2] * u < 2.0**-24) and ((found["rounding"] > 0) == (roundoff > 0)).all()


EXACT_SUMS = Arithmetic(c_div=0, c_rs=0, column_depth=lambda n: 0)


@pytest.mark.parametrize(
    ("x", "columns", "arithmetic", "judged"),
    [
        # squares and mean of one number err by 2u and have to stay below (1 - u) of the largest, 2^128·(1 - u)
        (2.0**64 * (1 - u), 1, EXACT_SUMS, False),
        (2.0**64 * (1 - 2 * u), 1, EXACT_SUMS, True),
        # the sum of four squares is 2^128·(1 - 2u) and errs by 4u
        (2.0**63 * (1 - u), 4, ARITHMETIC, False),
        (2.0**63 * (1 - 4 * u), 4, ARITHMETIC, True),
    ],
)
def test_rows_near_the_largest_number_are_judged_where_no_error_carries_them_over(
    x: float, columns: int, arithmetic: Arithmetic, judged: bool
) -> None:
    row = np.full((1, columns), x, np.float32)
    assert float(row[0, 0]) == x
    about: dict[str, Any] = {"eps": 0.0, "offset": 0.0, "casting_mode": "llama", "structured": True}
    bounds = tolerances.forward_bounds(row, None, arithmetic=arithmetic, **about)
    assert bounds["rstd"].applies.tolist() == [judged]
    assert bounds["y"].applies.tolist() == [[judged] * columns]


MAX = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("x", "share", "reaches"),
    [
        # of X = 1/2 and RSTD = 2 the largest intermediate is RSTD²·(1 + |X|)·(1 + |dot|) = 3·dY
        (0.5, 0.16, False),
        (0.5, 0.17, True),
        (2.0, 0.24, False),  # Σ|dY·W·X| = 2·dY
        (2.0, 0.26, True),
        (1.0, 0.24, False),  # RSTD²·(1 + |X|)·(1 + |dot|) again: 2·dY
        (1.0, 0.26, True),
        (2.0**-20, 2.0**-22 * 0.99, False),  # RSTD²·dot = 2^20·dY, and RSTD·dY
        (2.0**-20, 0.6, True),
    ],
)
def test_what_may_overflow_on_the_way_is_judged_by_no_bound(x: float, share: float, reaches: bool) -> None:
    """Half of the largest number is where an intermediate result may overflow; it reaches its row, and no other."""
    dy = np.zeros((2, 4), np.float32)
    dy[0, 0], dy[1, 0] = share * MAX, 1
    about: dict[str, Any] = {"eps": 0.0, "offset": 0.0, "casting_mode": "llama"}
    bound = tolerances.backward_bounds(dy, np.full((2, 4), x, np.float32), np.ones(4, np.float32), **about)["dx"]
    assert bound.terms["range"].tolist() == [[np.inf if reaches else 0] * 4, [0] * 4]
    assert bound.may_overflow is not None and bound.may_overflow.tolist() == [[reaches] * 4, [False] * 4]


@pytest.mark.parametrize(("share", "reaches"), [(0.24, False), (0.26, True)])
def test_a_sum_over_rows_that_may_overflow_is_judged_by_no_bound(share: float, reaches: bool) -> None:
    dy = np.zeros((3, 4), np.float32)
    dy[:2, 1] = share * MAX, -share * MAX
    about: dict[str, Any] = {"eps": 0.0, "offset": 0.0, "casting_mode": "llama"}
    x, w = np.ones((3, 4), np.float32), np.ones(4, np.float32)
    bound = tolerances.backward_bounds(dy, x, w, **about)["dw"]
    assert bound.terms["range"].tolist() == [0, np.inf if reaches else 0, 0, 0]
    assert bound.may_overflow is not None and bound.may_overflow.tolist() == [False, reaches, False, False]
    x[2] = 1e30  # whose squares overflow: what that row gives is specified, so its pattern is compared
    for tensor, bound in tolerances.backward_bounds(dy, x, w, **about).items():
        assert bound.may_overflow is not None
        assert bound.may_overflow.any() == (reaches and tensor == "dx"), tensor


@pytest.mark.parametrize(
    ("tensor", "dtype", "mode", "size", "rate"),
    [
        ("y", "bfloat16", "llama", 10**6, 0.999),
        ("dx", "bfloat16", "gemma", 10**6, 0.999),
        ("dw", "float16", "llama", 10**6, 0.995),
        ("y", "float16", "none", 10**6, 0.995),
        ("dx", "float16", "none", 10**6, None),
        ("dw", "bfloat16", "none", 10**6, None),
        ("rstd", "bfloat16", "none", 10**6, None),
        ("rstd", "float16", "llama", 10**6, None),
        ("y", "float32", "llama", 10**6, None),
        ("y", "float64", "gemma", 10**6, None),
        # n·p + 4·√(n·p) + 2 of n elements, p one ten-thousandth, may differ by chance
        ("y", "bfloat16", "llama", 1, None),
        ("y", "bfloat16", "llama", 2, None),
        ("y", "bfloat16", "llama", 3, 1 - 2 / 3),
        ("y", "bfloat16", "llama", 1000, 1 - 3 / 1000),
        ("y", "bfloat16", "llama", 5000, 1 - 5 / 5000),
        ("y", "bfloat16", "llama", 5500, 1 - 5.5 / 5500),
        ("y", "float16", "llama", 100, 1 - 2 / 100),
    ],
)
def test_the_rate_of_exact_elements(tensor: str, dtype: str, mode: str, size: int, rate: float | None) -> None:
    found = tolerances.exact_rate(tensor, dtype, mode, size)
    assert found == rate


def test_how_far_the_others_may_be() -> None:
    def ulps(dtype: str, mode: str) -> list[int | None]:
        return [tolerances.exact_ulps(tensor, dtype, mode) for tensor in ("y", "rstd", "dx", "dw")]

    for dtype in ("float16", "bfloat16"):
        assert ulps(dtype, "gemma") == [1, None, 1, 1]
        assert ulps(dtype, "llama") == [2, None, 1, None]  # where x̂ is rounded, it may have flipped as well
        assert ulps(dtype, "none") == [2, None, None, None]
    for dtype in ("float32", "float64"):
        assert ulps(dtype, "llama") == [None] * 4
    with pytest.raises(ValueError, match="no_such"):
        tolerances.exact_rate("y", "float16", "no_such", 10)


@pytest.mark.parametrize(
    ("dtype", "w_dtype", "mode", "with_bits"),
    [
        (np.float32, np.float32, "none", set()),  # too many bits may come out
        (np.float64, np.float64, "none", set()),
        (np.float32, np.float16, "llama", {"dw"}),
        (np.float32, np.float64, "llama", set()),
        (np.float16, np.float32, "llama", {"y", "dx"}),
        (np.float16, np.float16, "gemma", {"y", "dx", "dw"}),
        (np.float16, np.float16, "none", {"y", "rstd", "dx", "dw"}),
    ],
)
def test_bits_are_demanded_of_what_is_rounded_to_16(dtype: Any, w_dtype: Any, mode: str, with_bits: set[str]) -> None:
    x, dy, w = X.astype(dtype), DY.astype(dtype), W.astype(w_dtype)
    about: dict[str, Any] = {"eps": 0.0, "offset": 0.0, "casting_mode": mode}
    bounds = tolerances.forward_bounds(x, w, **about) | tolerances.backward_bounds(dy, x, w, **about)
    assert {tensor for tensor, bound in bounds.items() if bound.enclosure is not None} == with_bits


def test_a_sum_below_the_least_normal_number_may_vanish_where_that_is_claimed_and_no_other() -> None:
    least = np.float32(2.0**-126)
    x = np.array([[least, least / 2, -least / 2, 1, -1]], np.float32)
    r = np.zeros_like(x)
    exact = tolerances.stream_bounds(x, r)["s"].enclosure
    flushing = tolerances.stream_bounds(x, r, arithmetic=Arithmetic(flushes_subnormals=True))["s"].enclosure
    assert exact is not None and flushing is not None
    assert (exact[0] == x).all() and (exact[1] == x).all()
    assert flushing[0].tolist() == [[least, 0, -least / 2, 1, -1]]
    assert flushing[1].tolist() == [[least, least / 2, 0, 1, -1]]
