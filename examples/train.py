"""Train a tiny language model whose norms are LigerRMSNorm, on this file's own text.

python examples/train.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from rmsnorm import LigerRMSNorm

WIDTH, CONTEXT = 64, 32


class Block(nn.Module):
    """Norm, mixing over the positions so far, norm, mixing over features; each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(LigerRMSNorm(WIDTH) for _ in range(3))
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        h = self.norms[0](x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.norms[2](self.mlp(self.norms[1](x)))  # a norm's output may be added, as in Gemma 2


def main(steps: int = 60) -> tuple[float, float]:
    """The loss of the first step and of the last."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = torch.tensor(list(Path(__file__).read_bytes()), device=device)
    embedding, block, last = nn.Embedding(256, WIDTH), Block(), LigerRMSNorm(WIDTH)
    model = nn.Sequential(embedding, block, last, nn.Linear(WIDTH, 256)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - CONTEXT - 1, (16, 1), device=device)
        tokens = text[starts + torch.arange(CONTEXT + 1, device=device)]
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


if __name__ == "__main__":
    first, final = main()
    print(f"loss {first:.2f} → {final:.2f}")
