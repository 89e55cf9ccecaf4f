"""NumPy programs in the exact world, through NumPy's own protocols.

An `Exact` is an ndarray of a float dtype whose bits are patterns. Its ufuncs are the field's, so that `mean`, slicing
and broadcasting stay NumPy's; other numbers that meet it are real ones and are converted. Three functions that strip a
subclass without asking it are replaced while `world` is open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from references.arrays import bits, dtype_name, numpy_dtype
from references.exact.field import Field, NotAlgebraic, pattern_dtype
from references.spec import DTYPES

FINITE = {"isfinite": True, "isnan": False, "isinf": False}
MOVES = (  # noqa: SIM905 - a list would take a line a name
    "reshape transpose swapaxes moveaxis broadcast_to expand_dims squeeze concatenate stack atleast_1d atleast_2d"
    " ravel copy take tile repeat flip roll split copyto shape ndim size"
).split()
REDUCING = ("sum", "mean")
OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": Field.add,
    "subtract": Field.subtract,
    "multiply": Field.multiply,
    "divide": Field.divide,
    "negative": Field.negative,
    "positive": lambda field, a: a,
    "square": lambda field, a: field.multiply(a, a),
    "sqrt": Field.root,
    "reciprocal": lambda field, a: field.power(a, -1),
}


class Exact(np.ndarray):
    """Patterns of `field` in an array of a float dtype."""

    field: Field

    def __array_finalize__(self, other: Any) -> None:
        if other is not None and hasattr(other, "field"):
            self.field = other.field

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **keywords: Any) -> Any:
        field = next(v.field for v in (*inputs, *(out or ())) if isinstance(v, Exact))
        name = ufunc.__name__
        if method == "reduce" and name == "add":
            result = _sum(field, inputs[0], **keywords)
        elif method != "__call__" or keywords.get("where") is not None:
            raise NotAlgebraic(f"numpy.{name}.{method}")
        elif name in FINITE:
            return np.full(np.shape(inputs[0]), FINITE[name])
        elif name in ("equal", "not_equal"):
            same = _elements(field, inputs[0]) == _elements(field, inputs[1])
            return same if name == "equal" else ~same
        else:
            result = _compute(field, name, inputs, keywords.get("dtype"))
        if out is None:
            return result
        out[0].view(np.ndarray)[...] = result.astype(out[0].dtype).view(np.ndarray)
        return out[0]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function.__name__ not in (*MOVES, *REDUCING):
            raise NotAlgebraic(f"numpy.{function.__name__}")
        return super().__array_function__(function, types, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return found if isinstance(found, np.ndarray) else wrap(self.field, np.asarray(found))

    def __setitem__(self, key: Any, value: Any) -> None:
        value = value if isinstance(value, Exact) else _constants(self.field, value, dtype_name(self.dtype))
        super().__setitem__(key, value.astype(self.dtype).view(np.ndarray))

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        source, target = dtype_name(self.dtype), np.dtype(dtype).name
        if target not in DTYPES:
            raise NotAlgebraic(f"a {source} becomes {target}")
        return from_patterns(self.field, self.field.cast(bits(self.view(np.ndarray)), source, target), target)

    def item(self, *args: Any) -> Any:
        raise NotAlgebraic("a float becomes a Python number")

    __float__ = __int__ = __bool__ = tolist = item


@contextlib.contextmanager
def world(field: Field) -> Iterator[None]:
    """Keep numpy.array, asarray and ascontiguousarray from stripping `Exact`."""
    names = ("array", "asarray", "ascontiguousarray")
    before = {name: getattr(np, name) for name in names}

    def keeping(plain: Any) -> Any:
        def convert(a: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(a, Exact):
                copy = wrap(a.field, a.view(np.ndarray).copy())
                return copy if dtype is None else copy.astype(dtype)
            return plain(a, dtype, *args, **kwargs)

        return convert

    try:
        for name in names:
            setattr(np, name, keeping(before[name]))
        yield
    finally:
        for name in names:
            setattr(np, name, before[name])


def from_patterns(field: Field, patterns: np.ndarray, dtype: str) -> Exact:
    """An array of `dtype` that holds the patterns."""
    return wrap(field, np.ascontiguousarray(patterns).view(numpy_dtype(dtype)).reshape(np.shape(patterns)))


def wrap(field: Field, array: np.ndarray) -> Exact:
    exact = array.view(Exact)
    exact.field = field
    return exact


def _elements(field: Field, value: Any, dtype: str | None = None) -> np.ndarray:
    """The elements of an Exact, or of a real number or array where the operation computes in `dtype`."""
    if isinstance(value, Exact):
        return field.decode(bits(value.view(np.ndarray)), dtype_name(value.dtype))
    real = np.asarray(value)
    name = dtype_name(real.dtype) if real.dtype.name in DTYPES and not isinstance(value, float) else dtype or "float64"
    return field.decode(bits(_constants(field, value, name).view(np.ndarray)), name)


def _constants(field: Field, value: Any, dtype: str) -> Exact:
    real = np.asarray(value)
    patterns = [field.constant(number, dtype) for number in real.reshape(-1).tolist()]
    return from_patterns(field, np.array(patterns, pattern_dtype(dtype)).reshape(real.shape), dtype)


def _compute(field: Field, name: str, inputs: tuple, dtype: Any) -> Exact:
    result = np.dtype(dtype or np.result_type(*(v.dtype if isinstance(v, np.ndarray) else v for v in inputs))).name
    if result not in DTYPES:
        raise NotAlgebraic(f"numpy.{name} in {result}")
    if name == "power":
        exponent = inputs[1]
        if isinstance(exponent, Exact) or np.ndim(exponent) or 2 * exponent != int(2 * exponent):
            raise NotAlgebraic(f"numpy.power with exponent {exponent}")
        elements, exponent = _elements(field, inputs[0]), float(exponent)
        if exponent != int(exponent):
            elements, exponent = field.root(elements), 2 * exponent
        elements = field.power(elements, int(exponent))
    elif name in OPERATIONS:
        elements = OPERATIONS[name](field, *(_elements(field, value, result) for value in inputs))
    else:
        raise NotAlgebraic(f"numpy.{name}")
    return from_patterns(field, field.encode(elements, result), result)


def _sum(field: Field, value: Any, axis: Any = 0, dtype: Any = None, keepdims: bool = False, **rest: Any) -> Exact:
    value = value if dtype is None else value.astype(dtype)
    name, patterns = dtype_name(value.dtype), bits(value.view(np.ndarray))
    axes = tuple(range(value.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    for one in sorted((axis % value.ndim for axis in axes), reverse=True):
        patterns = field.accumulate(patterns, name, one)
        patterns = np.expand_dims(patterns, one) if keepdims else patterns
    return from_patterns(field, patterns, name)
