"""Numbers without rounding errors: integers modulo a prime, and rounding as a function that nobody can predict.

A float of 32 or 64 bits stands for an element of the field. Sums have no order there, and no arithmetic rounds. The
prime is 7 modulo 8, so that of v and -v exactly one is a square and that 2 is one: squares are the positive numbers,
products have the sign that they should, and a ** ((p + 1) / 4) is the positive root of every positive a, multiplicative
as √ is. Sums of positive numbers need not be positive: a root of a negative number is counted, for whoever drew it.

Rounding to a 16-bit format is a hash: odd, the identity on what is representable, and known by its value alone, so that
two programs round alike where they round the same numbers, and otherwise differ but for a chance. A pattern (sign, m)
stands for ±m² times a constant of the format, or for one of the small numbers that the real format represents too.
Where `splits` is set, rounding from float64 to float32 is such a hash as well; float64 values that came from a
narrower format, or are float32 constants, know it and convert back unchanged.

Arrays of elements are uint64 below p; patterns are unsigned integers as wide as the format.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from references.arrays import numpy_dtype

# The largest below 2^31 that are 7 modulo 8: two sums of products fit into 64 bits, and the squares of 15 bits below p.
PRIMES = (2147483647, 2147483543, 2147483423, 2147483399)
SCALES = {"float16": 1, "bfloat16": 48271**2}  # squares; unequal, so that the two formats represent other numbers
# Exact in both formats: numbers of columns, powers of two, and what programs write as literals.
SMALL = tuple(Fraction(n) for n in range(1, 257)) + tuple(Fraction(2) ** k for k in range(-14, 0))
IS_FLOAT32 = np.uint64(1 << 32)  # a float64 pattern's mark: the value is known to be a float32


class NotAlgebraic(ArithmeticError):
    """An operation whose meaning is order, range or a bit pattern: the field has no such thing."""

    def __init__(self, what: str) -> None:
        super().__init__(f"not algebraic: {what}")


def pattern_dtype(dtype: str) -> np.dtype:
    """The unsigned integers that hold the patterns of a format."""
    return np.dtype(f"u{numpy_dtype(dtype).itemsize}")


class Field:
    """The integers modulo `prime`, and the patterns of the four formats.

    Args:
        prime: 7 modulo 8 and below 2^31.
        seed: of the hash, so that another seed is another rounding function.
        splits: whether float32 is narrower than float64, which matters where the compute dtype is float64.
        magnitude_bits: of a 16-bit pattern; fewer with a small prime, where chance is to be seen at work.

    Raises:
        ValueError: prime does not fit.
    """

    def __init__(self, prime: int = PRIMES[0], seed: int = 0, splits: bool = False, magnitude_bits: int = 15) -> None:
        if prime % 8 != 7 or not 4**magnitude_bits < prime < 2**31:
            raise ValueError(f"prime must be 7 modulo 8 between {4**magnitude_bits} and 2^31, not {prime}")
        self.prime, self.seed, self.splits, self.magnitude_bits = prime, seed, splits, magnitude_bits
        self.negative_roots = 0
        self._singles: dict[int, np.uint64] = {}  # float64 constants that float32 has not, and what it has instead
        self._small = SMALL if magnitude_bits == 15 else SMALL[:1]
        self.limit = 2**magnitude_bits - len(self._small)  # magnitudes below it stand for squares

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a + b) % self.prime

    def subtract(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a + (self.prime - b)) % self.prime

    def negative(self, a: np.ndarray) -> np.ndarray:
        return (self.prime - a) % self.prime

    def multiply(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * b % self.prime

    def divide(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a / b; a division by zero, which chance alone brings about, gives 0."""
        return a * self.power(b, self.prime - 2) % self.prime

    def power(self, a: np.ndarray, exponent: int) -> np.ndarray:
        """a ** exponent, for a negative exponent of the inverse."""
        base = np.asarray(a, np.uint64)
        if exponent < 0:
            base, exponent = self.power(base, self.prime - 2), -exponent
        result = np.ones_like(base)
        while exponent:
            if exponent & 1:
                result = result * base % self.prime
            base = base * base % self.prime
            exponent >>= 1
        return result

    def sum(self, a: np.ndarray, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> np.ndarray:
        return np.asarray(a.sum(axis=axis, keepdims=keepdims) % self.prime, np.uint64)

    def accumulate(self, patterns: np.ndarray, dtype: str, axis: int) -> np.ndarray:
        """The sum of patterns along an axis in their own dtype: of 16-bit ones in order, each partial sum rounded."""
        terms = np.moveaxis(self.decode(patterns, dtype), axis, 0)
        if dtype not in SCALES:
            return self.encode(self.sum(terms, axis=0), dtype)
        total = np.zeros(terms.shape[1:], np.uint64)
        for term in terms:
            total = self.round(self.add(total, term), dtype)
        return self.encode(total, dtype)

    def root(self, a: np.ndarray) -> np.ndarray:
        """√a, positive for positive a; roots of negative numbers are counted in `negative_roots`."""
        root = self.power(a, (self.prime + 1) // 4)
        self.negative_roots += int((root * root % self.prime != a).sum())
        return root

    def positive(self, a: np.ndarray) -> np.ndarray:
        """Whether each element is a square; 0 is."""
        root = self.power(a, (self.prime + 1) // 4)
        return root * root % self.prime == a

    def number(self, value: Any) -> np.uint64:
        """A Python number, exactly; NaN and the infinities are elements that no program comes upon but by chance."""
        value = value.item() if hasattr(value, "item") else value
        if value != value or value in (float("inf"), float("-inf")):
            code = 1 if value != value else 2 if value > 0 else 3
            return np.uint64(_hash(np.uint64(code), 0xFACADE) % np.uint64(self.prime))
        fraction = Fraction(value)
        return np.uint64(fraction.numerator % self.prime * pow(fraction.denominator, -1, self.prime) % self.prime)

    def constant(self, value: Any, dtype: str) -> np.ndarray:
        """The pattern of a Python number in a format, 0-d."""
        if dtype == "float64":
            with np.errstate(over="ignore"):
                single = float(np.float32(value))
            if single == value:
                return np.asarray(self.number(value) | IS_FLOAT32)
            self._singles[int(self.number(value))] = self.number(single)
            return np.asarray(self.number(value))
        with np.errstate(over="ignore"):
            return self.encode(np.asarray(self.number(float(np.float32(value)))), dtype)

    def encode(self, a: np.ndarray, dtype: str) -> np.ndarray:
        """The patterns of elements, rounded where the format has 16 bits."""
        a = np.asarray(a, np.uint64)
        return self._narrow(a, dtype) if dtype in SCALES else a.astype(pattern_dtype(dtype))

    def decode(self, patterns: np.ndarray, dtype: str) -> np.ndarray:
        """The elements that patterns stand for."""
        patterns = np.asarray(patterns)
        if dtype not in SCALES:
            return (patterns.astype(np.uint64) & np.uint64(0xFFFFFFFF)) % np.uint64(self.prime)
        top = 2**self.magnitude_bits
        m = patterns.astype(np.uint64) % top
        size = np.where(m < self.limit, m * m % self.prime * (SCALES[dtype] % self.prime) % self.prime, 0).astype(
            np.uint64
        )
        small = m >= self.limit
        if small.any():
            size[small] = self._small_sizes[(m[small] - self.limit).astype(np.int64)]
        return np.where((patterns.astype(np.uint64) // top) % 2 == 1, self.negative(size), size)

    def cast(self, patterns: np.ndarray, source: str, target: str) -> np.ndarray:
        """The patterns of another format: what a conversion of dtypes does."""
        if source == target:
            return np.array(patterns)
        a = self.decode(patterns, source)
        if target == "float64":
            return a | IS_FLOAT32
        if source == "float64":
            known = np.asarray(patterns, np.uint64) & IS_FLOAT32 != 0
            a = self._from_double(a, known if self.splits and target == "float32" else np.ones_like(known))
        return self.encode(a, target)

    def round(self, a: np.ndarray, dtype: str) -> np.ndarray:
        """R of the specification: elements rounded to a format, as elements."""
        if dtype in SCALES:
            return self.decode(self.encode(a, dtype), dtype)
        return a

    def _from_double(self, a: np.ndarray, keeps: np.ndarray) -> np.ndarray:
        """Float64 elements on the way to a narrower format: hashed unless they keep; constants as they really are."""
        size, minus = self._size(a)
        hashed = _hash(size, self.seed + 32) % np.uint64(self.prime)
        rounded = np.where(keeps, a, np.where(minus, self.negative(hashed), hashed))
        for double, single in self._singles.items():
            rounded = np.where(a == double, single, rounded)
        return rounded

    def _size(self, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The positive one of a and -a, and whether it is the latter."""
        minus = ~self.positive(a)
        return np.where(minus, self.negative(a), a), minus

    def _narrow(self, a: np.ndarray, dtype: str) -> np.ndarray:
        # One power tells the sign and the root alike: a root's square is a, or -a where a is no square.
        scaled = a * np.uint64(pow(SCALES[dtype], -1, self.prime)) % self.prime
        root = self.power(scaled, (self.prime + 1) // 4)
        minus = root * root % self.prime != scaled
        size = np.where(minus, self.negative(a), a)
        m = np.minimum(root, self.prime - root)
        hashed = 1 + _hash(size, self.seed + SCALES[dtype]) % np.uint64(self.limit - 1)
        code = np.where(m < self.limit, m, hashed)
        order, sizes = self._sorted_small
        place = np.minimum(np.searchsorted(sizes, size), len(sizes) - 1)
        code = np.where((sizes[place] == size) & (m >= self.limit), self.limit + order[place], code)
        return (code.astype(np.uint64) + (minus.astype(np.uint64) << np.uint64(self.magnitude_bits))).astype(np.uint16)

    @cached_property
    def _small_sizes(self) -> np.ndarray:
        return self._size(np.array([self.number(value) for value in self._small], np.uint64))[0]

    @cached_property
    def _sorted_small(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self._small_sizes)
        return order.astype(np.uint64), self._small_sizes[order]


def _hash(a: Any, salt: int) -> np.ndarray:
    """64 bits of each element that look random: the steps of splitmix64."""
    with np.errstate(over="ignore"):
        h = np.asarray(a, np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt * 0xD1B54A32D192ED03 % 2**64)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return h ^ (h >> np.uint64(31))
