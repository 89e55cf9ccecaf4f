"""PyTorch programs in the exact world, autograd's backward and Triton kernels included.

While `world(field)` is open, tensors hold patterns of the field. A dispatch mode computes aten operations below
autograd, so what differentiates is PyTorch's own; an aten operation rounds once, to the dtype of its result, as its
kernels do that compute 16-bit numbers in float32. A custom operator runs its CPU implementation with the mode on. An
aten operation that the field has no word for is decomposed as PyTorch itself decomposes it, or refused by name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from references import arrays
from references.exact.field import Field, NotAlgebraic, pattern_dtype

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Values are moved, not looked at; those that could convert have handlers below.
MOVES = (  # noqa: SIM905 - a list would take a line a name
    "view _unsafe_view expand detach clone unsqueeze squeeze permute transpose t slice select alias as_strided"
    " contiguous _reshape_alias reshape flatten unbind split split_with_sizes index_select narrow flip repeat"
    " slice_backward select_backward is_same_size set_ movedim stack cat is_pinned chunk roll diagonal unfold"
).split()
EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
FILLED = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1, "zero_": 0}
GIVEN = {"full": 1, "full_like": 1, "new_full": 2, "fill_": 1, "fill": 1, "scalar_tensor": 0}  # place of the value
FINITE = {"isfinite": True, "isnan": False, "isinf": False, "isneginf": False, "isposinf": False}
READS = ("numpy", "tolist", "__array__", "__dlpack__")


@contextlib.contextmanager
def world(field: Field) -> Iterator[None]:
    """Open the exact world for PyTorch and, where kernels are interpreted, for Triton."""
    with contextlib.ExitStack() as stack:
        if os.environ.get("TRITON_INTERPRET") == "1":
            from references.exact import triton_world

            stack.enter_context(triton_world.world(field))
        for owner, name in itertools.product((torch, torch.Tensor), FINITE):
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, _answer(FINITE[name])))
        stack.enter_context(_Reads())
        stack.enter_context(_Arithmetic(field))
        yield


def to_tensor(patterns: np.ndarray, dtype: str) -> torch.Tensor:
    """A tensor of `dtype` that holds the patterns."""
    return arrays.to_torch(np.ascontiguousarray(patterns).view(arrays.numpy_dtype(dtype)).reshape(patterns.shape))


def to_patterns(tensor: torch.Tensor) -> np.ndarray:
    """The patterns that a tensor holds."""
    return arrays.bits(arrays.to_numpy(tensor))


def _answer(value: bool) -> Callable[..., torch.Tensor]:
    """Every element of the field is finite. A function mode would not hear of the question in a function of its own."""
    return lambda tensor: torch.full(tensor.shape, value, dtype=torch.bool)


class _Reads(TorchFunctionMode):
    """No element of the field is a float that NumPy could read."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and isinstance(args[0], torch.Tensor) and args[0].dtype in FLOATS:
            raise NotAlgebraic(f"Tensor.{name} reads values")
        return func(*args, **(kwargs or {}))


class _Arithmetic(TorchDispatchMode):
    def __init__(self, field: Field) -> None:
        super().__init__()
        self.field = field
        self.junk = np.random.default_rng(field.seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if FakeTensor in types:  # shapes alone: nothing of the field
            return func(*args, **kwargs)
        if any(t.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for t in types):
            return NotImplemented  # a subclass takes its tensors apart first, and comes back with plain ones
        if "c10d" in func.namespace and "reduce" in str(func) and torch.distributed.get_world_size() > 1:
            raise NotAlgebraic(f"{func} adds patterns as floats")
        if func.namespace not in ("aten", "prim", "prims"):
            with self:  # the implementation's own operations come back here
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
        name = func.overloadpacket.__name__
        floats = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.is_floating_point()]
        if any(t.dtype not in FLOATS for t in floats):
            raise NotAlgebraic(f"{func} of {floats[0].dtype}")
        if name in FILLED or name in GIVEN or name in EMPTY:
            return self._made(func, name, args, kwargs)
        if name == "lift_fresh":  # a literal, of real floats
            return self._lifted(args[0])
        if name in ("_to_copy", "copy_", "where"):
            return self._moved(func, name, args, kwargs)
        if not floats or (name in MOVES and len({t.dtype for t in floats}) == 1):
            if any(isinstance(v, torch.dtype) and (floats or v in FLOATS) for v in (*args, *kwargs.values())):
                raise NotAlgebraic(f"{func} makes floats of other bits, or others of them")
            return func(*args, **kwargs)
        handler = HANDLERS.get(name.removesuffix("_"))
        if handler is None:
            return self._decomposed(func, args, kwargs)
        if "out" in kwargs:
            raise NotAlgebraic(f"{func} with out=")
        result = handler(self, func, args, kwargs)
        return args[0].copy_(result) if name.endswith("_") else result

    def _made(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if result.dtype not in FLOATS or not result.numel() or result.is_meta or isinstance(result, FakeTensor):
            return result
        dtype = arrays.dtype_name(result)
        if name in EMPTY:  # whoever reads it finds something
            top = self.field.prime if result.dtype.itemsize > 2 else 2**16
            patterns = self.junk.integers(0, top, result.shape).astype(pattern_dtype(dtype))
        else:
            value = FILLED[name] if name in FILLED else args[GIVEN[name]]
            if isinstance(value, torch.Tensor):
                raise NotAlgebraic(f"{func} from a tensor")
            patterns = np.broadcast_to(self.field.constant(value, dtype), result.shape)
        return result.copy_(to_tensor(patterns.astype(pattern_dtype(dtype)), dtype))

    def _lifted(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in FLOATS:
            return tensor
        dtype = arrays.dtype_name(tensor)
        values = [self.field.constant(value, dtype) for value in tensor.double().reshape(-1).tolist()]
        return to_tensor(np.array(values, pattern_dtype(dtype)).reshape(tuple(tensor.shape)), dtype)

    def _moved(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "where":
            dtype = torch.result_type(args[1], args[2])
            return func(args[0], *(self._as(value, dtype) for value in args[1:]))
        source = args[0] if name == "_to_copy" else args[1]
        dtype = kwargs.get("dtype") or source.dtype if name == "_to_copy" else args[0].dtype
        if name == "copy_":
            return func(args[0], self._as(source, dtype))
        kwargs = {key: value for key, value in kwargs.items() if key != "dtype"}
        return func(self._as(source, dtype), **kwargs)

    def _as(self, value: Any, dtype: torch.dtype) -> Any:
        """A tensor or number as a tensor of another dtype."""
        if not isinstance(value, torch.Tensor):
            return self.tensor(self._number(value, dtype), dtype) if dtype in FLOATS else torch.tensor(value)
        if value.dtype == dtype or not (value.dtype in FLOATS or dtype in FLOATS):
            return value.to(dtype)
        if dtype not in FLOATS:
            raise NotAlgebraic(f"a {arrays.dtype_name(value)} becomes {dtype}")
        if value.dtype not in FLOATS:
            return self.tensor(self.elements(value, dtype), dtype)
        names = arrays.dtype_name(value), arrays.dtype_name(dtype)
        return to_tensor(self.field.cast(to_patterns(value), *names), names[1]).reshape(value.shape)

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        from torch._decomp import decomposition_table

        with self:
            try:
                result = func.decompose(*args, **kwargs)
                if result is NotImplemented and func in decomposition_table:
                    result = decomposition_table[func](*args, **kwargs)
            except NotAlgebraic as error:
                raise NotAlgebraic(f"{func} ({str(error).removeprefix('not algebraic: ')})") from error
        if result is NotImplemented:
            raise NotAlgebraic(str(func))
        return result

    def elements(self, value: Any, dtype: torch.dtype) -> np.ndarray:
        """The elements of a tensor, or of a number where the operation computes a result of `dtype`."""
        if isinstance(value, torch.Tensor) and value.dtype in FLOATS:
            return self.field.decode(to_patterns(value), arrays.dtype_name(value))
        if isinstance(value, torch.Tensor):
            return (value.numpy().astype(object) % self.field.prime).astype(np.uint64)
        return self._number(value, dtype)

    def _number(self, value: Any, dtype: torch.dtype) -> np.ndarray:
        with np.errstate(over="ignore"):
            exact = value if dtype == torch.float64 or isinstance(value, int) else float(np.float32(value))
        return np.asarray(self.field.number(exact))

    def tensor(self, elements: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        name = arrays.dtype_name(dtype)
        return to_tensor(self.field.encode(elements, name), name)


Handler = Callable[[_Arithmetic, Any, Any, Any], Any]


def _elementwise(operation: Callable[..., np.ndarray], count: int) -> Handler:
    def handle(mode: _Arithmetic, func: Any, args: Any, kwargs: Any) -> Any:
        operands = args[:count]
        dtype = operands[0].dtype if count == 1 else torch.result_type(*operands[:2])
        elements = [mode.elements(operand, dtype) for operand in operands]
        if kwargs.get("alpha", 1) != 1:
            elements[1] = mode.field.multiply(elements[1], mode.elements(kwargs["alpha"], dtype))
        if kwargs.get("rounding_mode"):
            raise NotAlgebraic(f"{func} with rounding_mode")
        return mode.tensor(operation(mode.field, *elements), dtype)

    return handle


def _power(mode: _Arithmetic, func: Any, args: Any, kwargs: Any) -> Any:
    base, exponent = args[:2]
    if not isinstance(base, torch.Tensor) or isinstance(exponent, torch.Tensor) or 2 * exponent != int(2 * exponent):
        raise NotAlgebraic(f"{func} with exponent {exponent}")
    elements, dtype = mode.elements(base, base.dtype), base.dtype
    if exponent != int(exponent):
        elements, exponent = mode.field.root(elements), 2 * exponent
    return mode.tensor(mode.field.power(elements, int(exponent)), dtype)


def _reduction(mode: _Arithmetic, func: Any, args: Any, kwargs: Any) -> Any:
    name = func.overloadpacket.__name__
    value = args[0]
    if name == "linalg_vector_norm":
        if (args[1] if len(args) > 1 else 2) != 2:
            raise NotAlgebraic(f"{func} of order {args[1]}")
        args = (value, *args[2:])
    dims = args[1] if len(args) > 1 and args[1] is not None else kwargs.get("dim")
    axes = (
        tuple(range(value.dim())) if dims is None or dims == [] else (dims,) if isinstance(dims, int) else tuple(dims)
    )
    keepdims = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    dtype = kwargs.get("dtype") or value.dtype
    if dtype not in FLOATS:
        raise NotAlgebraic(f"{func} to {dtype}")
    elements = mode.elements(mode._as(value, dtype), dtype)
    if name == "linalg_vector_norm":
        elements = mode.field.multiply(elements, elements)
    axes = tuple(axis % elements.ndim for axis in axes) if elements.ndim else ()
    total = mode.field.sum(elements, axes, bool(keepdims)) if axes else elements
    if name == "mean":
        total = mode.field.divide(total, np.asarray(np.prod([elements.shape[axis] for axis in axes]), np.uint64))
    if name == "linalg_vector_norm":
        total = mode.field.root(total)
    return mode.tensor(total, dtype)


def _comparison(mode: _Arithmetic, func: Any, args: Any, kwargs: Any) -> Any:
    dtype = torch.result_type(*args[:2])
    a, b = (mode.elements(value, dtype) for value in args[:2])
    return torch.from_numpy(np.asarray(a == b if func.overloadpacket.__name__ == "eq" else a != b))


def _matrix_product(mode: _Arithmetic, func: Any, args: Any, kwargs: Any) -> Any:
    a, b = (mode.elements(value, args[0].dtype) for value in args)
    products = mode.field.multiply(a[..., :, :, None], b[..., None, :, :])
    return mode.tensor(mode.field.sum(products, axis=-2), args[0].dtype)


HANDLERS: dict[str, Handler] = {
    "mul": _elementwise(Field.multiply, 2),
    "add": _elementwise(Field.add, 2),
    "sub": _elementwise(Field.subtract, 2),
    "rsub": _elementwise(lambda field, a, b: field.subtract(b, a), 2),
    "div": _elementwise(Field.divide, 2),
    "neg": _elementwise(Field.negative, 1),
    "square": _elementwise(lambda field, a: field.multiply(a, a), 1),
    "sqrt": _elementwise(Field.root, 1),
    "rsqrt": _elementwise(lambda field, a: field.power(field.root(a), -1), 1),
    "reciprocal": _elementwise(lambda field, a: field.power(a, -1), 1),
    "pow": _power,
    **dict.fromkeys(("sum", "mean", "linalg_vector_norm"), _reduction),
    **dict.fromkeys(("eq", "ne"), _comparison),
    **dict.fromkeys(("mm", "bmm"), _matrix_product),
}
