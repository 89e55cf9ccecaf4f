"""Triton's interpreter as the kernels' second machine: choose it where there is no GPU, and round as a GPU does.

The interpreter's float32 → bfloat16 cast drops the low 16 bits (Triton 3.6 to 3.9), where compiled kernels round to
nearest even. `install` replaces that one cast by ml_dtypes', and only where a probe shows that it truncates. Triton 3.6
also turns scalars into loop bounds in a way that NumPy 2.4 refuses; that is repaired on the same terms.
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
        if "rmsnorm.kernels" in sys.modules:
            raise RuntimeError("the interpreter must be chosen before rmsnorm is imported: set TRITON_INTERPRET=1")
        os.environ["TRITON_INTERPRET"] = "1"
    if os.environ.get("TRITON_INTERPRET") != "1":
        return False
    if truncates_bfloat16():
        _round_bfloat16_to_nearest()
    if refuses_loop_bounds():
        _take_loop_bounds()
    return True


def truncates_bfloat16() -> bool:
    """Whether the interpreter's cast of 1 + 2^-8 + 2^-9 (nearest: 1 + 2^-7) to bfloat16 drops bits."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    probe = TensorHandle(np.array([1 + 2**-8 + 2**-9], dtype=np.float32), tl.float32)
    cast = InterpreterBuilder().create_fp_trunc(probe, tl.block_type(tl.bfloat16, [1]))
    return int(np.asarray(cast.data).view(np.uint16)[0]) != 0x3F81


def _round_bfloat16_to_nearest() -> None:
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    # Also from float64, where the interpreter converts the value to an unsigned integer instead.
    truncating_cast = InterpreterBuilder.cast_impl

    def cast_impl(builder: Any, src: Any, dst_type: Any) -> Any:
        if src.dtype.scalar in (tl.float32, tl.float64) and dst_type.scalar == tl.bfloat16:
            # The interpreter keeps a bfloat16 as its bit pattern.
            with np.errstate(over="ignore", invalid="ignore"):
                rounded = np.asarray(src.data).astype(ml_dtypes.bfloat16)
            return TensorHandle(rounded.view(np.uint16), dst_type.scalar)
        return truncating_cast(builder, src, dst_type)

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
