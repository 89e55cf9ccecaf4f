"""What an unknown norm computes, found by running it: eps, offset and casting mode, or the reason why it is none.

No list of classes: a copy of the module gets noise for a weight and rows of many magnitudes, so that every eps, offset
and rounding point shows, and its output must be that of `rmsnorm.eager` for exactly one combination of settings. The
module itself must then agree too, with its own weight in its own dtype.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from dataclasses import dataclass

import torch
from torch import nn

from rmsnorm import eager
from rmsnorm.checks import CASTING_MODE_NAMES, DTYPES, compute_dtype

OFFSETS = (0.0, 1.0)
LEAST_EXACT = 0.999  # in float16 and bfloat16; the rest within one ulp
WIDE_ULPS = 4  # in float32 and float64, where another order of additions or 1/√ moves RSTD by an ulp or two
SIZES = ("hidden_size", "dim", "size", "normalized_shape")  # where a norm without weight may keep its size


class NotRMSNorm(Exception):
    """The module is not an RMSNorm that LigerRMSNorm can stand for; the message says why."""


@dataclass(frozen=True)
class Measured:
    """The settings of a norm, and the share of elements that are equal to the reference in every bit."""

    hidden_size: int
    eps: float
    offset: float
    casting_mode: str
    weighted: bool
    exact: float


def measure(module: nn.Module) -> Measured:
    """The settings with which LigerRMSNorm computes what module does.

    Runs copies of module on random input, without gradients and with a generator of its own: nothing changes.

    Raises:
        NotRMSNorm: with the reason.
    """
    weight = _weight(module)
    hidden_size = _hidden_size(module, weight)
    dtype = torch.get_default_dtype() if weight is None else weight.dtype
    device = torch.device("cpu") if weight is None else weight.device
    # In a wide dtype the casting modes agree: there a narrow copy tells them apart.
    trial_dtype = dtype if dtype.itemsize == 2 else torch.bfloat16
    trial = copy.deepcopy(module).to(trial_dtype)
    generator = torch.Generator(device).manual_seed(0)
    x = _rows_of_many_magnitudes(hidden_size, device, generator)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        if weight is not None:
            trial.weight.copy_(torch.randn(hidden_size, device=device, generator=generator))  # type: ignore[operator]
        found = _find_settings(trial, x.to(trial_dtype), _eps_candidates(module, trial_dtype))
        if found is None:
            raise NotRMSNorm("its output is that of no casting mode with offset 0 or 1 and an eps among its attributes")
        eps, offset, casting_mode = found
        exact = _agreement(module, x.to(dtype), eps, offset, casting_mode)
    if exact is None:
        raise NotRMSNorm(f"with its own weight it does not agree in {dtype}")
    return Measured(hidden_size, eps, offset, casting_mode, weight is not None, exact)


def _weight(module: nn.Module) -> torch.Tensor | None:
    parameters = [p for p in inspect.signature(module.forward).parameters.values() if p.kind is not p.VAR_KEYWORD]
    if len(parameters) != 1:
        raise NotRMSNorm(f"its forward takes {', '.join(p.name for p in parameters) or 'nothing'}, not one tensor")
    if list(module.children()):
        raise NotRMSNorm(f"it contains other modules: {', '.join(name for name, _ in module.named_children())}")
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        raise NotRMSNorm("it has hooks, which would be lost")
    tensors = dict(itertools.chain(module.named_parameters(), module.named_buffers()))
    if "weight" in module._buffers:
        raise NotRMSNorm("its weight is a buffer, not a parameter")
    if not set(tensors) <= {"weight"}:
        raise NotRMSNorm(f"its parameters and buffers are {', '.join(tensors)}, not weight alone")
    weight = tensors.get("weight")
    if weight is not None and (weight.dim() != 1 or weight.dtype not in DTYPES):
        raise NotRMSNorm(f"its weight has shape {tuple(weight.shape)} and dtype {weight.dtype}")
    if weight is not None and weight.is_meta:
        raise NotRMSNorm("its weight is on the meta device, where nothing can be measured")
    return weight


def _hidden_size(module: nn.Module, weight: torch.Tensor | None) -> int:
    if weight is not None:
        return weight.shape[0]
    for name in SIZES:
        size = getattr(module, name, None)
        size = size[0] if isinstance(size, tuple | list) and len(size) == 1 else size
        if isinstance(size, int) and size > 0:
            return size
    raise NotRMSNorm("it has neither weight nor a size: it takes rows of any length")


def _eps_candidates(module: nn.Module, dtype: torch.dtype) -> list[float]:
    values = [value for value in vars(module).values() if isinstance(value, float) and 0 <= value < 1]
    # torch.nn.RMSNorm without eps takes the machine epsilon, of the compute dtype or of X's by version.
    return list(dict.fromkeys(values)) or [torch.finfo(torch.float32).eps, torch.finfo(dtype).eps]


def _rows_of_many_magnitudes(hidden_size: int, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """About 16,000 elements or more: (n_rows, hidden_size), rows of 2^-12 to 2^4. float32."""
    n_rows = max(17, -(-(2**14) // hidden_size))
    scale = 2.0 ** torch.arange(n_rows, device=device).remainder(17).sub(12)
    return torch.randn(n_rows, hidden_size, device=device, generator=generator) * scale.unsqueeze(-1)


def _find_settings(module: nn.Module, x: torch.Tensor, eps_candidates: list[float]) -> tuple[float, float, str] | None:
    best, settings = 0.0, None
    for candidate in itertools.product(eps_candidates, OFFSETS, CASTING_MODE_NAMES):
        exact = _agreement(module, x, *candidate)
        if exact is not None and exact > best:
            best, settings = exact, candidate
    return settings


def _agreement(module: nn.Module, x: torch.Tensor, eps: float, offset: float, casting_mode: str) -> float | None:
    """The share of elements of module(x) that have the reference's bits; None where the others are too far off."""
    try:
        got = module(x)
    except Exception as error:  # a stranger's code may raise anything
        raise NotRMSNorm(f"it cannot be called with one tensor: {type(error).__name__}: {error}") from error
    if not isinstance(got, torch.Tensor) or got.shape != x.shape or got.dtype != x.dtype:
        what = f"{tuple(got.shape)} {got.dtype}" if isinstance(got, torch.Tensor) else type(got).__name__
        raise NotRMSNorm(f"for {tuple(x.shape)} {x.dtype} it returns {what}")
    c_dtype = compute_dtype(x.dtype)
    weight = module.weight
    assert weight is None or isinstance(weight, torch.Tensor)
    wanted, _ = eager.rms_norm_forward(x, weight, eps=eps, offset=offset, casting_mode=casting_mode, c_dtype=c_dtype)
    exact = (got == wanted).float().mean().item()
    farthest = int(_ulps(got, wanted).max())
    if x.dtype.itemsize == 2:
        return exact if exact >= LEAST_EXACT and farthest <= 1 else None
    return exact if farthest <= WIDE_ULPS else None


def _ulps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many numbers lie between a and b, element by element; finite values of one dtype."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    counts = []
    for t in (a, b):
        count = t.contiguous().view(integer).to(torch.int64)
        lowest = torch.iinfo(integer).min
        counts.append(torch.where(count < 0, lowest - count, count))  # negative numbers count down from zero
    return (counts[0] - counts[1]).abs()
