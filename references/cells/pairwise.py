"""Pairwise covering sets: few cells in which every compatible pair of values of every two axes appears."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

Choice = tuple[str, Any]  # an axis and one of its values
Pair = tuple[Choice, Choice]


def covering_set(
    axes: Mapping[str, tuple],
    compatible: Callable[[Choice, Choice], bool],
    hiding: Collection[Choice] = (),
) -> list[dict[str, Any]]:
    """Greedy and deterministic: a row starts from the first pair still missing and takes, axis by axis, the
    value that adds most missing pairs (where two add as many, the one that was filled in less often).

    Args:
        axes: name -> values.
        compatible: whether two choices of different axes can stand in one row; it must be symmetric.
        hiding: choices beside which others do not show (no rows, say): a row with one covers only its pairs.

    Returns:
        One dict (axis -> value) a row.

    Raises:
        ValueError: no value of an axis goes with the rest of a row.
    """
    order = {name: position for position, name in enumerate(axes)}
    every_pair = (
        ((a, u), (b, v)) for a, b in itertools.combinations(axes, 2) for u, v in itertools.product(axes[a], axes[b])
    )
    missing = dict.fromkeys(p for p in every_pair if compatible(*p))  # a dict, because it keeps its order
    allowed = set(missing)

    def pair(first: Choice, second: Choice) -> Pair:
        return (first, second) if order[first[0]] < order[second[0]] else (second, first)

    rows: list[dict[str, Any]] = []
    used: Counter[Choice] = Counter()
    while missing:
        row: dict[str, Any] = dict(next(iter(missing)))
        for name in [name for name in axes if name not in row]:
            pairs = {value: [pair((name, value), choice) for choice in row.items()] for value in axes[name]}
            fitting = [value for value in axes[name] if allowed.issuperset(pairs[value])]
            if not fitting:
                raise ValueError(f"no value of {name} goes with {row}")
            # A hiding choice would undo the gain of the others: only rows that start from one have it.
            gain = {v: (name, v) not in hiding and 1 + sum(p in missing for p in pairs[v]) for v in fitting}
            row[name] = max(fitting, key=lambda v: (gain[v], -used[name, v]))
            used[name, row[name]] += 1
        row = {name: row[name] for name in axes}
        hidden_by = {choice for choice in row.items() if choice in hiding}
        for covered in itertools.combinations(row.items(), 2):
            if hidden_by.issubset(covered):
                missing.pop(covered, None)
        rows.append(row)
    return rows
