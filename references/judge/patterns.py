"""Where errors lie in a tensor and what that usually means: a row, a tail of the columns, every k-th element, a factor.

It sees which elements are wrong and by how much, nothing else; the cause is a guess, so it says "usually".
"""

from __future__ import annotations

import math

import numpy as np

from references.arrays import numpy_dtype

DENSE = 0.8  # share of the elements of a pattern that are wrong: some come out right by chance
BY_CHANCE = 0.01  # a gap this unlikely is part of the pattern
ALIKE = 0.02  # the spread of factors that count as one, as a share of their distance from 1
ENOUGH = 3  # elements that show a factor
TELLING = 8  # numbers that all fit a narrower dtype do so for a reason
NARROWER = {"float64": ("float32",), "float32": ("bfloat16", "float16")}
TILE = 16  # tiles and chunks are multiples of it

CAUSES = {
    ("column", "one"): "one weight, one lane of a vector, or a mask that is off by one",
    ("column", "tail"): "the end of the row is cut at the wrong place, or a vector is read past it",
    ("column", "tile"): "a mask or a chunk loop ends early",
    ("column", "head"): "the first chunk is overwritten or left out",
    ("column", "every"): "a stride, or a lane of a vector",
    ("column", "range"): "one chunk is left out or done twice",
    ("row", "one"): "the RSTD or the address of that row",
    ("row", "tail"): "the grid or the rows of a program end early",
    ("row", "tile"): "the grid or the rows of a program end early",
    ("row", "head"): "the first program's rows are overwritten or left out",
    ("row", "every"): "the rows of a program: one of each block",
    ("row", "range"): "one program's rows are left out or done twice",
}


def pattern(wrong: np.ndarray, got: np.ndarray, value: np.ndarray) -> str | None:
    """Where the wrong elements lie, and what usually causes that.

    Args:
        wrong: bool, (..., H); of a tensor with one value a row (..., 1).
        got, value: the candidate's numbers, in their dtype, and the true ones, in the same shape.

    Returns:
        One phrase; None where nothing is wrong, or in a single element there is no pattern to see.
    """
    if not wrong.any() or wrong.size == 1:
        return None
    wrong, got, value = (array.reshape(-1, array.shape[-1]) for array in (wrong, got, value))
    rows, columns = np.flatnonzero(wrong.any(1)), np.flatnonzero(wrong.any(0))
    places = [_place(columns, wrong.shape[1], "column"), _place(rows, wrong.shape[0], "row")]
    where = " of ".join(words for words, _ in places if words) or "all elements"
    content, cause = _content(wrong, got, value)
    scattered = wrong[np.ix_(rows, columns)].mean() < DENSE
    if scattered or (1 in wrong.shape and "some" in (kind for _, (_, kind) in places)):
        where = f"{wrong.sum()} of {wrong.size} elements, scattered{content}"
        return f"{where}: usually {cause or 'a rounding at another point, a sum that is too coarse, or a race'}"
    causes = [CAUSES[kind] for _, kind in places if kind in CAUSES]
    if not causes and not cause:
        cause = "a term of the formula that is missing or wrong"
    return f"{where}{content}: usually {'; or '.join(causes) or cause}"


def _place(indices: np.ndarray, size: int, axis: str) -> tuple[str, tuple[str, str]]:
    """Words for a set of rows or columns, and its kind; no words for all of them."""
    first, last, count = int(indices[0]), int(indices[-1]), len(indices)
    step = math.gcd(*np.diff(indices).tolist())
    density = count / (last - first + 1)

    def gap(length: int) -> bool:
        """Whether so many right ones in a row mean something."""
        return length > 0 and density >= DENSE and (1 - density) ** length < BY_CHANCE

    if count == size:
        return "", (axis, "all")
    if count == 1:
        return f"{axis} {first}" + " (the last)" * (first == size - 1), (axis, "one")
    if last == size - 1 and gap(first):
        return f"{axis}s {first} and up", (axis, "tail" if first % TILE else "tile")
    if first == 0 and gap(size - 1 - last):
        return f"{axis}s up to {last}", (axis, "head")
    if gap(first) and gap(size - 1 - last):
        return f"{axis}s {first} to {last}", (axis, "range")
    if count >= DENSE * size:
        return "", (axis, "all")
    if step > 1 and count > 2 and count >= DENSE * ((last - first) / step + 1):
        return f"every {step}th {axis} from {first}", (axis, "every")
    return f"{count} of {size} {axis}s", (axis, "some")


def _content(wrong: np.ndarray, got: np.ndarray, value: np.ndarray) -> tuple[str, str]:
    """What the wrong numbers are, as words, and what causes that."""
    numbers = got[wrong]
    if np.isnan(numbers).all():
        return ", all NaN", "memory that nobody wrote, or a read outside of the tensor: what surrounds it is NaN"
    if (numbers == 0).all():
        return ", all 0", "results that are never stored"
    for dtype in NARROWER.get(got.dtype.name, ()):
        if len(numbers) >= TELLING and (numbers.astype(numpy_dtype(dtype)) == numbers).all():
            return f", each a {dtype} number", f"a computation in {dtype}"
    usable = wrong & np.isfinite(got) & np.isfinite(value) & (value != 0)
    factors = np.where(usable, got.astype(np.longdouble) / np.where(usable, value, 1), np.nan).astype(float)
    if (factor := _factor(factors[usable])) is not None:
        return (
            f", by one factor {1 + float(f'{factor - 1:.3g}'):.9g}",
            "a constant, such as the width that a mean divides by",
        )
    if _each(factors, axis=1):
        return ", each row by a factor of its own", "RSTD: its mean, its eps, or the row that it comes from"
    if _each(factors, axis=0):
        return ", each column by a factor of its own", "the weight or its offset"
    return "", ""


def _each(factors: np.ndarray, axis: int) -> bool:
    """Whether every row (axis 1) or column (axis 0) has one factor; NaN stands where there is none."""
    lines = [line[np.isfinite(line)] for line in (factors if axis else factors.T)]
    found = [_factor(line) for line in lines if len(line)]
    return len(found) > 1 and None not in found


def _factor(factors: np.ndarray) -> float | None:
    """The one factor that all of them are about; None where there are several or too few."""
    if len(factors) < ENOUGH:
        return None
    middle = float(np.median(factors))
    alike = np.abs(factors - middle) <= ALIKE * abs(middle - 1)
    return middle if alike.all() else None
