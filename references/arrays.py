"""The border between NumPy, torch and jax: conversion without changing a bit, and distances counted in bits.

NumPy arrays are the only currency inside this package; bfloat16 is `ml_dtypes.bfloat16`. torch and jax are
imported by the functions that need them, so that neither has to be installed for the other's sake.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from references.spec import DTYPES

_HUGE = np.iinfo(np.int64).max  # the distance between a NaN and a number


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name in `spec.DTYPES`.

    Raises:
        ValueError: name is none of them.
    """
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {name!r}")
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def dtype_name(value: Any) -> str:
    """The plain name ("bfloat16") of the dtype of an array or tensor, or of a NumPy, torch or jax dtype."""
    dtype = value if isinstance(value, type) else getattr(value, "dtype", value)
    text = str(dtype)
    return text.removeprefix("torch.") if text.startswith("torch.") else np.dtype(dtype).name


def to_torch(array: np.ndarray, device: Any = "cpu") -> Any:
    """A torch tensor with the array's bits, shape and dtype, in memory of its own.

    Args:
        array: any shape, float16|bfloat16|float32|float64.
        device: where torch puts it.
    """
    import torch

    own = np.array(array, order="C")  # torch refuses read-only memory and must not share the caller's
    if dtype_name(own) == "bfloat16":  # torch does not know ml_dtypes: hand over the bits
        return torch.from_numpy(own.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(own).to(device)


def to_jax(array: np.ndarray) -> Any:
    """A jax array with the array's bits, shape and dtype, on the CPU.

    Switches jax's 64-bit mode on, without which float64 would silently become float32.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax.device_put(np.array(array), jax.devices("cpu")[0])


def to_numpy(value: Any) -> np.ndarray:
    """A torch tensor, jax or NumPy array as a NumPy array of the same bits, in memory of its own."""
    if not hasattr(value, "detach"):  # NumPy reads its own arrays and those of jax
        return np.array(value)
    import torch

    tensor = value.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return tensor.numpy().copy()


def bits(array: np.ndarray) -> np.ndarray:
    """The bit patterns of an array, as unsigned integers of the same width and shape."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    return array.view(f"u{array.dtype.itemsize}")


def ulp_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many representable numbers lie between a and b, element by element.

    Args:
        a, b: shapes that broadcast, one dtype.

    Returns:
        int64. +0 and -0 are 0 apart, the largest number and infinity 1, two NaNs 0, a NaN and a number 2⁶³-1
        (where distances beyond that, between float64 of opposite sign, end too).

    Raises:
        TypeError: the dtypes differ.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype:
        raise TypeError(f"distances need one dtype, not {a.dtype.name} and {b.dtype.name}")
    sign = 1 << (8 * a.dtype.itemsize - 1)
    a_bits, b_bits = bits(a).astype(np.uint64), bits(b).astype(np.uint64)
    a_size, b_size = a_bits & np.uint64(sign - 1), b_bits & np.uint64(sign - 1)
    apart = np.where(  # bit patterns count numbers away from zero, so across zero the two counts add
        (a_bits ^ b_bits) & np.uint64(sign) != 0,
        a_size + b_size,
        np.maximum(a_size, b_size) - np.minimum(a_size, b_size),
    )
    apart = np.minimum(apart, np.uint64(_HUGE)).astype(np.int64)
    a_nan, b_nan = np.isnan(a), np.isnan(b)
    return np.where(a_nan & b_nan, 0, np.where(a_nan | b_nan, _HUGE, apart))
