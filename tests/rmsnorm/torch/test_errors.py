"""Input that cannot be computed: one typed error that names both offending values, before anything is launched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from rmsnorm import LigerRMSNorm, liger_rms_norm  # noqa: E402
from rmsnorm.fused import launch  # noqa: E402

X = torch.ones(2, 8)
W = torch.ones(8)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: liger_rms_norm(X, W, 1e-6, 0.0, "lama"), ValueError, "'llama', 'gemma', 'none'.*'lama'"),
        (lambda: liger_rms_norm(X, W, -1e-6), ValueError, "eps.*-1e-06"),
        (lambda: liger_rms_norm(X, W, NAN), ValueError, "eps.*nan"),
        (lambda: liger_rms_norm(X, W, INF), ValueError, "eps.*inf"),
        (lambda: liger_rms_norm(X, W, 1e-6, INF), ValueError, "offset.*inf"),
        (lambda: liger_rms_norm(X, torch.ones(7), 1e-6), ValueError, "7 and 8"),
        (lambda: liger_rms_norm(X, torch.ones(1, 8), 1e-6), ValueError, r"1-D.*\(1, 8\)"),
        (lambda: liger_rms_norm(torch.ones(2, 0), torch.ones(0), 1e-6), ValueError, r"\(2, 0\)"),
        (lambda: liger_rms_norm(torch.ones(2, 0), None, 1e-6), ValueError, r"\(2, 0\)"),
        (lambda: liger_rms_norm(torch.tensor(1.0), None, 1e-6), ValueError, r"0-d"),
        (lambda: liger_rms_norm(X.int(), W, 1e-6), TypeError, "torch.int32"),
        (lambda: liger_rms_norm(X.to(torch.complex64), W, 1e-6), TypeError, "torch.complex64"),
        (lambda: liger_rms_norm(X, W.long(), 1e-6), TypeError, "torch.int64"),
        (lambda: liger_rms_norm(X, W.to("meta"), 1e-6), ValueError, "cpu.*meta"),
        (lambda: LigerRMSNorm(0), ValueError, "hidden_size.*0"),
        (lambda: LigerRMSNorm(-3), ValueError, "hidden_size.*-3"),
        (lambda: LigerRMSNorm(8, eps=-1.0), ValueError, "eps.*-1.0"),
        (lambda: LigerRMSNorm(8, casting_mode="fast"), ValueError, "'fast'"),
        (lambda: LigerRMSNorm(8, init_fn="normal"), ValueError, "'normal'"),
        (lambda: LigerRMSNorm(8, 1e-6, 0.0, "llama", "ones", True, None), TypeError, "row_mode.*keyword"),
        (lambda: LigerRMSNorm(8)(torch.ones(2, 9)), ValueError, r"hidden_size 8.*\(2, 9\)"),
        (lambda: LigerRMSNorm(8, elementwise_affine=False)(torch.ones(2, 9)), ValueError, r"8.*\(2, 9\)"),
    ],
)
def test_one_typed_error_before_any_launch(
    call: Callable[[], object], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []
    monkeypatch.setattr(launch, "rms_norm_forward", lambda *args, **kwargs: launched.append(args))
    with pytest.raises(error, match=message):
        call()
    assert not launched


def backward(dy: torch.Tensor, x: torch.Tensor = X, rstd: torch.Tensor | None = None) -> Callable[[], object]:
    rstd = torch.ones(2) if rstd is None else rstd
    return lambda: torch.ops.rmsnorm.rms_norm_backward(dy, x, W, rstd, 1e-6, 0.0, "llama", None, True, True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (backward(torch.ones(2, 7)), ValueError, r"\(2, 7\).*\(2, 8\)"),
        (backward(X.double()), TypeError, "float64.*float32"),
        (backward(X.to("meta")), ValueError, "meta.*cpu"),
        (backward(X, rstd=torch.ones(3)), ValueError, r"\(2,\).*\(3,\)"),
        (backward(X, rstd=torch.ones(2).double()), TypeError, "float32.*float64"),
        (
            lambda: torch.ops.rmsnorm.rms_norm_backward_(
                torch.ones(8, 2).t(), X, W, torch.ones(2), 1e-6, 0.0, "llama", None, True
            ),
            ValueError,
            "contiguous",
        ),
    ],
)
def test_backward_operators_check_their_arguments(
    call: Callable[[], object], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []
    monkeypatch.setattr(launch, "rms_norm_backward", lambda *args, **kwargs: launched.append(args))
    with pytest.raises(error, match=message):
        call()
    assert not launched


def test_eps_zero_on_a_zero_row_is_ieee_not_an_error() -> None:
    with np.errstate(divide="ignore", invalid="ignore"):  # the interpreter computes with NumPy, which warns
        y = liger_rms_norm(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), None, 0.0)
    assert torch.isnan(y[0]).all()
    assert torch.isfinite(y[1]).all()


@pytest.mark.gpu
def test_devices_are_named() -> None:
    with pytest.raises(ValueError, match=r"cuda:0.*cpu"):
        liger_rms_norm(X.cuda(), W, 1e-6)
    with pytest.raises(ValueError, match=r"cpu.*cuda:0"):
        liger_rms_norm(X, W.cuda(), 1e-6)
