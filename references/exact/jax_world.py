"""JAX programs in the exact world: an interpreter of jaxprs, so that what differentiates is jax's own.

Every primitive rounds once, to the dtype of its result; a sum in a 16-bit dtype rounds after every addition. Custom
derivatives, jit and remat are looked into. What has no meaning in the field raises NotAlgebraic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from references.exact.field import Field, NotAlgebraic, pattern_dtype
from references.spec import DTYPES

INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
SAME = ("copy", "copy_p", "stop_gradient", "optimization_barrier", "device_put", "sharding_constraint", "pvary")


def call(
    field: Field, function: Callable[..., Any], *arguments: tuple[np.ndarray, str]
) -> list[tuple[np.ndarray, str]]:
    """Run a function of jax arrays on patterns.

    Args:
        field: what the patterns mean.
        function: of as many arrays as there are arguments; it is traced, never executed by jax.
        arguments: patterns and dtype of each.

    Returns:
        The leaves of the function's result: patterns and dtype of each.
    """
    jax.config.update("jax_enable_x64", True)
    shapes = [jax.ShapeDtypeStruct(patterns.shape, jnp.dtype(dtype)) for patterns, dtype in arguments]
    closed = jax.make_jaxpr(function)(*shapes)
    results = _run(field, closed.jaxpr, closed.consts, [patterns for patterns, _ in arguments])
    return [(result, aval.dtype.name) for result, aval in zip(results, closed.out_avals, strict=True)]


def _run(field: Field, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    values: dict[Any, np.ndarray] = {}

    def read(variable: Any) -> np.ndarray:
        return _real(field, variable.val, variable.aval) if isinstance(variable, Literal) else values[variable]

    for variable, constant in zip(jaxpr.constvars, constants, strict=True):
        values[variable] = _real(field, constant, variable.aval)
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        inputs = [read(variable) for variable in equation.invars]
        values.update(zip(equation.outvars, _equation(field, equation, inputs), strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _real(field: Field, value: Any, aval: Any) -> np.ndarray:
    """A literal or a closed-over array of real numbers."""
    dtype, value = aval.dtype.name, _array(value)
    if dtype not in DTYPES:
        return value
    patterns = [field.constant(number, dtype) for number in value.reshape(-1).astype(np.float64).tolist()]
    return np.array(patterns, pattern_dtype(dtype)).reshape(value.shape)


def _array(value: Any) -> Any:
    """A NumPy array; keys of random numbers, with which modules are made, are jax's alone."""
    return value if jax.dtypes.issubdtype(jnp.result_type(value), jax.dtypes.extended) else np.asarray(value)


def _equation(field: Field, equation: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    name, params = equation.primitive.name, equation.params
    inner = next((params[key] for key in INNER if params.get(key) is not None), None)
    if name in ("scan", "while", "cond", "pallas_call"):
        raise NotAlgebraic(f"jax's {name}")
    if inner is not None:
        return _run(field, getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs)
    dtypes = [variable.aval.dtype.name for variable in equation.invars]
    out = equation.outvars[0].aval
    dtype = out.dtype.name
    if name in SAME:
        return inputs
    if dtype not in DTYPES and not set(dtypes) & set(DTYPES):
        results = equation.primitive.bind(*map(jnp.asarray, inputs), **params)
        return [_array(result) for result in (results if equation.primitive.multiple_results else [results])]
    if name == "is_finite":
        return [np.ones(out.shape, bool)]
    if name in MOVES:
        return [np.asarray(MOVES[name](inputs, params, out))]
    if name == "convert_element_type":
        return [_convert(field, inputs[0], dtypes[0], dtype)]
    if name == "reduce_sum":
        patterns = inputs[0]
        for axis in sorted(params["axes"], reverse=True):
            patterns = field.accumulate(patterns, dtype, axis)
        return [patterns]
    elements = [field.decode(value, kind) for value, kind in zip(inputs, dtypes, strict=True) if kind in DTYPES]
    if name in ("eq", "ne"):
        return [(elements[0] == elements[1]) == (name == "eq")]
    if name == "integer_pow":
        result = field.power(elements[0], params["y"])
    elif name in OPERATIONS and len(elements) == len(inputs):
        result = OPERATIONS[name](field, *elements)
    else:
        raise NotAlgebraic(f"jax's {name}")
    return [field.encode(np.broadcast_to(result, out.shape), dtype)]


def _convert(field: Field, value: np.ndarray, source: str, target: str) -> np.ndarray:
    if target not in DTYPES:
        raise NotAlgebraic(f"a {source} becomes {target}")
    if source in DTYPES:
        return field.cast(value, source, target)
    return field.encode((value.astype(object) % field.prime).astype(np.uint64), target)


def _broadcast(inputs: list[np.ndarray], params: Any, out: Any) -> np.ndarray:
    shape = [1] * len(params["shape"])
    for source, target in enumerate(params["broadcast_dimensions"]):
        shape[target] = inputs[0].shape[source]
    return np.broadcast_to(inputs[0].reshape(shape), params["shape"])


def _slice(inputs: list[np.ndarray], params: Any, out: Any) -> np.ndarray:
    steps = params["strides"] or (1,) * inputs[0].ndim
    return inputs[0][tuple(map(slice, params["start_indices"], params["limit_indices"], steps))]


def _select(inputs: list[np.ndarray], params: Any, out: Any) -> np.ndarray:
    which, *cases = inputs
    return np.choose(np.broadcast_to(which, cases[0].shape).astype(int), cases)


MOVES: dict[str, Callable[[list[np.ndarray], Any, Any], np.ndarray]] = {
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "select_n": _select,
    "squeeze": lambda inputs, params, out: inputs[0].reshape(out.shape),
    "expand_dims": lambda inputs, params, out: inputs[0].reshape(out.shape),
    "reshape": lambda inputs, params, out: inputs[0].reshape(out.shape),
    "transpose": lambda inputs, params, out: inputs[0].transpose(params["permutation"]),
    "concatenate": lambda inputs, params, out: np.concatenate(inputs, params["dimension"]),
}
OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "mul": Field.multiply,
    "add": Field.add,
    "add_any": Field.add,
    "sub": Field.subtract,
    "neg": Field.negative,
    "div": Field.divide,
    "sqrt": Field.root,
    "rsqrt": lambda field, a: field.power(field.root(a), -1),
    "square": lambda field, a: field.multiply(a, a),
}
