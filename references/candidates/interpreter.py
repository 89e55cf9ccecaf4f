"""Triton's interpreter as the kernels' second machine: choose it where there is no GPU, and round as a GPU does.

The interpreter keeps a bfloat16 as its bit pattern. Its cast to one drops the low 16 bits, where compiled kernels round
to nearest even; its cast from one loses bits of subnormal numbers; and what it computes with two of them, it computes
with their bit patterns (Triton 3.6 to 3.9). `install` replaces casts and arithmetic, each only where a probe shows that
it is wrong: operands are widened to float32, as compiled kernels do, and the result is rounded once. Triton 3.6 also
turns scalars into loop bounds in a way that NumPy 2.4 refuses; that is repaired on the same terms.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

ARITHMETIC = re.compile(
    r"create_(f(add|sub|mul|div|rem|neg|ma|cmp\w+)|(precise|approx)_divf|(min|max)(imum|num)f|clampf"
    r"|cos|sin|exp2?|log2?|floor|ceil|sqrt|precise_sqrt|rsqrt|erf|dot)"
)


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
    if multiplies_bit_patterns():
        _compute_in_float32()
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

    cast, convert = InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp

    def cast_impl(builder: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == tl.bfloat16 and target != tl.bfloat16:
            widened = TensorHandle(np.asarray(src.data).view(ml_dtypes.bfloat16).astype(np.float32), tl.float32)
            return widened if target == tl.float32 else cast(builder, widened, dst_type)
        if target == tl.bfloat16 and source != tl.bfloat16:
            with np.errstate(over="ignore", invalid="ignore"):
                rounded = np.asarray(src.data).astype(ml_dtypes.bfloat16)
            return TensorHandle(rounded.view(np.uint16), target)
        return cast(builder, src, dst_type)

    def create_fp_to_fp(builder: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        to_nearest = rounding_mode is None or getattr(rounding_mode, "name", "") == "RTNE"
        if to_nearest and dst_type.scalar == tl.bfloat16:
            return cast_impl(builder, src, dst_type)
        return convert(builder, src, dst_type, rounding_mode)

    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_fp_to_fp = create_fp_to_fp


def multiplies_bit_patterns() -> bool:
    """Whether 1.5 · 2 in bfloat16 is not 3 in the interpreter."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    factors = (TensorHandle(np.array([v], ml_dtypes.bfloat16).view(np.uint16), tl.bfloat16) for v in (1.5, 2))
    product = InterpreterBuilder().create_fmul(*factors)
    return int(np.asarray(product.data).astype(np.uint16)[0]) != 0x4040


def _compute_in_float32() -> None:
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def is_bfloat16(value: Any) -> bool:
        return isinstance(value, TensorHandle) and value.dtype.scalar == tl.bfloat16

    def widening(compute: Callable[..., Any]) -> Callable[..., Any]:
        def computed(builder: Any, *operands: Any, **others: Any) -> Any:
            if not any(map(is_bfloat16, operands)):
                return compute(builder, *operands, **others)
            wide = (builder.cast_impl(v, tl.float32) if is_bfloat16(v) else v for v in operands)
            with np.errstate(all="ignore"):
                result = compute(builder, *wide, **others)
            # A comparison gives truth values, and the last of three operands is what a product is added to.
            narrow = result.data.dtype == np.float32 and is_bfloat16(operands[:3][-1])
            return builder.cast_impl(result, tl.bfloat16) if narrow else result

        return computed

    def atomic(compute: Callable[..., Any]) -> Callable[..., Any]:
        def computed(builder: Any, operation: Any, pointer: Any, value: Any, *others: Any) -> Any:
            if is_bfloat16(value) and operation.name == "FADD":
                raise NotImplementedError("Triton's interpreter cannot add bfloat16 numbers atomically")
            return compute(builder, operation, pointer, value, *others)

        return computed

    for name in filter(ARITHMETIC.fullmatch, dir(InterpreterBuilder)):
        setattr(InterpreterBuilder, name, widening(getattr(InterpreterBuilder, name)))
    InterpreterBuilder.create_atomic_rmw = atomic(InterpreterBuilder.create_atomic_rmw)


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
