"""What one rounding, one sum and one interval may do: numbers worked out by hand, for each dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from references.bounds import enclosure, rounding
from references.bounds.rounding import NO_ROUNDING, NUMPY, SEQUENTIAL, Arithmetic, ErrorModel, Rounding

L = np.longdouble


def model(dtype: str = "bfloat16", mode: str = "none", structured: bool = False, **arithmetic: Any) -> ErrorModel:
    return ErrorModel.create(dtype, mode, structured, Arithmetic(**arithmetic))


@pytest.mark.parametrize(
    ("n", "sequential", "pairwise", "tree", "partials"),
    [
        (0, 0, 0, 0, 0),
        (1, 0, 0, 0, 0),
        (2, 1, 1, 1, 1),
        (3, 2, 2, 2, 2),
        (5, 4, 4, 3, 3),
        (16, 15, 15, 4, 4),
        (17, 16, 16, 5, 5),  # a sum of two, and the tree of sixteen
        (20, 19, 19, 5, 5),
        (21, 20, 19, 5, 5),
        (128, 127, 19, 7, 11),
        (129, 128, 20, 8, 12),
        (256, 255, 20, 8, 19),
        (257, 256, 21, 9, 20),
        (65536, 65535, 28, 16, 4099),
    ],
)
def test_depths_of_sums(n: int, sequential: int, pairwise: int, tree: int, partials: int) -> None:
    found = (rounding.sequential_depth(n), rounding.pairwise_depth(n), rounding.tree_depth(n))
    assert found == (sequential, pairwise, tree)
    assert rounding.partials_depth(n, 16) == partials


@pytest.mark.parametrize(
    ("declared", "c_div", "c_rs", "depth"), [(Arithmetic(), 1, 2, 999), (SEQUENTIAL, 4, 4, 999), (NUMPY, 1, 2, 22)]
)
def test_what_is_declared(declared: Arithmetic, c_div: float, c_rs: float, depth: int) -> None:
    assert (declared.c_div, declared.c_rs, declared.flushes_subnormals) == (c_div, c_rs, False)
    assert (declared.column_depth(1000), declared.row_depth(1000)) == (depth, depth)


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize(
    ("dtype", "unit", "half_step", "normal"),
    [("bfloat16", 8, 134, 126), ("float16", 11, 25, 14), ("float32", 24, 150, 126), ("float64", 53, 1075, 1022)],
)
def test_rounding_to_a_dtype(dtype: str, unit: int, half_step: int, normal: int, flushes: bool) -> None:
    to = Rounding.to(dtype, Arithmetic(flushes_subnormals=flushes))
    floor = L(2) ** -(normal if flushes and dtype != "float16" else half_step)  # no GPU flushes float16
    assert (to.unit, to.floor, to.normal) == (L(2) ** -unit, floor, L(2) ** -normal)
    values = L([0, -3, 3, float(2 * to.floor)])
    assert to.of(values).tolist() == [to.floor, 3 * to.unit, 3 * to.unit, to.floor]
    assert NO_ROUNDING.of(values).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("structured", "many", "two"), [(True, 100, 2), (False, 40, 2)])
def test_errors_add_up_as_their_kind_allows(structured: bool, many: float, two: float) -> None:
    it = model(structured=structured)
    assert it.independent(np.ones((3, 100), L), -1).tolist() == [[many]] * 3  # 4·√100
    assert it.independent(-np.ones((2, 5), L), 0).tolist() == [[two] * 5]  # 4·√2 is more than all of it
    assert it.independent(np.where(np.arange(100) == 0, 3, 0).astype(L), 0).tolist() == [3]


@pytest.mark.parametrize("structured", [True, False])
def test_roundings_in_a_sum(structured: bool) -> None:
    it = model("float16", structured=structured)
    u, floor, normal = L(2) ** -11, L(2) ** -25, L(2) ** -14
    assert it.rounded(it.storage, np.ones((1, 100), L), -1) == (100 if structured else 40) * u
    for value, vanishes in ((normal, 0), (normal / 2, floor), (floor, floor), (floor / 2, floor / 2), (L(0), 0)):
        for sign in (1, -1):
            found = it.rounded(it.storage, np.array([[sign * value]]), -1)
            assert found == u * value + vanishes
    tiny = np.full((1, 100), normal / 2)
    assert it.rounded(it.storage, tiny, -1) == 100 * floor + (100 if structured else 40) * u * normal / 2
    assert it.rounded(it.storage, L([[1, 2]]), -1, scale=L([[-3, 4]])) == u * 11
    assert it.rounded(it.storage, L([[normal / 2]]), -1, scale=L([[-3]])) == 3 * u * normal / 2 + 3 * floor


def test_additions_in_a_sum() -> None:
    u, terms = L(2) ** -24, L([[-8, 7, 7, 9, 9]])
    structured, free = model(structured=True), model()
    for it in (structured, free):
        assert it.summation(terms, -1, 0) == 0
    # Σ|t| = 40, √Σt² = 18, Σt = 24: the partial sums are about √(18² + 24²) = 30. The worst is n·u·Σ|t| of n additions,
    # times (1 + n·u) at most for the roundings of what was rounded before.
    assert 100 * 40 < structured.summation(terms, -1, 100) / u < 100 * 40 * (1 + 100 * u)
    assert free.summation(terms, -1, 100) == 4 * 10 * 30 * u
    assert 4 * 40 < free.summation(terms, -1, 4) / u < 4 * 40 * (1 + 4 * u)  # never more than the worst
    assert free.summation(L([[1, 1]]), -1, 100) == 4 * 10 * 2 * u  # Σ|t| is less than √(2 + 2²)
    assert free.summation(np.ones((4, 3), L), 0, 1).shape == (1, 3)


def test_the_weight_as_it_is_specified() -> None:
    w = np.array([1, 3, -1], ml_dtypes.bfloat16)
    assert model().shifted_weight(None, 0.5, 4).tolist() == [1, 1, 1, 1]
    exact = 2.0**-8 + 2.0**-20
    assert model().shifted_weight(w, exact, 3).tolist() == [1 + 2.0**-7, 3, -1 + 2.0**-8]
    assert model(mode="llama").shifted_weight(w, exact, 3).tolist() == [1 + exact, 3 + exact, -1 + exact]
    float64 = model("float64", "none").shifted_weight(w, 2.0**-40, 3)
    assert float64.tolist() == [1 + 2.0**-40, 3 + 2.0**-40, -1 + 2.0**-40]


def test_an_interval_times_a_factor() -> None:
    ends = (L([1, 1, -2]), L([2, 2, -1]))
    factor = L([3, -3, 0])
    for it, floor in ((model(), 0), (model(flushes_subnormals=True), 2.0**-126)):
        low, high = enclosure.scaled(it, ends, factor)
        assert low.tolist() == [L(3) - L(floor), L(-6) - L(floor), L(0) - L(floor)]
        assert high.tolist() == [L(6) + L(floor), L(-3) + L(floor), L(0) + L(floor)]


@pytest.mark.parametrize(
    ("eps", "arithmetic", "lowest", "highest"),
    [
        (0.0, {}, 1, 1),
        (3.0, {}, 0.5, 0.5),
        # 2 units of float32 decide how 1 + 2^-8, halfway between two bfloat16 numbers, is rounded
        (2.0**-8, {}, 1 - 2.0**-8, 1),
        (0.0, {"c_div": 2.0**17}, 1 - 2.0**-8, 1 + 2.0**-7),  # the mean is 1 ± 2^-7
        (0.0, {"c_rs": 2.0**17}, 1 - 2.0**-7, 1 + 2.0**-7),
        (0.0, {"column_depth": lambda n: 2**34}, 252 / 256, 130 / 128),  # the mean is 1 ± 4·2^17·2^-24
    ],
)
def test_the_bits_of_rstd_in_none(eps: float, arithmetic: dict[str, Any], lowest: float, highest: float) -> None:
    """Rows of ones, of which squares and mean are 1: how far each freedom reaches in bfloat16."""
    it = model(**({"c_div": 0.0, "c_rs": 0.0, "column_depth": lambda n: 0} | arithmetic))
    x = np.ones((2, 3), L)
    found = enclosure.rstd(it, x, eps, L([[1], [1]]), L([[0.25], [0.25]]))
    assert [end.tolist() for end in found] == [[[lowest]] * 2, [[highest]] * 2]


@pytest.mark.parametrize(("dtype", "mode"), [("bfloat16", "llama"), ("bfloat16", "gemma"), ("float32", "none")])
def test_where_rstd_is_not_rounded_it_errs_by_its_error(dtype: str, mode: str) -> None:
    found = enclosure.rstd(model(dtype, mode), np.ones((1, 3), L), 0.0, L([[2]]), L([[0.25]]))
    assert [end.tolist() for end in found] == [[[1.5]], [[2.5]]]


def test_x_hat_is_rounded_to_x_or_in_gemma_to_the_compute_dtype() -> None:
    x, rstd = L([[3, -3]]), (L([[1]]), L([[1 + 2.0**-12]]))
    for mode in ("llama", "none"):
        low, high = enclosure.x_hat(model(mode=mode), x, rstd)
        assert low.tolist() == high.tolist() == [[3, -3]]
    low, high = enclosure.x_hat(model(mode="gemma"), x, rstd)
    far = 3 * (1 + L(2) ** -12)
    u = L(2) ** -24
    assert low.tolist() == [[3 - 3 * u, -far - far * u]] and high.tolist() == [[far + far * u, -3 + 3 * u]]
