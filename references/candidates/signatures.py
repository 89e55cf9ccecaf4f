"""Calling a stranger's function: its arguments are matched to what they mean by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

NAMES: dict[str, tuple[str, ...]] = {  # what an argument means -> what it may be called, whatever the case
    "x": ("x", "input", "hidden_states"),
    "r": ("r", "residual"),
    "w": ("w", "weight"),
    "dy": ("dy", "grad_output"),
    "ds": ("ds",),
    "s": ("s",),
    "eps": ("eps", "epsilon", "variance_epsilon"),
    "offset": ("offset",),
    "casting_mode": ("casting_mode",),
    "in_place": ("in_place",),
    "row_mode": ("row_mode",),
    "rstd": ("rstd",),
    "hidden_size": ("hidden_size",),
    "normalized_shape": ("normalized_shape",),
    "elementwise_affine": ("elementwise_affine",),
    "dtype": ("dtype",),
    "device": ("device",),
}
MEANING = {name: meaning for meaning, names in NAMES.items() for name in names}


class Signature:
    """The arguments of a callable by meaning. Raises ValueError for a needed one that means nothing here."""

    def __init__(self, function: Callable, skip: int = 0) -> None:
        named = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        self._arguments = [(p, MEANING.get(p.name.lower())) for p in named[skip:]]
        self.meanings = {meaning for _, meaning in self._arguments if meaning}
        self.optional = {meaning for p, meaning in self._arguments if meaning and p.default is not p.empty}
        for p, meaning in self._arguments:
            if meaning is None and p.default is p.empty:
                raise ValueError(f"its argument {p.name!r} means nothing here")

    def bind(self, values: Mapping[str, Any]) -> tuple[list, dict[str, Any]]:
        """Positional arguments and keyword-only ones; what has no value in `values` keeps its default."""
        positional, keywords = [], {}
        for p, meaning in self._arguments:
            value = p.default if meaning is None else values.get(meaning, p.default)
            if value is p.empty:
                raise ValueError(f"there is no value for its argument {p.name!r}")
            if p.kind is p.KEYWORD_ONLY:
                keywords[p.name] = value
            else:
                positional.append(value)
        return positional, keywords
