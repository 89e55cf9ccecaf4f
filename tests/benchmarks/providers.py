"""Who is timed: this project and its peers, each called as its own documentation says.

A provider makes a module of (hidden size, dtype, device) with eps 1e-6 and llama casting, or the nearest that it has. A
peer that is not installed is left out, with the reason.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

EPS = 1e-6


@dataclass(frozen=True)
class Provider:
    """A name, what makes its module, and the device that it needs."""

    name: str
    make: Callable[[int, torch.dtype, str], nn.Module]
    module: str = "torch"
    needs_cuda: bool = False

    def missing(self, device: str) -> str | None:
        """Why the provider cannot run, or None."""
        if (reason := import_error(self.module)) is not None:
            return reason
        if self.needs_cuda and device != "cuda":
            return "needs a CUDA GPU"
        return None


@functools.cache
def import_error(module: str) -> str | None:
    try:
        with warnings.catch_warnings(action="ignore"):  # a peer's warnings are no errors of ours
            importlib.import_module(module)
    except Exception as error:  # the package, something that it needs, or whatever it does where that is missing
        return f"{module} cannot be imported: {type(error).__name__}: {error}"
    return None


class HuggingFaceRMSNorm(nn.Module):
    """The formula of transformers' LlamaRMSNorm in eager PyTorch."""

    def __init__(self, hidden_size: int, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=dtype, device=device))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.normalize(hidden_states, self.weight)

    @staticmethod
    def normalize(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + EPS)
        return weight * hidden_states.to(input_dtype)


def _ours(hidden_size: int, dtype: torch.dtype, device: str) -> nn.Module:
    from rmsnorm import LigerRMSNorm

    return LigerRMSNorm(hidden_size, EPS, dtype=dtype, device=device)


def _ours_out_of_place(hidden_size: int, dtype: torch.dtype, device: str) -> nn.Module:
    from rmsnorm import LigerRMSNorm

    return LigerRMSNorm(hidden_size, EPS, in_place=False, dtype=dtype, device=device)


def _torch(hidden_size: int, dtype: torch.dtype, device: str) -> nn.Module:
    return nn.RMSNorm(hidden_size, EPS, dtype=dtype, device=device)


def _compiled(hidden_size: int, dtype: torch.dtype, device: str) -> nn.Module:
    torch._dynamo.config.recompile_limit = 256  # beyond it, a ninth shape would silently be timed in eager PyTorch
    return torch.compile(HuggingFaceRMSNorm(hidden_size, dtype, device), dynamic=False)


def _liger_kernel(hidden_size: int, dtype: torch.dtype, device: str) -> nn.Module:
    from liger_kernel.transformers.rms_norm import LigerRMSNorm

    return LigerRMSNorm(hidden_size, EPS).to(dtype=dtype, device=device)


def _quack(hidden_size: int, dtype: torch.dtype, device: str) -> nn.Module:
    from quack.rmsnorm import QuackRMSNorm

    return QuackRMSNorm(hidden_size, eps=EPS, device=device, dtype=dtype)


PROVIDERS = (
    Provider("liger", _ours),
    Provider("liger out of place", _ours_out_of_place),
    Provider("huggingface", HuggingFaceRMSNorm),
    Provider("torch.nn.RMSNorm", _torch),
    Provider("torch.compile", _compiled, needs_cuda=True),
    Provider("liger-kernel", _liger_kernel, module="liger_kernel.transformers.rms_norm", needs_cuda=True),
    Provider("quack", _quack, module="quack.rmsnorm", needs_cuda=True),
)


def _bare(hidden_size: int, dtype: torch.dtype, device: str) -> nn.Module:
    from tests.benchmarks.bare import BareRMSNorm

    return BareRMSNorm(hidden_size, EPS, dtype, device)


# What an eager call costs the host has a floor as well.
HOST_PROVIDERS = (*PROVIDERS, Provider("bare launches", _bare, needs_cuda=True))
