"""The operators' own derivatives: of Y and RSTD together, as a traced or exported program may use them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rmsnorm import ops

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("eager_operators")]


def leaf(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("uses", ["y", "rstd", "both"])
def test_derivatives_of_both_results(uses: str, weighted: bool) -> None:
    x, w = leaf(3, 5, seed=0), leaf(5, seed=1)

    def function(x: torch.Tensor, w: torch.Tensor | None = None) -> Any:
        y, rstd = ops.rms_norm_forward(x, w, 0.3, 0.5, "gemma", None)
        return {"y": y, "rstd": rstd, "both": y * rstd.unsqueeze(-1)}[uses]

    inputs = (x, w) if weighted and uses != "rstd" else (x,)
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=str)
def test_derivatives_of_the_backward(needs: tuple[bool, bool]) -> None:
    x, w, dy = leaf(3, 5, seed=0), leaf(5, seed=1), leaf(3, 5, seed=2)

    def function(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        _, rstd = ops.rms_norm_forward(x.detach(), w.detach(), 0.3, 0.5, "gemma", None)
        found = ops.rms_norm_backward(dy, x, w, rstd, 0.3, 0.5, "gemma", None, *needs)
        return tuple(t for t, needed in zip(found, needs, strict=True) if needed)

    assert torch.autograd.gradcheck(function, (dy, x, w))


@pytest.mark.parametrize("casting_mode", ["llama", "gemma", "none"])
def test_the_backward_in_place_leaves_dx_where_dy_was(casting_mode: str) -> None:
    x, w, dy = (t.detach().bfloat16() for t in (leaf(3, 5, seed=0), leaf(5, seed=1), leaf(3, 5, seed=2)))
    _, rstd = ops.rms_norm_forward(x, w, 0.3, 0.5, casting_mode, None)
    settings = (0.3, 0.5, casting_mode, None)
    dx, dw = ops.rms_norm_backward(dy, x, w, rstd, *settings, True, True)
    assert not torch.equal(dx, dy)
    for run in (ops.rms_norm_backward_, ops.backward_):
        overwritten = dy.clone()
        assert torch.equal(run(overwritten, x, w, rstd, *settings, True), dw)
        assert torch.equal(overwritten, dx)
