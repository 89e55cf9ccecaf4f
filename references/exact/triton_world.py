"""Triton kernels in the exact world: the interpreter's floats become patterns of the field.

While `world(field)` is open, every operation of Triton's interpreter on floats is the field's: loads and stores move
patterns, a conversion is `Field.cast`, a sum has no order. A sum in a 16-bit dtype rounds after every addition, in the
order of the axis. What has no meaning in the field raises NotAlgebraic, which the interpreter wraps: see `refusal`.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

from references.exact.field import Field, NotAlgebraic, pattern_dtype

DTYPES = {tl.float16: "float16", tl.bfloat16: "bfloat16", tl.float32: "float32", tl.float64: "float64"}
CONSTANTS = {"get_fp16": tl.float16, "get_bf16": tl.bfloat16, "get_fp32": tl.float32, "get_fp64": tl.float64}
# Values are moved, not looked at; conversions, which all end in `cast_impl`, have a door of their own.
MOVES = (  # noqa: SIM905 - a list would take a line a name
    "load store masked_load masked_store bitcast select reshape trans gather addptr expand_dims broadcast cat join"
    " split splat unsplat make_tensor_descriptor descriptor_load descriptor_store print assert assume barrier"
    " int_to_ptr ptr_to_int si_to_fp ui_to_fp fp_to_si fp_to_ui fp_ext fp_trunc int_cast fp_to_fp"
).split()
EQUAL, UNEQUAL = ("fcmpOEQ", "fcmpUEQ"), ("fcmpONE", "fcmpUNE")


@contextlib.contextmanager
def world(field: Field) -> Iterator[None]:
    """Open the exact world for kernels that were decorated with TRITON_INTERPRET=1."""
    builder, arithmetic = interpreter.InterpreterBuilder, _arithmetic(field)
    with contextlib.ExitStack() as stack:

        def patch(owner: Any, name: str, value: Callable[..., Any]) -> None:
            stack.callback(setattr, owner, name, owner.__dict__[name])
            setattr(owner, name, value)

        for name in [name for name in vars(builder) if name.startswith("create_")]:
            operation = name.removeprefix("create_")
            if operation not in MOVES:
                patch(builder, name, _on_floats(field, operation, getattr(builder, name), arithmetic.get(operation)))
        patch(builder, "cast_impl", _cast(field, builder.cast_impl))
        patch(builder, "create_fp_to_fp", lambda self, source, target, rounding: self.cast_impl(source, target))
        patch(builder, "create_masked_load", _load(field, builder.create_masked_load))
        for name, dtype in CONSTANTS.items():
            patch(builder, name, _constant(field, dtype))
        convert = interpreter._implicit_cvt
        patch(interpreter, "_implicit_cvt", lambda given: _argument(field, convert, given))
        for name, stub in vars(libdevice).items():
            if inspect.isfunction(stub):  # kernels hold the function itself: its code is what can be replaced
                stack.callback(setattr, stub, "__code__", stub.__code__)
                stub.__code__ = _of_libdevice(name)
        for owner, kind in ((interpreter.ReduceOps, "reduction"), (interpreter.ScanOps, "scan")):
            patch(owner, "apply_impl", _only_sums(field, kind, owner.apply_impl))
        yield


def refusal(error: BaseException | None) -> NotAlgebraic | None:
    """The NotAlgebraic that an error came from, if it did."""
    while error is not None and not isinstance(error, NotAlgebraic):
        error = error.__cause__ or error.__context__
    return error


def _arithmetic(field: Field) -> dict[str, Callable[..., np.ndarray]]:
    """The builder's operations that the field has."""
    return {
        "fadd": field.add,
        "fsub": field.subtract,
        "fmul": field.multiply,
        "fneg": field.negative,
        **dict.fromkeys(("fdiv", "precise_divf", "approx_divf"), field.divide),
        "fma": lambda a, b, c: field.add(field.multiply(a, b), c),
        **dict.fromkeys(("sqrt", "precise_sqrt"), field.root),
        "rsqrt": lambda a: field.power(field.root(a), -1),
        **dict.fromkeys(EQUAL, np.equal),
        **dict.fromkeys(UNEQUAL, np.not_equal),
    }


def _on_floats(
    field: Field, name: str, plain: Callable[..., Any], operation: Callable[..., np.ndarray] | None
) -> Callable[..., Any]:
    """The builder's method: as it was for integers, the field's for floats, refused where the field has none."""

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        floats = [a for a in _flat(arguments) if isinstance(a, interpreter.TensorHandle) and _is_float(a.dtype)]
        if not floats:
            return plain(self, *arguments, **keywords)
        if operation is None or any(handle.dtype.scalar not in DTYPES for handle in floats):
            raise NotAlgebraic(f"Triton's {name} of {floats[0].dtype.scalar}")
        result = operation(*(_elements(field, handle) for handle in floats))
        if result.dtype == bool:
            return interpreter.TensorHandle(result, tl.int1)
        return _handle(field.encode(result, DTYPES[floats[-1].dtype.scalar]), floats[-1].dtype)

    return method


LIBDEVICE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("rsqrt", "rsqrt_rn"), lambda a: tl.rsqrt(a)),
    **dict.fromkeys(("sqrt", "sqrt_rn"), lambda a: tl.sqrt(a)),
    "rcp_rn": lambda a: 1.0 / a,
    "div_rn": lambda a, b: a / b,
    "fma_rn": lambda a, b, c: a * b + c,
    "add_rn": lambda a, b: a + b,
    "sub_rn": lambda a, b: a - b,
    "mul_rn": lambda a, b: a * b,
}


def call_libdevice(name: str, *arguments: Any) -> Any:
    """A function of libdevice, which is compiled code and to the interpreter nothing: by Triton's own operations."""
    if name not in LIBDEVICE:
        raise NotAlgebraic(f"libdevice's {name}")
    return LIBDEVICE[name](*arguments)


def _of_libdevice(name: str) -> types.CodeType:
    function: Any = eval(
        f"lambda *arguments: __import__('sys').modules[{__name__!r}].call_libdevice({name!r}, *arguments)"
    )
    return function.__code__


def _cast(field: Field, plain: Callable[..., Any]) -> Callable[..., Any]:
    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if not (_is_float(source.dtype) or _is_float(target)):
            return plain(self, source, target)
        if not _is_float(target):
            raise NotAlgebraic(f"a {source.dtype.scalar} becomes an integer")
        if _is_float(source.dtype):
            names = DTYPES.get(source.dtype.scalar), DTYPES.get(target.scalar)
            if None in names:
                raise NotAlgebraic(f"a conversion from {source.dtype.scalar} to {target.scalar}")
            return _handle(field.cast(_patterns(source), *names), target)  # type: ignore[arg-type]
        integers = np.asarray(source.data).astype(object) % field.prime
        return _handle(field.encode(integers.astype(np.uint64), DTYPES[target.scalar]), target)

    return cast_impl


def _load(field: Field, plain: Callable[..., Any]) -> Callable[..., Any]:
    """What a mask leaves out of a load, and no `other` names, is undefined: whoever uses it finds something."""
    junk = np.random.default_rng((field.seed, 1))

    def create_masked_load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        element = pointers.dtype.scalar.element_ty
        if other is None and element in DTYPES:
            unsigned = pattern_dtype(DTYPES[element])
            top = field.prime if unsigned.itemsize > 2 else 2**16
            patterns = junk.integers(0, top, np.shape(pointers.data)).astype(unsigned)
            other = _handle(patterns, element)
        return plain(self, pointers, mask, other, *rest)

    return create_masked_load


def _constant(field: Field, dtype: Any) -> Callable[..., Any]:
    return lambda self, value: _handle(field.constant(value, DTYPES[dtype]), dtype)


def _argument(field: Field, plain: Callable[..., Any], given: Any) -> Any:
    """A kernel's argument: a float is a float32 there, as compiled kernels get it, and no Python number."""
    if not isinstance(given, float):
        return plain(given)
    return tl.core.tensor(_handle(field.constant(given, "float32"), tl.float32), tl.float32)


def _only_sums(field: Field, kind: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def apply_impl(self: Any, given: Any) -> Any:
        if not any(_is_float(tensor.dtype) for tensor in given):
            return plain(self, given)
        if kind == "scan" or self.combine_fn is not tl.standard._sum_combine:
            raise NotAlgebraic(f"a {kind} by {self.combine_fn.fn.__name__}")
        dtype = DTYPES[given[0].dtype.scalar]
        patterns = _patterns(given[0].handle)
        axis = self.axis
        if axis is None:
            patterns, axis = patterns.reshape(-1), 0
        total = field.accumulate(patterns, dtype, axis)
        if self.keep_dims:
            total = np.expand_dims(total, axis if self.axis is not None else tuple(range(given[0].handle.data.ndim)))
        scalar = given[0].dtype.scalar
        handle = _handle(total, scalar)
        return tl.core.tensor(handle, tl.block_type(scalar, list(total.shape)) if total.ndim else scalar)

    return apply_impl


def _is_float(dtype: Any) -> bool:
    return not isinstance(dtype.scalar, tl.pointer_type) and bool(dtype.scalar.is_floating())


def _patterns(handle: Any) -> np.ndarray:
    data = np.asarray(handle.data)
    return np.ascontiguousarray(data).view(pattern_dtype(DTYPES[handle.dtype.scalar])).reshape(data.shape)


def _elements(field: Field, handle: Any) -> np.ndarray:
    return field.decode(_patterns(handle), DTYPES[handle.dtype.scalar])


def _handle(patterns: np.ndarray, dtype: Any) -> Any:
    """The interpreter keeps scalars as arrays of one element, and bfloat16 as its patterns."""
    data = np.ascontiguousarray(np.atleast_1d(patterns)).view(interpreter._get_np_dtype(dtype.scalar))
    return interpreter.TensorHandle(data, dtype.scalar)


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value
