"""Higher derivatives, dual numbers and torch.func transforms: right to any order that PyTorch asks for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import func

from references import arrays
from references.bounds import tolerances
from rmsnorm import LigerRMSNorm, LigerRMSNormFunction, liger_rms_norm
from rmsnorm.fused import launch

H = 5
EPS, OFFSET = 1e-2, 0.5
MODES = ("llama", "gemma", "none")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.parametrize("casting_mode", MODES),
    # torch.func scripts decompositions when it is first used, and torch.jit warns of itself.
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]


def norm(x: torch.Tensor, w: torch.Tensor | None, casting_mode: str) -> torch.Tensor:
    # in_place off: the caller keeps dY and uses it again
    return liger_rms_norm(x, w, EPS, OFFSET, casting_mode, False)


def leaf(*shape: int, device: str) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, device=device, requires_grad=True)


def assert_gradients_within_bounds(
    dx: torch.Tensor | None, dw: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, casting_mode: str
) -> None:
    bounds = tolerances.backward_bounds(
        *(arrays.to_numpy(t.detach()) for t in (dy, x, w)), eps=EPS, offset=OFFSET, casting_mode=casting_mode
    )
    for name, gradient in (("dx", dx), ("dw", dw)):
        if gradient is not None:
            got = arrays.to_numpy(gradient.detach())
            assert (bounds[name].ratio(got) <= 1).all(), name
            assert not bounds[name].misrounded(got).any(), name


# Roundings in RSTD, and so unit roundoffs that it errs by: the sum of squares, the mean, + eps, the root; and in `none`
# the way back from RSTD to the variance. A division and a root may lose four each (bounds.rounding.SEQUENTIAL).
RSTD_ROUNDINGS = H + 13


def assert_within_roundings(n: int, got: torch.Tensor, value: np.ndarray, modulus: np.ndarray) -> None:
    """got, float64, is a sum of products of sums, in which no factor path has more than n roundings.

    It then errs by the factor n·u / (1 - n·u) of the same expression with every term positive (Higham, Accuracy and
    Stability of Numerical Algorithms, lemma 3.1).
    """
    u = np.longdouble(2) ** -53
    error = np.abs(arrays.to_numpy(got.detach()).astype(np.longdouble) - value)
    assert (error <= n * u / (1 - n * u) * modulus).all(), error / modulus / u


def longdouble(*tensors: torch.Tensor) -> list[np.ndarray]:
    return [arrays.to_numpy(t.detach()).astype(np.longdouble) for t in tensors]


@pytest.mark.parametrize("weighted", [True, False])
def test_first_and_second_derivatives_forward_and_reverse(device: str, weighted: bool, casting_mode: str) -> None:
    x, w = leaf(2, 3, H, device=device), leaf(H, device=device)
    inputs = (x, w) if weighted else (x,)

    def function(x: torch.Tensor, w: torch.Tensor | None = None) -> torch.Tensor:
        return norm(x, w, casting_mode)

    assert torch.autograd.gradcheck(
        function, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(function, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("frozen", ["x", "w"])
def test_second_derivative_with_one_frozen_input(device: str, frozen: str, casting_mode: str) -> None:
    x, w = leaf(3, H, device=device), leaf(H, device=device)
    x.requires_grad_(frozen != "x")
    w.requires_grad_(frozen != "w")
    assert torch.autograd.gradgradcheck(lambda x, w: norm(x, w, casting_mode).sin(), (x, w))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_vmap_has_the_bits_of_one_sample_at_a_time(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, casting_mode: str
) -> None:
    monkeypatch.setattr(launch, "INTERPRETED", False)  # kernels sum a row in another order
    device = "cpu"
    x = torch.randn(4, 2, H, device=device).to(dtype)
    weights = torch.randn(4, H, device=device).to(dtype)

    def function(x: torch.Tensor, w: torch.Tensor | None) -> torch.Tensor:
        return norm(x, w, casting_mode)

    one_by_one = torch.stack([function(*pair) for pair in zip(x, weights, strict=True)])
    pairs = [
        (func.vmap(function, in_dims=(0, None))(x, weights[0]), function(x, weights[0])),
        (func.vmap(function, in_dims=(1, None), out_dims=1)(x, weights[0]), function(x, weights[0])),
        (func.vmap(function)(x, weights), one_by_one),
        (func.vmap(function, in_dims=(None, 0))(x[0], weights), torch.stack([function(x[0], w) for w in weights])),
        (func.vmap(lambda x: function(x, None))(x), function(x, None)),
    ]
    for got, wanted in pairs:
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_vmap_over_weights_stays_within_the_derived_bounds(device: str, dtype: torch.dtype, casting_mode: str) -> None:
    x, weights = torch.randn(4, 6, 33, device=device).to(dtype), torch.randn(4, 33, device=device).to(dtype)
    mapped = func.vmap(lambda x, w: norm(x, w, casting_mode))(x, weights)
    for y, sample, w in zip(mapped, x, weights, strict=True):
        bound = tolerances.forward_bounds(
            arrays.to_numpy(sample), arrays.to_numpy(w), eps=EPS, offset=OFFSET, casting_mode=casting_mode
        )["y"]
        assert (bound.ratio(arrays.to_numpy(y)) <= 1).all()
        assert not bound.misrounded(arrays.to_numpy(y)).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_vjp_stays_within_the_derived_bounds(device: str, dtype: torch.dtype, casting_mode: str) -> None:
    x, dy = (torch.randn(6, 33, device=device).to(dtype) for _ in range(2))
    w = torch.randn(33, device=device, dtype=torch.promote_types(dtype, torch.float32))
    _, vjp = func.vjp(lambda x, w: norm(x, w, casting_mode), x, w)
    assert_gradients_within_bounds(*vjp(dy), dy, x, w, casting_mode)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_jvp_is_the_derivative_along_its_tangents(device: str, dtype: torch.dtype, casting_mode: str) -> None:
    x, dx = (torch.randn(3, H, device=device).to(dtype) for _ in range(2))
    w, dw = (torch.randn(H, device=device).to(dtype) for _ in range(2))
    y, dot = func.jvp(lambda x, w: norm(x, w, casting_mode), (x, w), (dx, dw))
    assert y.dtype == dot.dtype == dtype
    if dtype == torch.float64:
        x, dx, w, dw = longdouble(x, dx, w, dw)
        rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
        w = w + OFFSET
        value = rstd * w * dx - rstd**3 * x * w * (x * dx).mean(-1, keepdims=True) + rstd * x * dw
        x, dx, w, dw = map(np.abs, (x, dx, w, dw))
        modulus = rstd * w * dx + rstd**3 * x * w * (x * dx).mean(-1, keepdims=True) + rstd * x * dw
        assert_within_roundings(3 * RSTD_ROUNDINGS + H + 20, dot, value, modulus)


def test_hessian_is_the_same_every_way(device: str, casting_mode: str) -> None:
    x, w, dy = (torch.randn(H, dtype=torch.float64, device=device) for _ in range(3))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (norm(x, w, casting_mode) * dy).sum()

    # The loss is rstd·c with c = Σ m·x and m = dy·(w + offset).
    x_l, w_l, dy_l = longdouble(x, w, dy)
    rstd = 1 / np.sqrt((x_l * x_l).mean() + EPS)

    def hessian(x: np.ndarray, m: np.ndarray, sign: int) -> np.ndarray:
        c = (m * x).sum()
        first = rstd**3 / H * (np.outer(m, x) + np.outer(x, m) + c * np.eye(H))
        return sign * first + 3 * rstd**5 / H**2 * c * np.outer(x, x)

    m = dy_l * (w_l + OFFSET)
    expected = hessian(x_l, m, -1), hessian(np.abs(x_l), np.abs(m), 1)
    ways = [torch.autograd.functional.hessian(loss, x)]
    for outer in (func.jacfwd, func.jacrev):
        ways += [outer(inner(loss))(x) for inner in (func.jacfwd, func.jacrev)]
    for got in ways:
        assert_within_roundings(5 * RSTD_ROUNDINGS + 2 * H + 20, got, *expected)


def test_per_sample_gradients_of_a_functional_call(device: str, casting_mode: str) -> None:
    module = LigerRMSNorm(H, EPS, OFFSET, casting_mode, in_place=False, device=device, dtype=torch.float64)
    torch.nn.init.normal_(module.weight)
    x, dy = (torch.randn(4, 2, H, device=device, dtype=torch.float64) for _ in range(2))
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        return (func.functional_call(module, parameters, (x,)) * dy).sum()

    per_sample = func.vmap(func.grad(loss), in_dims=(None, 0, 0))(parameters, x, dy)["weight"]
    for i in range(4):
        assert_gradients_within_bounds(None, per_sample[i], dy[i], x[i], module.weight, casting_mode)
    together = func.grad(loss)(parameters, x, dy)["weight"]
    assert_gradients_within_bounds(None, together, dy, x, module.weight, casting_mode)


def test_backward_of_a_batch_of_cotangents(device: str, casting_mode: str) -> None:
    inputs = leaf(3, H, device=device), leaf(H, device=device)
    y = LigerRMSNormFunction.apply(*inputs, EPS, OFFSET, casting_mode)  # in_place on: a batch has no storage to reuse
    cotangents = torch.randn(4, *y.shape, dtype=y.dtype, device=device)
    batched = torch.autograd.grad(y, inputs, cotangents, retain_graph=True, is_grads_batched=True)
    mapped = func.vmap(lambda dy: torch.autograd.grad(y, inputs, dy, retain_graph=True))(cotangents)
    for dx, dw in (batched, mapped):
        for i in range(4):
            assert_gradients_within_bounds(dx[i], dw[i], cotangents[i], *inputs, casting_mode)


def test_errors_are_the_ordinary_ones(device: str, casting_mode: str) -> None:
    x, w = torch.randn(2, H, device=device), torch.randn(H + 1, device=device)
    with pytest.raises(ValueError, match="as many elements as X has columns, got 6 and 5"):
        func.vmap(lambda x: norm(x, w, casting_mode))(x)
