"""A decoder block whose residual additions are made by the norms: LigerFusedAddRMSNorm. The losses are those without.

python examples/residual_stream.py
"""

from __future__ import annotations

import torch
from torch import nn

from rmsnorm import LigerFusedAddRMSNorm, LigerRMSNorm

WIDTH, CONTEXT, LAYERS = 64, 32, 3


class Decoder(nn.Module):
    """Layers that each add to a stream what they make of its norm, before a last norm and the logits.

    Unfused, a layer ends with the addition and the next one begins with the norm. Fused, the two are one: what a layer
    adds is handed on beside the stream, and the next norm adds it. Every norm but the first has something to add.
    """

    def __init__(self, fused: bool) -> None:
        super().__init__()
        kind = LigerFusedAddRMSNorm if fused else LigerRMSNorm
        self.fused = fused
        self.embedding = nn.Embedding(256, WIDTH)
        self.mixers = nn.ModuleList(nn.MultiheadAttention(WIDTH, 4, batch_first=True) for _ in range(LAYERS))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(LAYERS)
        )
        self.first = LigerRMSNorm(WIDTH)
        self.norms = nn.ModuleList(kind(WIDTH) for _ in range(2 * LAYERS))
        self.head = nn.Linear(WIDTH, 256)

    def add_and_normalize(self, i: int, x: torch.Tensor, stream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.fused:
            y, stream = self.norms[i](x, stream)
        else:
            stream = x + stream
            y = self.norms[i](stream)
        return y, stream

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        stream = self.embedding(tokens)
        y = self.first(stream)
        for i, (mixer, mlp) in enumerate(zip(self.mixers, self.mlps, strict=True)):
            x = mixer(y, y, y, attn_mask=mask, need_weights=False)[0]
            y, stream = self.add_and_normalize(2 * i, x, stream)
            y, stream = self.add_and_normalize(2 * i + 1, mlp(y), stream)
        return self.head(y)


def losses(fused: bool, steps: int, text: torch.Tensor) -> list[float]:
    """The loss of every step; seeded, so that both decoders start and read alike."""
    torch.manual_seed(0)
    model = Decoder(fused).to(text.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for _ in range(steps):
        starts = torch.randint(len(text) - CONTEXT - 1, (16, 1)).to(text.device)
        tokens = text[starts + torch.arange(CONTEXT + 1, device=text.device)]
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def main(steps: int = 30, device: str | None = None) -> tuple[list[float], list[float]]:
    """The losses of the fused decoder and of the unfused one, on a GPU where there is one."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    text = torch.tensor(list((__doc__ or "").encode() * 20), device=device)
    return losses(True, steps, text), losses(False, steps, text)


if __name__ == "__main__":
    fused, unfused = main()
    apart = max(abs(a - b) for a, b in zip(fused, unfused, strict=True))
    print(f"loss {fused[0]:.2f} → {fused[-1]:.2f}, fused and unfused at most {apart:.1e} apart in {len(fused)} steps")
