"""Mixed precision, checkpointing and inference: what is computed does not change, and nothing is kept for nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from rmsnorm import LigerRMSNorm, liger_rms_norm

H = 16
MODES = ("llama", "gemma", "none")

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("casting_mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_autocast_changes_no_bit(device: str, dtype: torch.dtype, casting_mode: str) -> None:
    x, dy = (torch.randn(3, H, device=device, dtype=dtype) for _ in range(2))
    w = torch.randn(H, device=device)
    results = []
    for enabled in (False, True):
        inputs = x.clone().requires_grad_(), w.clone().requires_grad_()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
            y = liger_rms_norm(*inputs, 1e-3, 0.5, casting_mode)
            results.append((y.detach(), *torch.autograd.grad(y, inputs, dy.clone())))
    for got, wanted in zip(results[1], results[0], strict=True):
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted)
    assert results[1][0].dtype == dtype


def test_autocast_model_keeps_the_norm_in_its_input_dtype(device: str) -> None:
    linear, norm = torch.nn.Linear(H, H).to(device), LigerRMSNorm(H).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = norm(linear(torch.randn(3, H, device=device)))
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    assert norm.weight.grad is not None and norm.weight.grad.dtype == torch.float32


def test_grad_scaler_skips_overflow_and_unscales(device: str) -> None:
    norm = LigerRMSNorm(H, device=device)
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    x = torch.randn(3, H, device=device)
    before = norm.weight.detach().clone()
    y = norm(x)
    dy = torch.randn_like(y)
    (dw,) = torch.autograd.grad((y * dy).sum(), norm.weight, retain_graph=True)
    scaler.scale((y * dy).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(norm.weight, before - 0.5 * dw)  # the scale is a power of two
    scaler.scale((norm(x) * torch.inf).sum()).backward()
    after = norm.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(norm.weight, after)
    assert scaler.get_scale() == 2.0**7


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_repeats_every_bit(device: str, use_reentrant: bool) -> None:
    norm = LigerRMSNorm(H, device=device, dtype=torch.bfloat16)
    x, dy = (torch.randn(3, H, device=device, dtype=torch.bfloat16) for _ in range(2))
    results = []
    for run in (norm, lambda x: checkpoint(norm, x, use_reentrant=use_reentrant)):
        norm.zero_grad()
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        y.backward(dy.clone())
        assert leaf.grad is not None and norm.weight.grad is not None
        results.append((y.detach(), leaf.grad, norm.weight.grad))
    assert all(torch.equal(got, wanted) for got, wanted in zip(*results, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_forward_without_gradients_saves_nothing(device: str, mode: Any) -> None:
    saved: list[torch.Tensor] = []
    norm = LigerRMSNorm(H, device=device)
    with mode(), torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = norm(torch.randn(3, H, device=device))
    assert len(saved) == (3 if mode is torch.enable_grad else 0)
    assert y.requires_grad == (mode is torch.enable_grad)


def test_inference_tensors_are_computed_and_not_written(device: str) -> None:
    norm = LigerRMSNorm(H, device=device)
    with torch.inference_mode():
        x = torch.randn(3, H, device=device)
        before = x.clone()
        y = norm(x)
    assert y.is_inference()
    assert torch.equal(x, before)
    leaf = torch.randn(3, H, device=device, requires_grad=True)
    norm(leaf).backward(before)  # dY is an inference tensor: it cannot be written
    assert leaf.grad is not None
    assert torch.equal(before, x)
