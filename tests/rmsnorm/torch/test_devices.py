"""Several GPUs in one process: the tensor's device decides, and the current device stays what it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from rmsnorm import LigerRMSNorm, liger_rms_norm

H = 64

pytestmark = [pytest.mark.torch, pytest.mark.multigpu]


@pytest.fixture(autouse=True)
def first_device_is_current() -> None:
    torch.manual_seed(0)
    torch.cuda.set_device(0)


@pytest.mark.parametrize("casting_mode", ["llama", "gemma", "none"])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("shape", [(5, H), (3, 16384)])
def test_a_tensor_on_the_second_device(shape: tuple[int, int], in_place: bool, casting_mode: str) -> None:
    x, dy, w = torch.randn(*shape), torch.randn(*shape), torch.randn(shape[-1])
    results = []
    for device in ("cuda:0", "cuda:1"):
        leaves = x.to(device).requires_grad_(), w.to(device).requires_grad_()
        y = liger_rms_norm(*leaves, 1e-5, 0.5, casting_mode, in_place)
        assert torch.cuda.current_device() == 0
        gradients = torch.autograd.grad(y, leaves, dy.to(device))
        assert torch.cuda.current_device() == 0
        assert {str(t.device) for t in (y, *gradients)} == {device}
        results.append([t.detach().cpu() for t in (y, *gradients)])
    for got, wanted in zip(results[1], results[0], strict=True):
        assert torch.equal(got, wanted)


def test_a_stream_of_the_second_device() -> None:
    x, w = torch.randn(512, 4096, device="cuda:1"), torch.randn(4096, device="cuda:1")
    wanted = liger_rms_norm(x * 2, w, 1e-5)
    stream = torch.cuda.Stream("cuda:1")
    stream.wait_stream(torch.cuda.current_stream("cuda:1"))
    with torch.cuda.stream(stream):  # makes its device the current one, too
        doubled = x * 2
        with torch.cuda.device(0):
            got = liger_rms_norm(doubled, w, 1e-5)  # reads what this stream has just written
            assert torch.cuda.current_device() == 0
    stream.synchronize()
    assert torch.equal(got, wanted)


class Split(nn.Module):
    """Layers on two devices, as a device_map puts them."""

    def __init__(self, devices: list[str]) -> None:
        super().__init__()
        self.devices = devices
        self.norms = nn.ModuleList(LigerRMSNorm(H, device=device) for device in devices)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for device, norm in zip(self.devices, self.norms, strict=True):
            x = norm(x.to(device)).sin()
        return x


def test_a_model_over_two_devices() -> None:
    split, whole = Split(["cuda:0", "cuda:1", "cuda:0"]), Split(["cuda:0"] * 3)
    for norm in whole.norms:
        nn.init.normal_(norm.weight)
    split.load_state_dict(copy.deepcopy(whole.state_dict()))
    x = torch.randn(7, H, device="cuda:0")
    outputs = [model(x) for model in (split, whole)]
    assert torch.equal(*outputs)
    for y in outputs:
        y.backward(torch.ones_like(y))
    for one, other in zip(split.parameters(), whole.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad.cpu(), other.grad.cpu())
    assert torch.cuda.current_device() == 0


def test_a_model_that_a_device_map_splits_is_converted() -> None:
    accelerate = pytest.importorskip("accelerate")
    from rmsnorm.convert import convert_model

    whole = nn.Sequential(*(nn.Sequential(nn.RMSNorm(H, 1e-5), nn.Linear(H, H)) for _ in range(3)), nn.RMSNorm(H, 1e-5))
    for norm in whole.modules():
        if isinstance(norm, nn.RMSNorm):
            nn.init.normal_(norm.weight)
    split = copy.deepcopy(whole)
    convert_model(whole.to("cuda:0"))
    split = accelerate.dispatch_model(split, {"0": 0, "1": 1, "2": 0, "3": 1})  # the last norm stands alone on its GPU
    assert len(convert_model(split).replaced) == 4
    x = torch.randn(7, H, device="cuda:0")
    outputs = [model(x) for model in (split, whole)]
    assert torch.equal(*(y.cpu() for y in outputs))
    for y in outputs:
        y.sin().sum().backward()
    for one, other in zip(split.parameters(), whole.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad.cpu(), other.grad.cpu())
    assert torch.cuda.current_device() == 0


def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="X on cuda:0 and W on cuda:1"):
        LigerRMSNorm(H, device="cuda:1")(torch.ones(2, H, device="cuda:0"))
