"""Which formula explains results: the rounding points and the misplacements, tried one set after the other.

A formula is tried on the rows in which what it roots is positive: if the program computes it, those are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from references.exact.field import SCALES, Field
from references.exact.program import Result, result_dtypes
from references.exact.table import Formula, Problem, backward, formula, forward, variance
from references.spec import CastingMode, RoundingPoints

LEAST_ROWS = 4  # in which a formula must root something positive, before agreement means anything
TWISTS: tuple[dict[str, Any], ...] = (
    {},
    {"order": "(x * w) * rstd"},
    {"order": "x * (rstd * w)"},
    {"offset": "after rounding"},
    {"offset": "left out"},
    {"eps": "rounded"},
    {"eps": "rounded", "order": "(x * w) * rstd"},
    {"eps": "outside"},
    {"eps": "left out"},
    {"width": "padded"},
    {"width": "columns - 1"},
)


def formulas(rounds: bool) -> Iterator[Formula]:
    """The three modes, then every set of rounding points, then every set with one thing out of its place.

    Where X's dtype is the compute dtype nothing rounds, and one set is as good as another.
    """
    yield from (formula(mode) for mode in CastingMode)
    names = [field.name for field in fields(RoundingPoints)]
    sets = sorted(itertools.product((False, True), repeat=len(names)), key=sum) if rounds else [(False,) * len(names)]
    for twist in TWISTS:
        for points in sets:
            yield Formula(RoundingPoints(**dict(zip(names, points, strict=True))), **twist)


def explain_forward(field: Field, problem: Problem, y: Result) -> Formula | None:
    """The first formula that gives y in every row where it roots something positive."""
    patterns, dtype = y
    if dtype != problem.dtype or patterns.shape != problem.x.shape:
        return None
    got = field.decode(patterns, dtype)
    for candidate in formulas(rounds=problem.dtype in SCALES):
        rows = field.positive(variance(field, problem, candidate))[:, 0]
        if rows.sum() < LEAST_ROWS:
            continue
        wanted = field.decode(forward(field, problem, candidate)["y"], dtype)
        if (got[rows] == wanted[rows]).all():
            return candidate
    return None


def explain_backward(field: Field, problem: Problem, found: Formula, got: dict[str, Result]) -> dict[str, Formula]:
    """For dx, dr and dw, the first formula with the found forward that gives them: rounding of dY·w', the products …"""
    explained = {}
    tries = {
        "dx": [
            replace(found, m=m, projection=projection, dx_parts=parts, ds=ds)
            for ds in (("added", "after rounding", "left out") if problem.ds is not None else ("added",))
            for projection, parts in ((True, False), (True, True), (False, False))
            for m in (False, True)
        ],
        "dw": [
            replace(found, products=s, dw_x_hat=h) for s, h in itertools.product((False, True), (None, True, False))
        ],
    }
    tries["dr"] = tries["dx"]
    for name, candidates in tries.items():
        if name not in got or (name == "dr" and problem.ds is None):
            continue
        patterns, dtype = got[name]
        for candidate in candidates:
            wanted = backward(field, problem, candidate).get(name)
            if wanted is None or patterns.shape != wanted.shape or dtype != result_dtypes(problem)[name]:
                continue
            if (field.decode(patterns, dtype) == field.decode(wanted, dtype)).all():
                explained[name] = candidate
                break
    return explained
