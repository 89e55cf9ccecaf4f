"""The residual stream: s = x + r and its norm, forward, and the backward of gradients at both, beside add-then-norm.

All providers of a shape are timed in one session. Both directions move four tensors at least. Our results and those
of peers are judged first: ours must conform, a peer's worst ratio to the bounds is recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from references import arrays
from references.bounds import tolerances
from tests.benchmarks.providers import EPS, HuggingFaceRMSNorm, import_error
from tests.benchmarks.shapes import RESIDUAL_SHAPES, Shape

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
JUDGED_ROWS = 16

AddNorm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # x, r, w → y, s


def _ours(in_place: bool) -> AddNorm:
    from rmsnorm import liger_fused_add_rms_norm

    return lambda x, r, w: liger_fused_add_rms_norm(x, r, w, EPS, in_place=in_place)


def _ours_after_add() -> AddNorm:
    from rmsnorm import liger_rms_norm

    def add_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s = x + r
        return liger_rms_norm(s, w, EPS), s

    return add_norm


def _torch() -> AddNorm:
    def add_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s = x + r
        return nn.functional.rms_norm(s, (s.shape[-1],), w, EPS), s

    return add_norm


def _compiled() -> AddNorm:
    def add_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s = x + r
        return HuggingFaceRMSNorm.normalize(s, w), s

    torch._dynamo.config.recompile_limit = 256
    torch._functorch.config.donated_buffer = False  # its backward is called again and again
    return torch.compile(add_norm, dynamic=False)


def _liger_kernel() -> AddNorm:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    return lambda x, r, w: LigerFusedAddRMSNormFunction.apply(x, r, w, EPS, 0.0, "llama", False)


def _quack() -> AddNorm:
    from quack.rmsnorm import rmsnorm

    return lambda x, r, w: rmsnorm(x, w, residual=r, eps=EPS, prenorm=True)[:2]


@dataclass(frozen=True)
class Provider:
    make: Callable[[], AddNorm]
    module: str = "torch"


PROVIDERS = {
    "liger": Provider(functools.partial(_ours, True)),
    "liger out of place": Provider(functools.partial(_ours, False)),
    "add, liger": Provider(_ours_after_add),
    "add, torch.nn.RMSNorm": Provider(_torch),
    "torch.compile": Provider(_compiled),
    "liger-kernel": Provider(_liger_kernel, "liger_kernel.ops.fused_add_rms_norm"),
    "quack": Provider(_quack, "quack.rmsnorm"),
}
RUNNABLE = [name for name, provider in PROVIDERS.items() if import_error(provider.module) is None]


@functools.lru_cache(maxsize=1)
def tensors(shape: Shape) -> tuple[torch.Tensor, ...]:
    """x, r, dy, ds and a noise weight."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    random = functools.partial(torch.randn, generator=generator, device="cuda", dtype=shape.dtype)
    return *(random(shape.n_rows, shape.n_cols) for _ in range(4)), random(shape.n_cols)


@functools.cache
def add_norm(name: str) -> AddNorm:
    return PROVIDERS[name].make()


def call(name: str, shape: Shape, direction: str) -> Callable[[], object]:
    """One provider's forward or backward; gradients by autograd.grad, so nothing accumulates."""
    x, r, dy, ds, w = tensors(shape)
    x, r, w = (t.detach().requires_grad_() for t in (x, r, w))
    if direction == "forward":
        return lambda: add_norm(name)(x, r, w)
    dy = dy.clone()  # an in-place backward writes here
    y, s = add_norm(name)(x, r, w)
    return lambda: torch.autograd.grad((y, s), (x, r, w), (dy, ds), retain_graph=True)


@functools.cache
def worst_ratio(name: str, n_cols: int, dtype: torch.dtype) -> dict[str, float]:
    """Each result's largest error over its bound, at this hidden size and dtype."""
    x, r, dy, ds, w = tensors(Shape(JUDGED_ROWS, n_cols, dtype))
    leaves = [t.detach().requires_grad_() for t in (x, r, w)]
    y, s = add_norm(name)(*leaves)
    gradients = torch.autograd.grad((y, s), leaves, (dy.clone(), ds))
    results = dict(zip(("y", "s", "dx", "dr", "dw"), (y.detach(), s.detach(), *gradients), strict=True))
    bounds = bounds_of(n_cols, dtype)
    return {key: float(bounds[key].ratio(arrays.to_numpy(t.cpu())).max()) for key, t in results.items()}


@functools.cache
def bounds_of(n_cols: int, dtype: torch.dtype) -> dict[str, tolerances.Bound]:
    x, r, dy, ds, w = (t.cpu() for t in tensors(Shape(JUDGED_ROWS, n_cols, dtype)))
    x, r, s, dy, ds, w = (arrays.to_numpy(t) for t in (x, r, x + r, dy, ds, w))
    about: dict[str, Any] = {"eps": EPS, "offset": 0.0, "casting_mode": "llama"}
    norm = tolerances.forward_bounds(s, w, **about) | tolerances.backward_bounds(dy, s, w, **about, ds=ds)
    return tolerances.stream_bounds(x, r) | norm


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("shape", RESIDUAL_SHAPES, ids=str)
def test_add_norm(benchmark: Any, shape: Shape, direction: str) -> None:
    from tests.benchmarks.timing import KernelTimer

    ratios = {name: worst_ratio(name, shape.n_cols, shape.dtype) for name in RUNNABLE}
    for name in ("liger", "liger out of place"):
        assert max(ratios[name].values()) <= 1, (name, ratios[name])
    times = KernelTimer().time({name: call(name, shape, direction) for name in RUNNABLE})
    benchmark.group = f"{shape} {direction} with a residual"
    benchmark.extra_info |= {
        "n_rows": shape.n_rows,
        "n_cols": shape.n_cols,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "direction": direction,
        "worst_ratio": {name: max(found.values()) for name, found in ratios.items()},
        "add_norm_us": {"floor": shape.residual_floor(), **{name: t.median for name, t in times.items()}},
    }
    benchmark.pedantic(lambda: None, rounds=1)
