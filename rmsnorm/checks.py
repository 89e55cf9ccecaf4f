"""Argument checks: one clear typed error that names the offending values, before anything is launched or written."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

CASTING_MODE_NAMES = ("llama", "gemma", "none")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for every other dtype of x."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_number(name: str, value: Any) -> float:
    """The value as a float: anything of one number, NumPy's scalars and one-element CPU tensors included.

    Raises TypeError for a bool, a string, None, several numbers, a tensor on a GPU (reading it would wait for the GPU)
    or one that requires a gradient (which would be lost).
    """
    if type(value) is float:
        return value
    if isinstance(value, torch.Tensor):
        if value.requires_grad or value.device.type != "cpu" or value.numel() != 1:
            raise TypeError(
                f"{name} must be one number, got a tensor of shape {tuple(value.shape)} on {value.device}"
                f"{' that requires a gradient' if value.requires_grad else ''}"
            )
        value = value.item()
    elif getattr(value, "ndim", 0) > 0 and getattr(value, "size", 0) == 1:  # a NumPy array of one element
        value = value.item()
    if not isinstance(value, bool | str | bytes | bytearray) and str(getattr(value, "dtype", "")) != "bool":
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise TypeError(f"{name} must be one number, got {value!r}")


def check_size(hidden_size: Any) -> int:
    """hidden_size as an int, of an int or a shape of one dimension. Raises TypeError, or ValueError below 1."""
    size = hidden_size[0] if isinstance(hidden_size, tuple | list) and len(hidden_size) == 1 else hidden_size
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(f"hidden_size must be an int or a shape of one dimension, got {hidden_size!r}")
    size = size.__index__()
    if size < 1:
        raise ValueError(f"hidden_size must be at least 1, got {size}")
    return size


def check_bool(name: str, value: Any) -> None:
    """Raise TypeError unless the value is a bool: "false" would count as true."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r}")


def check_settings(
    eps: Any, offset: Any, casting_mode: str, in_place: Any = True, row_mode: Any = None
) -> tuple[float, float]:
    """eps and offset as floats.

    Raises TypeError for a setting of the wrong type, ValueError for an unknown casting mode, a negative or non-finite
    eps, a non-finite offset.
    """
    if type(eps) is float and type(offset) is float and not torch.compiler.is_compiling():
        try:
            return _check_settings(eps, offset, casting_mode, in_place, row_mode)
        except TypeError:  # a setting that cannot be hashed, or one of the wrong type
            pass
    eps, offset = check_number("eps", eps), check_number("offset", offset)
    return _check_settings.__wrapped__(eps, offset, casting_mode, in_place, row_mode)


@functools.lru_cache(maxsize=256, typed=True)
def _check_settings(eps: float, offset: float, casting_mode: str, in_place: Any, row_mode: Any) -> tuple[float, float]:
    if casting_mode not in CASTING_MODE_NAMES:
        raise ValueError(f"casting_mode must be one of {CASTING_MODE_NAMES}, got {casting_mode!r}")
    if not 0.0 <= eps < math.inf:
        raise ValueError(f"eps must be finite and not negative, got {eps!r}")
    if not -math.inf < offset < math.inf:
        raise ValueError(f"offset must be finite, got {offset!r}")
    check_bool("in_place", in_place)
    if row_mode is not None and not isinstance(row_mode, bool):
        raise TypeError(f"row_mode must be None, True or False, got {row_mode!r}")
    return eps, offset


def check_inputs(x: Any, w: Any, least_cols: int = 1) -> None:
    """Raise TypeError for what is no dense tensor of the four dtypes, ValueError for a shape or a device."""
    check_tensor("X", x)
    shape = x.shape
    if x.dim() == 0:
        raise ValueError(f"X must have shape (..., H), got a 0-d tensor of shape {tuple(shape)}")
    if shape[-1] < least_cols:
        raise ValueError(f"X must have at least one column, got shape {tuple(shape)}")
    if w is None:
        return
    check_tensor("W", w)
    if w.dim() != 1:
        raise ValueError(f"W must be 1-D, got shape {tuple(w.shape)}")
    if w.shape[0] != shape[-1]:
        raise ValueError(f"W must have as many elements as X has columns, got {w.shape[0]} and {shape[-1]}")
    if w.device != x.device:
        raise ValueError(f"X and W must be on one device, got X on {x.device} and W on {w.device}")


def check_tensor(name: str, value: Any) -> None:
    """Raise TypeError for what is no dense tensor of the four dtypes."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.dtype not in DTYPES:
        raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, got {value.dtype}")
    if value.layout is not torch.strided or value.is_nested:
        nested = "nested " if value.is_nested else ""
        raise TypeError(f"{name} must be a dense tensor, got a {nested}tensor of layout {value.layout}")


def check_like_x(name: str, value: torch.Tensor, x: torch.Tensor) -> None:
    """Raise TypeError for another dtype than x's, ValueError for another shape or device."""
    if value.dtype != x.dtype:
        raise TypeError(f"{name} must have X's dtype, got {value.dtype} and {x.dtype}")
    if value.shape != x.shape:
        raise ValueError(f"{name} must have X's shape, got {tuple(value.shape)} and {tuple(x.shape)}")
    if value.device != x.device:
        raise ValueError(f"{name} and X must be on one device, got {name} on {value.device} and X on {x.device}")


def check_residual(r: Any, x: torch.Tensor) -> None:
    """Raise TypeError for what is no dense tensor of x's dtype, ValueError for another shape or device than x's."""
    check_tensor("R", r)
    check_like_x("R", r, x)


def check_forward(x: Any, w: Any, eps: float, offset: float, casting_mode: str) -> None:
    """Raise TypeError for a dtype or layout, ValueError for a shape, device or setting that cannot be computed."""
    check_settings(eps, offset, casting_mode)
    check_inputs(x, w)


def check_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    eps: float,
    offset: float,
    casting_mode: str,
) -> None:
    """The forward's checks, and dy's and rstd's dtype (TypeError), shape and device (ValueError)."""
    check_forward(x, w, eps, offset, casting_mode)
    check_like_x("dY", dy, x)
    rstd_dtype = compute_dtype(x.dtype)
    if rstd.dtype != rstd_dtype:
        raise TypeError(f"RSTD must be {rstd_dtype} for X in {x.dtype}, got {rstd.dtype}")
    if rstd.shape != x.shape[:-1]:
        raise ValueError(f"RSTD must have shape {tuple(x.shape[:-1])}, got {tuple(rstd.shape)}")
    if rstd.device != x.device:
        raise ValueError(f"RSTD and X must be on one device, got RSTD on {rstd.device} and X on {x.device}")
