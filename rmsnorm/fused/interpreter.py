"""Triton's interpreter (TRITON_INTERPRET=1) made right where it computes wrong numbers in silence.

It drops the low 16 bits of a float32 that is cast to bfloat16, where compiled kernels round to nearest even, and loses
bits of subnormal numbers on the way back (Triton 3.6 to 3.9). And its grid index is one variable of the process: two
launches at once read each other's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_LAUNCHES = threading.Lock()


@contextlib.contextmanager
def launching() -> Iterator[None]:
    """Around an interpreted launch: one at a time, and without NumPy's warnings of what IEEE specifies.

    The rows that pad a tile are zeros, whose 1/sqrt(0 + eps) divides by zero where eps is 0.
    """
    with _LAUNCHES, np.errstate(all="ignore"):
        yield


def correct_casts() -> None:
    """Replace the interpreter's casts to bfloat16 and from it by PyTorch's, where a probe shows that they are wrong."""
    if _casts_right():
        return
    cast = InterpreterBuilder.cast_impl

    def cast_impl(builder: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        values = np.ascontiguousarray(src.data)  # of a bfloat16 the interpreter keeps the bit pattern
        if source in (tl.float32, tl.float64) and target == tl.bfloat16:
            rounded = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
            return TensorHandle(rounded.view(np.uint16).reshape(src.data.shape), target)
        if source == tl.bfloat16 and target == tl.float32:
            widened = torch.from_numpy(values.view(np.int16)).view(torch.bfloat16).float().numpy()
            return TensorHandle(widened.reshape(src.data.shape), target)
        return cast(builder, src, dst_type)

    InterpreterBuilder.cast_impl = cast_impl


def _casts_right() -> bool:
    """Whether 1 + 2^-8 + 2^-9 rounds to the bfloat16 1 + 2^-7, and the bfloat16 3 · 2^-133 keeps its value."""
    builder = InterpreterBuilder()
    wide = TensorHandle(np.array([1 + 2**-8 + 2**-9], dtype=np.float32), tl.float32)
    narrow = TensorHandle(np.array([3], dtype=np.uint16), tl.bfloat16)
    rounded = builder.create_fp_trunc(wide, tl.block_type(tl.bfloat16, [1])).data
    widened = builder.create_fp_ext(narrow, tl.block_type(tl.float32, [1])).data
    return int(np.asarray(rounded).view(np.uint16)[0]) == 0x3F81 and float(widened[0]) == 3 * 2.0**-133
