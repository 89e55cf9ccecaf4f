"""The exchange of split rows: right in whatever order its programs run, as on a GPU, where they run at once."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.interpret]
torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from rmsnorm.checks import compute_dtype  # noqa: E402
from rmsnorm.fused import launch, plans  # noqa: E402
from rmsnorm.fused.tiles import SplitConfig  # noqa: E402
from tests.rmsnorm.triton.interleaving import interleaved  # noqa: E402

N_ROWS, N_COLS = 4, 90
CONFIGS = {  # a number of splits that is no power of two has fewer slots than are looked at
    "two_groups": SplitConfig(2, 64, 1, 2, False),
    "reload": SplitConfig(3, 32, 1, 2, True),
    "one_group": SplitConfig(6, 16, 1, 1, True),
    "row_a_group": SplitConfig(2, 64, 1, N_ROWS, False),
}
Results = tuple[torch.Tensor, torch.Tensor]


def problem(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """dy, x, w and rstd."""
    generator = torch.Generator().manual_seed(seed)
    dy, x = (torch.randn(N_ROWS, N_COLS, generator=generator).to(dtype) for _ in range(2))
    return (
        dy,
        x,
        torch.randn(N_COLS, generator=generator).to(dtype),
        torch.rand(N_ROWS, generator=generator).to(compute_dtype(dtype)),
    )


def backward(config: SplitConfig, tensors: tuple[torch.Tensor, ...]) -> Results:
    dy, x, w, rstd = tensors
    dx = torch.full_like(x, torch.nan)
    about: dict[str, Any] = {"offset": 0.5, "casting_mode": "llama"}
    dw = launch.rms_norm_backward(dy, x, w, rstd, dx=dx, needs_dw=True, config=config, **about)
    assert dw is not None
    return dx, dw


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> Any:
    """backward() as a GPU runs it: one launch, whose programs publish and collect side by side."""

    def run(config: SplitConfig, tensors: tuple[torch.Tensor, ...], seed: int) -> Results:
        with monkeypatch.context() as patch:
            patch.setattr(launch, "INTERPRETED", False)
            patch.setattr(plans.Variant, "resident_programs", lambda *_: 100)
            with interleaved(seed):
                return backward(config, tensors)

    return run


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("two_groups", torch.float32),
        ("reload", torch.float64),
        ("one_group", torch.bfloat16),
        ("row_a_group", torch.float32),
    ],
    ids=str,
)
def test_results_do_not_depend_on_the_order_of_programs(name: str, dtype: torch.dtype, side_by_side: Any) -> None:
    tensors = problem(0, dtype)
    wanted = backward(CONFIGS[name], tensors)
    for seed in range(4):
        for got, value in zip(side_by_side(CONFIGS[name], tensors, seed), wanted, strict=True):
            assert torch.equal(got, value), f"order {seed}"


def test_nothing_of_an_earlier_call_is_collected(side_by_side: Any) -> None:
    config = CONFIGS["reload"]
    for seed in range(2):
        tensors = problem(seed)
        for got, value in zip(side_by_side(config, tensors, seed), backward(config, tensors), strict=True):
            assert torch.equal(got, value), "the sums of another call's rows"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_keeps_nobody_waiting(value: float, side_by_side: Any) -> None:
    dy, x, w, rstd = problem(0)
    x[1, 3] = value
    dx, _ = side_by_side(CONFIGS["reload"], (dy, x, w, rstd), 0)
    assert dx.isfinite().all(dim=1).tolist() == [True, False, True, True]


@triton.jit
def race_kernel(ptr):
    """Every program adds one, and reads before the others may have written."""
    tl.store(ptr, tl.load(ptr) + 1)


@triton.jit
def wait_kernel(ptr):
    """Every program waits for a number that none writes."""
    while tl.load(ptr) == 0:
        pass


def test_the_model_shows_a_race_and_a_wait_for_ever() -> None:
    sums = set()
    for seed in range(10):
        total = torch.zeros(1)
        with interleaved(seed):
            race_kernel[(4,)](total)
        sums.add(total.item())
    assert len(sums) > 1 and max(sums) <= 4, "each order gives the sum of one program after another"
    with pytest.raises(Exception, match="has not ended"), interleaved(0):
        wait_kernel[(2,)](torch.zeros(1))
