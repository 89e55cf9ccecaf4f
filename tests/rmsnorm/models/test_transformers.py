"""Hugging Face models: every RMSNorm class of the installed transformers is converted or refused for a reason."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from references.peers import transformers_norms
from rmsnorm import LigerRMSNorm
from rmsnorm.convert import Report, convert_model

H = 64

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("eager_operators"),
    pytest.mark.hf,
    pytest.mark.filterwarnings("ignore"),  # importing every model brings the warnings of every model
]


def instance(norm_class: type[nn.Module]) -> nn.Module:
    """One of size H, in bfloat16, with noise for a weight."""
    norm = transformers_norms.instance(norm_class, H).to(torch.bfloat16)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


# docs/use/models.md gives these numbers for this version.
COUNTED = "5.24."
COUNTS = {
    "llama, offset 0, exact": 144,
    "gemma, offset 0, exact": 26,
    "gemma, offset 1, exact": 14,
    "refused: its forward takes hidden_states, gate, not one tensor": 15,
    "refused: it has neither weight nor a size: it takes rows of any length": 9,
    "refused: its output is that of no casting mode with offset 0 or 1 and an eps among its attributes": 2,
    "refused: it contains other modules: norm, mlp": 1,
    "refused: its weight is a buffer, not a parameter": 1,
}


def test_every_norm_class_is_converted_or_refused(record_property: Any) -> None:
    import transformers

    counts: Counter[str] = Counter()
    for norm_class in transformers_norms.norm_classes():
        original = instance(norm_class)
        model = nn.Sequential(copy.deepcopy(original))
        entry = convert_model(model).entries[0]  # a gated norm may hold a plain one, which comes second
        assert entry.class_name == norm_class.__name__
        if entry.measured is None:
            assert entry.reason and type(model[0]) is norm_class
            counts[f"refused: {entry.reason}"] += 1
            continue
        x, dy = (torch.randn(32, H, dtype=torch.bfloat16) for _ in range(2))
        same = (original(x) == model(x)).float().mean().item()
        assert same == 1.0 if entry.measured.exact == 1.0 else same >= 0.999, norm_class
        model(x.requires_grad_()).backward(dy)
        assert x.grad is not None and x.grad.isfinite().all()
        exactness = "exact" if entry.measured.exact == 1.0 else "near"
        counts[f"{entry.measured.casting_mode}, offset {entry.measured.offset:g}, {exactness}"] += 1
    for outcome, count in counts.most_common():
        record_property(outcome, count)
        print(f"{count:4} {outcome}")
    if transformers.__version__.startswith(COUNTED):
        assert counts == COUNTS
    # A new release brings new classes: what must not happen is that hardly any is recognised.
    converted = sum(count for outcome, count in counts.items() if not outcome.startswith("refused"))
    assert counts["llama, offset 0, exact"] > counts["gemma, offset 0, exact"] > 0 < counts["gemma, offset 1, exact"]
    assert converted > 0.8 * counts.total()


TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: dict[str, Any] = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 16},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 16, "query_pre_attn_scalar": 8},
    "phi3": {},
    "olmo2": {},
    "mixtral": EXPERTS,
    "granite": {},
    "glm4": {},
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tiny_models_of_many_architectures(architecture: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    configuration = AutoConfig.for_model(architecture, **TINY, **ARCHITECTURES[architecture])
    original = AutoModelForCausalLM.from_config(configuration).to(torch.bfloat16).eval()
    for name, parameter in original.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter)
    model = copy.deepcopy(original)
    report: Report = convert_model(model)
    assert report.replaced and not report.kept, report
    assert any(isinstance(module, LigerRMSNorm) for module in model.modules())

    tokens = torch.randint(3, TINY["vocab_size"], (2, 7))
    losses, gradients = [], []
    for each in (original, model):
        output = each(tokens, labels=tokens)
        output.loss.backward()
        losses.append((output.loss.detach(), output.logits.detach()))
        gradients.append({name: p.grad for name, p in each.named_parameters()})
    for got, wanted in zip(losses[1], losses[0], strict=True):
        assert torch.equal(got, wanted)
    for name, gradient in gradients[1].items():
        assert gradient is not None and gradient.isfinite().all(), name
    arguments = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(tokens)}
    assert torch.equal(model.generate(tokens, **arguments), original.generate(tokens, **arguments))
