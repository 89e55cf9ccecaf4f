"""LigerRMSNorm as a module among others: copies, state dicts, parametrizations, meta device, the text it prints."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from rmsnorm import LigerRMSNorm, liger_rms_norm

H = 8
GEMMA: dict[str, Any] = {"eps": 1e-5, "offset": 1.0, "casting_mode": "gemma", "init_fn": "zeros", "in_place": False}

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("eager_operators")]


def noisy(**settings: Any) -> LigerRMSNorm:
    module = LigerRMSNorm(H, **settings)
    if module.weight is not None:
        nn.init.normal_(module.weight)
    return module


def settings_of(module: LigerRMSNorm) -> dict[str, Any]:
    names = ("hidden_size", "eps", "offset", "casting_mode", "init_fn", "in_place", "elementwise_affine", "row_mode")
    return {name: getattr(module, name) for name in names}


@pytest.mark.parametrize("settings", [{}, GEMMA, {"elementwise_affine": False, "row_mode": True}])
def test_deepcopy_pickle_and_save_keep_weight_and_settings(settings: dict[str, Any]) -> None:
    module = noisy(**settings)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(buffer, weights_only=False)]
    x = torch.randn(3, H)
    for other in copies:
        assert settings_of(other) == settings_of(module)
        assert torch.equal(other(x), module(x))
        assert module.weight is None or other.weight is not module.weight


@pytest.mark.parametrize(
    "settings", [{}, {"eps": 0.5}, {"offset": 0.5}, {"casting_mode": "gemma"}, {"casting_mode": "none"}], ids=str
)
def test_every_setting_reaches_the_function(settings: dict[str, Any]) -> None:
    module = noisy(dtype=torch.bfloat16, **settings)
    x = torch.randn(16, H, dtype=torch.bfloat16)
    about = {"eps": 1e-6, "offset": 0.0, "casting_mode": "llama", **settings}
    assert torch.equal(module(x), liger_rms_norm(x, module.weight, **about))
    if settings:
        assert not torch.equal(module(x), liger_rms_norm(x, module.weight, 1e-6))


@pytest.mark.parametrize("x_dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("w_dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_weight_is_used_in_its_own_dtype(w_dtype: torch.dtype, x_dtype: torch.dtype) -> None:
    module = noisy(dtype=w_dtype, casting_mode="gemma")
    x, dy = torch.randn(16, H).to(x_dtype), torch.randn(16, H).to(x_dtype)
    module(x).backward(dy)
    weight = module.weight.detach().clone().requires_grad_()
    y = liger_rms_norm(x, weight, 1e-6, 0.0, "gemma", False)
    (dw,) = torch.autograd.grad(y, weight, dy)
    assert torch.equal(module(x), y)
    assert module.weight.grad is not None and torch.equal(module.weight.grad, dw)
    assert module.weight.grad.dtype == w_dtype


@pytest.mark.parametrize("affine", [True, False])
def test_state_dict_both_ways_with_torch(affine: bool) -> None:
    ours, theirs = noisy(elementwise_affine=affine), nn.RMSNorm(H, elementwise_affine=affine)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight"] * affine
    if affine:
        assert theirs.weight is not None and torch.equal(theirs.weight, ours.weight)
        nn.init.normal_(theirs.weight)
        ours.load_state_dict(theirs.state_dict(), strict=True)
        assert torch.equal(ours.weight, theirs.weight)


@pytest.mark.hf
def test_state_dict_both_ways_with_transformers() -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x = torch.randn(3, H, dtype=torch.bfloat16)
    for theirs, ours in (
        (LlamaRMSNorm(H, 1e-5), noisy(eps=1e-5)),
        (GemmaRMSNorm(H, 1e-5), noisy(**GEMMA)),
    ):
        theirs.load_state_dict(ours.state_dict(), strict=True)
        assert torch.equal(theirs.bfloat16()(x), ours.bfloat16()(x))
        nn.init.normal_(theirs.weight)
        ours.load_state_dict(theirs.state_dict(), strict=True)
        assert torch.equal(theirs(x), ours(x))


def test_parametrized_weight_is_used_and_learns() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    module = noisy(in_place=False)
    plain = copy.deepcopy(module)
    plain.weight.data *= 2
    parametrize.register_parametrization(module, "weight", Doubled())
    x, dy = torch.randn(3, H), torch.randn(3, H)
    assert torch.equal(module(x), plain(x))
    module(x).backward(dy)
    plain(x).backward(dy)
    original = module.parametrizations.weight.original
    assert original.grad is not None and plain.weight.grad is not None
    assert torch.equal(original.grad, 2 * plain.weight.grad)


@pytest.mark.parametrize("settings", [{}, GEMMA])
def test_meta_device_then_deferred_initialisation(settings: dict[str, Any]) -> None:
    module = LigerRMSNorm(H, device="meta", dtype=torch.bfloat16, **settings)
    assert module(torch.empty(3, H, device="meta", dtype=torch.bfloat16)).shape == (3, H)
    module.to_empty(device="cpu").reset_parameters()
    wanted = 0.0 if settings else 1.0
    assert torch.equal(module.weight, torch.full((H,), wanted, dtype=torch.bfloat16))
    with torch.device("meta"):
        assert LigerRMSNorm(H).weight.is_meta


def test_the_text_names_every_setting() -> None:
    assert repr(LigerRMSNorm(H, **GEMMA)) == (
        "LigerRMSNorm((8,), eps=1e-05, offset=1.0, casting_mode='gemma', init_fn='zeros', in_place=False, "
        "elementwise_affine=True, row_mode=None)"
    )


def test_eps_is_read_only_and_follows_variance_epsilon() -> None:
    module = LigerRMSNorm(H, eps=1e-3)
    module.variance_epsilon = 1e-2
    assert module.eps == 1e-2
    with pytest.raises(AttributeError, match="eps"):
        module.eps = 1.0
