"""The residual stream: S = X + R and its norm, bit for bit what addition and norm are one after the other.

    S = R(X + R)          Y = RMSNorm(S)          dX = dR = R(dNorm(dY; S) + dS)

dNorm is the norm's dX before its rounding. In float32 and float64 nothing is rounded there, and dX is the sum of two
tensors that the norm alone and the program around it give.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rmsnorm import (
    LigerFusedAddRMSNorm,
    LigerFusedAddRMSNormFunction,
    LigerRMSNorm,
    liger_fused_add_rms_norm,
    liger_rms_norm,
    ops,
)
from rmsnorm.fused import launch
from rmsnorm.fused.tiles import BackwardConfig, FewRowsConfig, ForwardConfig, SplitConfig
from tests.support import DEVICES

pytestmark = pytest.mark.torch
MODES = ("llama", "gemma", "none")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
EPS, OFFSET = 0.3, 0.5
Tensors = tuple[torch.Tensor, ...]


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def inputs(n_rows: int, n_cols: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[torch.Tensor]:
    """x, r, dy, ds and w."""
    rows = [draw(n_rows, n_cols, seed=seed, dtype=dtype, device=device) for seed in range(4)]
    return [*rows, draw(n_cols, seed=4, dtype=dtype, device=device)]


def results(x: Any, r: Any, w: Any, dy: Any, ds: Any, **settings: Any) -> Tensors:
    """y, s, dx, dr and, with a weight, dw."""
    leaves = [t.detach().requires_grad_() for t in (x, r, w) if t is not None]
    y, s = liger_fused_add_rms_norm(*leaves, *([] if w is not None else [None]), EPS, **settings)
    return y.detach(), s.detach(), *torch.autograd.grad([y, s], leaves, [dy, ds])


def equal(got: Tensors, wanted: Tensors) -> bool:
    return all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def unrounded_dx(s: torch.Tensor, w: torch.Tensor | None, dy: torch.Tensor, offset: float, mode: str) -> torch.Tensor:
    """dNorm in the compute dtype: the norm's dX of the same numbers in that dtype, where nothing is rounded.

    A casting mode shows in dX by RSTD and the shifted weight alone.
    """
    _, rstd = ops.rms_norm_forward(s, w, EPS, offset, mode, None)
    c = rstd.dtype
    shifted = None if w is None else w.to(c) + offset
    if shifted is not None and mode == "none":
        shifted = shifted.to(s.dtype).to(c)
    return ops.rms_norm_backward(dy.to(c), s.to(c), shifted, rstd, EPS, 0.0, "gemma", None, True, False)[0]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("weight", ["same", "float32", "none"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_bits_of_addition_and_norm(mode: str, dtype: torch.dtype, weight: str, in_place: bool, machine: str) -> None:
    for n_rows, offset in ((3, 0.0), (7, 0.5), (3, 1.0)):  # few rows and many, for the interpreter's four processors
        x, r, dy, ds, w = inputs(n_rows, 24, dtype)
        w = {"same": w, "float32": w.float(), "none": None}[weight]
        about: dict[str, Any] = {"offset": offset, "casting_mode": mode, "in_place": in_place}
        y, s, dx, dr, *dw = results(x, r, w, dy, ds, **about)
        assert torch.equal(s, x + r)
        assert torch.equal(y, liger_rms_norm(s, w, EPS, **about))
        c = torch.promote_types(dtype, torch.float32)
        assert torch.equal(dx, (unrounded_dx(s, w, dy, offset, mode) + ds.to(c)).to(dtype))
        assert torch.equal(dr, dx)
        if w is not None:
            leaf = w.clone().requires_grad_()
            assert torch.equal(dw[0], torch.autograd.grad(liger_rms_norm(s, leaf, EPS, **about), leaf, dy)[0])
            assert dw[0].dtype == w.dtype
        assert y.dtype == s.dtype == dx.dtype == dtype


def test_the_sum_is_rounded_once_and_before_the_norm(machine: str) -> None:
    """One row whose sum rounds by a lot: 256 + 1 is 256 in bfloat16, and so are the squares."""
    x, r = torch.full((1, 16), 256.0).bfloat16(), torch.ones(1, 16).bfloat16()
    y, s = liger_fused_add_rms_norm(x, r, None, 0.0, casting_mode="gemma")
    assert (s == 256).all() and (y == 1).all()
    x[0, :8] = 3.0  # 4 is exact, 256 is not: the ratio of the two shows which sum was normalized
    y, s = liger_fused_add_rms_norm(x, r, None, 0.0, casting_mode="none")
    assert torch.equal(y, liger_rms_norm(x + r, None, 0.0, casting_mode="none"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_either_gradient_may_be_absent(dtype: torch.dtype, machine: str) -> None:
    x, r, dy, ds, w = inputs(7, 24, dtype)
    leaves = [t.clone().requires_grad_() for t in (x, r, w)]
    y, s = liger_fused_add_rms_norm(*leaves, EPS, OFFSET)
    dx, dr, dw = torch.autograd.grad(s, leaves, ds, retain_graph=True, allow_unused=True)
    assert torch.equal(dx, ds) and torch.equal(dr, ds) and dw is None
    got = torch.autograd.grad(y, leaves, dy)
    norm = [t.clone().requires_grad_() for t in (x + r, w)]
    dx, dw = torch.autograd.grad(liger_rms_norm(*norm, EPS, OFFSET), norm, dy)
    assert equal(got, (dx, dx, dw))


@pytest.mark.parametrize("needed", [n for n in itertools.product((True, False), repeat=3) if any(n)], ids=str)
def test_an_unneeded_gradient_is_none_and_the_others_keep_their_bits(needed: tuple[bool, ...], machine: str) -> None:
    x, r, dy, ds, w = inputs(7, 24)
    wanted = results(x, r, w, dy, ds)[2:]
    leaves = [t.clone().requires_grad_(n) for t, n in zip((x, r, w), needed, strict=True)]
    y, s = liger_fused_add_rms_norm(*leaves, EPS)
    assert y.requires_grad
    torch.autograd.backward([y, s], [dy, ds])
    for leaf, n, gradient in zip(leaves, needed, wanted, strict=True):
        assert torch.equal(leaf.grad, gradient) if n else leaf.grad is None


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row_strided": lambda t: torch.cat([t, t], dim=-1)[..., : t.shape[-1]],
    "misaligned": lambda t: torch.nn.functional.pad(t, (1, 2))[..., 1:-2],
    "column_strided": lambda t: t.repeat_interleave(2, dim=-1)[..., ::2],
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
}


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("which", ["x", "r", "dy", "ds", "all"])
def test_layouts(which: str, kind: str, machine: str) -> None:
    names = ("x", "r", "dy", "ds")
    given = {name: draw(3, 4, 24, seed=i) for i, name in enumerate(names)}
    w = draw(24, seed=4)
    wanted = results(w=w, **given)
    laid = {name: LAYOUTS[kind](t) if which in (name, "all") else t for name, t in given.items()}
    assert all(torch.equal(laid[name], given[name]) for name in names)
    got = results(w=w, **laid)
    assert equal(got, wanted)
    assert got[0].is_contiguous() and got[1].is_contiguous()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_rows", [3, 5])  # few and many, for the interpreter's four processors
def test_row_strides_of_every_alignment(n_rows: int, device: str) -> None:
    x, r, dy, ds, w = inputs(n_rows, 24, device=device)
    wanted = results(x, r, w, dy, ds)
    for steps in itertools.permutations((33, 34, 36, 40)):
        far = [
            torch.full((n_rows, step), torch.nan, device=device)[:, 4:28].copy_(t)
            for t, step in zip((x, r, dy, ds), steps, strict=True)
        ]
        assert equal(results(far[0], far[1], w, far[2], far[3]), wanted), steps


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("needs_rstd", [True, False])
@pytest.mark.parametrize(
    "config",
    [
        ForwardConfig(block_rows=1, block_cols=128, n_held=1, num_warps=1),
        ForwardConfig(block_rows=1, block_cols=32, n_held=4, num_warps=1),
        ForwardConfig(block_rows=1, block_cols=32, n_held=2, num_warps=1),
        ForwardConfig(block_rows=2, block_cols=32, n_held=0, num_warps=1),
        ForwardConfig(block_rows=4, block_cols=128, n_held=1, num_warps=4),
    ],
    ids=str,
)
def test_forward_tiles(config: ForwardConfig, needs_rstd: bool, device: str) -> None:
    about: dict[str, Any] = {"eps": EPS, "offset": OFFSET, "config": config, "needs_rstd": needs_rstd}
    for mode, dtype in itertools.product(MODES, (torch.bfloat16, torch.float64)):
        x, r, *_, w = inputs(5, 100, dtype, device)
        s = torch.full_like(x, torch.nan)
        y, rstd = launch.rms_norm_forward(x, w, r=r, s=s, casting_mode=mode, **about)
        wanted = launch.rms_norm_forward(x + r, w, casting_mode=mode, **about)
        assert torch.equal(s, x + r) and torch.equal(y, wanted[0])
        assert torch.equal(rstd, wanted[1]) if needs_rstd else rstd is None


BACKWARD_TILES = [
    *(BackwardConfig(*tile, 1, 2, n, reload) for tile, n, reload in (((1, 128), 3, True), ((2, 32), 2, False))),
    BackwardConfig(4, 64, 1, 1, 1, False),
    FewRowsConfig(BackwardConfig(1, 128, 1, 1, 5, False), 2, 16),
    FewRowsConfig(BackwardConfig(2, 64, 1, 1, 3, True), 4, 32),
    *(SplitConfig(n_splits, 32, 1, n_groups, reload) for n_splits, n_groups, reload in ((4, 2, True), (4, 3, False))),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("config", BACKWARD_TILES, ids=str)
def test_backward_tiles(config: Any, in_place: bool, device: str) -> None:
    for dtype, needs_dw in itertools.product((torch.float32, torch.float64), (True, False)):
        s, _, dy, ds, w = inputs(5, 100, dtype, device)
        about: dict[str, Any] = {"offset": OFFSET, "casting_mode": "llama", "config": config, "needs_dw": needs_dw}
        _, rstd = launch.rms_norm_forward(s, w, eps=EPS, offset=OFFSET, casting_mode="llama")
        found = []
        for gradient in (ds, None):
            upstream = dy.clone()
            dx = upstream if in_place else torch.full_like(s, torch.nan)
            found.append((dx, launch.rms_norm_backward(upstream, s, w, rstd, dx=dx, ds=gradient, **about)))
        (dx, dw), (norm, norm_dw) = found
        wanted = norm + ds
        if device == "cuda":  # product and sum may be contracted to one rounding there
            unit = torch.finfo(dtype).eps
            assert ((dx - wanted).abs() <= unit * (norm.abs() + wanted.abs())).all()
        else:
            assert torch.equal(dx, wanted)
        assert torch.equal(dw, norm_dw) if needs_dw else dw is None


@pytest.mark.parametrize("config", BACKWARD_TILES, ids=str)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.interpret
def test_every_kernel_rounds_once(weighted: bool, config: Any) -> None:
    """Beside the same launch in float32, of the same numbers, whose sum is rounded here."""
    s, _, dy, ds, weight = inputs(5, 100, torch.bfloat16)
    w = weight if weighted else None
    about: dict[str, Any] = {"offset": OFFSET, "casting_mode": "llama"}
    _, rstd = launch.rms_norm_forward(s, w, eps=EPS, **about)
    found = []
    for given in ((dy, s, w, ds), tuple(None if t is None else t.float() for t in (dy, s, w, ds))):
        dx = torch.empty_like(given[0])
        launch.rms_norm_backward(*given[:3], rstd, dx=dx, ds=given[3], needs_dw=False, config=config, **about)
        found.append(dx)
    assert torch.equal(found[0], found[1].bfloat16())


@pytest.mark.parametrize("n_rows", [1, 5, 9])
def test_a_row_does_not_depend_on_the_rows_beside_it(n_rows: int, machine: str) -> None:
    x, r, dy, ds, w = inputs(9, 100, torch.bfloat16)
    whole = results(x, r, w, dy, ds)[:4]
    part = results(x[:n_rows], r[:n_rows], w, dy[:n_rows], ds[:n_rows])[:4]
    assert equal(part, tuple(t[:n_rows] for t in whole))


def test_wide_rows_of_every_path(machine: str) -> None:
    for n_cols in (16385, 65537):  # streamed chunks and split rows, and wider than any kernel
        x, r, dy, ds, w = inputs(2, n_cols)
        y, s, dx, dr, dw = results(x, r, w, dy, ds)
        leaves = [t.clone().requires_grad_() for t in (x + r, w)]
        norm = liger_rms_norm(*leaves, EPS)
        norm_dx, norm_dw = torch.autograd.grad(norm, leaves, dy)
        assert equal((y, s, dx, dr, dw), (norm.detach(), x + r, norm_dx + ds, norm_dx + ds, norm_dw)), n_cols


def test_no_rows(machine: str) -> None:
    y, s, dx, dr, dw = results(*(torch.ones(0, 24),) * 2, torch.ones(24), *(torch.ones(0, 24),) * 2)
    assert y.shape == s.shape == dx.shape == dr.shape == (0, 24) and (dw == 0).all()


@pytest.mark.interpret
def test_where_nobody_can_ask_for_a_gradient_there_is_no_rstd(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    forward = launch.rms_norm_forward

    def spy(*tensors: Any, **settings: Any) -> Any:
        asked.append(settings["needs_rstd"])
        return forward(*tensors, **settings)

    monkeypatch.setattr(launch, "rms_norm_forward", spy)
    x, r, *_, w = inputs(3, 24)
    with torch.no_grad():
        wanted = liger_fused_add_rms_norm(x.requires_grad_(), r, w, EPS)
    assert equal(liger_fused_add_rms_norm(x.detach(), r, w, EPS), wanted)
    got = liger_fused_add_rms_norm(x, r, w, EPS)
    assert asked == [False, False, True] and equal(tuple(t.detach() for t in got), wanted)


def test_x_and_r_are_not_written(machine: str) -> None:
    x, r, dy, ds, w = inputs(7, 24)
    before = [t.clone() for t in (x, r, dy, ds, w)]
    results(x, r, w, dy, ds, in_place=True)
    assert equal((x, r, dy, ds, w), tuple(before))


def test_an_s_that_was_overwritten_is_an_error(machine: str) -> None:
    x, r, *_, w = inputs(3, 24)
    y, s = liger_fused_add_rms_norm(x.requires_grad_() * 1.0, r, w, EPS)
    s.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("enabled", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_changes_nothing(enabled: torch.dtype, machine: str) -> None:
    x, r, dy, ds, w = inputs(3, 24)
    wanted = results(x, r, w, dy, ds)
    with torch.autocast("cpu", enabled):
        assert equal(results(x, r, w, dy, ds), wanted)


# Derivatives


def doubles() -> list[torch.Tensor]:
    return [
        draw(*shape, seed=i, dtype=torch.float64).requires_grad_() for i, shape in enumerate(((2, 5), (2, 5), (5,)))
    ]


@pytest.mark.parametrize("mode", MODES)
def test_create_graph_changes_no_bits(mode: str, machine: str) -> None:
    x, r, dy, ds, w = inputs(7, 24, torch.bfloat16)
    leaves = [t.clone().requires_grad_() for t in (x, r, w)]
    both = liger_fused_add_rms_norm(*leaves, EPS, OFFSET, mode)
    wanted = torch.autograd.grad(both, leaves, (dy, ds), retain_graph=True)
    got = torch.autograd.grad(both, leaves, (dy, ds), create_graph=True)
    assert equal(tuple(t.detach() for t in got), wanted)


@pytest.mark.interpret
def test_first_derivatives_of_the_kernels_are_numerically_right() -> None:
    def both(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Tensors:
        return liger_fused_add_rms_norm(x, r, w, EPS, OFFSET, "llama", False)

    assert torch.autograd.gradcheck(both, [t[..., :3].detach().requires_grad_() for t in doubles()])


@pytest.mark.parametrize("mode", MODES)
def test_first_and_second_derivatives_are_numerically_right(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "INTERPRETED", False)

    def both(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Tensors:
        return liger_fused_add_rms_norm(x, r, w, EPS, OFFSET, mode, False)

    assert torch.autograd.gradcheck(both, doubles())
    assert torch.autograd.gradgradcheck(both, doubles())


def test_third_derivatives_are_numerically_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "INTERPRETED", False)

    def second(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Tensors:
        y, s = liger_fused_add_rms_norm(x, r, w, EPS, OFFSET, "gemma", False)
        first = torch.autograd.grad(y.sin().sum() + s.pow(3).sum(), (x, r, w), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, r, w), create_graph=True)

    assert torch.autograd.gradcheck(second, doubles())


@pytest.mark.parametrize("uses", ["y", "s", "rstd", "all"])
def test_derivatives_of_every_result_of_the_operator(uses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "INTERPRETED", False)

    def function(*tensors: torch.Tensor) -> Any:
        y, s, rstd = ops.add_rms_norm_forward(*tensors, EPS, OFFSET, "gemma", None)
        return {"y": y, "s": s, "rstd": rstd, "all": y * rstd.unsqueeze(-1) + s.square()}[uses]

    x, r, w = doubles()
    if uses in ("s", "rstd"):
        w.requires_grad_(False)
    assert torch.autograd.gradcheck(function, (x, r, w))
    assert torch.autograd.gradgradcheck(function, (x, r, w))


# Errors


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "dtype": (
        lambda: torch.ones(2, 8).double(),
        TypeError,
        "R must have X's dtype, got torch.float64 and torch.float32",
    ),
    "shape": (lambda: torch.ones(3, 8), ValueError, r"R must have X's shape, got \(3, 8\) and \(2, 8\)"),
    "broadcast": (lambda: torch.ones(8), ValueError, r"R must have X's shape, got \(8,\) and \(2, 8\)"),
    "device": (lambda: torch.ones(2, 8, device="meta"), ValueError, "R on meta and X on cpu"),
    "integer": (lambda: torch.ones(2, 8).int(), TypeError, "R must be float16, bfloat16, float32 or float64, got"),
    "None": (lambda: None, TypeError, "R must be a torch.Tensor, got NoneType"),
    "sparse": (lambda: torch.ones(2, 8).to_sparse(), TypeError, "R must be a dense tensor"),
}
DOORS: dict[str, Callable[[Any, Any], Any]] = {
    "function": lambda x, r: liger_fused_add_rms_norm(x, r, None, EPS),
    "apply": lambda x, r: LigerFusedAddRMSNormFunction.apply(x, r, None, EPS),
    "module": lambda x, r: LigerFusedAddRMSNorm(8)(x, r),
    "operator": lambda x, r: ops.add_rms_norm_forward(x, r, None, EPS, 0.0, "llama", None),
    "transform": lambda x, r: torch.func.vmap(lambda x: liger_fused_add_rms_norm(x, r, None, EPS)[0])(x[None]),
}


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", BAD)
def test_a_residual_that_is_not_like_x_is_one_typed_line(kind: str, door: str, requires_grad: bool) -> None:
    make, error, text = BAD[kind]
    if door == "operator" and kind in ("None", "sparse", "device"):
        pytest.skip("the dispatcher refuses it")
    with pytest.raises(error, match=text) as caught:
        DOORS[door](torch.ones(2, 8, requires_grad=requires_grad), make())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("door", ["function", "apply"])
def test_x_and_the_settings_are_checked_as_the_norms_are(door: str) -> None:
    call = {"function": liger_fused_add_rms_norm, "apply": LigerFusedAddRMSNormFunction.apply}[door]
    x = torch.ones(2, 8)
    for arguments, error, text in (
        ((x.int(), x.int(), None, EPS), TypeError, "X must be float16"),
        ((x, x, torch.ones(7), EPS), ValueError, "W must have as many elements"),
        ((x, x, None, -1.0), ValueError, "eps must be finite"),
        ((x, x, None, EPS, 0.0, "lama"), ValueError, "casting_mode must be one of"),
        ((x, x, None, EPS, 0.0, "llama", 1), TypeError, "in_place must be a bool"),
        ((None, x, None, EPS), TypeError, "X must be a torch.Tensor"),
    ):
        with pytest.raises(error, match=text):
            call(*arguments)


@pytest.mark.parametrize("name", ["dtype", "shape"])
def test_a_ds_that_is_not_like_x_is_one_typed_line(name: str) -> None:
    x, rstd = torch.ones(2, 8), torch.ones(2)
    ds = {"dtype": x.double(), "shape": torch.ones(3, 8)}[name]
    with pytest.raises((TypeError, ValueError), match="dS must have X's"):
        ops.add_rms_norm_backward(x, x, None, rstd, ds, EPS, 0.0, "llama", None, True)


# The module


def test_the_module_is_the_norms_but_for_its_default_of_in_place() -> None:
    settings: dict[str, Any] = {
        "eps": 0.5,
        "offset": 1.0,
        "casting_mode": "gemma",
        "init_fn": "zeros",
        "row_mode": True,
    }
    ours, norm = LigerFusedAddRMSNorm(24, **settings), LigerRMSNorm(24, **settings, in_place=False)
    assert ours.extra_repr() == norm.extra_repr() and not ours.in_place
    ours.load_state_dict(norm.state_dict())
    assert list(ours.state_dict()) == ["weight"] and ours.variance_epsilon == ours.eps == 0.5
    x, r, *_, w = inputs(3, 24)
    for module in (ours, norm):
        module.weight.data.copy_(w)
    y, s = ours(x, r)
    assert torch.equal(s, x + r) and torch.equal(y, norm(s))
    assert not isinstance(ours, LigerRMSNorm), "convert_model and others ask for it"
    assert LigerFusedAddRMSNorm(24, elementwise_affine=False).weight is None
    with pytest.raises(ValueError, match="X must have hidden_size 24 columns"):
        ours(torch.ones(2, 8), torch.ones(2, 8))


def test_a_tile_with_ds_keeps_within_the_shared_memory() -> None:
    from rmsnorm.fused import tiles

    h200 = tiles.Processors(count=132, shared_memory=232448, cooperative=True)
    lowered = 0
    for (direction, itemsize, row_wise), entries in tiles._table().items():
        for entry in entries if direction == "backward" else ():
            with_ds, without = (
                tiles.backward_config(10**6, entry["n_cols"], itemsize, row_wise, h200, has_ds)
                for has_ds in (True, False)
            )
            arrays = 3 + with_ds.reload_weight
            n_bytes = arrays * with_ds.block_rows * entry["n_cols"] * itemsize * (with_ds.num_stages - 1)
            assert n_bytes <= h200.shared_memory
            assert with_ds == replace(without, num_stages=with_ds.num_stages), "another tile would have other bits"
            lowered += with_ds.num_stages < without.num_stages
    assert lowered, "the case shows nothing"
