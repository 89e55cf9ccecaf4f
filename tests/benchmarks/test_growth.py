"""How the cost grows: with the number of rows at 4096 columns, and with the number of columns at 4096 rows.

All providers of a shape are timed in one session, beside "stream" and the floor. On a CPU, where eager calls are timed
on smaller shapes, the figures are host times.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
import torch

from tests.benchmarks.shapes import BF16, F32, Shape
from tests.benchmarks.test_rms_norm import BY_NAME, DEVICE, Call, calls, cpu_implementation, judged, tensors

__all__ = ["cpu_implementation"]  # a fixture

PROVIDERS = ("liger", "torch.nn.RMSNorm", "liger-kernel", "quack")
CPU_REPETITIONS = 5
if DEVICE == "cuda":
    ROWS = tuple(Shape(n_rows, 4096, BF16) for n_rows in (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536))
    COLUMNS = tuple(
        Shape(4096, n_cols, BF16)
        for n_cols in (64, 128, 256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 8192, 12288, 16384, 24576, 32768, 65536)
    )
else:
    ROWS = tuple(Shape(n_rows, 1024, F32) for n_rows in (1, 16, 256))
    COLUMNS = tuple(Shape(64, n_cols, F32) for n_cols in (64, 1024, 4096))


def host_times(timed: dict[str, Call]) -> dict[str, float]:
    """Microseconds of each call, the median of a few."""
    times = {}
    for name, call in timed.items():
        samples = []
        for _ in range(CPU_REPETITIONS + 1):
            started = time.perf_counter()
            call()
            samples.append(time.perf_counter() - started)
        times[name] = statistics.median(samples[1:]) * 1e6
    return times


def microseconds(shape: Shape, direction: str) -> dict[str, float]:
    providers = [BY_NAME[name] for name in PROVIDERS if BY_NAME[name].missing(DEVICE) is None]
    for provider in providers:
        judged(provider, shape)
    x, dy, _ = tensors(shape)
    out = torch.empty_like(x)
    timed = {provider.name: calls(provider, shape, direction) for provider in providers}
    timed["stream"] = (lambda: out.copy_(x)) if direction == "forward" else (lambda: torch.add(x, dy, out=out))
    if DEVICE == "cpu":
        return host_times(timed)
    from tests.benchmarks.timing import KernelTimer

    return {name: timing.median for name, timing in KernelTimer().time(timed).items()}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("axis", "shape"),
    [*(("n_rows", shape) for shape in ROWS), *(("n_cols", shape) for shape in COLUMNS)],
    ids=str,
)
def test_growth(benchmark: Any, axis: str, shape: Shape, direction: str) -> None:
    benchmark.group = f"growth with {axis}, {direction}"
    times = microseconds(shape, direction)
    benchmark.extra_info |= {
        "axis": axis,
        "n_rows": shape.n_rows,
        "n_cols": shape.n_cols,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "direction": direction,
        "growth_us": {"floor": shape.floor(direction), **times},
    }
    call = calls(BY_NAME["liger"], shape, direction)

    def synchronised() -> None:
        call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    benchmark.pedantic(synchronised, rounds=3, warmup_rounds=1)
