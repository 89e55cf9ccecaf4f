"""What one bound says of one number, at its limits: every number here is written out, for float16 (largest 65504)."""

from __future__ import annotations

import numpy as np
import pytest

from references.bounds.bound import Bound

INF, NAN = np.inf, np.nan


def bound(value: float, *terms: float, **more: np.ndarray) -> Bound:
    """Of a single result."""
    named = {"abc"[i]: np.array([term], np.longdouble) for i, term in enumerate(terms)}
    return Bound(np.array([value], np.longdouble), named, "float16", **more)


@pytest.mark.parametrize(
    ("value", "tolerance", "applies", "at_the_edge"),
    [
        (1, 0, True, False),
        (65500, 4, True, False),  # reaches the largest number and not beyond
        (-65500, 4, True, False),
        (65500, 5, False, True),
        (-65500, 5, False, True),
        (65508, 4, False, True),  # the largest number is just within reach
        (-65508, 4, False, True),
        (65509, 4, False, False),
        (-65509, 4, False, False),
        (NAN, 1, False, False),
        (1, NAN, False, False),
        (INF, 1, False, False),
        (1, INF, False, False),
    ],
)
def test_where_a_bound_holds(value: float, tolerance: float, applies: bool, at_the_edge: bool) -> None:
    it = bound(value, tolerance)
    assert it.applies.tolist() == [applies] and it.at_the_edge.tolist() == [at_the_edge]
    assert it.patterned.tolist() == [not at_the_edge]
    assert bound(value, tolerance, may_overflow=np.array([True])).patterned.tolist() == [False]
    assert bound(value, tolerance, may_overflow=np.array([False])).patterned.tolist() == [not at_the_edge]


@pytest.mark.parametrize(
    ("value", "tolerance", "got", "ratio"),
    [
        (1, 0.5, 1, 0),
        (1, 0.5, 1.25, 0.5),
        (1, 0.5, 1.5, 1),
        (1, 0.5, 0.5, 1),
        (1, 0.5, -1, 4),
        (1, 0, 1, 0),  # no error is well without a tolerance,
        (1, 0, 2, INF),  # any other is not
        (1, 0.5, NAN, INF),
        (1, 0.5, INF, INF),
        (NAN, 1, 1, NAN),
        (65509, 4, 65504, NAN),
        (65508, 4, 65504, 1),
        (65508, 4, INF, 0),
        (-65508, 4, -INF, 0),
        (65508, 4, -INF, INF),
        (65508, 4, NAN, INF),
        (1, 65506, -INF, 0),  # -65505 is within reach, and rounds to an infinity perhaps
        (1, 65505, -INF, INF),  # -65504 is the last within reach
        (1, 65504, INF, 0),
        (1, 65503, INF, INF),  # here the bound applies
    ],
)
def test_by_how_much_of_its_tolerance_a_result_misses(value: float, tolerance: float, got: float, ratio: float) -> None:
    np.testing.assert_array_equal(bound(value, tolerance).ratio(np.array([got], np.float16)), [ratio])


def test_terms_add_up_and_the_largest_is_named_for_each_element() -> None:
    terms = {"sums": np.longdouble([1, 2]), "rounding": np.longdouble([3, 0.5]), "root": np.longdouble([0, 1])}
    it = Bound(np.longdouble([1, 1]), terms, "float16")
    assert it.tolerance.tolist() == [4, 3.5]
    assert (it.largest_term((0,)), it.largest_term((1,))) == ("rounding", "sums")


@pytest.mark.parametrize(
    ("low", "high", "got", "decided", "misrounded"),
    [
        (1, 2, 1, False, False),
        (1, 2, 1.5, False, False),
        (1, 2, 2, False, False),
        (1, 2, 0.5, False, True),
        (1, 2, 2.5, False, True),
        (1, 1, 1, True, False),
        (1, 1, 2, True, True),
        (1, 2, NAN, False, True),
    ],
)
def test_which_bits_may_come_out(low: float, high: float, got: float, decided: bool, misrounded: bool) -> None:
    enclosure = np.float16([low]), np.float16([high])
    result = np.float16([got])
    it = bound(1, 4, enclosure=enclosure)
    assert it.decided.tolist() == [decided] and it.misrounded(result).tolist() == [misrounded]
    for none in (bound(1, 4), bound(65509, 4, enclosure=enclosure)):  # no bits are demanded; the bound does not hold
        assert none.decided.tolist() == none.misrounded(result).tolist() == [False]
