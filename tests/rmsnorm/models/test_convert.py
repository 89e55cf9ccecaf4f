"""convert_model replaces exactly the norms that compute the same, and nothing about the model changes."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

from rmsnorm import LigerRMSNorm
from rmsnorm.convert import convert_model
from rmsnorm.fused import launch
from rmsnorm.measure import measure

H = 64

pytestmark = pytest.mark.torch


class SomeRMSNorm(nn.Module):
    """A norm with the roundings of one casting mode, in operations of its own, and with faults to order."""

    def __init__(self, mode: str = "llama", offset: float = 0.0, eps: float = 1e-5, fault: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(H))
        self.mode, self.offset, self.any_name, self.fault = mode, offset, eps, fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if self.mode == "none" else x.float()
        if self.fault == "centred":
            wide = wide - wide.mean(-1, keepdim=True)
        if self.fault == "grouped":
            wide = wide.unflatten(-1, (4, -1))
        mean_square = wide.pow(2).mean(-1, keepdim=True)
        if self.fault == "eps outside":
            wide = wide / (mean_square.sqrt() + self.any_name)
        elif self.fault == "l2":
            wide = wide * torch.rsqrt(wide.pow(2).sum(-1, keepdim=True) + self.any_name)
        else:
            wide = wide * torch.rsqrt(mean_square + self.any_name)
        if self.fault == "grouped":
            wide = wide.flatten(-2)
        weight = self.weight + self.offset if self.mode == "none" else self.weight.float() + self.offset
        if self.fault == "wide output":
            return wide * weight
        if self.mode == "llama":
            return (wide.to(x.dtype) * weight).to(x.dtype)
        return (wide * weight).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("mode", ["llama", "gemma", "none"])
def test_settings_are_found_by_running_it(device: str, mode: str, offset: float, dtype: torch.dtype) -> None:
    eps = 2.0**-15  # PyTorch adds eps in X's dtype where nothing is cast: only there a bfloat16 eps is ours
    measured = measure(SomeRMSNorm(mode, offset, eps).to(device, dtype))
    assert (measured.casting_mode, measured.offset, measured.eps) == (mode, offset, eps)
    assert (measured.hidden_size, measured.weighted) == (H, True)


@pytest.mark.parametrize("fault", ["centred", "grouped", "eps outside", "l2", "wide output"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_other_computations_are_kept(device: str, fault: str, dtype: torch.dtype) -> None:
    model = nn.Sequential(SomeRMSNorm(fault=fault).to(device, dtype))
    original = model[0]
    report = convert_model(model)
    assert model[0] is original
    (entry,) = report.kept
    expected = "returns .* torch.float32" if fault == "wide output" else "that of no casting mode"
    assert entry.reason is not None
    assert re.search(expected, entry.reason)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("ulps", "replaced"), [(0, True), (3, True), (16, False), (1000, False), (4096, False)])
def test_a_wide_norm_that_is_ulps_off_is_kept(ulps: int, replaced: bool, dtype: torch.dtype, device: str) -> None:
    class OffRMSNorm(SomeRMSNorm):
        """Right in narrow dtypes, which roundings hide; in its own dtype off by so many ulps, or a few more."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.any_name)
            y = (y.to(x.dtype) * self.weight).to(x.dtype)
            return y if x.dtype.itemsize == 2 else y * (1 + ulps * torch.finfo(x.dtype).eps / 2)

    model = nn.Sequential(OffRMSNorm().to(device, dtype))
    convert_model(model)
    assert isinstance(model[0], LigerRMSNorm) == replaced


def test_structures_that_cannot_be_replaced_are_kept_with_their_reason() -> None:
    class GatedRMSNorm(SomeRMSNorm):
        def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(x) if gate is None else super().forward(x) * gate

    class BiasedRMSNorm(SomeRMSNorm):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(H))

    class BufferedRMSNorm(SomeRMSNorm):
        def __init__(self) -> None:
            super().__init__()
            del self.weight
            self.register_buffer("weight", torch.ones(H))

    class SizelessRMSNorm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    class PairRMSNorm(SomeRMSNorm):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), x

    class FailingRMSNorm(SomeRMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("needs a cache")

    hooked = [SomeRMSNorm() for _ in range(4)]
    hooked[0].register_forward_hook(lambda *_: None)
    hooked[1].register_forward_pre_hook(lambda *_: None)
    hooked[2].register_full_backward_hook(lambda *_: None)
    hooked[3].register_full_backward_pre_hook(lambda *_: None)
    reasons = {
        GatedRMSNorm(): "its forward takes x, gate, not one tensor",
        BiasedRMSNorm(): "its parameters and buffers are weight, bias, not weight alone",
        BufferedRMSNorm(): "its weight is a buffer, not a parameter",
        SizelessRMSNorm(): "it has neither weight nor a size: it takes rows of any length",
        PairRMSNorm(): "it returns tuple",
        FailingRMSNorm(): "it cannot be called with one tensor: RuntimeError: needs a cache",
        **dict.fromkeys(hooked, "it has hooks, which would be lost"),
        SomeRMSNorm().to("meta"): "its weight is on the meta device",
    }
    model = nn.ModuleList(reasons)
    report = convert_model(model)
    assert list(model) == list(reasons)
    for entry, reason in zip(report.kept, reasons.values(), strict=True):
        assert entry.reason is not None and reason in entry.reason
    assert "is the model itself" in str(convert_model(SomeRMSNorm()))


class Layer(nn.Module):
    """A residual branch in Gemma 2's manner: norms before and after, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = SomeRMSNorm("llama"), SomeRMSNorm("gemma", 1.0, 1e-6)
        self.linear = nn.Linear(H, H)
        self.last = self.before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x + self.after(self.linear(self.before(x))))


def test_a_model_computes_the_same_before_and_after(device: str) -> None:
    model = Layer().to(device, torch.bfloat16).eval()
    model.after.weight.requires_grad_(False)
    original = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = {name: id(p) for name, p in model.named_parameters()}
    random_state = torch.random.get_rng_state()

    report = convert_model(model)

    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert {name: id(p) for name, p in model.named_parameters()} == before  # the optimizer still holds the weights
    assert model.last is model.before and isinstance(model.before, LigerRMSNorm)
    assert not model.before.training and not model.after.training
    assert (model.before.init_fn, model.after.init_fn) == ("ones", "zeros")
    assert [entry.name for entry in report.replaced] == ["before", "after"]
    assert not report.kept
    original.load_state_dict(model.state_dict(), strict=True)
    x, dy = (torch.randn(4, 8, H, device=device, dtype=torch.bfloat16) for _ in range(2))
    results = []
    for each in (model, original):
        leaf = x.clone().requires_grad_()
        y = each(leaf)
        y.backward(dy.clone())
        results.append(y.detach())
    assert model.after.weight.grad is None and model.before.weight.grad is not None
    if device == "cpu":  # the kernels sum a row in another order
        assert torch.equal(*results)
    optimizer.step()
    assert not torch.equal(model.before.weight, original.before.weight)
    assert not convert_model(model).entries  # nothing is left to do


def test_a_residual_keeps_its_gradient(device: str) -> None:
    # The norm's dY and the residual's gradient are one tensor: convert_model need not know where a model adds.
    models = [Layer().to(device), Layer().to(device)]
    models[1].load_state_dict(models[0].state_dict())
    x, dy = (torch.randn(4, 8, H, device=device) for _ in range(2))
    gradients = []
    for model, settings in zip(models, ({}, {"in_place": False}), strict=True):
        convert_model(model, **settings)
        leaf = x.clone().requires_grad_()
        h = leaf * 1.0
        (h + model.after(h)).backward(dy.clone())
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def test_the_hooks_of_a_device_map_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "INTERPRETED", False)
    hooks = pytest.importorskip("accelerate.hooks")

    class Doubling(hooks.ModelHook):
        def post_forward(self, module: nn.Module, output: torch.Tensor) -> torch.Tensor:
            return 2 * output

    model = nn.Sequential(nn.RMSNorm(H, 1e-5), nn.RMSNorm(H, 1e-5, elementwise_affine=False), nn.RMSNorm(H, 1e-5))
    weight = model[0].weight
    hooks.attach_execution_device_hook(model, "cpu")  # what dispatch_model attaches for each entry of a device_map
    x = torch.randn(3, H)
    wanted = model(x)
    report = convert_model(model)
    assert len(report.replaced) == 3
    assert torch.equal(model(x), wanted)
    assert model[0].weight is weight
    assert [hasattr(norm, "_hf_hook") for norm in model] == [True, False, True]  # no weight, no place
    hooks.remove_hook_from_module(model, recurse=True)
    assert torch.equal(model(x), wanted)

    changing = nn.Sequential(hooks.add_hook_to_module(nn.RMSNorm(H), Doubling()))
    assert "that of no casting mode" in str(convert_model(changing))  # it is run with its hook

    offloaded = nn.Sequential(nn.RMSNorm(H))
    hooks.attach_align_device_hook(offloaded, execution_device="cpu", offload=True)
    assert "its weight is on the meta device" in str(convert_model(offloaded))


def test_torchs_own_norm_is_converted(device: str) -> None:
    model = nn.Sequential(nn.RMSNorm(H), nn.RMSNorm(H, eps=1e-4, elementwise_affine=False)).to(device)
    report = convert_model(model, in_place=False)
    assert [entry.measured and entry.measured.weighted for entry in report.entries] == [True, False]
    assert all(isinstance(norm, LigerRMSNorm) and not norm.in_place for norm in model)
    assert model[0].eps == torch.finfo(torch.float32).eps and model[1].eps == 1e-4


def test_the_report_reads_as_lines() -> None:
    model = nn.Sequential(SomeRMSNorm(), SomeRMSNorm(), SomeRMSNorm(fault="l2"))
    replaced, kept = str(convert_model(model)).splitlines()
    assert replaced == (
        "2 × SomeRMSNorm(64) replaced: casting_mode='llama', offset=0.0, eps=1e-05, "
        "100.0000% of elements equal in every bit"
    )
    assert kept.startswith("1 × SomeRMSNorm kept: its output is that of no casting mode")
