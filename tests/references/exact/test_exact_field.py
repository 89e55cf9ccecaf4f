"""The field's laws, which are those of real numbers and of rounding, and the patterns that hold its elements."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from references.exact.draw import patterns
from references.exact.field import PRIMES, SCALES, SMALL, Field, pattern_dtype
from references.spec import DTYPES

FIELDS = [Field(prime, seed, splits=bool(seed % 2)) for seed, prime in enumerate(PRIMES)]
RNG = np.random.default_rng(0)


def elements(field: Field, count: int = 2000) -> np.ndarray:
    return RNG.integers(1, field.prime, count).astype(np.uint64)


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: str(f.prime))
def test_arithmetic_is_that_of_fractions(field: Field) -> None:
    values = [Fraction(n, d) for n, d in ((3, 7), (-5, 8), (1, 3), (2**20 + 1, 9))]
    a, b = (np.array([field.number(v) for v in part], np.uint64) for part in (values[:2], values[2:]))
    for operation, real in (
        (field.add, lambda u, v: u + v),
        (field.subtract, lambda u, v: u - v),
        (field.multiply, lambda u, v: u * v),
        (field.divide, lambda u, v: u / v),
    ):
        wanted = [field.number(real(u, v)) for u, v in zip(values[:2], values[2:], strict=True)]
        assert operation(a, b).tolist() == wanted
    assert field.power(a, -3).tolist() == [field.number(v**-3) for v in values[:2]]


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: str(f.prime))
def test_one_of_each_pair_is_positive_and_signs_multiply(field: Field) -> None:
    a, b = elements(field), elements(field)
    assert (field.positive(a) != field.positive(field.negative(a))).all()
    assert (field.positive(field.multiply(a, b)) == (field.positive(a) == field.positive(b))).all()
    assert 0.4 < field.positive(a).mean() < 0.6
    assert field.positive(np.array([field.number(2)], np.uint64)).all()


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: str(f.prime))
def test_roots_are_positive_multiplicative_and_counted_where_they_are_none(field: Field) -> None:
    a, b = elements(field), elements(field)
    positive = field.positive(a)
    field.negative_roots = 0
    root = field.root(a)
    assert field.negative_roots == (~positive).sum() > 0
    assert (field.multiply(root, root)[positive] == a[positive]).all()
    assert (field.multiply(root, root)[~positive] == field.negative(a)[~positive]).all()
    assert field.positive(root[positive]).all()
    assert (field.root(field.multiply(a, b)) == field.multiply(root, field.root(b))).all()


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize("field", FIELDS, ids=lambda f: str(f.prime))
def test_rounding_is_odd_idempotent_and_a_function(field: Field, dtype: str) -> None:
    a = elements(field)
    rounded = field.round(a, dtype)
    assert (field.round(field.negative(a), dtype) == field.negative(rounded)).all()
    assert (field.round(rounded, dtype) == rounded).all()
    assert (field.positive(rounded) == field.positive(a)).all()
    assert (rounded != a).mean() > 0.99
    assert (Field(field.prime, field.seed + 9).round(a, dtype) != rounded).mean() > 0.99


@pytest.mark.parametrize("dtype", SCALES)
def test_every_pattern_stands_for_a_number_that_rounding_keeps(dtype: str) -> None:
    field = FIELDS[0]
    values = field.decode(np.arange(2**16, dtype=np.uint16), dtype)
    assert (field.round(values, dtype) == values).all()
    assert (values == 0).sum() == 2  # +0 and -0
    # All others are different, but for small numbers that are squares of the format too.
    assert 2**16 - 1 - 2 * len(SMALL) <= len(np.unique(values)) <= 2**16 - 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_numbers_are_exact_in_every_format(dtype: str) -> None:
    for field in FIELDS:
        for value in (0, *SMALL, *(-v for v in SMALL)):
            assert field.decode(field.constant(float(value), dtype), dtype) == field.number(value)


def test_other_constants_are_rounded_as_values_are() -> None:
    field = FIELDS[0]
    wanted = field.encode(np.asarray(field.number(float(np.float32(0.1)))), "bfloat16")
    assert field.constant(0.1, "bfloat16") == wanted
    assert field.decode(wanted, "bfloat16") != field.number(float(np.float32(0.1)))
    assert field.decode(field.constant(0.1, "float64"), "float64") == field.number(0.1)
    assert field.decode(field.constant(0.1, "float32"), "float32") == field.number(float(np.float32(0.1)))


def test_float16_and_bfloat16_represent_different_numbers() -> None:
    field = FIELDS[0]
    given = patterns(field, RNG, (2000,), "float16")
    assert (
        field.decode(field.cast(given, "float16", "bfloat16"), "bfloat16") != field.decode(given, "float16")
    ).mean() > 0.99


@pytest.mark.parametrize("dtype", DTYPES)
def test_widening_and_back_changes_nothing(dtype: str) -> None:
    field = Field(splits=True)
    given = patterns(field, RNG, (2000,), dtype)
    for wider in DTYPES[max(2, DTYPES.index(dtype)) :]:
        back = field.cast(field.cast(given, dtype, wider), wider, dtype)
        assert (field.decode(back, dtype) == field.decode(given, dtype)).all()


def test_float64_is_rounded_to_float32_only_where_the_field_splits() -> None:
    for splits in (True, False):
        field = Field(splits=splits)
        given = field.encode(elements(field), "float64")
        narrow = field.decode(field.cast(given, "float64", "float32"), "float32")
        assert ((narrow == field.decode(given, "float64")).mean() > 0.99) != splits


@pytest.mark.parametrize("splits", [True, False])
def test_a_float64_constant_is_rounded_as_it_really_is(splits: bool) -> None:
    field = Field(splits=splits)
    narrow = field.cast(field.constant(0.3, "float64"), "float64", "float32")
    assert field.decode(narrow, "float32") == field.number(float(np.float32(0.3))) != field.number(0.3)


@pytest.mark.parametrize("dtype", SCALES)
def test_a_narrow_sum_rounds_after_every_addition(dtype: str) -> None:
    field = FIELDS[0]
    given = patterns(field, RNG, (50, 3), dtype)
    a, b, c = (field.decode(given, dtype)[:, column] for column in range(3))
    wanted = field.round(field.add(field.round(field.add(a, b), dtype), c), dtype)
    assert (field.decode(field.accumulate(given, dtype, 1), dtype) == wanted).all()


def test_a_prime_that_does_not_fit_is_refused() -> None:
    for prime in (2**31 - 19, 8191, 2**61 - 1):
        with pytest.raises(ValueError, match=str(prime)):
            Field(prime)
    assert pattern_dtype("bfloat16") == np.uint16
