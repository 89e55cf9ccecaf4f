"""Calling a stranger's function: its arguments are matched to what they mean by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

NAMES: dict[str, tuple[str, ...]] = {  # what an argument means -> what it may be called, likeliest first, in any case
    "x": ("x", "input", "inputs", "inp", "hidden_states", "hidden"),
    "r": ("r", "residual"),
    "w": ("w", "weight", "scale", "gamma", "g"),
    "dy": ("dy", "dout", "grad_output", "grad_out", "do"),
    "ds": ("ds",),
    "s": ("s",),
    "eps": ("eps", "epsilon", "variance_epsilon", "norm_eps", "rms_norm_eps", "layer_norm_epsilon"),
    "offset": ("offset",),
    "casting_mode": ("casting_mode",),
    "in_place": ("in_place",),
    "row_mode": ("row_mode",),
    "rstd": ("rstd",),
    "hidden_size": (
        "hidden_size",
        "dim",
        "dims",
        "hidden_dim",
        "d_model",
        "n_embd",
        "embed_dim",
        "num_features",
        "features",
    ),
    "normalized_shape": ("normalized_shape",),
    "elementwise_affine": ("elementwise_affine",),
    "dtype": ("dtype",),
    "device": ("device",),
}


class Signature:
    """The arguments of a callable by meaning. Raises ValueError for a needed one that means nothing here.

    `first` is what the first argument means, whatever it is called, where no other argument means that.
    """

    def __init__(self, function: Callable, skip: int = 0, first: str = "") -> None:
        named = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        given = [p.name.lower() for p in named[skip:]]
        called = {meaning: next((n for n in names if n in given), None) for meaning, names in NAMES.items()}
        means = {name: meaning for meaning, name in called.items() if name}
        if given and first and first not in means.values():
            means.setdefault(given[0], first)
        self._arguments = [(p, means.get(p.name.lower())) for p in named[skip:]]
        self.meanings = set(means.values())
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
