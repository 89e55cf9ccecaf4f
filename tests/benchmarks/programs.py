"""Whole programs: transformers' own layers with random weights, and the norms that can stand in them.

A model is a configuration in code; nothing is downloaded. Norms are swapped in a copy of one model, so that all start
from the same weights. A step is a forward, a loss and a backward over all parameters.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

N_LAYERS, VOCABULARY = 4, 4096
SIZES = ((1, 512), (4, 2048))  # batch, tokens
MODES = ("eager", "compiled", "graphs")
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 0.003, 0.02  # beside transformers' norms in eager mode: bfloat16 rounds elsewhere
REPETITIONS, WARMUP = 15, 4


def _llama(scale: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_sizes(4096, 14336, 32, 8, scale)))


def _qwen3(scale: int) -> nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(head_dim=128, **_sizes(2048, 6144, 16, 8, scale)))


def _gemma3(scale: int) -> nn.Module:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM(Gemma3TextConfig(head_dim=256, **_sizes(2560, 10240, 8, 4, scale)))


def _sizes(hidden: int, intermediate: int, heads: int, key_value_heads: int, scale: int) -> dict[str, Any]:
    """Of a model whose width is divided by scale."""
    return {
        "vocab_size": VOCABULARY,
        "num_hidden_layers": N_LAYERS,
        "attn_implementation": "sdpa",
        "hidden_size": hidden // scale,
        "intermediate_size": intermediate // scale,
        "num_attention_heads": max(1, heads // scale),
        "num_key_value_heads": max(1, key_value_heads // scale),
    }


# Llama 3 8B, Qwen3 1.7B with norms of queries and keys, Gemma 3 4B with those and four norms a layer: four layers each.
MODELS: dict[str, Callable[[int], nn.Module]] = {"llama": _llama, "qwen3": _qwen3, "gemma3": _gemma3}


def _torch_norm(n_cols: int, eps: float, offset: float) -> nn.Module:
    return nn.RMSNorm(n_cols, eps)


def _liger_norm(n_cols: int, eps: float, offset: float) -> nn.Module:
    from liger_kernel.transformers.rms_norm import LigerRMSNorm

    casting_mode = "gemma" if offset else "llama"
    return LigerRMSNorm(n_cols, eps, offset=offset, casting_mode=casting_mode, in_place=not offset)


def _swap(model: nn.Module, make: Callable[[int, float, float], nn.Module], keeps_offset: bool) -> None:
    for module in list(model.modules()):
        for name, norm in list(module.named_children()):
            if not type(norm).__name__.endswith("RMSNorm"):
                continue
            offset = 1.0 if type(norm).__name__.startswith("Gemma") else 0.0
            eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
            new = make(norm.weight.shape[0], eps, offset).to(norm.weight.device, norm.weight.dtype)
            with torch.no_grad():
                new.weight.copy_(norm.weight if keeps_offset else norm.weight + offset)
            setattr(module, name, new)


def with_transformers(model: nn.Module) -> nn.Module:
    return model


def with_torch(model: nn.Module) -> nn.Module:
    """torch.nn.RMSNorm, whose weight holds what Gemma adds to it."""
    _swap(model, _torch_norm, keeps_offset=False)
    return model


def with_liger(model: nn.Module) -> nn.Module:
    _swap(model, _liger_norm, keeps_offset=True)
    return model


def with_ours(model: nn.Module) -> nn.Module:
    from rmsnorm.convert import convert_model

    convert_model(model)
    return model


NORMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "transformers": with_transformers,
    "torch.nn": with_torch,
    "liger-kernel": with_liger,
    "liger": with_ours,
}


@dataclass(frozen=True)
class Outcome:
    """What a step computed."""

    loss: float
    gradient_norm: float

    def fault(self, wanted: Outcome) -> str | None:
        """What is wrong beside the wanted outcome, or None."""
        if not abs(self.loss - wanted.loss) <= LOSS_TOLERANCE:
            return f"loss {self.loss:.4f}, with transformers' norms {wanted.loss:.4f}"
        if not abs(self.gradient_norm / wanted.gradient_norm - 1) <= GRADIENT_TOLERANCE:
            return f"norm of gradients {self.gradient_norm:.4g}, with transformers' norms {wanted.gradient_norm:.4g}"
        return None


class Program:
    """One model with one kind of norms in one mode."""

    def __init__(self, base: nn.Module, norms: str, mode: str) -> None:
        self.model = NORMS[norms](copy.deepcopy(base))
        torch._dynamo.reset()
        self.call: Any = self.model
        if mode != "eager":
            self.call = torch.compile(self.model, mode="reduce-overhead" if mode == "graphs" else None)

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        self.model.zero_grad(set_to_none=True)
        loss = self.call(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss.detach()

    def token(self, ids: torch.Tensor) -> None:
        with torch.no_grad():
            torch.compiler.cudagraph_mark_step_begin()
            self.call(input_ids=ids[:1, :1], use_cache=False)

    def outcome(self, ids: torch.Tensor) -> Outcome:
        loss = self.step(ids).item()
        squares = [p.grad.double().square().sum() for p in self.model.parameters() if p.grad is not None]
        return Outcome(loss, torch.stack(squares).sum().sqrt().item())


def milliseconds(call: Callable[[], object]) -> float:
    """The median of a call that ends when the GPU has ended."""
    times = []
    for i in range(WARMUP + REPETITIONS):
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if i >= WARMUP:
            times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def peak_mib(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**20
