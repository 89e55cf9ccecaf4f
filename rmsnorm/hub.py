"""The layer in the form that the Hugging Face `kernels` library asks for: no state, one method.

`kernels` puts this `forward` into modules of other classes, which bring `weight` and `variance_epsilon`. That is all
the convention passes on, so it is for norms of the Llama kind: offset 0, rounded before the weight. For others there is
`rmsnorm.convert`.
"""

from __future__ import annotations

import torch
from torch import nn

from rmsnorm.function import liger_rms_norm


class LigerRMSNorm(nn.Module):
    """A stateless RMSNorm for `kernels`; not for use by itself, where `rmsnorm.LigerRMSNorm` is meant."""

    weight: torch.Tensor
    variance_epsilon: float

    has_backward = True
    can_torch_compile = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Y, shape and dtype of hidden_states, (..., H)."""
        return liger_rms_norm(hidden_states, self.weight, self.variance_epsilon, 0.0, "llama")
