"""Jagged NestedTensors: batches of sequences of different length, whose rows lie in one dense tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def is_jagged(x: Any) -> bool:
    """Whether x is a NestedTensor of jagged layout."""
    return isinstance(x, torch.Tensor) and x.layout is torch.jagged


def map_values(function: Callable[..., torch.Tensor], x: Any, *arguments: Any) -> torch.Tensor:
    """function(rows of x, *arguments), nested as x is. The last dimension must be dense: ValueError otherwise."""
    ragged = x._ragged_idx
    if ragged == x.dim() - 1:
        raise ValueError(f"X must have a last dimension of one length, got a nested tensor of shape {tuple(x.shape)}")
    values = function(x.values(), *arguments)
    return torch.nested.nested_tensor_from_jagged(
        values,
        x.offsets(),
        x.lengths(),
        jagged_dim=ragged,
        min_seqlen=x._maybe_min_seqlen,
        max_seqlen=x._maybe_max_seqlen,
    )
