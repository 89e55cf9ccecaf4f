"""Triton's interpreter as the kernels' second machine: choose it where there is no GPU, and round as a GPU does.

The interpreter's float32 → bfloat16 cast drops the low 16 bits, where compiled kernels round to nearest even, and its
bfloat16 → float32 cast loses bits of subnormal numbers (Triton 3.6 to 3.9). `install` replaces both casts by
ml_dtypes', and only where a probe shows that one of them is wrong. Triton 3.6 also turns scalars into loop bounds in a
way that NumPy 2.4 refuses; that is repaired on the same terms.
"""

from __future__ import annotations

import os
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np


def install() -> bool:
    """Choose the interpreter where torch sees no GPU, correct its rounding, and say whether it is chosen.

    Call it before anything imports a module with @triton.jit functions: the decorator reads the variable. Raises
    RuntimeError where such a call comes too late to have an effect.
    """
    import torch

    if not torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ:
        if "rmsnorm.fused.kernels" in sys.modules:
            raise RuntimeError("the interpreter must be chosen before rmsnorm is imported: set TRITON_INTERPRET=1")
        os.environ["TRITON_INTERPRET"] = "1"
    if os.environ.get("TRITON_INTERPRET") != "1":
        return False
    if miscasts_bfloat16():
        _cast_bfloat16_right()
    if refuses_loop_bounds():
        _take_loop_bounds()
    return True


def miscasts_bfloat16() -> bool:
    """Whether the interpreter rounds 1 + 2^-8 + 2^-9 to another bfloat16 than 1 + 2^-7, or widens 3·2^-133 wrong."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    builder = InterpreterBuilder()
    wide = TensorHandle(np.array([1 + 2**-8 + 2**-9], dtype=np.float32), tl.float32)
    narrow = TensorHandle(np.array([3], dtype=np.uint16), tl.bfloat16)  # a bit pattern
    rounded = builder.create_fp_trunc(wide, tl.block_type(tl.bfloat16, [1])).data
    widened = builder.create_fp_ext(narrow, tl.block_type(tl.float32, [1])).data
    return int(np.asarray(rounded).view(np.uint16)[0]) != 0x3F81 or float(widened[0]) != 3 * 2.0**-133


def _cast_bfloat16_right() -> None:
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast = InterpreterBuilder.cast_impl

    def cast_impl(builder: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        with np.errstate(over="ignore", invalid="ignore"):
            # The interpreter keeps a bfloat16 as its bit pattern.
            if source in (tl.float32, tl.float64) and target == tl.bfloat16:
                rounded = np.asarray(src.data).astype(ml_dtypes.bfloat16)
                return TensorHandle(rounded.view(np.uint16), target)
            if source == tl.bfloat16 and target == tl.float32:
                return TensorHandle(np.asarray(src.data).view(ml_dtypes.bfloat16).astype(np.float32), target)
        return cast(builder, src, dst_type)

    InterpreterBuilder.cast_impl = cast_impl


def refuses_loop_bounds() -> bool:
    """Whether the interpreter's conversion of a scalar, an array of one element there, to an int warns or fails."""
    import triton.language as tl
    from triton.runtime import interpreter

    patched: dict[str, Any] = {}
    interpreter._patch_lang_tensor(
        tl.tensor, SimpleNamespace(set_attr=lambda _, name, value: patched.update({name: value}))
    )
    scalar = SimpleNamespace(handle=SimpleNamespace(data=np.array([3])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return bool(patched["__index__"](scalar) != 3)
        except (TypeError, DeprecationWarning):
            return True


def _take_loop_bounds() -> None:
    from triton.runtime import interpreter

    patch_lang_tensor = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patch_lang_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))

    interpreter._patch_lang_tensor = patch
