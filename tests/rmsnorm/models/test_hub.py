"""The stateless layer works through the `kernels` library, from a local repository, in models made for it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rmsnorm import hub, liger_rms_norm

H = 16

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("eager_operators"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def mapping(tmp_path: Path) -> Any:
    """A local kernel repository that offers the layer, mapped to the name that transformers' classes carry."""
    kernels = pytest.importorskip("kernels")
    variant = tmp_path / "rmsnorm" / "build" / "torch-cpu"
    variant.mkdir(parents=True)
    (variant / "__init__.py").write_text("from . import layers\n")
    (variant / "layers.py").write_text("from rmsnorm.hub import LigerRMSNorm\n")
    metadata = {"name": "rmsnorm", "id": "rmsnorm_local", "version": 1, "license": "MIT", "python-depends": []}
    (variant / "metadata.json").write_text(json.dumps({**metadata, "backend": {"type": "cpu"}}))
    layer = kernels.LocalLayerRepository(tmp_path / "rmsnorm", layer_name="LigerRMSNorm")
    return kernels.use_kernel_mapping({"RMSNorm": {"cpu": layer}})


def test_the_layer_has_no_state_and_one_method() -> None:
    assert hub.LigerRMSNorm.__init__ is nn.Module.__init__
    own = {name for name in vars(hub.LigerRMSNorm) if not name.startswith("__")}
    assert own == {"forward", "has_backward", "can_torch_compile"}


def test_the_layer_passes_on_what_the_convention_says(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(hub, "liger_rms_norm", lambda *arguments: calls.append(arguments) or arguments[0])
    layer = hub.LigerRMSNorm()
    layer.weight, layer.variance_epsilon = nn.Parameter(torch.randn(H)), 1e-3
    x = torch.randn(3, H)
    assert layer(x) is x
    ((got_x, got_w, *settings),) = calls
    assert got_x is x and got_w is layer.weight
    assert settings == [1e-3, 0.0, "llama"]  # eps, offset, casting mode; the rest as everywhere


def test_kernelize_puts_it_into_an_annotated_class(mapping: Any) -> None:
    from kernels import Mode, kernelize, use_kernel_forward_from_hub

    @use_kernel_forward_from_hub("RMSNorm")
    class AnnotatedRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(H))
            self.variance_epsilon = 1e-2

        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            raise AssertionError("the layer was not replaced")

    model = nn.Sequential(AnnotatedRMSNorm())
    with mapping:
        model = kernelize(model, mode=Mode.TRAINING | Mode.TORCH_COMPILE, device="cpu", use_fallback=False)
    x = torch.randn(3, H, requires_grad=True)
    wanted = liger_rms_norm(x, model[0].weight, 1e-2)
    y = model(x)
    assert torch.equal(y, wanted)
    dy = torch.randn_like(y)
    gradients = torch.autograd.grad(y, (x, model[0].weight), dy)
    for got, expected in zip(gradients, torch.autograd.grad(wanted, (x, model[0].weight), dy.clone()), strict=True):
        assert torch.equal(got, expected)
    assert torch.equal(torch.compile(model, backend="aot_eager", fullgraph=True)(x), wanted)


@pytest.mark.hf
def test_kernelize_a_llama_model(mapping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels import Mode, kernelize, use_kernel_forward_from_hub
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama import modeling_llama

    # transformers annotates its classes where it finds the one minor version of `kernels` that it wants.
    class AnnotatedRMSNorm(modeling_llama.LlamaRMSNorm):
        pass

    annotated = use_kernel_forward_from_hub("RMSNorm")(AnnotatedRMSNorm)
    monkeypatch.setattr(modeling_llama, "LlamaRMSNorm", annotated)
    configuration = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    original = LlamaForCausalLM(configuration).to(torch.bfloat16).eval()
    model = copy.deepcopy(original)
    with mapping:
        model = kernelize(model, mode=Mode.INFERENCE, device="cpu", use_fallback=True)
    calls: list[int] = []
    count = hub.liger_rms_norm
    monkeypatch.setattr(hub, "liger_rms_norm", lambda *args: calls.append(1) or count(*args))
    tokens = torch.randint(3, 97, (2, 5))
    assert torch.equal(model(tokens).logits, original(tokens).logits)
    assert len(calls) == 5  # two norms a layer and the last one
