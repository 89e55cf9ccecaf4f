"""The benchmark: `pytest tests/benchmarks --benchmark-only [--benchmark-json FILE]`.

On a GPU the figure that counts is `extra_info["kernel_us"]`, the kernel time of one call after a cleaned L2, for all
providers of a shape in one session; the benchmark's own seconds are host time with a synchronisation. On a machine
without a GPU the CPU implementation runs beside eager PyTorch. Before a case is timed its results are judged: ours must
conform, a peer's worst ratio to the bounds is recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from references import arrays
from references.bounds import tolerances
from tests.benchmarks.providers import EPS, HOST_PROVIDERS, PROVIDERS, Provider
from tests.benchmarks.shapes import CPU_SHAPES, GPU_SHAPES, Shape

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = GPU_SHAPES if DEVICE == "cuda" else CPU_SHAPES
JUDGED_ROWS = 16
RUNNABLE = [provider for provider in PROVIDERS if provider.missing(DEVICE) is None]
BY_NAME = {provider.name: provider for provider in PROVIDERS}

Call = Callable[[], object]


@pytest.fixture(autouse=True)
def cpu_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the operators' CPU implementation is timed, not Triton's interpreter."""
    from rmsnorm.fused import launch

    monkeypatch.setattr(launch, "INTERPRETED", False)


@functools.lru_cache(maxsize=1)
def tensors(shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy and a noise weight."""
    generator = torch.Generator(device=DEVICE).manual_seed(0)
    x, dy = (
        torch.randn(shape.n_rows, shape.n_cols, generator=generator, device=DEVICE, dtype=shape.dtype) for _ in range(2)
    )
    return x, dy, torch.randn(shape.n_cols, generator=generator, device=DEVICE, dtype=shape.dtype)


@functools.cache
def module(provider: Provider, n_cols: int, dtype: torch.dtype) -> torch.nn.Module:
    norm = provider.make(n_cols, dtype, DEVICE)
    with torch.no_grad():
        next(norm.parameters()).copy_(tensors(Shape(JUDGED_ROWS, n_cols, dtype))[2])
    return norm


def calls(provider: Provider, shape: Shape, direction: str) -> Call:
    """One provider's forward, backward or both; gradients by autograd.grad, so nothing accumulates."""
    norm = module(provider, shape.n_cols, shape.dtype)
    x, dy, _ = tensors(shape)
    x = x.detach().requires_grad_()
    weight = next(norm.parameters())
    if direction == "forward":
        return lambda: norm(x)
    scratch = dy.clone()  # an in-place backward writes here: what it computes next time is another dX, at equal cost
    if direction == "full":
        return lambda: torch.autograd.grad(norm(x), (x, weight), scratch)
    y = norm(x)
    return lambda: torch.autograd.grad(y, (x, weight), scratch, retain_graph=True)


@functools.cache
def bounds_of(n_cols: int, dtype: torch.dtype) -> dict[str, tolerances.Bound]:
    x, dy, w = (arrays.to_numpy(t.cpu()) for t in tensors(Shape(JUDGED_ROWS, n_cols, dtype)))
    about: dict[str, Any] = {"eps": EPS, "offset": 0.0, "casting_mode": "llama"}
    return tolerances.forward_bounds(x, w, **about) | tolerances.backward_bounds(dy, x, w, **about)


@functools.cache
def worst_ratio(provider: Provider, n_cols: int, dtype: torch.dtype) -> dict[str, float]:
    """Each result's largest error over its bound, at this hidden size and dtype."""
    norm = module(provider, n_cols, dtype)
    x, dy, _ = tensors(Shape(JUDGED_ROWS, n_cols, dtype))
    x, weight = x.detach().requires_grad_(), next(norm.parameters())
    y = norm(x)
    dx, dw = torch.autograd.grad(y, (x, weight), dy.clone())
    bounds = bounds_of(n_cols, dtype)
    results = {"y": y.detach(), "dx": dx, "dw": dw}
    return {name: float(bounds[name].ratio(arrays.to_numpy(t.cpu())).max()) for name, t in results.items()}


@functools.cache
def kernel_times(shape: Shape, direction: str) -> dict[str, Any]:
    """All providers and "stream", the same traffic with next to no arithmetic, in one session."""
    from tests.benchmarks.timing import KernelTimer

    x, dy, _ = tensors(shape)
    out = torch.empty_like(x)
    timed: dict[str, Call] = {p.name: calls(p, shape, direction) for p in RUNNABLE if worth_timing(p, shape)}
    timed["stream"] = (lambda: out.copy_(x)) if direction == "forward" else (lambda: torch.add(x, dy, out=out))
    return {name: vars(timing) for name, timing in KernelTimer().time(timed).items()}


def worth_timing(provider: Provider, shape: Shape) -> bool:
    """Eager PyTorch takes seconds of device time on the largest shapes and is far behind on all."""
    return provider.name != "huggingface" or shape.n_rows * shape.n_cols <= 4096 * 16384


def judged(provider: Provider, shape: Shape) -> dict[str, float]:
    ratios = worst_ratio(provider, shape.n_cols, shape.dtype)
    if provider.name.startswith("liger") and provider.module == "torch":
        assert max(ratios.values()) <= 1, ratios
    return ratios


@pytest.mark.parametrize("direction", ["forward", "backward", "full"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [p.name for p in PROVIDERS])
def test_speed(benchmark: Any, name: str, shape: Shape, direction: str) -> None:
    provider = BY_NAME[name]
    if reason := provider.missing(DEVICE):
        pytest.skip(reason)
    if not worth_timing(provider, shape):
        pytest.skip("too slow to be worth the time")
    if DEVICE == "cuda" and direction == "full":
        pytest.skip("on a GPU kernel times add up: forward + backward")
    benchmark.group = f"{shape} {direction}"
    benchmark.extra_info |= {
        "provider": name,
        "n_rows": shape.n_rows,
        "n_cols": shape.n_cols,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "direction": direction,
        "worst_ratio": judged(provider, shape),
        "bytes": shape.bytes_moved(direction),
    }
    call = calls(provider, shape, direction)
    if DEVICE == "cuda":
        times = kernel_times(shape, direction)
        kernel = times[name]["median"]
        benchmark.extra_info |= {
            "kernel_us": kernel,
            "kernel_quartiles_us": [times[name]["lower"], times[name]["upper"]],
            "gb_per_s": shape.bytes_moved(direction) / kernel / 1000,
            "share_of_floor": shape.floor(direction) / kernel,
            "share_of_stream": times["stream"]["median"] / kernel,
            "stream_us": times["stream"]["median"],
        }

        def synchronised() -> None:
            call()
            torch.cuda.synchronize()

        benchmark.pedantic(synchronised, rounds=5, warmup_rounds=2)
    else:
        benchmark.pedantic(call, rounds=10, warmup_rounds=2)


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", [p.name for p in PROVIDERS])
def test_memory(benchmark: Any, name: str) -> None:
    """The peak that a forward and a backward add, beyond the inputs.

    dY is made within the backward, as in a stack of layers: there it may be written over.
    """
    provider, shape = BY_NAME[name], Shape(4096, 4096, torch.bfloat16)
    if reason := provider.missing(DEVICE):
        pytest.skip(reason)
    norm = module(provider, shape.n_cols, shape.dtype)
    x, dy, _ = tensors(shape)
    x, weight = x.detach().requires_grad_(), next(norm.parameters())
    norm(x)
    peaks = {}

    def measure() -> None:
        loss = None
        for direction in ("forward", "backward"):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            if loss is None:
                y = norm(x)
            else:
                torch.autograd.grad(loss, (x, weight))
            peaks[direction] = torch.cuda.max_memory_allocated() - before
            loss = (y * dy).sum()

    benchmark.pedantic(measure, rounds=1, warmup_rounds=1)
    benchmark.extra_info |= {"provider": name, "shape": str(shape), "tensor_bytes": x.nbytes, "peak_bytes": peaks}


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA GPU")
@pytest.mark.parametrize("direction", ["forward", "no_grad", "full"])
@pytest.mark.parametrize("provider", HOST_PROVIDERS, ids=lambda provider: provider.name)
def test_host_time(benchmark: Any, provider: Provider, direction: str) -> None:
    """What one eager call costs the host, in a loop that the GPU keeps up with."""
    shape = Shape(16, 1024, torch.bfloat16)
    if reason := provider.missing(DEVICE):
        pytest.skip(reason)
    call = calls(provider, shape, "full" if direction == "full" else "forward")
    benchmark.group = f"host {direction}"
    with torch.set_grad_enabled(direction != "no_grad"):
        benchmark.pedantic(call, rounds=30, iterations=50, warmup_rounds=3)
    benchmark.extra_info |= {
        "provider": provider.name,
        "direction": direction,
        "host_us": benchmark.stats["median"] * 1e6,
    }
    torch.cuda.synchronize()
