"""Replace the norms of a model by LigerRMSNorm, and see that it computes the same.

python examples/convert.py
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from rmsnorm.convert import Report, convert_model


class T5StyleRMSNorm(nn.Module):
    """Rounds to the input's dtype before the weight, as most norms of transformers do."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


def main() -> tuple[Report, bool]:
    """What was replaced, and whether the model's output has the same bits as before."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), T5StyleRMSNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), T5StyleRMSNorm(64)]
    model = nn.Sequential(*layers).bfloat16()
    original = copy.deepcopy(model)
    report = convert_model(model)
    x = torch.randn(8, 64, dtype=torch.bfloat16)
    return report, torch.equal(model(x), original(x))


if __name__ == "__main__":
    report, same = main()
    print(report)
    print("same bits:", same)
