"""Argument checks: one clear typed error that names the offending values, before anything is launched or written."""

from __future__ import annotations

import math

import torch

CASTING_MODE_NAMES = ("llama", "gemma", "none")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_settings(eps: float, offset: float, casting_mode: str) -> None:
    """Raise ValueError for an unknown casting mode, a negative or non-finite eps, a non-finite offset."""
    if casting_mode not in CASTING_MODE_NAMES:
        raise ValueError(f"casting_mode must be one of {CASTING_MODE_NAMES}, got {casting_mode!r}")
    if not 0.0 <= eps < math.inf:
        raise ValueError(f"eps must be finite and not negative, got {eps!r}")
    if not math.isfinite(offset):
        raise ValueError(f"offset must be finite, got {offset!r}")


def check_forward(
    x: torch.Tensor, w: torch.Tensor | None, eps: float, offset: float, casting_mode: str, least_cols: int = 1
) -> None:
    """Raise TypeError for a dtype, ValueError for a shape, device or setting that cannot be computed."""
    check_settings(eps, offset, casting_mode)
    if x.dtype not in DTYPES:
        raise TypeError(f"X must be float16, bfloat16, float32 or float64, got {x.dtype}")
    if x.dim() == 0:
        raise ValueError(f"X must have shape (..., H), got a 0-d tensor of shape {tuple(x.shape)}")
    if x.shape[-1] < least_cols:
        raise ValueError(f"X must have at least one column, got shape {tuple(x.shape)}")
    if w is None:
        return
    if w.dtype not in DTYPES:
        raise TypeError(f"W must be float16, bfloat16, float32 or float64, got {w.dtype}")
    if w.dim() != 1:
        raise ValueError(f"W must be 1-D, got shape {tuple(w.shape)}")
    if w.shape[0] != x.shape[-1]:
        raise ValueError(f"W must have as many elements as X has columns, got {w.shape[0]} and {x.shape[-1]}")
    if w.device != x.device:
        raise ValueError(f"X and W must be on one device, got X on {x.device} and W on {w.device}")


def check_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    casting_mode: str,
) -> None:
    """The forward's checks, and dy's and rstd's dtype (TypeError), shape and device (ValueError)."""
    check_forward(x, w, 0.0, offset, casting_mode)
    if dy.dtype != x.dtype:
        raise TypeError(f"dY must have X's dtype, got {dy.dtype} and {x.dtype}")
    if dy.shape != x.shape:
        raise ValueError(f"dY must have X's shape, got {tuple(dy.shape)} and {tuple(x.shape)}")
    if dy.device != x.device:
        raise ValueError(f"dY and X must be on one device, got dY on {dy.device} and X on {x.device}")
    rstd_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if rstd.dtype != rstd_dtype:
        raise TypeError(f"RSTD must be {rstd_dtype} for X in {x.dtype}, got {rstd.dtype}")
    if rstd.shape != x.shape[:-1]:
        raise ValueError(f"RSTD must have shape {tuple(x.shape[:-1])}, got {tuple(rstd.shape)}")
    if rstd.device != x.device:
        raise ValueError(f"RSTD and X must be on one device, got RSTD on {rstd.device} and X on {x.device}")
