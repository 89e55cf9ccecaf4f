"""The same computation in eager PyTorch operations, on any device.

It is the CPU implementation of the operators, the path for rows too wide for a fused kernel, and, differentiated by
autograd, the second derivative. The operations stand in the order of the eager classes that the casting modes are named
after, so that on a CPU the bits are theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

RowMean = Callable[[torch.Tensor], torch.Tensor]  # (..., n_cols) -> (..., 1)


def _mean(t: torch.Tensor) -> torch.Tensor:
    return t.mean(-1, keepdim=True)


def _sum_over_count(t: torch.Tensor) -> torch.Tensor:
    return t.sum(-1, keepdim=True) / t.shape[-1]


def _shifted_weight(
    w: torch.Tensor, offset: float, casting_mode: str, dtype: torch.dtype, c_dtype: torch.dtype
) -> torch.Tensor:
    w = w.to(c_dtype)
    if offset != 0.0:  # not added when zero: -0.0 keeps its sign
        w = w + offset
    return w.to(dtype).to(c_dtype) if casting_mode == "none" else w


def rms_norm_forward(
    x: torch.Tensor,
    w: torch.Tensor | None,
    *,
    eps: float,
    offset: float,
    casting_mode: str,
    c_dtype: torch.dtype,
    row_mean: RowMean = _mean,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y, like x, and rstd, x.shape[:-1] in c_dtype, the compute dtype. x: (..., n_cols); w: (n_cols,) or None.

    row_mean: the mean over a row, of which x may hold a part only.
    """
    rounds_all = casting_mode == "none"

    def round_all(value: torch.Tensor) -> torch.Tensor:
        return value.to(x.dtype).to(c_dtype) if rounds_all else value

    x_c = x.to(c_dtype)
    mean_square = round_all(row_mean(round_all(x_c.pow(2))))
    rstd = round_all(torch.rsqrt(round_all(mean_square + eps)))
    x_hat = x_c * rstd
    if casting_mode != "gemma":
        x_hat = x_hat.to(x.dtype).to(c_dtype)
    if w is not None:
        x_hat = x_hat * _shifted_weight(w, offset, casting_mode, x.dtype, c_dtype)
    return x_hat.to(x.dtype), rstd.squeeze(-1)


def rms_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    *,
    offset: float,
    casting_mode: str,
    needs_dx: bool,
    needs_dw: bool,
    row_mean: RowMean = _sum_over_count,
    ds: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """dx, like x, and dw, like w; each None where it is not needed. The compute dtype is rstd's.

    ds: like x, added to dx before its rounding.
    """
    c_dtype = rstd.dtype
    x_c, dy_c, rstd = x.to(c_dtype), dy.to(c_dtype), rstd.unsqueeze(-1)
    x_hat = x_c * rstd
    dx = dw = None
    if needs_dx:
        m = dy_c if w is None else dy_c * _shifted_weight(w, offset, casting_mode, x.dtype, c_dtype)
        projection = row_mean(m * x_c) * rstd
        dx = rstd * (m - x_hat * projection)
        if ds is not None:
            dx = dx + ds.to(c_dtype)
        dx = dx.to(x.dtype)
    if needs_dw and w is not None:
        if casting_mode != "gemma":
            x_hat = x_hat.to(x.dtype).to(c_dtype)
        dw = (dy_c * x_hat).reshape(rstd.numel(), x.shape[-1]).sum(0).to(w.dtype)
    return dx, dw


def unrounded_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    *,
    eps: float,
    offset: float,
    c_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """dx and dw in c_dtype as differentiable functions of dy, x and w: no casting mode, rstd computed from x."""
    n_cols = x.shape[-1]
    x_c, dy_c = x.to(c_dtype), dy.to(c_dtype)
    rstd = torch.rsqrt(x_c.pow(2).mean(-1, keepdim=True) + eps)
    x_hat = x_c * rstd
    m = dy_c if w is None else dy_c * (w.to(c_dtype) + offset)
    dx = rstd * (m - x_hat * (m * x_hat).mean(-1, keepdim=True))
    dw = None if w is None else (dy_c * x_hat).reshape(-1, n_cols).sum(0)
    return dx, dw
