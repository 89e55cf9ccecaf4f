"""Jagged NestedTensors: batches of sequences of different length, whose rows lie in one dense tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def is_jagged(x: Any) -> bool:
    """Whether x is a NestedTensor of jagged layout."""
    return isinstance(x, torch.Tensor) and x.layout is torch.jagged


def map_values(function: Callable[..., Any], tensors: tuple[Any, ...], *arguments: Any) -> Any:
    """function(rows of every tensor, *arguments), each of its results nested as the first tensor is.

    The tensors must be nested alike (TypeError, ValueError) and the last dimension dense: ValueError.
    """
    x = tensors[0]
    ragged = x._ragged_idx
    if ragged == x.dim() - 1:
        raise ValueError(f"X must have a last dimension of one length, got a nested tensor of shape {tuple(x.shape)}")
    for t in tensors[1:]:
        if not is_jagged(t):
            raise TypeError(f"R must be a jagged NestedTensor as X is, got {type(t).__name__}")
        if t.shape != x.shape:  # sequences of the same lengths have one shape where they share their offsets
            raise ValueError(f"R must have X's shape, got {tuple(t.shape)} and {tuple(x.shape)}")

    def nest(values: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(
            values,
            x.offsets(),
            x.lengths(),
            jagged_dim=ragged,
            min_seqlen=x._maybe_min_seqlen,
            max_seqlen=x._maybe_max_seqlen,
        )

    results = function(*(t.values() for t in tensors), *arguments)
    return tuple(map(nest, results)) if isinstance(results, tuple) else nest(results)
