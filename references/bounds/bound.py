"""A derived bound: the true value, how far a result may lie from it and why, and which bits may come out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from references.spec import FLOATS


@dataclass(frozen=True)
class Bound:
    """A value and how far from it a result may lie.

    Args:
        value: the oracle's, longdouble.
        terms: name → longdouble of value's shape; they add up to the tolerance.
        dtype: the result's.
        enclosure: the lowest and the highest number that may come out, in its dtype and value's shape;
            None where no bits are demanded (see `misrounded`).
        may_overflow: where, of finite inputs, an intermediate result may overflow in one order of
            evaluation and not in another: bool, value's shape; None for nowhere.
    """

    value: np.ndarray
    terms: dict[str, np.ndarray]
    dtype: str
    enclosure: tuple[np.ndarray, np.ndarray] | None = None
    may_overflow: np.ndarray | None = None

    @cached_property
    def tolerance(self) -> np.ndarray:
        """The most by which a result may miss value: longdouble, value's shape."""
        with np.errstate(all="ignore"):
            return np.sum(list(self.terms.values()), axis=0)

    @cached_property
    def applies(self) -> np.ndarray:
        """Where the bound holds: bool, value's shape.

        Elsewhere an input is not finite, a square or a sum overflows or vanishes in the compute dtype (in
        `none`: in X's), or the result may overflow: there a result's pattern of NaN, infinity and zero is
        to be compared with that of `numpy_reference`, except `at_the_edge` and where `may_overflow`.
        """
        with np.errstate(all="ignore"):
            reach = np.abs(self.value) + self.tolerance
            return np.isfinite(reach) & (reach <= FLOATS[self.dtype].max)

    @cached_property
    def at_the_edge(self) -> np.ndarray:
        """Where the result alone may overflow, value lying within its tolerance of the largest number: bool.

        An infinity of a sign that the tolerance reaches is as right there as a number within the tolerance.
        """
        with np.errstate(all="ignore"):
            least = np.abs(self.value) - self.tolerance
            return np.isfinite(least) & ~self.applies & (least <= FLOATS[self.dtype].max)

    @cached_property
    def patterned(self) -> np.ndarray:
        """Where the pattern of NaN and infinity is specified, or follows from the bound: bool, value's shape."""
        return ~self.at_the_edge if self.may_overflow is None else ~(self.at_the_edge | self.may_overflow)

    @cached_property
    def decided(self) -> np.ndarray:
        """Where only one number may come out: bool, value's shape."""
        if self.enclosure is None:
            return np.zeros(self.value.shape, bool)
        return self.applies & (self.enclosure[0] == self.enclosure[1])

    def ratio(self, got: np.ndarray) -> np.ndarray:
        """|got - value| / tolerance, longdouble: at most 1 where all is well.

        Infinite where got is not finite, but 0 for an infinity that is right `at_the_edge`; NaN where neither that
        nor the bound applies.
        """
        with np.errstate(all="ignore"):
            reach = self.value * np.copysign(1, got) + self.tolerance  # towards got's sign
            overflowed = self.at_the_edge & np.isinf(got) & (reach > FLOATS[self.dtype].max)
            error = np.where(overflowed, 0, np.abs(got.astype(np.longdouble) - self.value))
            ratio = np.where(error == 0, 0, error / self.tolerance)
        return np.where(self.applies | self.at_the_edge, np.where(np.isfinite(error), ratio, np.inf), np.nan)

    def misrounded(self, got: np.ndarray) -> np.ndarray:
        """Where got lies outside the enclosure, so that something was rounded at another point: bool."""
        if self.enclosure is None:
            return np.zeros(self.value.shape, bool)
        with np.errstate(invalid="ignore"):  # where the bound does not apply the enclosure may be NaN
            return self.applies & ~((self.enclosure[0] <= got) & (got <= self.enclosure[1]))

    def largest_term(self, index: tuple[int, ...]) -> str:
        """The name of the term that allows most at one element."""
        return max(self.terms, key=lambda name: self.terms[name][index])
