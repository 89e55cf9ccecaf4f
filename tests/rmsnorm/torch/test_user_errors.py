"""What people really get wrong: one typed error whose message names both values, and nothing written."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rmsnorm import LigerRMSNorm, LigerRMSNormFunction, liger_rms_norm, ops

H = 8

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("x", "w", "error", "message"),
    [
        (torch.ones(2, H), torch.ones(H - 1), ValueError, "as many elements as X has columns, got 7 and 8"),
        (torch.ones(2, H), torch.ones(1, H), ValueError, r"W must be 1-D, got shape \(1, 8\)"),
        (torch.ones(2, 0), None, ValueError, r"at least one column, got shape \(2, 0\)"),
        (torch.tensor(1.0), None, ValueError, r"shape \(\.\.\., H\), got a 0-d tensor"),
        (torch.ones(2, H, dtype=torch.int64), None, TypeError, "X must be float16, .* got torch.int64"),
        (torch.ones(2, H, dtype=torch.complex64), None, TypeError, "X must be float16, .* got torch.complex64"),
        (torch.ones(2, H, dtype=torch.float8_e4m3fn), None, TypeError, "X must be .* got torch.float8_e4m3fn"),
        (torch.ones(2, H), torch.ones(H, dtype=torch.int32), TypeError, "W must be float16, .* got torch.int32"),
        (torch.ones(2, H), torch.ones(H, device="meta"), ValueError, "X on cpu and W on meta"),
    ],
)
def test_inputs_that_cannot_be_computed(
    x: torch.Tensor, w: torch.Tensor | None, error: type[Exception], message: str
) -> None:
    for function in (liger_rms_norm, LigerRMSNormFunction.apply):
        with pytest.raises(error, match=message):
            function(x, w, 1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps": -1e-6}, "eps must be finite and not negative, got -1e-06"),
        ({"eps": math.nan}, "eps must be finite and not negative, got nan"),
        ({"eps": math.inf}, "eps must be finite and not negative, got inf"),
        ({"eps": 1e-6, "offset": math.inf}, "offset must be finite, got inf"),
        ({"eps": 1e-6, "casting_mode": "Llama"}, r"one of \('llama', 'gemma', 'none'\), got 'Llama'"),
    ],
)
def test_settings_that_cannot_be_computed(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        liger_rms_norm(torch.ones(2, H), torch.ones(H), **settings)
    with pytest.raises(ValueError, match=message):
        LigerRMSNorm(H, **settings)


def test_settings_of_the_module_alone() -> None:
    with pytest.raises(ValueError, match="hidden_size must be at least 1, got 0"):
        LigerRMSNorm(0)
    with pytest.raises(ValueError, match="init_fn must be 'ones' or 'zeros', got 'normal'"):
        LigerRMSNorm(H, init_fn="normal")
    with pytest.raises(ValueError, match=r"hidden_size 8 columns, got shape \(2, 9\)"):
        LigerRMSNorm(H)(torch.ones(2, H + 1))


@pytest.mark.gpu
def test_a_cpu_tensor_beside_a_cuda_weight() -> None:
    with pytest.raises(ValueError, match="X on cpu and W on cuda:0"):
        LigerRMSNorm(H, device="cuda")(torch.ones(2, H))
    with pytest.raises(ValueError, match="X on cuda:0 and W on cpu"):
        LigerRMSNorm(H)(torch.ones(2, H, device="cuda"))


@pytest.mark.parametrize(
    ("dy", "error", "message"),
    [
        (torch.ones(2, H, dtype=torch.bfloat16), TypeError, "X's dtype, got torch.bfloat16 and torch.float32"),
        (torch.ones(2, H + 1), ValueError, r"X's shape, got \(2, 9\) and \(2, 8\)"),
        (torch.ones(2, H, device="meta"), ValueError, "dY on meta and X on cpu"),
    ],
)
def test_a_cotangent_that_does_not_fit(dy: torch.Tensor, error: type[Exception], message: str) -> None:
    x, w = torch.ones(2, H), torch.ones(H)
    _, rstd = ops.rms_norm_forward(x, w, 1e-6, 0.0, "llama", None)
    with pytest.raises(error, match=message):
        ops.rms_norm_backward(dy, x, w, rstd, 1e-6, 0.0, "llama", None, True, True)
    with pytest.raises(error, match=message):
        ops.rms_norm_backward_(dy, x, w, rstd, 1e-6, 0.0, "llama", None, True)
    assert dy.is_meta or torch.equal(dy, torch.ones_like(dy))  # nothing was written


def test_autograd_refuses_a_cotangent_of_another_shape_and_casts_another_dtype() -> None:
    x = torch.randn(2, H, requires_grad=True)
    y = liger_rms_norm(x, None, 1e-6)
    with pytest.raises(RuntimeError, match=r"[Mm]ismatch in shape"):
        y.backward(torch.ones(2, H + 1))
    dy = torch.randn(2, H, dtype=torch.bfloat16)
    (got,) = torch.autograd.grad(y, x, dy, retain_graph=True)
    (wanted,) = torch.autograd.grad(y, x, dy.float())
    assert torch.equal(got, wanted)


def test_columns_strided_dy_is_not_overwritten() -> None:
    x = torch.randn(2, H)
    _, rstd = ops.rms_norm_forward(x, None, 1e-6, 0.0, "llama", None)
    dy = torch.randn(2, 2 * H)[:, ::2]
    with pytest.raises(ValueError, match="dY must be contiguous to be overwritten, got shape"):
        ops.rms_norm_backward_(dy, x, None, rstd, 1e-6, 0.0, "llama", None, False)
