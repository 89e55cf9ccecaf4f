"""Dispatch and launches: every variant, tile, program count and stride path is reached with small inputs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from references import arrays  # noqa: E402
from references.bounds import tolerances  # noqa: E402
from rmsnorm.fused import launch, plans, split_kernels, tiles  # noqa: E402
from rmsnorm.fused.tiles import BackwardConfig, ForwardConfig, Processors, SplitConfig  # noqa: E402
from tests.support import DEVICES  # noqa: E402

H200 = Processors(count=132, shared_memory=232448, cooperative=True)
ABOUT = {"offset": 0.5, "casting_mode": "llama"}
EPS = 0.3


class Problem:
    """Inputs with noise weights, and the bounds of every result."""

    def __init__(self, n_rows: int, n_cols: int, device: str, dtype: str = "float32") -> None:
        rng = np.random.default_rng(n_rows * n_cols)
        self.x, self.dy = (rng.standard_normal((n_rows, n_cols)).astype(dtype) for _ in range(2))
        self.w = rng.standard_normal(n_cols).astype(dtype)
        self.tensors = {name: arrays.to_torch(getattr(self, name), device) for name in ("x", "dy", "w")}
        self.bounds = tolerances.forward_bounds(self.x, self.w, eps=EPS, **ABOUT)
        self.bounds |= tolerances.backward_bounds(self.dy, self.x, self.w, eps=EPS, **ABOUT)

    def forward(self, config: ForwardConfig | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return launch.rms_norm_forward(self.tensors["x"], self.tensors["w"], eps=EPS, config=config, **ABOUT)

    def backward(self, config: BackwardConfig | SplitConfig | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        x, dy, w = (self.tensors[name] for name in ("x", "dy", "w"))
        dx = torch.full_like(x, torch.nan)
        _, rstd = self.forward()
        dw = launch.rms_norm_backward(dy, x, w, rstd, dx=dx, needs_dw=True, config=config, **ABOUT)
        return dx, dw

    def assert_right(self, **results: torch.Tensor) -> None:
        for name, result in results.items():
            ratio = float(self.bounds[name].ratio(arrays.to_numpy(result)).max())
            assert ratio <= 1, f"{name}: {ratio} times its bound"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "config",
    [
        ForwardConfig(block_rows=1, block_cols=128, n_held=1, num_warps=1),
        ForwardConfig(block_rows=1, block_cols=32, n_held=4, num_warps=1),
        ForwardConfig(block_rows=1, block_cols=32, n_held=1, num_warps=1),
        ForwardConfig(block_rows=1, block_cols=32, n_held=0, num_warps=1),
        ForwardConfig(block_rows=2, block_cols=64, n_held=1, num_warps=2),
        ForwardConfig(block_rows=16, block_cols=128, n_held=1, num_warps=4),
    ],
    ids=str,
)
def test_forward_tiles(config: ForwardConfig, device: str) -> None:
    problem = Problem(5, 100, device)
    y, rstd = problem.forward(config)
    problem.assert_right(y=y, rstd=rstd)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_programs", [1, 2, 3, 5, 7])
@pytest.mark.parametrize(("block_rows", "block_cols"), [(1, 128), (1, 32), (2, 64), (4, 128)])
def test_backward_tiles_and_program_counts(block_rows: int, block_cols: int, n_programs: int, device: str) -> None:
    problem = Problem(7, 100, device)
    config = BackwardConfig(block_rows, block_cols, 1, 2, n_programs, reload_weight=n_programs % 2 == 0)
    dx, dw = problem.backward(config)
    problem.assert_right(dx=dx, dw=dw)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_groups", [1, 2, 3])
@pytest.mark.parametrize("reload_rows", [False, True])
@pytest.mark.parametrize(("n_splits", "block_cols"), [(8, 128), (4, 256), (2, 512), (63, 16)])
def test_backward_split_rows(n_splits: int, block_cols: int, reload_rows: bool, n_groups: int, device: str) -> None:
    problem = Problem(5, 1000, device)
    config = SplitConfig(n_splits, block_cols, 1, n_groups, reload_rows)
    dx, dw = problem.backward(config)
    problem.assert_right(dx=dx, dw=dw)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "bits", "empty"),
    [("float32", torch.int32, split_kernels.EMPTY_32), ("float64", torch.int64, split_kernels.EMPTY_64)],
)
@pytest.mark.parametrize("reload_rows", [False, True])
def test_split_rows_do_not_wait_for_ever_on_nan(
    reload_rows: bool, dtype: str, bits: torch.dtype, empty: Any, device: str
) -> None:
    problem = Problem(4, 1000, device, dtype)
    problem.tensors["x"][1, 3] = torch.nan
    problem.tensors["x"][2, 900] = torch.tensor(empty.value, dtype=bits).view(problem.tensors["x"].dtype)
    dx, _ = problem.backward(SplitConfig(8, 128, 1, 2, reload_rows))
    assert torch.isnan(dx).all(dim=1).tolist() == [False, True, True, False]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row_mode", [None, True, False])
@pytest.mark.parametrize("n_cols", [1, 100, 8193, 16384, 65536])
@pytest.mark.parametrize("with_residual", [False, True])
def test_of_no_rows_dw_is_zero_in_every_structure(
    n_cols: int, row_mode: bool | None, with_residual: bool, device: str
) -> None:
    x, w = torch.empty(0, n_cols, device=device), torch.ones(n_cols, device=device)
    r, s, ds = (torch.empty_like(x) if with_residual else None for _ in range(3))
    y, rstd = launch.rms_norm_forward(x, w, eps=EPS, row_mode=row_mode, r=r, s=s, **ABOUT)
    dx = torch.empty_like(x)
    dw = launch.rms_norm_backward(x, x, w, rstd, dx=dx, needs_dw=True, row_mode=row_mode, ds=ds, **ABOUT)
    assert y.shape == x.shape and rstd.shape == (0,) and torch.equal(dw, torch.zeros_like(w))
    assert launch.rms_norm_backward(x, x, w, rstd, dx=dx, needs_dw=False, row_mode=row_mode, ds=ds, **ABOUT) is None


@pytest.mark.parametrize("device", DEVICES)
def test_partials_of_idle_programs_are_never_read(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new_empty = torch.Tensor.new_empty

    def poisoned(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        return new_empty(tensor, *args, **kwargs).fill_(torch.nan)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    problem = Problem(3, 100, device)
    dx, dw = problem.backward()
    problem.assert_right(dx=dx, dw=dw)


def test_the_variant_rule_goes_by_columns_and_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    widest = {("forward", 2): 512, ("backward", 2): 1024, ("forward", 4): 256}
    monkeypatch.setattr(tiles, "_block_wise_max_cols", lambda: widest)
    for (direction, itemsize), n_cols in widest.items():
        assert not tiles.is_row_wise(direction, 1, itemsize, None)
        assert not tiles.is_row_wise(direction, n_cols, itemsize, None)
        assert tiles.is_row_wise(direction, n_cols + 1, itemsize, None)
        assert tiles.is_row_wise(direction, 1, itemsize, True)
        assert not tiles.is_row_wise(direction, n_cols + 1, itemsize, False)


def test_each_direction_takes_its_own_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    widest = {("forward", 4): 64, ("backward", 4): 128}
    monkeypatch.setattr(tiles, "_block_wise_max_cols", lambda: widest)
    block_rows: list[int] = []

    def variant(tile: Any, *_: Any) -> Any:
        block_rows.append(tile.block_rows)
        return SimpleNamespace(launch=lambda *_: None)

    for name in ("_forward_variant", "_backward_variant"):
        monkeypatch.setattr(plans, name, variant)
    x = torch.ones(9, 100, device="meta")
    for name in ("forward_plan", "backward_plan"):  # nothing is remembered of this
        monkeypatch.setattr(plans, name, getattr(plans, name).__wrapped__)
    monkeypatch.setattr(plans, "processors", lambda _: H200)
    about = {"offset": 0.0, "casting_mode": "llama"}
    _, rstd = launch.rms_norm_forward(x, None, eps=0.5, **about)
    launch.rms_norm_backward(x, x, None, rstd, dx=torch.empty_like(x), needs_dw=False, **about)
    forward, backward = block_rows
    assert forward == 1 < backward


def test_the_heads_of_attention_are_block_wise_in_every_dtype() -> None:
    for direction, itemsize, n_cols in itertools.product(("forward", "backward"), (2, 4, 8), (64, 128, 256)):
        assert not tiles.is_row_wise(direction, n_cols, itemsize, None)


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("row_wise", [True, False])
@pytest.mark.parametrize("n_cols", [1, 2, 64, 100, 256, 257, 1000, 4096, 4104, 5120, 11008, 16384, 20000, 32768, 65536])
@pytest.mark.parametrize("casting_mode", ["llama", "none"])
def test_every_shape_gets_a_tile_that_covers_it(casting_mode: str, n_cols: int, row_wise: bool, itemsize: int) -> None:
    forward = tiles.forward_config(n_cols, itemsize, row_wise, casting_mode)
    n_chunks = -(-n_cols // forward.block_cols)
    assert 0 <= forward.n_held <= n_chunks
    assert (forward.block_rows == 1) == row_wise
    for n_rows in (1, 15, 10**6):
        backward = tiles.backward_config(n_rows, n_cols, itemsize, row_wise, H200)
        assert (backward.block_rows == 1) == row_wise
        assert 1 <= backward.n_programs <= -(-n_rows // backward.block_rows), "an idle program"
    split = tiles.split_config(n_cols, itemsize, H200)
    if split is not None:
        assert (split.n_splits - 1) * split.block_cols < n_cols <= split.n_splits * split.block_cols, "an idle slice"
        assert split.n_groups * split.n_splits <= 32 * H200.count


def test_no_fewer_programs_do_it_as_soon_and_none_is_idle_by_the_fewest_programs() -> None:
    for n_tiles, most in itertools.product(range(1, 60), repeat=2):
        programs = tiles.fewest_programs(n_tiles, most)
        longest = -(-n_tiles // min(n_tiles, most))
        assert 1 <= programs <= min(n_tiles, most)
        assert -(-n_tiles // programs) == longest
        assert programs == 1 or -(-n_tiles // (programs - 1)) > longest, "one of them is a partial row for nothing"


def test_a_row_s_tile_does_not_depend_on_the_number_of_rows() -> None:
    few, many = (tiles.backward_config(n_rows, 4096, 2, True, H200) for n_rows in (3, 10**6))
    assert replace(few, n_programs=0) == replace(many, n_programs=0)


def test_another_gpu_gets_what_its_shared_memory_holds() -> None:
    small = Processors(count=16, shared_memory=64 * 1024, cooperative=False)
    backward = tiles.backward_config(10**6, 8192, 2, True, small)
    in_flight = (backward.num_stages - 1) * 2 * 8192 * 2
    assert backward.num_stages < tiles.backward_config(10**6, 8192, 2, True, H200).num_stages
    assert in_flight <= small.shared_memory
    assert tiles.split_config(65536, 2, small) is None


WIDTHS = (*range(1, 700, 37), 1000, 1024, 1100, 2100, 3000, 4096, 4104, 5120, 6000, 11008, 16384, 20000, 33000, 65536)


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("row_wise", [True, False])
@pytest.mark.parametrize("casting_mode", ["llama", "none"])
def test_the_tile_of_a_shape_wastes_at_most_an_eighth(casting_mode: str, row_wise: bool, itemsize: int) -> None:
    for n_cols in WIDTHS:
        entry = tiles._entry("forward", n_cols, itemsize, row_wise, casting_mode)
        widest = min(entry["block_cols"], 1 << (n_cols - 1).bit_length())
        least = 512 * entry["num_warps"] // itemsize  # 16 bytes a thread
        tile = tiles.forward_config(n_cols, itemsize, row_wise, casting_mode)
        beyond = {cols: -(-n_cols // cols) * cols - n_cols for cols in (tile.block_cols, 2 * tile.block_cols)}
        assert tile.block_cols <= max(least, 1) or 8 * beyond[tile.block_cols] <= n_cols
        assert tile.block_cols == widest or 8 * beyond[2 * tile.block_cols] > n_cols, "halved for nothing"
        assert tile.block_cols >= min(least, widest)
        assert tile.n_held == min(
            -(-n_cols // tile.block_cols), entry["n_held"] * entry["block_cols"] // tile.block_cols
        )


@pytest.mark.parametrize("shared_memory", [16, 48, 64, 100, 160])
def test_another_gpu_has_as_many_rows_in_flight_as_fit(shared_memory: int) -> None:
    gpu = Processors(count=16, shared_memory=shared_memory * 1024, cooperative=False)
    for n_cols, itemsize, row_wise in itertools.product(WIDTHS, (2, 4, 8), (True, False)):
        entry = tiles._entry("backward", n_cols, itemsize, row_wise)
        tile = tiles.backward_config(10**6, n_cols, itemsize, row_wise, gpu)
        columns = -(-n_cols // tile.block_cols) * tile.block_cols
        bytes_in_flight = (2 + entry["reload_weight"]) * tile.block_rows * columns * itemsize
        stages = [n for n in range(2, entry["num_stages"] + 1) if (n - 1) * bytes_in_flight + 2048 <= gpu.shared_memory]
        assert tile.num_stages == max(stages, default=1)
        assert tile.n_programs == entry["programs_a_processor"] * 16


def test_another_gpu_may_be_filled_to_the_last_byte() -> None:
    n_cols = 8192
    bytes_in_flight = (2 + tiles._entry("backward", n_cols, 2, True)["reload_weight"]) * n_cols * 2
    for missing, num_stages in ((0, 2), (1, 1)):
        gpu = Processors(16, bytes_in_flight + 2048 - missing, cooperative=False)
        assert tiles.backward_config(10**6, n_cols, 2, True, gpu).num_stages == num_stages


@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_another_shape_is_split_above_the_columns_of_the_entry_before(itemsize: int) -> None:
    first, *_ = tiles._table()["split", itemsize, True]
    assert tiles.split_config(first["above_n_cols"], itemsize, H200) is None
    assert tiles.split_config(first["above_n_cols"] + 1, itemsize, H200) is not None


def test_another_gpu_splits_rows_where_one_group_fits() -> None:
    entry = tiles._table()["split", 2, True][-1]
    n_splits = 65536 // entry["block_cols"]
    one_group = -(-n_splits // entry["programs_a_processor"])
    for count in (1, one_group, 16, 132):
        n_groups = entry["programs_a_processor"] * count // n_splits
        split = tiles.split_config(65536, 2, Processors(count, 232448, cooperative=True))
        assert (split.n_groups if split else 0) == n_groups


@pytest.mark.parametrize(
    ("n_partials", "n_cols", "wanted"),
    [
        (1, 1, (1, 1, 1)),
        (3, 4096, (4, 16, 1)),
        (16, 4096, (16, 16, 1)),
        (31, 4096, (32, 16, 1)),
        (32, 16896, (32, 16, 2)),
        (33, 65536, (64, 32, 2)),
        (132, 65536, (64, 32, 4)),
        (264, 20000, (64, 32, 4)),
        (10**4, 8, (256, 8, 8)),
    ],
)
def test_the_sum_of_partial_rows_has_a_shape_of_its_own(
    n_partials: int, n_cols: int, wanted: tuple[int, int, int]
) -> None:
    # Up to 256 partial rows at a time, or 64 of wide rows, 64 or 128 bytes of each, a warp for 16 of them.
    tile = tiles.weight_gradient_config(n_partials, n_cols, H200)
    assert (tile.block_partials, tile.block_cols, tile.num_warps) == wanted


@pytest.mark.parametrize(
    ("make", "row_stride"),
    [
        (lambda: torch.zeros(4, 6), 6),
        (lambda: torch.zeros(2, 4, 6), 6),
        (lambda: torch.zeros(4, 9)[:, :6], 9),
        (lambda: torch.zeros(2, 4, 9)[:, :, 1:7], 9),
        (lambda: torch.zeros(6).expand(4, 6), 0),
        (lambda: torch.zeros(4, 2, 6)[:, :1], 12),
        (lambda: torch.zeros(6), 6),
        (lambda: torch.zeros(4, 3)[:, 1:2], 3),
        (lambda: torch.zeros(4, 12)[:, ::2], None),
        (lambda: torch.zeros(6, 4).t(), None),
        (lambda: torch.zeros(2, 6, 4, 5).permute(0, 2, 3, 1), None),
        (lambda: torch.zeros(2, 3, 4, 6).transpose(1, 2), None),
        (lambda: torch.zeros(2, 1, 6).expand(2, 3, 6), None),
    ],
)
def test_rows_are_used_in_place_wherever_one_stride_describes_them(make, row_stride) -> None:
    t = make()
    assert plans.row_stride(t.shape, t.stride()) == row_stride


@pytest.mark.gpu
def test_the_launch_key_holds_all_that_specialises_a_kernel() -> None:
    # The same key space, driven through aligned and misaligned pointers, dtypes, strides, settings and back again.
    base = torch.randn(4, 80, device="cuda")
    weights = torch.randn(81, device="cuda")
    cases = itertools.product((0, 1, 2, 4), (0, 1), (torch.float32, torch.bfloat16), (64, 33, 64), (0.0, 1.0))
    for start, w_start, w_dtype, n_cols, offset in cases:
        x = base[:, start : start + n_cols]
        w = weights.to(w_dtype)[w_start : w_start + n_cols]
        got = launch.rms_norm_forward(x, w, eps=1e-6, offset=offset, casting_mode="gemma")
        with pytest.MonkeyPatch.context() as patch:
            for name in ("forward_plan", "_forward_variant"):  # forgets what it compiled
                patch.setattr(plans, name, getattr(plans, name).__wrapped__)
            wanted = launch.rms_norm_forward(x, w, eps=1e-6, offset=offset, casting_mode="gemma")
        assert torch.equal(got[0], wanted[0])


@pytest.mark.gpu
def test_cuda_graph_replays_the_launch() -> None:
    x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(1024, device="cuda", dtype=torch.bfloat16)
    launch.rms_norm_forward(x, w, eps=1e-6, offset=0.0, casting_mode="llama")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, _ = launch.rms_norm_forward(x, w, eps=1e-6, offset=0.0, casting_mode="llama")
    x.copy_(torch.randn_like(x))
    graph.replay()
    wanted, _ = launch.rms_norm_forward(x, w, eps=1e-6, offset=0.0, casting_mode="llama")
    assert torch.equal(y, wanted)
