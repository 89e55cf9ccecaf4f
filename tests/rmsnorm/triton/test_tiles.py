"""Every kind of tile, judged as the cells are: values, rounding points and bits, in every mode and dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from references import arrays  # noqa: E402
from references.candidates import memory  # noqa: E402
from references.candidates.outputs import Outputs  # noqa: E402
from references.cells.cell import Case, make_inputs  # noqa: E402
from references.judge.verdict import compare  # noqa: E402
from rmsnorm.fused import launch, plans  # noqa: E402
from rmsnorm.fused.tiles import (  # noqa: E402
    BackwardConfig,
    FewRowsConfig,
    ForwardConfig,
    SplitConfig,
    WeightGradientConfig,
)
from tests.support import DEVICES  # noqa: E402

# No block divides either.
N_ROWS, N_COLS = 5, 100
TILES = {
    "one_chunk": (ForwardConfig(1, 128, 1, 1), BackwardConfig(1, 128, 1, 2, 3, False)),
    "held_chunks": (ForwardConfig(1, 64, 2, 1), BackwardConfig(1, 64, 1, 2, 3, True)),
    "some_streamed": (ForwardConfig(1, 32, 1, 1), BackwardConfig(1, 64, 1, 1, 2, False)),
    "all_streamed": (ForwardConfig(1, 64, 0, 1), BackwardConfig(1, 64, 1, 1, 5, False)),
    "block": (ForwardConfig(4, 128, 1, 1), BackwardConfig(4, 128, 1, 2, 2, False)),
    "block_chunks": (ForwardConfig(2, 64, 1, 1), BackwardConfig(2, 64, 1, 1, 2, True)),
    "few_rows": (ForwardConfig(1, 128, 1, 1), FewRowsConfig(BackwardConfig(1, 128, 1, 2, N_ROWS, False), 8, 32)),
    "few_rows_block": (ForwardConfig(4, 128, 1, 1), FewRowsConfig(BackwardConfig(2, 64, 1, 1, 3, True), 2, 16)),
    "split": (ForwardConfig(1, 64, 1, 1), SplitConfig(7, 16, 1, 3, False)),
    "split_row_a_group": (ForwardConfig(1, 64, 1, 1), SplitConfig(2, 64, 1, N_ROWS, False)),
    "split_reload": (ForwardConfig(1, 64, 1, 1), SplitConfig(4, 32, 1, 2, True)),
}


def outputs(case: Case, device: str, forward: Any, backward: Any) -> tuple[Any, Outputs]:
    """The case's inputs, and what the launch with these configurations makes of them."""
    inputs = make_inputs(case)
    views = memory.Arguments(case, inputs, "torch", device).views
    about = {"offset": case.offset, "casting_mode": str(case.casting_mode)}
    with np.errstate(all="ignore"):
        y, rstd = launch.rms_norm_forward(views["x"], views["w"], eps=case.eps, config=forward, **about)
        dx = torch.full_like(y, torch.nan)
        dw = launch.rms_norm_backward(
            views["dy"], views["x"], views["w"], rstd, dx=dx, needs_dw=True, config=backward, **about
        )
    return inputs, Outputs(*(None if t is None else arrays.to_numpy(t) for t in (y, rstd, dx, dw)))


def assert_passes(case: Case, device: str, forward: Any, backward: Any) -> None:
    inputs, results = outputs(case, device, forward, backward)
    comparisons = list(compare(case, inputs, results))
    findings = [str(finding) for comparison in comparisons for finding in comparison.findings()]
    assert not findings, "\n".join(findings)
    assert len(comparisons) == (4 if case.w_dtype else 3), "a tensor was not compared"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("none", "bfloat16"), ("llama", "bfloat16"), ("gemma", "float32"), ("llama", "float64")],
)
@pytest.mark.parametrize("tile", TILES)
def test_tiles(tile: str, mode: str, dtype: str, device: str) -> None:
    forward, backward = TILES[tile]
    case = Case(mode, 0.5, dtype, "same", False, (N_ROWS, N_COLS), 0.7, x_layout="row_strided", dy_layout="contiguous")
    assert_passes(case, device, forward, backward)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_held", [0, 1, 2])
def test_every_chunk_rounds_squares_in_none(n_held: int, device: str) -> None:
    # Three columns: in a longer row roundings of squares average out and the mean swallows them.
    case = Case("none", 0.5, "bfloat16", "same", False, (256, 3), 0.7)
    assert_passes(case, device, ForwardConfig(16, 2, n_held, 1), BackwardConfig(16, 4, 1, 1, 2, False))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tile", ["held_chunks", "some_streamed", "block_chunks", "few_rows", "split_reload"])
def test_tiles_without_weight(tile: str, device: str) -> None:
    case = Case("gemma", 0.5, "bfloat16", "none", False, (N_ROWS, N_COLS), 0.7, dy_layout="row_strided")
    assert_passes(case, device, *TILES[tile])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("w_dtype", ["bfloat16", "float16", "float32"])
def test_partial_rows_are_summed_exactly_and_rounded_once(w_dtype: str, device: str) -> None:
    # Multiples of 2^-12 below 16, of which any sum is exact in float32: one answer. One row more than two blocks hold.
    partials = np.random.default_rng(0).integers(-(2**16), 2**16, (9, N_COLS)).astype(np.float32) / 2**12
    dw = torch.full((N_COLS,), torch.nan, dtype=getattr(torch, w_dtype), device=device)
    variant = plans._weight_gradient_variant(WeightGradientConfig(4, 32, 1), torch.float32, dw.dtype, N_COLS)
    variant.launch(-(-N_COLS // 32), (arrays.to_torch(partials, device), dw), (9,))
    wanted = partials.astype(np.float64).sum(0).astype(arrays.numpy_dtype(w_dtype))
    assert np.array_equal(arrays.bits(arrays.to_numpy(dw)), arrays.bits(wanted))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tile", TILES)
def test_no_tile_needs_the_weight_gradient_or_dx(tile: str, device: str) -> None:
    # Each gradient alone has the bits that it has beside the other.
    case = Case("llama", 0.5, "float32", "same", False, (N_ROWS, N_COLS), 0.7)
    forward, backward = TILES[tile]
    views = memory.Arguments(case, make_inputs(case), "torch", device).views
    about = {"offset": 0.5, "casting_mode": "llama"}
    _, rstd = launch.rms_norm_forward(views["x"], views["w"], eps=0.7, config=forward, **about)

    def gradients(needs_dx: bool, needs_dw: bool) -> tuple[Any, Any]:
        dx = torch.full_like(views["x"], torch.nan) if needs_dx else None
        arguments = (views["dy"], views["x"], views["w"], rstd)
        return dx, launch.rms_norm_backward(*arguments, dx=dx, needs_dw=needs_dw, config=backward, **about)

    dx, dw = gradients(True, True)
    assert torch.equal(gradients(True, False)[0], dx)
    assert gradients(True, False)[1] is None
    if not isinstance(backward, SplitConfig):  # those need both
        assert torch.equal(gradients(False, True)[1], dw)
