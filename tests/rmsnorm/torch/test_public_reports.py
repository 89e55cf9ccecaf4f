"""Public bug reports about other RMSNorm kernels: their smallest inputs with the right values.

docs/results/public_reports.md maps every report to a test, here or of its kind. Values are exact to the digits
printed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from rmsnorm import LigerRMSNorm, liger_rms_norm  # noqa: E402
from tests.support import DEVICES  # noqa: E402

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs/results/public_reports.md"


def results(
    x: Any,
    w: Any = None,
    dy: Any = None,
    *,
    device: str,
    dtype: torch.dtype = torch.float64,
    eps: float = 0.0,
    **about: Any,
) -> tuple[torch.Tensor, ...]:
    """y, dx and, with a weight, dw; `x`, `w` and `dy` are lists or tensors."""
    x = torch.as_tensor(x, dtype=dtype).to(device).requires_grad_()
    leaves = [x]
    if w is not None:
        w = torch.as_tensor(w, dtype=dtype).to(device).requires_grad_()
        leaves.append(w)
    y = liger_rms_norm(x, w, eps, **({"in_place": False} | about))
    dy = torch.ones_like(y) if dy is None else torch.as_tensor(dy, dtype=dtype).to(device)
    return (y.detach(), *torch.autograd.grad(y, leaves, dy))


def digits(tensor: torch.Tensor, places: int = 6) -> list[float]:
    return [round(value, places) for value in tensor.flatten().tolist()]


@pytest.mark.parametrize("device", DEVICES)
def test_002_summed_loss_has_a_gradient_of_stride_zero(device: str) -> None:
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64, device=device, requires_grad=True)
    liger_rms_norm(x, torch.ones(2, dtype=torch.float64, device=device), 0.0).sum().backward()
    assert digits(x.grad) == [0.252982, -0.126491]


@pytest.mark.parametrize("device", DEVICES)
def test_014_the_gradient_of_a_residual_stays(device: str) -> None:
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64, device=device, requires_grad=True)
    w = torch.ones(2, dtype=torch.float64, device=device)
    h = x * 1.0
    (dx,) = torch.autograd.grad(h + liger_rms_norm(h, w, 0.0), x, torch.tensor([[1.0, 0.0]], dtype=x.dtype).to(device))
    assert digits(dx, 5) == [1.50596, -0.25298]


@pytest.mark.parametrize("device", DEVICES)
def test_016_two_backward_calls_with_one_dy(device: str) -> None:
    x = torch.tensor([[1.0, 2.0]], device=device, requires_grad=True)
    dy = torch.tensor([[1.0, 0.0]], device=device)
    y = liger_rms_norm(x, None, 0.5)
    first, second = (torch.autograd.grad(y, x, dy, retain_graph=True)[0].clone() for _ in range(2))
    assert torch.equal(first, second)
    assert dy.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("device", DEVICES)
def test_019_gemma_with_a_weight_of_zero(device: str) -> None:
    y, *_ = results([3, 3], [0, 0], device=device, casting_mode="gemma", offset=1.0)
    assert digits(y) == [1, 1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("mode", "first"), [("llama", 0.79296875), ("gemma", 0.7890625)])
def test_020_llama_and_gemma_round_in_other_places(mode: str, first: float, device: str) -> None:
    settings = {"device": device, "dtype": torch.bfloat16, "eps": 1e-6, "casting_mode": mode}
    assert results([1, 1.5], [1.0078125] * 2, **settings)[0][0].item() == first


@pytest.mark.parametrize("device", DEVICES)
def test_027_the_offset_is_added_before_any_rounding(device: str) -> None:
    # (2^-8 + 1) is no bfloat16: rounded to one, it is 1.0. Float32 x shows which was multiplied.
    w = torch.full((2,), 2.0**-8, dtype=torch.bfloat16, device=device, requires_grad=True)
    x = torch.ones(1, 2, device=device, requires_grad=True)
    y = liger_rms_norm(x, w, 0.0, 1.0, "gemma", in_place=False)
    (dx,) = torch.autograd.grad(y, x, torch.tensor([[1.0, -1.0]], device=device))
    assert y.flatten().tolist() == [1.00390625] * 2
    assert dx.flatten().tolist() == [1.00390625, -1.00390625]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value", [300.0, 7600.0, 60000.0])
def test_039_040_squares_of_float16_do_not_overflow(value: float, device: str) -> None:
    y, *_ = results([value] * 4, [1] * 4, device=device, dtype=torch.float16, eps=1e-6)
    assert y.tolist() == [1.0] * 4


@pytest.mark.parametrize("device", DEVICES)
def test_051_eps_stands_inside_the_root(device: str) -> None:
    assert digits(results([0.01] * 4, [1] * 4, device=device, eps=1e-5)[0]) == [0.953463] * 4


@pytest.mark.parametrize("device", DEVICES)
def test_052_x_is_multiplied_by_the_reciprocal(device: str) -> None:
    assert digits(results([2] * 4, device=device)[0]) == [1] * 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("eps", "factor"), [(1e-5, 316.2278), (1e-6, 1000.0)])
def test_053_058_zero_rows(eps: float, factor: float, device: str) -> None:
    y, dx, dw = results([[0] * 4, [1, 2, 3, 4]], [2] * 4, device=device, eps=eps)
    assert digits(y[0]) == [0] * 4
    assert digits(dx[0] / 2, 4) == [factor] * 4
    alone = results([1, 2, 3, 4], [2] * 4, device=device, eps=eps)
    assert torch.equal(dx[1], alone[1])
    assert torch.equal(dw, alone[2])


@pytest.mark.parametrize("device", DEVICES)
def test_055_each_call_uses_its_own_eps(device: str) -> None:
    x = torch.full((1, 4), 1e-3, dtype=torch.float64, device=device)
    one, other = (liger_rms_norm(x, None, eps)[0, 0].item() for eps in (1e-5, 1e-6))
    assert round(one / other, 4) == 0.4264


@pytest.mark.parametrize("device", DEVICES)
def test_059_the_weight_enters_dx_once(device: str) -> None:
    _, dx, _ = results([1, 2], [2, 5], [1, 1], device=device)
    assert digits(dx) == [-0.252982, 0.126491]


@pytest.mark.parametrize("device", DEVICES)
def test_060_061_every_path_keeps_the_graph(device: str) -> None:
    for row_mode in (True, False):
        for w in (None, torch.ones(8, device=device, requires_grad=True)):
            x = torch.ones(2, 8, device=device, requires_grad=True)
            assert liger_rms_norm(x, w, 0.5, row_mode=row_mode).grad_fn is not None


@pytest.mark.parametrize("device", DEVICES)
def test_068_one_zero_vector_has_no_weight_gradient(device: str) -> None:
    for _ in range(3):
        _, dx, dw = results([0] * 4, [1] * 4, [-1] * 4, device=device, eps=1e-5)
        assert digits(dw) == [0] * 4
        assert digits(dx, 4) == [-316.2278] * 4


@pytest.mark.parametrize("device", DEVICES)
def test_079_the_divisor_is_the_number_of_columns(device: str) -> None:
    assert digits(results([1, 2, 2], device=device)[0], 5) == [0.57735, 1.1547, 1.1547]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_cols", [257, 384, 512, 769])
def test_080_081_rows_do_not_touch_their_neighbours(n_cols: int, device: str) -> None:
    x = torch.randn((3, n_cols), generator=torch.Generator().manual_seed(0)).half().to(device)
    y = liger_rms_norm(x, None, 1e-6)
    assert all(torch.equal(y[i], liger_rms_norm(x[i], None, 1e-6)) for i in range(3))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(64,), (5, 7, 64), (2, 2, 2, 2, 8)])
def test_065_066_any_rank(shape: tuple[int, ...], device: str) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    _, dx, dw = results(x, torch.ones(shape[-1]), device=device, eps=0.5)
    _, flat_dx, flat_dw = results(x.reshape(-1, shape[-1]), torch.ones(shape[-1]), device=device, eps=0.5)
    assert dx.shape == shape
    assert torch.equal(dx.reshape(flat_dx.shape), flat_dx)
    assert torch.equal(dw, flat_dw)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pair", [("bfloat16", "float32"), ("float32", "bfloat16"), ("float16", "bfloat16")])
def test_098_102_mixed_dtypes(pair: tuple[str, str], device: str) -> None:
    x_dtype, w_dtype = (getattr(torch, name) for name in pair)
    x = torch.ones(2, 64, dtype=x_dtype, device=device, requires_grad=True)
    w = torch.full((64,), 2.0, dtype=w_dtype, device=device, requires_grad=True)
    y = liger_rms_norm(x, w, 0.0)
    y.backward(torch.ones_like(y))
    assert (y == 2).all()
    assert (w.grad == 2).all()
    assert (y.dtype, x.grad.dtype, w.grad.dtype) == (x_dtype, x_dtype, w_dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_104_108_without_a_weight(device: str) -> None:
    module = LigerRMSNorm(4, eps=0.0, elementwise_affine=False, device=device)
    assert not list(module.parameters())
    assert not module.state_dict()
    x = torch.full((2, 4), 3.0, device=device, requires_grad=True)
    y = module(x)
    y.backward(torch.ones_like(y))
    assert (y == 1).all()
    assert x.grad is not None


@pytest.mark.parametrize("device", DEVICES)
def test_147_no_rows(device: str) -> None:
    y, dx, dw = results(torch.empty(0, 8), torch.ones(8), device=device)
    assert y.shape == dx.shape == (0, 8)
    assert digits(dw) == [0] * 8


@pytest.mark.parametrize("device", DEVICES)
def test_153_one_column(device: str) -> None:
    _, dx = results([2], device=device, eps=1e-6)
    assert digits(dx, 9) == [1.25e-07]


def test_the_document_names_tests_that_exist() -> None:
    rows = [line.split("|") for line in DOCUMENT.read_text().splitlines() if re.match(r"\| \d+", line)]
    assert len({row[1].strip() for row in rows}) == len(rows) >= 100
    for row in rows:
        for path, name in re.findall(r"`([\w/]+/test_\w+\.py)(?:::(test_\w+))?`", row[4]):
            assert not name or f"def {name}(" in (ROOT / "tests" / path).read_text(), f"{path}::{name}"
            assert (ROOT / "tests" / path).exists(), path
        assert "/test_" in row[4] or row[4].strip().startswith("not here:"), row
