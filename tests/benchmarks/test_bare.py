"""The benchmark's bare launches are the same computation: what is compared with them is host time alone."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gpu]
torch = pytest.importorskip("torch")

from rmsnorm import LigerRMSNorm  # noqa: E402
from tests.benchmarks.bare import BareRMSNorm  # noqa: E402


@pytest.mark.parametrize("n_rows", [16, 3])
def test_bare_launches_give_the_same_bits(n_rows: int) -> None:
    norm = LigerRMSNorm(1024, dtype=torch.bfloat16, device="cuda")
    bare = BareRMSNorm(1024, 1e-6, torch.bfloat16, "cuda")
    torch.nn.init.normal_(norm.weight)
    bare.load_state_dict({"norm.weight": norm.weight})
    dy = torch.randn(n_rows, 1024, dtype=torch.bfloat16, device="cuda")
    results = []
    for module in (norm, bare, bare):  # the first call of a shape records, the second replays
        x = torch.linspace(-4, 4, n_rows * 1024, device="cuda").to(torch.bfloat16).view(n_rows, 1024).requires_grad_()
        y = module(x)
        results.append((y, *torch.autograd.grad(y, (x, next(module.parameters())), dy.clone())))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
