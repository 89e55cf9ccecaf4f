"""The in_place contract of our own kernels: when dX may lie in dY's storage, and when it must not."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from rmsnorm import liger_rms_norm  # noqa: E402

DEVICES = [pytest.param("cpu", marks=pytest.mark.interpret), pytest.param("cuda", marks=pytest.mark.gpu)]


def inputs(device: str, rows: int = 5, cols: int = 24) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(rows, cols, device=device, requires_grad=True)
    w = torch.randn(cols, device=device, requires_grad=True)
    return x, w, torch.randn(rows, cols, device=device)


def gradients(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, in_place: bool) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(liger_rms_norm(x, w, 1e-6, in_place=in_place), (x, w), dy)


@pytest.mark.parametrize("device", DEVICES)
def test_dense_dy_is_reused(device: str) -> None:
    x, w, dy = inputs(device)
    wanted = gradients(x, w, dy, in_place=False)
    got = gradients(x, w, dy, in_place=True)
    assert got[0].data_ptr() == dy.data_ptr()
    assert all(torch.equal(g, v) for g, v in zip(got, wanted, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_in_place_off_leaves_dy_alone(device: str) -> None:
    x, w, dy = inputs(device)
    before = dy.clone()
    dx, _ = gradients(x, w, dy, in_place=False)
    assert torch.equal(dy, before)
    assert dx.data_ptr() != dy.data_ptr()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["expanded", "column_strided", "row_strided", "transposed", "aliases_x", "aliases_w"])
def test_a_dy_that_must_stay_stays(device: str, kind: str) -> None:
    x, w, dense = inputs(device, rows=24)
    dy = {
        "expanded": lambda: dense[:1].expand(24, 24),
        "column_strided": lambda: dense.repeat(1, 2)[:, ::2],
        "row_strided": lambda: dense.repeat(1, 2)[:, :24],
        "transposed": lambda: dense.t(),
        "aliases_x": lambda: x.detach(),
        "aliases_w": lambda: w.detach().expand(24, 24),
    }[kind]()
    kept = [t.detach().clone() for t in (dy, x, w)]
    wanted = gradients(x, w, dy.clone(memory_format=torch.contiguous_format), in_place=False)
    got = gradients(x, w, dy, in_place=True)
    assert all(torch.equal(g, v) for g, v in zip(got, wanted, strict=True))
    assert all(torch.equal(a, b) for a, b in zip((dy, x, w), kept, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_residual_branch_needs_in_place_off(device: str) -> None:
    # Gemma 2: the norm's output and the residual share one gradient tensor.
    x, w, dy = inputs(device)
    y = liger_rms_norm(x, w, 1e-6, 1.0, "gemma", in_place=False) + x
    dx = torch.autograd.grad(y, x, dy)[0]
    (branch,) = torch.autograd.grad(liger_rms_norm(x, w, 1e-6, 1.0, "gemma", in_place=False), x, dy)
    assert torch.equal(dx, branch + dy)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("frozen", ["x", "w"])
def test_an_unneeded_gradient_is_none_and_the_other_keeps_its_bits(device: str, frozen: str) -> None:
    x, w, dy = inputs(device)
    wanted = dict(zip("xw", gradients(x, w, dy, in_place=False), strict=True))
    leaves = {"x": x, "w": w}
    leaves[frozen].requires_grad_(False)
    liger_rms_norm(x, w, 1e-6, in_place=False).backward(dy)
    (needed,) = set("xw") - {frozen}
    assert leaves[frozen].grad is None
    assert torch.equal(leaves[needed].grad, wanted[needed])


@pytest.mark.parametrize("device", DEVICES)
def test_writing_over_dy_counts_as_a_new_version(device: str) -> None:
    x, w, dy = inputs(device)
    version = dy._version
    gradients(x, w, dy, in_place=True)
    assert dy._version > version, "a graph that saved dY would not notice"
