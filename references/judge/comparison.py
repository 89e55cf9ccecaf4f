"""One result against the reference and its bound: what deviates, and what was measured.

The order is fixed: dtype, shape, the pattern of NaN, infinity and signed zero, values, rounding points,
bit-exact rate. Every tolerance comes from `tolerances.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from references import arrays
from references.bounds import tolerances
from references.bounds.tolerances import Bound
from references.judge import patterns

QUARTERS = 16  # errors of so many quarter ulps and more are counted together, on either side

CANCELLING = 2  # ulps between the ends of an enclosure, of which more than two roundings are open


@dataclass(frozen=True)
class Finding:
    """One deviation. The fields after `message` are given where one element shows it."""

    check: str  # run, dtype, shape, special, value, rounding, exact, contract, refusal, repeat
    tensor: str
    message: str
    index: tuple[int, ...] | None = None
    got: float | None = None
    wanted: float | None = None
    got_bits: str | None = None
    wanted_bits: str | None = None
    ulps: int | None = None
    ratio: float | None = None  # |got - oracle| / tolerance; NaN where the bound does not apply
    largest_term: str | None = None
    pattern: str | None = None  # where the wrong elements lie, and what usually causes that

    def __str__(self) -> str:
        where = f"{self.tensor}{list(self.index)}" if self.index is not None else self.tensor
        text = f"{self.check}: {where}: {self.message}"
        if self.index is None:
            return text
        term = f", whose largest term is {self.largest_term}" if self.largest_term else ""
        return (
            f"{text}; got {self.got!r} ({self.got_bits}), wanted {self.wanted!r} ({self.wanted_bits}), "
            f"{self.ulps} ulp apart, {self.ratio:.3g} of the tolerance{term}"
            f"{f'; {self.pattern}' if self.pattern else ''}"
        )


@dataclass(frozen=True)
class Measure:
    """What was measured on one tensor of one cell."""

    elements: int
    bounded: int  # elements to which the bound applies; the rest is compared by pattern
    ratio: float  # the largest |got - oracle| / tolerance; inf where the pattern of special values differs
    median_ratio: float
    exact: int  # bounded elements that equal the NumPy reference bit for bit
    max_ulps: int  # to the NumPy reference, among bounded elements
    bias: float  # mean of (got - oracle) in ulps of the result's dtype
    worst: tuple[int, ...] | None = None  # index of the largest ratio
    got: float | None = None  # there
    oracle: float | None = None  # the unrounded value there
    terms: dict[str, float] | None = None  # the terms of the tolerance there
    errors: dict[float, int] = field(default_factory=dict)  # signed errors in ulps: lower edge of a quarter → elements
    cancellation: tuple[tuple[float, float], ...] = ()  # of dX, a row: (condition of its sum, largest error in ulps)

    @property
    def exact_rate(self) -> float | None:
        """Share of bit-exact elements; None where no element is bounded."""
        return self.exact / self.bounded if self.bounded else None


@dataclass(frozen=True)
class Comparison:
    """A candidate's result beside what it should be.

    Args:
        tensor: "y", "s", "rstd", "dx", "dr" or "dw".
        got: the candidate's result.
        wanted: the NumPy reference's, in the specified dtype and shape.
        bound: the oracle's values and the tolerances.
        casting_mode: "llama", "gemma" or "none".
        exactness: whether the bit-exact rate is demanded, which holds for data without cancellation.
        condition: Σ|t| / |Σt| of the sum that each row's result holds, longdouble; None where it holds none.
    """

    tensor: str
    got: np.ndarray
    wanted: np.ndarray
    bound: Bound
    casting_mode: str
    exactness: bool
    condition: np.ndarray | None = None

    @np.errstate(all="ignore")  # infinities and NaN are among what is compared
    def findings(self) -> list[Finding]:
        """What deviates: one finding, at its worst element, for each kind of check."""
        got, wanted = arrays.dtype_name(self.got), arrays.dtype_name(self.wanted)
        if got != wanted:
            return [Finding("dtype", self.tensor, f"is {got}, specified is {wanted}")]
        if self.got.shape != self.wanted.shape:
            return [Finding("shape", self.tensor, f"is {self.got.shape}, specified is {self.wanted.shape}")]
        return [*self._special(), *self._values(), *self._rounding(), *self._exactness()]

    @np.errstate(all="ignore")
    def measure(self) -> Measure | None:
        """The numbers for the report; None where dtype or shape differ."""
        if self.got.dtype != self.wanted.dtype or self.got.shape != self.wanted.shape:
            return None
        here = self.bound.applies & np.isfinite(self.got)
        ratio = np.where(self.bound.applies, self.bound.ratio(self.got), 0)
        special = any(differs.any() for _, differs in self._patterns())
        at = _largest(ratio) if here.any() else None
        spacing = np.spacing(np.abs(np.where(here, self.wanted, 0).astype(self.wanted.dtype)))
        error = np.where(here, self.got, 0).astype(np.longdouble) - np.where(here, self.bound.value, 0)
        ulps = error / spacing.astype(np.longdouble)
        return Measure(
            elements=self.got.size,
            bounded=int(self.bound.applies.sum()),
            ratio=float("inf") if special else float(ratio.max(initial=0)),
            median_ratio=float(np.median(ratio[here])) if here.any() else 0.0,
            exact=int((self._same_bits() & self.bound.applies).sum()),
            max_ulps=int(self._ulps().max(initial=0, where=here)),
            bias=float(ulps.mean(where=here)) if here.any() else 0.0,
            worst=at,
            got=float(self.got[at]) if at is not None else None,
            oracle=float(self.bound.value[at]) if at is not None else None,
            terms={k: float(v[at]) for k, v in self.bound.terms.items()} if at is not None else None,
            errors=_quarters(ulps[here]),
            cancellation=self._cancellation(np.abs(ulps), here),
        )

    def _cancellation(self, ulps: np.ndarray, here: np.ndarray) -> tuple[tuple[float, float], ...]:
        if self.condition is None:
            return ()
        condition, worst = np.ravel(self.condition), np.ravel(ulps.max(axis=-1))
        whole = np.ravel(here.all(axis=-1)) & np.isfinite(condition)
        pairs = zip(condition[whole], worst[whole], strict=True)
        return tuple((float(f"{c:.3g}"), float(f"{w:.3g}")) for c, w in pairs)

    def _patterns(self) -> Iterator[tuple[str, np.ndarray]]:
        got, wanted, specified = self.got, self.wanted, self.bound.patterned
        yield "NaN", specified & (np.isnan(got) != np.isnan(wanted))
        infinite = np.isinf(got) != np.isinf(wanted)
        other_sign = np.isinf(got) & np.isinf(wanted) & (np.signbit(got) != np.signbit(wanted))
        yield "infinity", specified & (infinite | other_sign)
        if self.tensor in ("y", "s"):  # a product, one addition; in longer sums a zero's sign depends on the order
            yield "sign of zero", (got == 0) & (wanted == 0) & (np.signbit(got) != np.signbit(wanted))

    def _special(self) -> Iterator[Finding]:
        for name, differs in self._patterns():
            if differs.any():
                message = f"{name} differs in {differs.sum()} of {differs.size} elements"
                yield self._at(_largest(differs), "special", message, differs)

    def _values(self) -> Iterator[Finding]:
        judged = np.isfinite(self.got) | self.bound.at_the_edge  # elsewhere the pattern says it
        outside = judged & (self.bound.ratio(self.got) > 1)
        if outside.any():
            message = f"outside the tolerance in {outside.sum()} of {outside.size} elements"
            yield self._at(_largest(np.where(outside, self.bound.ratio(self.got), -1)), "value", message, outside)

    def _rounding(self) -> Iterator[Finding]:
        outside = np.isfinite(self.got) & self.bound.misrounded(self.got)
        if outside.any():
            cannot = f"cannot come from the rounding points of {self.casting_mode}"
            cannot = "is not the rounded sum of X and R" if self.tensor == "s" else cannot
            message = f"{cannot} in {outside.sum()} of {outside.size} elements"
            yield self._at(_largest(np.where(outside, self._ulps(), -1)), "rounding", message, outside)

    def _exactness(self) -> Iterator[Finding]:
        here = self.bound.applies & np.isfinite(self.got)
        if self.bound.enclosure is not None:  # where sums cancel, the enclosure alone says what may come out
            here &= arrays.ulp_distance(*self.bound.enclosure) <= CANCELLING
        dtype, size = arrays.dtype_name(self.wanted), int(here.sum())
        least = tolerances.exact_rate(self.tensor, dtype, self.casting_mode, size)
        most = tolerances.exact_ulps(self.tensor, dtype, self.casting_mode)
        if not self.exactness or least is None:
            return
        differs = ~self._same_bits() & here
        rate = 1 - differs.sum() / size
        at = _largest(np.where(here, self._ulps(), -1))
        if rate < least:
            message = f"{rate:.4f} of the elements equal the reference bit for bit, demanded is {least:.4f}"
            yield self._at(at, "exact", message, differs)
        if most is not None and self._ulps()[at] > most:
            yield self._at(at, "exact", f"at most {most} ulp from the reference is allowed", self._ulps() > most)

    def _same_bits(self) -> np.ndarray:
        return arrays.bits(self.got) == arrays.bits(self.wanted)

    def _ulps(self) -> np.ndarray:
        return arrays.ulp_distance(self.got, self.wanted)

    def _at(self, index: tuple[int, ...], check: str, message: str, wrong: np.ndarray) -> Finding:
        got_bits, wanted_bits = (f"0x{int(arrays.bits(a)[index]):0{2 * a.itemsize}x}" for a in (self.got, self.wanted))
        return Finding(
            check,
            self.tensor,
            message,
            index,
            float(self.got[index]),
            float(self.wanted[index]),
            got_bits,
            wanted_bits,
            int(self._ulps()[index]),
            float(self.bound.ratio(self.got)[index]),
            self.bound.largest_term(index) if self.bound.applies[index] else None,
            self._pattern(wrong),
        )

    def _pattern(self, wrong: np.ndarray) -> str | None:
        given = wrong, self.got, self.bound.value
        return patterns.pattern(*(array[..., None] if self.tensor == "rstd" else array for array in given))


def _largest(values: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(values)), values.shape))


def _quarters(ulps: np.ndarray) -> dict[float, int]:
    edges = np.clip(np.floor(4 * ulps), -QUARTERS - 1, QUARTERS).astype(np.int64)
    counts = np.bincount(edges + QUARTERS + 1)
    return {(int(i) - QUARTERS - 1) / 4: int(counts[i]) for i in np.flatnonzero(counts)}
