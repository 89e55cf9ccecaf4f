"""The rules of tiles and plans in numbers: what a launch gets beside the tuned table, on an H200."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rmsnorm.fused import launch, plans, tiles  # noqa: E402
from rmsnorm.fused.tiles import Processors, SplitConfig  # noqa: E402

H200 = Processors(count=132, shared_memory=232448, cooperative=True)


@pytest.mark.parametrize(
    ("n_rows", "n_cols", "few"),
    [(1, 8192, True), (132, 8192, True), (133, 8192, False), (132, 8193, False), (132, 64, True), (133, 64, False)],
)
def test_rows_are_few_up_to_one_a_processor_where_they_are_not_wide(n_rows: int, n_cols: int, few: bool) -> None:
    assert plans.are_few(n_rows, n_cols, H200) is few


@pytest.mark.parametrize(
    ("n_rows", "n_cols", "row_wise", "n_programs", "sum_rows", "sum_cols"),
    [
        (100, 4096, True, 100, 128, 32),
        (132, 8192, True, 132, 64, 64),  # 16 elements a thread of 8 warps
        (3, 4096, True, 3, 4, 32),
        (100, 64, False, 4, 128, 16),  # 32 rows a tile
        (100, 8, False, 4, 128, 8),
    ],
)
def test_few_rows_get_a_program_a_tile_and_about_a_program_a_processor(
    n_rows: int, n_cols: int, row_wise: bool, n_programs: int, sum_rows: int, sum_cols: int
) -> None:
    config = tiles.few_rows_config(n_rows, n_cols, 2, row_wise, H200)
    assert (config.tiles.n_programs, config.sum_rows, config.sum_cols) == (n_programs, sum_rows, sum_cols)


@pytest.mark.parametrize(
    ("n_partials", "n_cols", "block_partials"),
    [(132, 8192, 256), (132, 8193, 64), (132, 65536, 64), (5, 8192, 8), (5, 8193, 8)],
)
def test_partial_rows_at_a_time(n_partials: int, n_cols: int, block_partials: int) -> None:
    assert tiles.weight_gradient_config(n_partials, n_cols, H200).block_partials == block_partials


@pytest.mark.parametrize(
    ("n_cols", "dtype", "row_mode", "splits"),
    [(65536, "float16", None, True), (65536, "float16", False, False), (1024, "float16", None, False)],
)
def test_which_rows_are_split(
    n_cols: int, dtype: str, row_mode: bool | None, splits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "processors", lambda device: H200)
    x = torch.empty(2, n_cols, dtype=getattr(torch, dtype), device="meta")
    assert launch.splits_rows(x, row_mode) is splits


def test_a_split_launch_publishes_and_collects() -> None:
    settings = (SplitConfig(4, 1024, 2, 2, True), torch.float32, torch.float32, 4096, 0.0, "llama", False, True, 4)
    assert plans.split_variant(*settings)._constants[-2:] == (True, True)


def test_an_operand_that_is_not_there_narrows_no_access() -> None:
    about = (torch.bfloat16, torch.bfloat16, 1e-6, 0.0, "llama", None, None)
    plan = plans.forward_plan((4, 64), (64, 1), *about)
    assert plan.integers == (8, 0, 4), "eight steps of eight elements, 16 bytes each; no residual; four rows"
