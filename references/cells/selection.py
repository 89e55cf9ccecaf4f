"""Some of the cells: by dtype, by words in their ids, with another seed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from references.cells.cell import Case


def select(
    cases: Iterable[Case], *, dtypes: Collection[str] = (), keyword: str = "", seed: int | None = None
) -> list[Case]:
    """The cells of these dtypes of X (none: all) whose id fits the keyword expression, with the seed.

    Args:
        cases: to choose from.
        dtypes: names.
        keyword: words that an id contains, joined by `and`, `or` and `not` as for `pytest -k`, without parentheses.
        seed: None keeps that of each cell.
    """
    chosen = (case for case in cases if (not dtypes or case.dtype in dtypes) and _fits(case.id, keyword))
    return [case if seed is None else replace(case, seed=seed) for case in chosen]


def _fits(case_id: str, keyword: str) -> bool:
    if not keyword.strip():
        return True

    def term(text: str) -> bool:
        negated = text.startswith("not ")
        return (text.removeprefix("not ").strip() in case_id) != negated

    alternatives = re.split(r"\s+or\s+", keyword.strip())
    return any(all(map(term, re.split(r"\s+and\s+", part.strip()))) for part in alternatives)
