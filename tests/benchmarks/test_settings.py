"""What our own settings cost: casting modes, and a frozen weight, whose backward is dX alone.

All settings of a shape are timed in one session, beside "stream". The frozen weight shows what dW costs: its sums, the
partial rows and their own launch.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tests.benchmarks.providers import EPS
from tests.benchmarks.shapes import GPU_SHAPES, Shape
from tests.benchmarks.test_rms_norm import Call, tensors

SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma": {"offset": 1.0, "casting_mode": "gemma"},
    "none": {"casting_mode": "none"},
    "frozen weight": {},
}

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def calls(setting: str, shape: Shape, direction: str) -> Call:
    from rmsnorm import LigerRMSNorm

    norm = LigerRMSNorm(shape.n_cols, EPS, dtype=shape.dtype, device="cuda", **SETTINGS[setting])
    x, dy, w = tensors(shape)
    with torch.no_grad():
        norm.weight.copy_(w)
    norm.weight.requires_grad_(setting != "frozen weight")
    x = x.detach().requires_grad_()
    if direction == "forward":
        return lambda: norm(x)
    y, scratch = norm(x), dy.clone()
    wanted = (x, norm.weight) if norm.weight.requires_grad else (x,)
    return lambda: torch.autograd.grad(y, wanted, scratch, retain_graph=True)


@functools.cache
def kernel_times(shape: Shape, direction: str) -> dict[str, float]:
    from tests.benchmarks.timing import KernelTimer

    x, dy, _ = tensors(shape)
    out = torch.empty_like(x)
    timed = {setting: calls(setting, shape, direction) for setting in SETTINGS}
    timed["stream"] = (lambda: out.copy_(x)) if direction == "forward" else (lambda: torch.add(x, dy, out=out))
    return {name: timing.median for name, timing in KernelTimer().time(timed).items()}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("shape", GPU_SHAPES, ids=str)
def test_settings(benchmark: Any, shape: Shape, direction: str) -> None:
    times = kernel_times(shape, direction)
    benchmark.group = f"{shape} {direction} settings"
    benchmark.extra_info |= {
        "n_rows": shape.n_rows,
        "n_cols": shape.n_cols,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "direction": direction,
        "settings_us": times,
    }
    call = calls("llama", shape, direction)

    def synchronised() -> None:
        call()
        torch.cuda.synchronize()

    benchmark.pedantic(synchronised, rounds=3, warmup_rounds=1)
