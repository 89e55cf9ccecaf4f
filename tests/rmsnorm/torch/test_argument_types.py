"""Settings of every type: a number is taken as it is meant, anything else gets one typed line, on every path in."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rmsnorm import LigerRMSNorm, LigerRMSNormFunction, hub, liger_rms_norm

H = 8
X = torch.randn(2, H, generator=torch.Generator().manual_seed(0))
W = torch.randn(H, generator=torch.Generator().manual_seed(1))

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("eager_operators"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def function(x: Any = X, eps: Any = 1e-6, **settings: Any) -> torch.Tensor:
    return liger_rms_norm(x, W, eps, **settings)


def applied(x: Any = X, eps: Any = 1e-6, offset: Any = 0.0, **settings: Any) -> torch.Tensor:
    rest = (settings.get("casting_mode", "llama"), settings.get("in_place", True), settings.get("row_mode"))
    return LigerRMSNormFunction.apply(x, W, eps, offset, *rest)


def module(x: Any = X, eps: Any = 1e-6, **settings: Any) -> torch.Tensor:
    norm = LigerRMSNorm(H, eps, **settings)
    norm.weight.data.copy_(W)
    return norm(x)


def hub_layer(x: Any = X, eps: Any = 1e-6) -> torch.Tensor:
    layer = hub.LigerRMSNorm()
    layer.weight, layer.variance_epsilon = nn.Parameter(W), eps
    return layer(x)


def compiled(x: Any = X, eps: Any = 1e-6, **settings: Any) -> torch.Tensor:
    torch.compiler.reset()
    return torch.compile(lambda x: liger_rms_norm(x, W, eps, **settings), backend="eager")(x)


WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "function": function,
    "apply": applied,
    "module": module,
    "compiled": compiled,
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


@EVERY_WAY
@pytest.mark.parametrize(
    "eps",
    [
        0,
        1,
        np.float16(0.5),
        np.float32(0.1),
        np.float64(0.1),
        np.int32(2),
        np.array([0.25]),
        np.array(0.25),
        torch.tensor(0.25),
        torch.tensor([0.25]),
        torch.tensor(1),
        Fraction(1, 8),
    ],
    ids=repr,
)
def test_a_number_is_a_number(eps: Any, way: str) -> None:
    if way == "compiled" and isinstance(eps, np.generic | np.ndarray | Fraction):
        pytest.skip("Dynamo reads no number out of it")
    number = float(eps.item() if hasattr(eps, "item") else eps)
    wanted = liger_rms_norm(X, W, number)
    assert torch.equal(WAYS[way](eps=eps), wanted)
    assert torch.equal(hub_layer(eps=eps), wanted)
    offset = liger_rms_norm(X, W, 0.5, number)
    assert torch.equal(WAYS[way](eps=0.5, offset=eps), offset)


@EVERY_WAY
@pytest.mark.parametrize(
    "value",
    ["1e-6", b"1", None, True, False, np.bool_(True), 1j, [1e-6], torch.tensor([1.0, 2.0]), np.array([1e-6, 1.0])],
    ids=repr,
)
@pytest.mark.parametrize("name", ["eps", "offset"])
def test_what_is_no_number_is_one_typed_line(name: str, value: Any, way: str) -> None:
    if way == "compiled" and isinstance(value, np.ndarray | np.generic | torch.Tensor):
        pytest.skip("Dynamo words it itself")
    with pytest.raises(TypeError, match=f"{name} must be one number, got") as error:
        WAYS[way](**{name: value})
    assert way == "compiled" or "\n" not in str(error.value)


def test_a_number_that_learns_is_refused() -> None:
    with pytest.raises(TypeError, match=r"eps must be one number, got a tensor .* that requires a gradient"):
        liger_rms_norm(X, W, nn.Parameter(torch.tensor(1e-6)))
    with pytest.raises(TypeError, match=r"offset must be one number, got a tensor of shape \(\) on meta"):
        liger_rms_norm(X, W, 1e-6, torch.tensor(1.0, device="meta"))


@EVERY_WAY
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("row_mode", "auto", "row_mode must be None, True or False, got 'auto'"),
        ("row_mode", 1, "row_mode must be None, True or False, got 1"),
        ("in_place", "false", "in_place must be a bool, got 'false'"),
        ("in_place", 0, "in_place must be a bool, got 0"),
        ("in_place", None, "in_place must be a bool, got None"),
    ],
)
def test_a_switch_is_a_bool(name: str, value: Any, message: str, way: str) -> None:
    with pytest.raises(TypeError, match=message):
        WAYS[way](**{name: value})


@pytest.mark.parametrize("way", ["function", "apply", "module"])
@pytest.mark.parametrize(
    "x", [[1.0] * H, np.ones((2, H), np.float32), None, 1.0], ids=["list", "numpy", "None", "float"]
)
def test_x_is_a_tensor(x: Any, way: str) -> None:
    with pytest.raises(TypeError, match=f"X must be a torch.Tensor, got {type(x).__name__}"):
        WAYS[way](x=x)
    with pytest.raises(TypeError, match=r"X must be a torch\.Tensor"):
        hub_layer(x=x)


@pytest.mark.parametrize("w", [[1.0] * H, np.ones(H, np.float32), 1.0], ids=["list", "numpy", "float"])
def test_w_is_a_tensor(w: Any) -> None:
    for call in (liger_rms_norm, LigerRMSNormFunction.apply):
        with pytest.raises(TypeError, match=f"W must be a torch.Tensor, got {type(w).__name__}"):
            call(X, w, 1e-6)


@pytest.mark.parametrize("size", [(H,), [H], torch.Size([H]), np.int64(H), H], ids=repr)
def test_a_size_is_a_number_or_a_shape_of_one(size: Any) -> None:
    norm = LigerRMSNorm(size)
    assert norm.hidden_size == H and type(norm.hidden_size) is int and norm.weight.shape == (H,)


@pytest.mark.parametrize(
    ("size", "error"),
    [
        *[(size, TypeError) for size in ((H, H), "8", 8.0, True, None, ())],
        *[(size, ValueError) for size in (0, -1, (0,))],
    ],
    ids=repr,
)
def test_what_is_no_size_is_one_typed_line(size: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="hidden_size must be"):
        LigerRMSNorm(size)


@pytest.mark.parametrize("value", [1, "no", None], ids=repr)
def test_elementwise_affine_is_a_bool(value: Any) -> None:
    with pytest.raises(TypeError, match="elementwise_affine must be a bool"):
        LigerRMSNorm(H, elementwise_affine=value)
