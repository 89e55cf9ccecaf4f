"""torch.autograd.gradcheck on the real kernels: float64, every setting, bitwise repeatable."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from rmsnorm import liger_rms_norm  # noqa: E402
from tests.support import DEVICES  # noqa: E402


def leaf(*shape: int, device: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device).requires_grad_()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weight", ["float64", "none"])
@pytest.mark.parametrize("in_place", [True, False], ids=["inplace", "notinplace"])
@pytest.mark.parametrize("offset", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("casting_mode", ["llama", "gemma", "none"])
def test_gradcheck(casting_mode: str, offset: float, in_place: bool, weight: str, device: str) -> None:
    x = leaf(2, 3, device=device, seed=1)
    w = leaf(3, device=device, seed=2) if weight != "none" else None

    def function(*leaves: torch.Tensor) -> torch.Tensor:
        # eps shows beside squares of 1. The product makes dY a fresh dense tensor for every backward: gradcheck hands
        # the same dY to two backwards, and in_place gives the second one the first one's dX.
        y = liger_rms_norm(leaves[0], leaves[1] if w is not None else None, 0.3, offset, casting_mode, in_place)
        return 1.0 * y

    leaves = (x,) if w is None else (x, w)
    assert torch.autograd.gradcheck(function, leaves, nondet_tol=0.0)
    if not in_place:  # a differentiable backward never writes to dY
        assert torch.autograd.gradgradcheck(function, leaves, nondet_tol=0.0, fast_mode=True)


@pytest.mark.parametrize("device", DEVICES)
def test_backward_really_runs_in_place(device: str) -> None:
    x = leaf(144, 5, device=device, seed=1)  # of few rows dX is never written over dY
    written = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = liger_rms_norm(x, None, 0.3)
        y.register_hook(lambda dy: written.append(dy.data_ptr()))
        return 1.0 * y

    (dx,) = torch.autograd.grad(function(x).square().sum(), x)
    assert dx.data_ptr() == written[0], "the path that gradcheck is to cover was not taken"
