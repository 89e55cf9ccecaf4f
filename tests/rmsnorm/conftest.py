"""Fixtures of the kernels' tests. They import late: the lane without torch collects this file too."""

from __future__ import annotations

import pytest


@pytest.fixture
def eager_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators run eager PyTorch on a CPU, as they do outside the tests; torch is seeded."""
    import torch

    from rmsnorm.fused import launch

    monkeypatch.setattr(launch, "INTERPRETED", False)
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where tensors lie: with eager operators on a CPU, with compiled kernels on a GPU. torch is seeded."""
    import torch

    if request.param == "cpu":
        request.getfixturevalue("eager_operators")
    torch.manual_seed(0)
    return request.param


@pytest.fixture(params=["kernels", "eager"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What computes: the kernels in Triton's interpreter, or eager PyTorch."""
    from rmsnorm.fused import launch

    if request.param == "kernels" and not launch.INTERPRETED:
        pytest.skip("needs Triton's interpreter")
    if request.param == "eager":
        monkeypatch.setattr(launch, "INTERPRETED", False)
    return request.param


@pytest.fixture
def fresh_compiler() -> None:
    """torch.compile has compiled nothing yet."""
    import torch

    torch.compiler.reset()
