"""How sure an equality is: the chance that two different formulas agree on a random draw.

Schwartz (1980) and Zippel (1979): a polynomial of degree d that is not zero vanishes at a point drawn from S^n with
probability d / |S| at most. A result of RMSNorm is A + B·r with r = 1/√v and v no square, so a difference Δ = A + B·r
vanishes only where A²·v - B² does: the norm, which has no root, and twice the degree. Other rows, with roots of their
own, are held fixed. Rounding is a random function: what it gives is a new variable, or collides with probability
1 / |its range| a rounding. Inputs are drawn until the row's v is positive, which half of them are: that doubles it.
"""

from __future__ import annotations

from references.exact.field import SCALES, Field

# Of A²·v - B² for dX, the highest of the table's, where both sides have the size of the table's formula: over their
# common denominator n·v of degree 2, m·v - x·Σ(m·x)/n has degree 4, and its square with v's factor 10. Three times that
# leaves room for a program that computes with more.
DEGREE = 32
ROUNDINGS = 8  # on the way to one result, its own included: no mode has more
POSITIVE = 0.5  # the share of rows that are accepted; it comes out within 1/√p of this


def missed(field: Field, dtype: str, draws: int = 1, *, degree: int = DEGREE, roundings: int = ROUNDINGS) -> float:
    """A bound on the probability that so many draws show no difference in an element where two formulas differ.

    Args:
        field: of the draws.
        dtype: X's; it decides from how many numbers an input is drawn.
        draws: independent ones.
        degree: of the difference, its root and denominators removed.
        roundings: that lie one behind the other.
    """
    if dtype in SCALES:
        one = (degree / (2 * (field.limit - 1)) + roundings / (field.limit - 1)) / POSITIVE
    else:
        one = degree / (field.prime - 1) / POSITIVE
    return min(1.0, one) ** draws
