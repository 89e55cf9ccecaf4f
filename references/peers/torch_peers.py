"""PyTorch peers as functions of (x, weight, eps) and what else each takes: x (..., H), weight (H,) or None.

Those that take a residual r as well, like x, return (y, s).

Where a setting cannot be expressed the adapter raises ValueError; it never computes something else.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def torch_functional(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def torch_module(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return _call(nn.RMSNorm(x.shape[-1], eps, elementwise_affine=weight is not None), x, weight)


def hf_llama(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    return _call(LlamaRMSNorm(x.shape[-1], eps), x, weight)


def hf_llama_compiled(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _compiled_llama(x.shape[-1], eps)(x, weight)


@functools.cache
def _compiled_llama(hidden_size: int, eps: float) -> Any:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    module = LlamaRMSNorm(hidden_size, eps)
    return torch.compile(lambda x, weight: torch.func.functional_call(module, {"weight": weight}, (x,)), dynamic=False)


def hf_gemma(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    if offset != 1:
        raise ValueError("the offset is always 1")
    return _call(GemmaRMSNorm(x.shape[-1], eps), x, weight)


def hf_gemma4(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm

    return _call(Gemma4RMSNorm(x.shape[-1], eps, with_scale=weight is not None), x, weight)


def hf_llama4_l2(x: Tensor, eps: float) -> Tensor:
    from transformers.models.llama4.modeling_llama4 import Llama4TextL2Norm

    return Llama4TextL2Norm(eps)(x)


def liger_kernel(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    offset: float,
    casting_mode: str,
    in_place: bool,
    row_mode: bool | None,
) -> Tensor:
    from liger_kernel.ops import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, eps, offset, casting_mode, in_place, row_mode)


def fla(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    from fla.modules import RMSNorm

    return _call(RMSNorm(x.shape[-1], elementwise_affine=weight is not None, eps=eps), x, weight)


def quack(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    from quack.rmsnorm import rmsnorm

    return rmsnorm(x, weight, eps=eps, weight_offset=offset)


def torch_add(x: Tensor, r: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    s = x + r
    return functional.rms_norm(s, s.shape[-1:], weight, eps), s


def torch_add_compiled(x: Tensor, r: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return _compiled_add()(x, r, weight, eps)


@functools.cache
def _compiled_add() -> Any:
    return torch.compile(torch_add, dynamic=False)


def liger_kernel_add(
    x: Tensor, r: Tensor, weight: Tensor, eps: float, offset: float, casting_mode: str, in_place: bool
) -> tuple[Tensor, Tensor]:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    return LigerFusedAddRMSNormFunction.apply(x, r, weight, eps, offset, casting_mode, in_place)


def quack_add(x: Tensor, r: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    from quack.rmsnorm import rmsnorm

    return rmsnorm(x, weight, residual=r, eps=eps, weight_offset=offset, prenorm=True)


def _call(module: nn.Module, x: Tensor, weight: Tensor | None) -> Tensor:
    if weight is not None:
        module.weight = weight
    return module(x)
