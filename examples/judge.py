"""Judge two kernels that differ in one line: where X is converted to float32.

python examples/judge.py
"""

from __future__ import annotations

import torch

from references import LEVELS, Verdict, check_all, load


def converts_once(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    """Gemma's order: one rounding, at the end."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)


def converts_twice(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    """The same Y. But each conversion has a gradient of its own, rounded to X's dtype before the two are added."""
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)


def judge(name: str) -> list[Verdict]:
    """The verdicts of bfloat16 cells of gemma rounding, without an offset, which these functions do not take."""
    candidate = load(f"{__name__}:{name}", fixed_mode="gemma")
    wanted = ("gemma", "bfloat16", "same", 0.0)
    cells = [c for c in LEVELS["matrix"] if (c.casting_mode, c.dtype, c.weight, c.offset) == wanted]
    return check_all(candidate, cells, on_verdict=lambda verdict: None)


if __name__ == "__main__":
    for name in ("converts_once", "converts_twice"):
        for verdict in judge(name):
            print(name, verdict.status, verdict.case.id)
            for finding in verdict.findings[:1]:
                print(f"    {finding}")
