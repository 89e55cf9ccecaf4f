"""Values off the grid of the judged cells: settings, weights, widths, numbers of rows, the ends of the dtypes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from references import arrays, numpy_reference  # noqa: E402
from references.bounds import tolerances  # noqa: E402
from references.candidates import loading  # noqa: E402
from references.cells.cell import Case  # noqa: E402
from references.judge.verdict import check  # noqa: E402
from rmsnorm import liger_rms_norm  # noqa: E402
from rmsnorm.fused import launch, plans  # noqa: E402
from rmsnorm.fused.tiles import BackwardConfig, ForwardConfig, SplitConfig  # noqa: E402
from tests.support import DEVICES  # noqa: E402

EVERYWHERE = pytest.mark.parametrize("device", DEVICES)
MODES = ("llama", "gemma", "none")
DTYPES = ("float16", "bfloat16", "float32", "float64")


def judge(case: Case, device: str) -> None:
    verdict = check(loading.load("rmsnorm:liger_rms_norm", device=device), case)
    assert verdict.status == "pass", "\n".join(map(str, verdict.findings)) or verdict.reason
    assert len(verdict.measures) == (3 if case.w_dtype is None else 4), "a tensor was not compared"


@EVERYWHERE
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("offset", [-1.0, -0.5, -0.1, -3.0, 2.0, 7.0, 1e-9, -1e-3, 1e4, -1e5])
def test_offsets_of_either_sign_and_any_size(offset: float, mode: str, device: str) -> None:
    for dtype in ("bfloat16", "float32", "float64"):
        judge(Case(mode, offset, dtype, "same", False, (3, 41), 0.7), device)


@EVERYWHERE
@pytest.mark.parametrize("eps", [0.0, 1.0, 3.0, 1e-30, 1e-12, 1e-3, 1e4, 1e30])
def test_eps_from_nothing_to_far_above_the_mean_square(eps: float, device: str) -> None:
    for mode, dtype in (("llama", "float32"), ("gemma", "bfloat16"), ("none", "float32"), ("llama", "float64")):
        judge(Case(mode, 0.5, dtype, "same", False, (3, 41), eps), device)


@EVERYWHERE
@pytest.mark.parametrize("w_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_w_beside_every_dtype_of_x(dtype: str, w_dtype: str, device: str) -> None:
    for mode in MODES:
        judge(Case(mode, 0.5, dtype, w_dtype, False, (5, 41), 0.7), device)


def widths() -> list[int]:
    """2^k - 1, 2^k, 2^k + 1, 3·2^k, and primes between, to 65,536."""
    found = {2**k + d for k in range(1, 17) for d in (-1, 0, 1)} | {3 * 2**k for k in range(15)}
    found |= {11, 37, 97, 211, 769, 1543, 3571, 6151, 12289, 24593, 40961, 65521}
    return sorted(n for n in found if n <= 65536)


@EVERYWHERE
@pytest.mark.parametrize("first", range(6))
def test_every_kind_of_width(first: int, device: str) -> None:
    kinds = list(itertools.product(MODES, ("float32", "bfloat16", "float64", "float16"), (True, False)))
    for number, n_cols in list(enumerate(widths()))[first::6]:
        mode, dtype, row_mode = kinds[number % len(kinds)]
        given = row_mode if n_cols < 5000 else None
        judge(Case(mode, -0.5, dtype, "same", False, (2, n_cols), 0.7, row_mode=given), device)


@EVERYWHERE
@pytest.mark.parametrize("n_rows", [65, 257, 1000])
def test_many_rows(n_rows: int, device: str) -> None:
    for mode, dtype, w_dtype in (
        ("llama", "bfloat16", "float32"),
        ("none", "float16", "same"),
        ("gemma", "float32", "same"),
    ):
        judge(Case(mode, 0.5, dtype, w_dtype, False, (n_rows, 3), 0.7, row_mode=False), device)


@EVERYWHERE
def test_a_hundred_thousand_rows(device: str) -> None:
    n_rows, n_cols = 100_003, 3
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((n_rows, n_cols)).astype(np.float32) for _ in range(2))
    w = rng.standard_normal(n_cols).astype(np.float32)
    about: dict[str, Any] = {"offset": 0.5, "casting_mode": "llama"}
    tensors = {name: arrays.to_torch(t, device) for name, t in (("x", x), ("dy", dy), ("w", w))}
    # As few programs as there can be: the interpreter runs them one by one.
    forward, backward = ForwardConfig(2048, 4, 1, 4), BackwardConfig(2048, 4, 4, 1, 7, False)
    y, rstd = launch.rms_norm_forward(tensors["x"], tensors["w"], eps=0.7, config=forward, **about)
    dx = torch.full_like(y, torch.nan)
    dw = launch.rms_norm_backward(
        tensors["dy"], tensors["x"], tensors["w"], rstd, dx=dx, needs_dw=True, config=backward, **about
    )
    assert dw is not None
    bounds = tolerances.forward_bounds(x, w, eps=0.7, **about)
    bounds |= tolerances.backward_bounds(dy, x, w, eps=0.7, **about)
    for name, got in (("y", y), ("rstd", rstd), ("dx", dx), ("dw", dw)):
        assert (bounds[name].ratio(arrays.to_numpy(got)) <= 1).all(), name


@pytest.mark.parametrize("n_rows", [1, 2, 65534, 65535, 65536, 65537, 100_000, 2**20 + 1, 2**31 - 1, 2**31 + 7])
@pytest.mark.parametrize("block_rows", [1, 2, 16])
def test_every_row_has_a_program(n_rows: int, block_rows: int) -> None:
    shape, strides = (n_rows, 24), (24, 1)
    about = (torch.float32, None)
    plan = plans.forward_plan.__wrapped__(
        shape, strides, *about, 0.7, 0.0, "llama", None, ForwardConfig(block_rows, 32, 1, 1)
    )
    assert plan.n_programs == -(-n_rows // block_rows)
    assert plan.integers[-1] == n_rows
    for config in (BackwardConfig(block_rows, 32, 1, 1, 7, False), SplitConfig(2, 16, 1, 7, False)):
        back = plans.backward_plan.__wrapped__(
            shape, strides, strides, *about, 0.0, "llama", True, False, None, torch.device("cpu"), config
        )
        assert back.integers[-1] == n_rows and 1 <= back.n_partials <= 7


@pytest.mark.parametrize("n_cols", [1, 24, 65535, 65536, 65537])
def test_every_column_of_dw_has_a_program(n_cols: int) -> None:
    for n_partials, dtype in ((1, torch.float32), (7, torch.float64), (1000, torch.float32)):
        variant, n_programs = plans.weight_gradient_plan.__wrapped__(
            n_partials, n_cols, dtype, torch.float32, torch.device("cpu")
        )
        block_cols = variant._constants[2]
        assert (n_programs - 1) * block_cols < n_cols <= n_programs * block_cols


LEAST = {name: float(np.finfo(name).tiny) if name != "bfloat16" else 2.0**-126 for name in DTYPES}  # normal numbers
GREATEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}


@EVERYWHERE
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("small", ["x", "w", "dy"])
def test_results_below_the_least_normal_number_are_kept(small: str, dtype: str, mode: str, device: str) -> None:
    rng = np.random.default_rng(0)
    kind = arrays.numpy_dtype(dtype)
    given = {"x": rng.uniform(1, 2, (3, 24)), "w": rng.uniform(1, 2, 24), "dy": rng.uniform(1, 2, (3, 24))}
    given[small] = given[small] * LEAST[dtype] / 8
    x, w, dy = (given[name].astype(kind) for name in ("x", "w", "dy"))
    about: dict[str, Any] = {"eps": 1.0, "offset": 0.0, "casting_mode": mode}
    leaves = [arrays.to_torch(t, device).requires_grad_() for t in (x, w)]
    y = liger_rms_norm(*leaves, **about, in_place=False)
    dx, dw = torch.autograd.grad(y, leaves, arrays.to_torch(dy, device))
    wanted = {"y": numpy_reference.forward(x, w, **about)[0]}
    wanted |= dict(zip(("dx", "dw"), numpy_reference.backward(dy, x, w, **about), strict=True))
    subnormal = {"x": ("y", "dw"), "w": ("y", "dx"), "dy": ("dx", "dw")}[small]
    for name, got in (("y", y.detach()), ("dx", dx), ("dw", dw)):
        value = arrays.to_numpy(got)
        assert np.isfinite(value.astype(float)).all(), name
        if name in subnormal:
            exact = wanted[name].astype(np.longdouble)
            assert ((exact != 0) & (np.abs(exact) < LEAST[dtype])).sum() > exact.size / 2, "the case shows nothing"
            step = np.longdouble(LEAST[dtype]) * np.longdouble(float(ml_dtypes.finfo(kind).eps))
            assert (np.abs(value.astype(np.longdouble) - exact) <= 2 * step).all(), name


@EVERYWHERE
@pytest.mark.parametrize("dtype", DTYPES)
@np.errstate(all="ignore")  # the interpreter computes with NumPy, which warns, of rows that pad a tile too
def test_results_beyond_the_greatest_number_are_infinite(dtype: str, device: str) -> None:
    kind = arrays.numpy_dtype(dtype)
    x = np.array([[1.0, -1.0, 2.0, 0.5]]).astype(kind)  # RSTD is 0.8
    greatest = GREATEST[dtype]
    assert float(np.array(greatest, kind)) == greatest
    w = np.array([greatest, greatest, greatest, greatest]).astype(kind)
    y = arrays.to_numpy(liger_rms_norm(arrays.to_torch(x, device), arrays.to_torch(w, device), 0.0)).astype(float)
    assert y[0, 2] == math.inf and np.isfinite(y[0, [0, 1, 3]]).all() and y[0, 1] < -0.5 * greatest
    x[0, 2] = -2.0
    y = arrays.to_numpy(liger_rms_norm(arrays.to_torch(x, device), arrays.to_torch(w, device), 0.0)).astype(float)
    assert y[0, 2] == -math.inf
    leaf = arrays.to_torch(x, device).requires_grad_()
    y = liger_rms_norm(leaf, None, 0.0)
    (dx,) = torch.autograd.grad(y, leaf, torch.full_like(y, -greatest / 2) * torch.tensor([1, 1, 0, 0], device=device))
    assert torch.isfinite(dx).all(), "half of the greatest number times 0.8"


@EVERYWHERE
def test_weights_of_either_zero(device: str) -> None:
    x = torch.tensor([[1.0, -2.0, 3.0, -4.0]], device=device)
    w = torch.tensor([0.0, -0.0, -0.0, 0.0], device=device)
    for mode in MODES:
        y = liger_rms_norm(x, w, 1e-6, casting_mode=mode)
        assert torch.signbit(y).tolist() == [[False, False, True, True]]
        assert (y == 0).all()
        assert not torch.signbit(liger_rms_norm(x.abs(), -w.abs(), 1e-6, 1.0, mode)).any(), "-0 + 1 is 1"
        shifted = liger_rms_norm(x.abs(), torch.full_like(w, 1.0), 1e-6, -1.0, mode)
        assert (shifted == 0).all() and not torch.signbit(shifted).any(), "1 - 1 is +0"


@EVERYWHERE
@pytest.mark.parametrize("kind", ["expanded", "strided", "reversed_view", "offset"])
def test_weights_of_any_layout(kind: str, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(3, 24, generator=generator).to(device) for _ in range(2))
    base = torch.randn(100, generator=generator).to(device)
    w = {
        "expanded": base[7].expand(24),
        "strided": base[1:73:3],
        "reversed_view": base[:48].view(24, 2).t()[1],
        "offset": base[3:27],
    }[kind]
    results = []
    for weight in (w, w.clone(memory_format=torch.contiguous_format)):
        leaves = [x.clone().requires_grad_(), weight.detach().requires_grad_()]
        y = liger_rms_norm(*leaves, 0.7, 0.5, in_place=False)
        results.append((y.detach(), *torch.autograd.grad(y, leaves, dy)))
    assert all(torch.equal(got, wanted) for got, wanted in zip(*results, strict=True))
    assert results[0][2].shape == (24,)
