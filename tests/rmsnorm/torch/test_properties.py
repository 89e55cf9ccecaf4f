"""Properties that hold without a reference: P1 to P20 of the design, bit for bit where arithmetic promises it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from references import arrays, oracle  # noqa: E402
from references.bounds import tolerances  # noqa: E402
from references.bounds.tolerances import Bound  # noqa: E402
from rmsnorm import LigerRMSNorm, LigerRMSNormFunction, liger_rms_norm  # noqa: E402
from rmsnorm.fused import launch  # noqa: E402
from tests.support import DEVICES  # noqa: E402

SETTINGS = [
    ("llama", "bfloat16", True),
    ("gemma", "float32", False),
    ("none", "float16", True),
    ("none", "float32", False),
]
EVERYWHERE = pytest.mark.parametrize("device", DEVICES)
EVERY_SETTING = pytest.mark.parametrize(("mode", "dtype", "row_wise"), SETTINGS)
FLOAT32 = pytest.mark.parametrize(
    ("mode", "dtype", "row_wise"), [("llama", "float32", True), ("gemma", "float32", False)]
)


@dataclass(frozen=True)
class Problem:
    """Inputs and settings; `results` are y, rstd, dx and dw of the kernels."""

    x: torch.Tensor
    w: torch.Tensor | None
    dy: torch.Tensor
    mode: str
    row_wise: bool | None
    eps: float = 0.75
    offset: float = 0.5

    @classmethod
    def draw(
        cls, device: str, mode: str, dtype: str, row_wise: bool | None, shape: tuple[int, int] = (4, 40)
    ) -> Problem:
        rng = np.random.default_rng(0)
        kind = arrays.numpy_dtype(dtype)
        x, dy, w = (rng.standard_normal(s).astype(kind) for s in (shape, shape, shape[1:]))
        return cls(*(arrays.to_torch(t, device) for t in (x, w, dy)), mode, row_wise)

    def results(self) -> dict[str, torch.Tensor]:
        about: dict[str, Any] = {"offset": self.offset, "casting_mode": self.mode, "row_mode": self.row_wise}
        with np.errstate(all="ignore"):
            y, rstd = launch.rms_norm_forward(self.x, self.w, eps=self.eps, **about)
            dx = torch.empty_like(self.x)
            dw = launch.rms_norm_backward(self.dy, self.x, self.w, rstd, dx=dx, needs_dw=self.w is not None, **about)
        return {"y": y, "rstd": rstd, "dx": dx} | ({} if dw is None else {"dw": dw})

    def bounds(self) -> dict[str, Bound]:
        x, w, dy = (None if t is None else arrays.to_numpy(t) for t in (self.x, self.w, self.dy))
        about = {"eps": self.eps, "offset": self.offset, "casting_mode": self.mode}
        return tolerances.forward_bounds(x, w, **about) | tolerances.backward_bounds(dy, x, w, **about)


def assert_same(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], **factors: float) -> None:
    """Each tensor is `factor` (default 1) times the wanted one, bit for bit but for the sign of zero."""
    for name, value in wanted.items():
        assert torch.equal(got[name], value * factors.get(name, 1.0)), name


def wide(tensor: torch.Tensor) -> np.ndarray:
    return arrays.to_numpy(tensor).astype(np.longdouble)


@EVERYWHERE
@EVERY_SETTING
@pytest.mark.parametrize("k", [-3, 2])
def test_p01_scaling_x_and_eps_scales_rstd_and_dx(k: int, mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    problem = replace(problem, x=problem.x + 0.5 * problem.x.sign())  # no square is subnormal, scaled or not
    scaled = replace(problem, x=problem.x * 2.0**k, eps=problem.eps * 4.0**k)
    assert_same(scaled.results(), problem.results(), rstd=2.0**-k, dx=2.0**-k)


@EVERYWHERE
@EVERY_SETTING
def test_p02_gradients_scale_with_dy(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    assert_same(replace(problem, dy=problem.dy * 4).results(), problem.results(), dx=4.0, dw=4.0)


@EVERYWHERE
@EVERY_SETTING
def test_p03_the_sign_of_x(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    assert_same(replace(problem, x=-problem.x).results(), problem.results(), y=-1.0, dw=-1.0)


@EVERYWHERE
@EVERY_SETTING
def test_p04_the_sign_of_w(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = replace(Problem.draw(device, mode, dtype, row_wise), offset=0.0)
    assert problem.w is not None
    assert_same(replace(problem, w=-problem.w).results(), problem.results(), y=-1.0, dx=-1.0)


@EVERYWHERE
@EVERY_SETTING
def test_p05_rows_may_be_permuted(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    order = [2, 0, 3, 1]
    got, wanted = replace(problem, x=problem.x[order], dy=problem.dy[order]).results(), problem.results()
    assert_same(got, {name: wanted[name][order] for name in ("y", "rstd", "dx")})
    assert_close("dw", got["dw"], wanted["dw"], problem.bounds())


def assert_close(name: str, got: torch.Tensor, wanted: torch.Tensor, *bounds: dict[str, Bound]) -> None:
    """Two results that each may miss the same value by the bound."""
    allowed = 2 * sum(bound[name].tolerance for bound in bounds)
    assert (np.abs(wide(got) - wide(wanted)) <= allowed).all(), name


@EVERYWHERE
@EVERY_SETTING
def test_p06_a_row_does_not_see_the_batch(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    many = Problem.draw(device, mode, dtype, row_wise, (9, 40))
    wanted = many.results()
    for rows in (slice(0, 1), slice(1, 2), slice(3, 4), slice(8, 9), slice(2, 4), slice(4, 8)):
        few = replace(many, x=many.x[rows], dy=many.dy[rows]).results()
        assert_same(few, {name: wanted[name][rows] for name in ("y", "rstd", "dx")})


# Several tiles of every kind, and a last one that is not full.
@EVERYWHERE
@pytest.mark.parametrize("row_wise", [None, True, False])
@pytest.mark.parametrize(("dtype", "n_cols"), [("bfloat16", 64), ("float32", 64), ("float64", 72), ("bfloat16", 520)])
def test_p06_the_number_of_rows_and_a_row_s_place_decide_no_bit(
    dtype: str, n_cols: int, row_wise: bool | None, device: str
) -> None:
    many = Problem.draw(device, "llama", dtype, row_wise, (70, n_cols))
    wanted = many.results()
    for first, n_rows in ((0, 1), (69, 1), (33, 2), (31, 17), (1, 69)):
        rows = slice(first, first + n_rows)
        few = replace(many, x=many.x[rows], dy=many.dy[rows]).results()
        assert_same(few, {name: wanted[name][rows] for name in ("y", "rstd", "dx")})


@pytest.mark.gpu
@pytest.mark.parametrize("row_wise", [None, True, False])
@pytest.mark.parametrize(
    ("dtype", "n_cols", "most"),
    [
        *(("bfloat16", n_cols, 10**6) for n_cols in (64, 128, 256, 512)),
        ("float32", 128, 10**6),
        ("float64", 64, 10**6),
        ("bfloat16", 1024, 200_000),
        ("bfloat16", 4096, 40_000),
    ],
)
def test_p06_up_to_a_million_rows(dtype: str, n_cols: int, most: int, row_wise: bool | None) -> None:
    some = Problem.draw("cuda", "llama", dtype, row_wise, (5000, n_cols))
    many = replace(some, x=some.x.repeat(most // 5000, 1), dy=some.dy.repeat(most // 5000, 1))
    wanted = many.results()
    for n_rows in (1, 7, 16, 131, 1024, 4096, 32767, 32768, most - 1):
        few = replace(many, x=many.x[-n_rows:], dy=many.dy[-n_rows:]).results()
        assert_same(few, {name: wanted[name][-n_rows:] for name in ("y", "rstd", "dx")})
    for name in ("y", "rstd", "dx"):  # the same rows over and over, wherever they stand
        assert (wanted[name].unflatten(0, (-1, 5000)) == wanted[name][:5000]).all(), name


@EVERYWHERE
@EVERY_SETTING
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 60000.0])
def test_p07_a_bad_row_stays_alone(value: float, mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    x = problem.x.clone()
    x[1, 5] = value
    got, wanted = replace(problem, x=x).results(), problem.results()
    others = [0, 2, 3]
    assert_same({n: got[n][others] for n in ("y", "rstd", "dx")}, {n: wanted[n][others] for n in ("y", "rstd", "dx")})


@EVERYWHERE
@FLOAT32
def test_p08_columns_may_be_permuted(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    assert problem.w is not None
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).to(device)
    permuted = replace(problem, x=problem.x[:, order], w=problem.w[order], dy=problem.dy[:, order])
    got, wanted = permuted.results(), problem.results()
    for name in ("y", "dx", "dw"):
        assert_close(name, got[name], wanted[name][..., order], permuted.bounds())


@EVERYWHERE
@FLOAT32
def test_p09_doubled_columns_leave_y(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    assert problem.w is not None
    twice = replace(problem, x=problem.x.repeat(1, 2), w=problem.w.repeat(2), dy=problem.dy.repeat(1, 2))
    y, wanted = twice.results()["y"], problem.results()["y"]
    for half in (y[:, :40], y[:, 40:]):
        assert_close("y", half, wanted, problem.bounds())


@EVERYWHERE
@EVERY_SETTING
def test_p10_euler_s_identity(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    assert problem.w is not None
    x, w, dy = (arrays.to_numpy(t) for t in (problem.x, problem.w, problem.dy))
    truth = oracle.backward(dy, x, w, eps=problem.eps, offset=problem.offset)
    got = (wide(problem.results()["dx"]) * x.astype(np.longdouble)).sum(-1)
    wanted = problem.eps * truth.forward.rstd**3 * truth.dot
    allowed = (problem.bounds()["dx"].tolerance * np.abs(x.astype(np.longdouble))).sum(-1)
    assert (np.abs(got - wanted) <= allowed).all()


@EVERYWHERE
@EVERY_SETTING
def test_p11_the_checksum_of_dw_is_that_of_y(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    assert problem.w is not None
    results, bounds = problem.results(), problem.bounds()
    shifted, dy = wide(problem.w) + problem.offset, wide(problem.dy)
    difference = (wide(results["dw"]) * shifted).sum() - (dy * wide(results["y"])).sum()
    allowed = (bounds["dw"].tolerance * np.abs(shifted)).sum() + (bounds["y"].tolerance * np.abs(dy)).sum()
    assert abs(difference) <= allowed


@EVERYWHERE
@EVERY_SETTING
def test_p12_a_weight_of_zero_and_offset_one_is_no_weight(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    assert problem.w is not None
    plain = replace(problem, w=None).results()
    with_weight = replace(problem, w=torch.zeros_like(problem.w), offset=1.0).results()
    assert_same(with_weight, plain)
    assert "dw" not in plain


@EVERYWHERE
@FLOAT32
def test_p13_dw_adds_over_rows(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    parts = [replace(problem, x=problem.x[s], dy=problem.dy[s]) for s in (slice(0, 1), slice(1, None))]
    one, other = (part.results()["dw"] for part in parts)
    assert_close("dw", one + other, problem.results()["dw"], problem.bounds(), *(part.bounds() for part in parts))


@EVERYWHERE
@FLOAT32
def test_p14_the_backward_is_the_adjoint_of_the_derivative(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    assert problem.w is not None
    x, w, dy = (wide(t) for t in (problem.x, problem.w, problem.dy))
    rng = np.random.default_rng(1)
    v, u = rng.standard_normal(x.shape), rng.standard_normal(w.shape)
    # The formula is analytic: an imaginary step of 1e-30 gives its derivative without cancellation.
    x_step, w_step = x + 1e-30j * v, w + 1e-30j * u
    y_step = x_step * ((x_step * x_step).mean(-1, keepdims=True) + problem.eps) ** -0.5 * (w_step + problem.offset)
    jvp = y_step.imag / 1e-30
    results, bounds = problem.results(), problem.bounds()
    got = (wide(results["dx"]) * v).sum() + (wide(results["dw"]) * u).sum()
    allowed = (bounds["dx"].tolerance * np.abs(v)).sum() + (bounds["dw"].tolerance * np.abs(u)).sum()
    assert abs(got - (jvp * dy).sum()) <= allowed


@EVERYWHERE
@FLOAT32
def test_p14_the_backward_is_linear_in_dy(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    other = replace(problem, dy=problem.dy.flip(0))
    both = replace(problem, dy=problem.dy + other.dy)
    for name in ("dx", "dw"):
        total = problem.results()[name] + other.results()[name]
        assert_close(name, both.results()[name], total, *(p.bounds() for p in (problem, other, both)))


@EVERYWHERE
@EVERY_SETTING
def test_p15_in_place_changes_where_and_not_what(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise, (144, 40))
    assert problem.w is not None
    kept = [t.clone() for t in (problem.x, problem.w, problem.dy)]
    found = []
    for in_place in (False, True):
        x, w = problem.x.clone().requires_grad_(), problem.w.clone().requires_grad_()
        where: list[int] = []
        y = liger_rms_norm(x, w, problem.eps, problem.offset, mode, in_place, row_wise)
        y.register_hook(lambda g, where=where: where.append(g.data_ptr()))
        # The gradient of this product is one that nobody but the engine holds, of dy's bits.
        found.append(torch.autograd.grad((y * problem.dy).sum(), (x, w)))
        assert (found[-1][0].data_ptr() == where[0]) == in_place
        assert all(torch.equal(a, b) for a, b in zip((x, w, problem.dy), kept, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@EVERYWHERE
@EVERY_SETTING
def test_p16_bits_repeat(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise, (9, 40) if device == "cpu" else (4097, 512))
    first = problem.results()
    for _ in range(2 if device == "cpu" else 20):
        assert_same(problem.results(), first)


@EVERYWHERE
@FLOAT32
def test_p17_y_has_no_more_than_unit_mean_square(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = replace(Problem.draw(device, mode, dtype, row_wise), w=None)
    x, y, tolerance = wide(problem.x), wide(problem.results()["y"]), problem.bounds()["y"].tolerance
    squares = (x * x).sum(-1)
    wanted = squares / (squares + 40 * np.longdouble(problem.eps))
    allowed = ((2 * np.abs(y) + tolerance) * tolerance).mean(-1)
    assert (np.abs((y * y).mean(-1) - wanted) <= allowed).all()
    assert (wanted <= 1).all()


@EVERYWHERE
@FLOAT32
def test_p18_one_column(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise, (4, 1))
    assert problem.w is not None
    results, bounds = problem.results(), problem.bounds()
    x, m = wide(problem.x), wide(problem.dy) * (wide(problem.w) + problem.offset)
    r = 1 / np.sqrt(x * x + problem.eps)
    y = np.sign(x) * (wide(problem.w) + problem.offset) / np.sqrt(1 + problem.eps / (x * x))
    assert (np.abs(wide(results["y"]) - y) <= bounds["y"].tolerance).all()
    assert (np.abs(wide(results["dx"]) - problem.eps * r**3 * m) <= bounds["dx"].tolerance).all()


@EVERYWHERE
@EVERY_SETTING
def test_p19_every_way_in_gives_the_same_bits(mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    assert problem.w is not None
    settings = (problem.eps, problem.offset, mode)
    module = LigerRMSNorm(40, *settings, row_mode=row_wise, device=device, dtype=problem.w.dtype)
    with torch.no_grad():
        module.weight.copy_(problem.w)
    wanted = problem.results()["y"]
    assert torch.equal(module(problem.x), wanted)
    assert torch.equal(liger_rms_norm(problem.x, problem.w, *settings, row_mode=row_wise), wanted)
    assert torch.equal(LigerRMSNormFunction.apply(problem.x, problem.w, *settings, True, row_wise), wanted)
    with torch.autocast(device, torch.bfloat16):
        assert torch.equal(liger_rms_norm(problem.x, problem.w, *settings, row_mode=row_wise), wanted)


@EVERYWHERE
@EVERY_SETTING
@pytest.mark.parametrize("frozen", ["x", "w"])
def test_p20_a_frozen_input_has_no_gradient(frozen: str, mode: str, dtype: str, row_wise: bool, device: str) -> None:
    problem = Problem.draw(device, mode, dtype, row_wise)
    assert problem.w is not None
    leaves = {"x": problem.x.requires_grad_(frozen != "x"), "w": problem.w.requires_grad_(frozen != "w")}
    liger_rms_norm(leaves["x"], leaves["w"], problem.eps, problem.offset, mode, False, row_wise).backward(problem.dy)
    wanted = replace(problem, x=problem.x.detach(), w=problem.w.detach()).results()
    assert leaves[frozen].grad is None
    needed = "w" if frozen == "x" else "x"
    assert torch.equal(leaves[needed].grad, wanted["d" + needed])
