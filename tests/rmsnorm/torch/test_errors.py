"""Input that cannot be computed: one typed error that names the offending values, before anything is launched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from rmsnorm import LigerRMSNorm, LigerRMSNormFunction, liger_rms_norm, ops  # noqa: E402
from rmsnorm.fused import launch  # noqa: E402

H = 8
X, W, RSTD = torch.ones(2, H), torch.ones(H), torch.ones(2)
SETTINGS = (1e-6, 0.0, "llama", None)


@pytest.fixture
def nothing_launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    launched: list[Any] = []
    for name in ("rms_norm_forward", "rms_norm_backward"):
        monkeypatch.setattr(launch, name, lambda *args, **_: launched.append(args))
    yield
    assert not launched


@pytest.mark.usefixtures("nothing_launched")
@pytest.mark.parametrize(
    ("x", "w", "error", "message"),
    [
        (X, torch.ones(H - 1), ValueError, "as many elements as X has columns, got 7 and 8"),
        (X, torch.ones(1, H), ValueError, r"W must be 1-D, got shape \(1, 8\)"),
        (torch.ones(2, 0), torch.ones(0), ValueError, r"at least one column, got shape \(2, 0\)"),
        (torch.ones(2, 0), None, ValueError, r"at least one column, got shape \(2, 0\)"),
        (torch.tensor(1.0), None, ValueError, r"shape \(\.\.\., H\), got a 0-d tensor"),
        (X.int(), W, TypeError, "X must be float16, .* got torch.int32"),
        (X.to(torch.complex64), None, TypeError, "X must be float16, .* got torch.complex64"),
        (X.to(torch.float8_e4m3fn), None, TypeError, "X must be .* got torch.float8_e4m3fn"),
        (X, W.long(), TypeError, "W must be float16, .* got torch.int64"),
        (X, W.to("meta"), ValueError, "X on cpu and W on meta"),
    ],
)
def test_tensors_that_cannot_be_computed(x: Any, w: Any, error: type[Exception], message: str) -> None:
    learns = x.detach().requires_grad_() if x.dtype == torch.float32 else x
    for function in (liger_rms_norm, LigerRMSNormFunction.apply):
        for given in (x, learns):
            with pytest.raises(error, match=message):
                function(given, w, 1e-6)


@pytest.mark.usefixtures("nothing_launched")
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
        liger_rms_norm(X, W, **settings)
    with pytest.raises(ValueError, match=message):
        LigerRMSNorm(H, **settings)
    with pytest.raises(ValueError, match=message):
        ops.rms_norm_forward(
            X, W, settings["eps"], settings.get("offset", 0.0), settings.get("casting_mode", "llama"), None
        )


@pytest.mark.usefixtures("nothing_launched")
@pytest.mark.parametrize("weight", [True, False])
def test_what_a_module_alone_is_given(weight: bool) -> None:
    with pytest.raises(ValueError, match="hidden_size must be at least 1, got -3"):
        LigerRMSNorm(-3)
    with pytest.raises(ValueError, match="init_fn must be 'ones' or 'zeros', got 'normal'"):
        LigerRMSNorm(H, init_fn="normal")
    with pytest.raises(TypeError, match=r"row_mode.*keyword"):
        LigerRMSNorm(H, 1e-6, 0.0, "llama", "ones", True, None)
    with pytest.raises(ValueError, match=r"hidden_size 8 columns, got shape \(2, 9\)"):
        LigerRMSNorm(H, elementwise_affine=weight)(torch.ones(2, H + 1))


@pytest.mark.gpu
def test_devices_are_named() -> None:
    for norm in (lambda x, w: liger_rms_norm(x, w, 1e-6), lambda x, w: LigerRMSNorm(H, device=w.device)(x)):
        with pytest.raises(ValueError, match="X on cpu and W on cuda:0"):
            norm(X, W.cuda())
        with pytest.raises(ValueError, match="X on cuda:0 and W on cpu"):
            norm(X.cuda(), W)


@pytest.mark.usefixtures("nothing_launched")
@pytest.mark.parametrize(
    ("dy", "rstd", "error", "message"),
    [
        (X.bfloat16(), RSTD, TypeError, "dY must have X's dtype, got torch.bfloat16 and torch.float32"),
        (torch.ones(2, H + 1), RSTD, ValueError, r"dY must have X's shape, got \(2, 9\) and \(2, 8\)"),
        (X.to("meta"), RSTD, ValueError, "dY on meta and X on cpu"),
        (X, torch.ones(3), ValueError, r"RSTD must have shape \(2,\), got \(3,\)"),
        (X, RSTD.double(), TypeError, "RSTD must be torch.float32 for X in torch.float32, got torch.float64"),
    ],
)
def test_backward_operators_check_their_arguments(
    dy: torch.Tensor, rstd: torch.Tensor, error: type[Exception], message: str
) -> None:
    before = dy.clone()
    with pytest.raises(error, match=message):
        ops.rms_norm_backward(dy, X, W, rstd, *SETTINGS, True, True)
    with pytest.raises(error, match=message):
        ops.rms_norm_backward_(dy, X, W, rstd, *SETTINGS, True)
    assert dy.is_meta or torch.equal(dy, before), "nothing was written"


@pytest.mark.usefixtures("nothing_launched")
def test_only_a_contiguous_dy_is_overwritten() -> None:
    dy = torch.randn(2, 2 * H)[:, ::2]
    with pytest.raises(ValueError, match="dY must be contiguous to be overwritten, got shape"):
        ops.rms_norm_backward_(dy, X, None, RSTD, *SETTINGS, False)


def test_autograd_refuses_a_cotangent_of_another_shape_and_casts_another_dtype() -> None:
    x = torch.randn(2, H, requires_grad=True)
    y = liger_rms_norm(x, None, 1e-6)
    with pytest.raises(RuntimeError, match=r"[Mm]ismatch in shape"):
        y.backward(torch.ones(2, H + 1))
    dy = torch.randn(2, H, dtype=torch.bfloat16)
    (got,) = torch.autograd.grad(y, x, dy, retain_graph=True)
    (wanted,) = torch.autograd.grad(y, x, dy.float())
    assert torch.equal(got, wanted)


def test_eps_zero_on_a_zero_row_is_ieee_not_an_error() -> None:
    with np.errstate(divide="ignore", invalid="ignore"):  # the interpreter computes with NumPy, which warns
        y = liger_rms_norm(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), None, 0.0)
    assert torch.isnan(y[0]).all()
    assert torch.isfinite(y[1]).all()
