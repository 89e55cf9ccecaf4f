"""What host code promises and no value shows: keys of compiled launches, work that is not done, limits, versions."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from rmsnorm import LigerRMSNormFunction, liger_rms_norm, ops  # noqa: E402
from rmsnorm.fused import launch, plans, tiles  # noqa: E402
from rmsnorm.fused.tiles import BackwardConfig, Processors  # noqa: E402
from rmsnorm.fused.variant import Variant, _key, _resident_programs  # noqa: E402

H200 = Processors(count=132, shared_memory=232448, cooperative=True)


def test_the_launch_key_tells_apart_what_is_compiled_apart() -> None:
    pointers = [0, 16, 32, None]
    keys = {_key(0, pointers, (5, 7))}
    for other in ([8, 16, 32, None], [0, 24, 32, None], [0, 16, 40, None], [8, 24, 32, None], [0, 24, 40, None]):
        keys.add(_key(0, other, (5, 7)))
    for integers in ((2**31, 7), (5, 2**31), (2**31, 2**31)):
        keys.add(_key(0, pointers, integers))
    keys.add(_key(1, pointers, (5, 7)))
    assert len(keys) == 10
    assert _key(0, pointers, (2**31 - 1, 3)) == _key(0, [160, 1600, 64, None], (1, 2))


def test_contraction_is_pinned() -> None:
    variant = Variant(None, (), num_warps=4)
    assert variant._options == {"num_warps": 4, "enable_fp_fusion": True}
    assert Variant(None, (), 4, cooperative=True)._options["launch_cooperative_grid"] is True


def test_resident_programs_never_exceed_what_a_processor_grants() -> None:
    h200 = SimpleNamespace(
        warp_size=32,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        shared_memory_per_multiprocessor=228 * 1024,
        multi_processor_count=132,
    )
    # 7 warps of 255 registers fit by registers, of which 4 are granted at once; 8 KiB and the 1 KiB that CUDA keeps.
    assert _resident_programs(255, 0, 4, h200) == 2 * 132
    assert _resident_programs(224, 0, 4, h200) == 2 * 132
    assert _resident_programs(216, 0, 1, h200) == 8 * 132
    assert _resident_programs(32, 227 * 1024, 4, h200) == 132
    assert _resident_programs(32, 228 * 1024, 4, h200) == 0
    assert _resident_programs(32, 0, 32, h200) == 2 * 132
    assert _resident_programs(16, 0, 32, h200) == 2 * 132  # by threads alone
    assert _resident_programs(16, 0, 1, h200) == 16 * 132  # half of what sm_90 allows, all of what sm_86 does


def test_the_widest_fused_row_is_65536() -> None:
    at, beyond = (torch.empty(1, n, device="meta") for n in (65536, 65537))
    assert ops._uses_kernels(at)
    assert not ops._uses_kernels(beyond)


def test_a_tuned_number_of_columns_gets_its_own_tile() -> None:
    for direction, itemsize, row_wise in tiles._table():
        if direction == "forward":
            for entry in tiles._table()[direction, itemsize, row_wise]:
                if not entry["n_cols"] % entry["block_cols"]:
                    mode = entry.get("casting_mode", "llama")
                    tile = tiles.forward_config(entry["n_cols"], itemsize, row_wise, mode)
                    assert tile.block_cols == entry["block_cols"]
                    assert tile.num_warps == entry["num_warps"]


@pytest.mark.parametrize("order", [1, -1])
def test_an_entry_of_one_casting_mode_is_for_that_one_alone(
    order: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"direction": "forward", "itemsize": 2, "row_wise": True, "n_cols": 128, "block_cols": 64, "n_held": 1}
    entries = [
        {**about, "block_rows": 1, "num_warps": 2, "casting_mode": "none"},
        {**about, "block_rows": 1, "num_warps": 4},
    ]
    (tmp_path / "tuned.json").write_text(json.dumps({"entries": entries[::order]}))
    monkeypatch.setattr(tiles.resources, "files", lambda _: tmp_path)
    monkeypatch.setattr(tiles, "_tuned", tiles._tuned.__wrapped__)
    table = tiles._table.__wrapped__()
    monkeypatch.setattr(tiles, "_table", lambda: table)
    warps = {
        mode: tiles.forward_config.__wrapped__(100, 2, True, mode).num_warps for mode in ("llama", "gemma", "none")
    }
    assert warps == {"llama": 4, "gemma": 4, "none": 2}


@pytest.mark.parametrize("n_cols", [64, 200, 1000, 4096])
@pytest.mark.parametrize("row_mode", [None, True, False])
def test_a_tile_does_not_depend_on_the_number_of_rows(
    row_mode: bool | None, n_cols: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few rows in a hundred differ by another order of additions: a test of bits would need many.
    seen: list[Any] = []

    def variant(config: Any, *_: Any) -> Any:
        # The warps of a forward may halve where a row keeps its threads: test_many_rows.py.
        seen.append(replace(config, **({"n_programs": 0} if isinstance(config, BackwardConfig) else {"num_warps": 0})))
        return SimpleNamespace(launch=lambda *_: None)

    for name in ("_forward_variant", "_backward_variant"):
        monkeypatch.setattr(plans, name, variant)
    for name in ("forward_plan", "backward_plan"):  # nothing is remembered of this
        monkeypatch.setattr(plans, name, getattr(plans, name).__wrapped__)
    about = {"offset": 0.0, "casting_mode": "llama", "row_mode": row_mode}
    for n_rows in (1, 2, 3, 17, 1000, 10**6):
        x = torch.empty(n_rows, n_cols, device="meta")
        monkeypatch.setattr(plans, "processors", lambda _: H200)
        _, rstd = launch.rms_norm_forward(x, None, eps=0.5, **about)
        launch.rms_norm_backward(x, x, None, rstd, dx=torch.empty_like(x), needs_dw=False, **about)
    assert len(seen) == 12
    assert len(set(seen)) == 2, "one tile forward, one backward"


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("row_mode", [None, True, False])
def test_every_setting_reaches_the_launches(row_mode: bool | None, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """row_mode above all, which no result needs to show."""
    seen: list[dict[str, Any]] = []
    for name in ("rms_norm_forward", "rms_norm_backward"):
        original = getattr(launch, name)

        def told(*given: Any, original: Any = original, **about: Any) -> Any:
            bound = inspect.signature(original).bind(*given, **about).arguments
            seen.append({key: bound[key] for key in ("eps", "offset", "casting_mode", "row_mode") if key in bound})
            return original(*given, **about)

        monkeypatch.setattr(launch, name, told)
    x = torch.randn(3, 40, requires_grad=grad)
    w = torch.randn(40, requires_grad=grad)
    y = liger_rms_norm(x, w, 0.7, 0.5, "gemma", False, row_mode)
    wanted = {"offset": 0.5, "casting_mode": "gemma", "row_mode": row_mode}
    if grad:
        y.sum().backward()
    assert seen == [{"eps": 0.7, **wanted}] + [wanted] * grad


@pytest.mark.parametrize("tensor", ["dy", "x", "w", "rstd"])
def test_every_tensor_of_a_backward_may_have_strides(tensor: str) -> None:
    tensors = {"dy": torch.randn(6, 40), "x": torch.randn(6, 40), "w": torch.randn(40), "rstd": torch.rand(6) + 0.5}
    strided = {name: torch.stack((t, t + 1), -1)[..., 0] if name == tensor else t for name, t in tensors.items()}
    assert [name for name, t in strided.items() if not t.is_contiguous()] == [tensor]
    results = []
    for given in (tensors, strided):
        dx = torch.empty(6, 40)
        dw = launch.rms_norm_backward(**given, offset=0.5, casting_mode="llama", dx=dx, needs_dw=True)
        results.append((dx, dw))
    assert all(map(torch.equal, *results))


def test_no_program_is_launched_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # One too many writes nothing and no result shows it.
    programs: list[int] = []
    monkeypatch.setattr(Variant, "launch", lambda self, n_programs, *_: programs.append(n_programs))
    x, w = torch.ones(7, 100), torch.ones(100)
    rows = tiles.ForwardConfig(1, 128, 1, 1)
    _, rstd = launch.rms_norm_forward(x, w, eps=0.5, offset=0.0, casting_mode="llama", config=rows)
    tile = BackwardConfig(2, 128, 1, 1, 3, False)
    launch.rms_norm_backward(
        x, x, w, rstd, offset=0.0, casting_mode="llama", dx=torch.empty_like(x), needs_dw=True, config=tile
    )
    finish = tiles.weight_gradient_config(3, 100, plans.INTERPRETER)
    assert programs == [7, 3, -(-100 // finish.block_cols)]


def few_rows_launches(n_rows: int, needs_dx: bool, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Kernel and number of programs of each launch of a backward with dw. Nothing is launched."""
    seen: list[tuple[str, int]] = []
    with monkeypatch.context() as patch:
        patch.setattr(Variant, "launch", lambda self, n, *_: seen.append((self._kernel.fn.__name__, n)))
        x, w = torch.ones(n_rows, 100), torch.ones(100)
        about = {"offset": 0.0, "casting_mode": "llama", "row_mode": True}
        dx = torch.empty_like(x) if needs_dx else None
        launch.rms_norm_backward(x, x, w, torch.ones(n_rows), dx=dx, needs_dw=True, **about)
    return seen


def test_few_rows_take_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    # The interpreter has four processors: few rows are four.
    few = tiles.few_rows_config(4, 100, 4, True, plans.INTERPRETER)
    slices = -(-100 // few.sum_cols)
    name = "rms_norm_backward_few_rows_kernel"
    assert few_rows_launches(4, True, monkeypatch) == [(name, 4 + slices)]
    assert few_rows_launches(4, False, monkeypatch) == [(name, slices)]
    many = [kernel for kernel, _ in few_rows_launches(5, True, monkeypatch)]
    assert many == ["rms_norm_backward_kernel", "rms_norm_weight_gradient_kernel"]


@pytest.mark.interpret
def test_few_rows_give_the_same_bits_in_place() -> None:
    generator = torch.Generator().manual_seed(0)
    x, dy, w = (torch.randn(shape, generator=generator) for shape in ((2, 100), (2, 100), (100,)))
    about = {"offset": 0.5, "casting_mode": "llama"}
    _, rstd = launch.rms_norm_forward(x, w, eps=0.7, **about)
    dx, over = torch.empty_like(x), dy.clone()
    dw = launch.rms_norm_backward(dy, x, w, rstd, dx=dx, needs_dw=True, **about)
    assert torch.equal(launch.rms_norm_backward(over, x, w, rstd, dx=over, needs_dw=True, **about), dw)
    assert torch.equal(over, dx)


@pytest.mark.interpret
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_there_is_no_node(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(3, 8), torch.randn(8, requires_grad=True)
    wanted = liger_rms_norm(x, w, 1e-6).detach()

    def node(*_: Any) -> None:
        raise AssertionError("a node was made")

    monkeypatch.setattr(LigerRMSNormFunction, "forward", node)
    with mode():
        assert torch.equal(liger_rms_norm(x, w, 1e-6), wanted)
    with pytest.raises(AssertionError, match="a node was made"):
        liger_rms_norm(x, w, 1e-6)


@pytest.mark.interpret
@pytest.mark.parametrize("asked", ["no_grad", "inference_mode", "frozen", "x", "w"])
def test_rstd_is_stored_where_a_gradient_can_be_asked_for(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[bool] = []
    forward = launch.rms_norm_forward

    def record(*args: Any, **settings: Any) -> Any:
        y, rstd = forward(*args, **settings)
        stored.append(rstd is not None)
        return y, rstd

    monkeypatch.setattr(launch, "rms_norm_forward", record)
    x = torch.randn(3, 8, requires_grad=asked not in ("frozen", "w"))
    w = torch.randn(8, requires_grad=asked not in ("frozen", "x"))
    with getattr(torch, asked, torch.enable_grad)():
        y = liger_rms_norm(x, w, 1e-6)
    assert stored == [asked in ("x", "w")]
    assert torch.equal(y, liger_rms_norm(x.detach().requires_grad_(), w, 1e-6)), "the bits depend on it"


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What every backward launch is asked for; none of them happens."""
    seen: list[dict[str, Any]] = []

    def record(dy: Any, x: Any, w: Any, rstd: Any, *_: Any, **asked: Any) -> Any:
        seen.append(asked | {"over_dy": asked["dx"] is dy})
        return torch.zeros_like(w) if asked["needs_dw"] and w is not None else None

    monkeypatch.setattr(launch, "rms_norm_backward", record)
    return seen


@pytest.mark.interpret
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("frozen", ["x", "w"])
def test_a_gradient_that_nobody_needs_is_not_computed(
    launches: list[dict[str, Any]], in_place: bool, frozen: str
) -> None:
    # More rows than are few, and dY is the engine's alone: in place, it is written over.
    x, w = torch.ones(9, 8, requires_grad=frozen != "x"), torch.ones(8, requires_grad=frozen != "w")
    y = liger_rms_norm(x, w, 1e-6, in_place=in_place)
    (y * torch.ones(9, 8)).sum().backward()
    (settings,) = launches
    assert settings.pop("over_dy") == (in_place and frozen != "x")
    assert settings["needs_dw"] == (frozen != "w")
    assert (settings["dx"] is not None) == (frozen != "x")


def split_launches(n_cols: int, row_mode: bool | None, needs_dx: bool, needs_dw: bool) -> list[bool]:
    """Whether each split launch that an H200 would make writes partial rows of dw. Nothing is launched."""
    seen: list[bool] = []

    def split_variant(*settings: Any, **passes: bool) -> Any:
        seen.append(settings[-2])
        return SimpleNamespace(launch=lambda *_: None, resident_programs=lambda *_: 10**6)

    x, w = torch.ones(2, n_cols, dtype=torch.float16), torch.ones(n_cols, dtype=torch.float16)
    dx = torch.empty_like(x) if needs_dx else None
    about = {"offset": 0.0, "casting_mode": "llama", "row_mode": row_mode}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "processors", lambda device: H200)
        for name in ("backward_plan", "weight_gradient_plan"):  # nothing is remembered of this
            patch.setattr(plans, name, getattr(plans, name).__wrapped__)
        patch.setattr(plans, "split_variant", split_variant)
        patch.setattr(plans.Variant, "launch", lambda *_: None)
        launch.rms_norm_backward(x, x, w, torch.ones(2), dx=dx, needs_dw=needs_dw, **about)
    return seen


def test_split_rows_are_for_wide_rows_whose_dx_is_needed() -> None:
    assert split_launches(65536, None, needs_dx=True, needs_dw=True)
    assert not split_launches(65536, None, needs_dx=False, needs_dw=True)
    assert not split_launches(65536, False, needs_dx=True, needs_dw=True)
    assert not split_launches(1024, None, needs_dx=True, needs_dw=True)


def test_split_rows_of_a_frozen_weight_do_no_work_for_it() -> None:
    assert set(split_launches(65536, None, needs_dx=True, needs_dw=False)) == {False}
    assert set(split_launches(65536, None, needs_dx=True, needs_dw=True)) == {True}


@pytest.mark.parametrize("needs_dw", [True, False])
def test_a_frozen_weight_gets_no_memory_for_its_gradient(needs_dw: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors: list[Any] = []
    monkeypatch.setattr(plans.Variant, "launch", lambda variant, n_programs, given, integers: tensors.append(given))
    x, w = torch.ones(4, 24), torch.ones(24)
    about = {"offset": 0.0, "casting_mode": "llama", "dx": torch.empty_like(x), "needs_dw": needs_dw}
    launch.rms_norm_backward(x, x, w, torch.ones(4), **about)
    assert (tensors[0][-1] is not None) == needs_dw


@pytest.mark.interpret
def test_a_strided_rstd_is_read_right() -> None:
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn((4, 24), generator=generator) for _ in range(2))
    about = {"offset": 0.0, "casting_mode": "llama"}
    _, rstd = launch.rms_norm_forward(x, None, eps=0.7, **about)
    far = torch.full((4, 3), torch.nan)
    far[:, 1] = rstd
    near_dx, far_dx = torch.empty_like(x), torch.empty_like(x)
    launch.rms_norm_backward(dy, x, None, rstd, dx=near_dx, needs_dw=False, **about)
    launch.rms_norm_backward(dy, x, None, far[:, 1], dx=far_dx, needs_dw=False, **about)
    assert torch.equal(near_dx, far_dx)


def test_rstd_on_another_device_is_an_error() -> None:
    x, w = torch.ones(2, 8), torch.ones(8)
    rstd = torch.ones(2, device="meta")
    with pytest.raises(ValueError, match="RSTD on meta"):
        torch.ops.rmsnorm.rms_norm_backward(x, x, w, rstd, 1e-6, 0.0, "llama", None, True, True)


@pytest.mark.parametrize("name", ["x", "w"])
def test_an_input_that_was_overwritten_is_noticed_by_the_backward(name: str) -> None:
    leaves = {"x": torch.ones(2, 8, requires_grad=True), "w": torch.ones(8, requires_grad=True)}
    y = liger_rms_norm(leaves["x"], leaves["w"], 1e-6)
    leaves[name].detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
