"""A program for the exact world, in one of three libraries, and one run of it on a problem's patterns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from references.arrays import bits, dtype_name
from references.exact.field import Field, NotAlgebraic
from references.exact.table import Problem
from references.spec import compute_dtype

Result = tuple[np.ndarray, str]  # patterns and dtype


@dataclass(frozen=True)
class Settings:
    """What a program is called with beside its arrays."""

    eps: float
    offset: float
    casting_mode: str


@dataclass(frozen=True)
class Program:
    """Somebody's RMSNorm.

    Args:
        name: for people.
        library: "torch" (Triton kernels included), "jax" or "numpy": whose arrays it takes.
        forward: (x, w, settings) -> y or (y, rstd); x (n_rows, n_cols), w (n_cols,) or None.
        backward: (dy, x, w, rstd, settings) -> dx or (dx, dw). None: PyTorch's or JAX's autograd differentiates.
        takes_mode, takes_weight: whether settings.casting_mode and w reach it.
        eps, offsets: what it may use, where the settings do not reach it; None where they do.
        n_cols: the only width that it takes, or None.
    """

    name: str
    library: str
    forward: Callable[..., Any]
    backward: Callable[..., Any] | None = None
    takes_mode: bool = False
    takes_weight: bool = True
    eps: tuple[float, ...] | None = None
    offsets: tuple[float, ...] | None = None
    n_cols: int | None = None


def run(field: Field, program: Program, problem: Problem, casting_mode: str = "llama") -> dict[str, Result]:
    """y, dx and, where there are any, rstd and dw.

    Raises:
        NotAlgebraic: the program does what the field has no meaning for.
        Exception: whatever the program raises.
    """
    settings = Settings(problem.eps, problem.offset, casting_mode)
    field.negative_roots = 0
    try:
        results = {"torch": _torch, "jax": _jax, "numpy": _numpy}[program.library](field, program, problem, settings)
    except Exception as error:
        refused = _refusal(error)
        if refused is None:
            raise
        raise NotAlgebraic(str(refused).removeprefix("not algebraic: ")) from error
    if results["y"] is None:
        raise TypeError("it returned no y")
    return {name: result for name, result in results.items() if result is not None}


def result_dtypes(problem: Problem) -> dict[str, str]:
    """The dtypes that the results must have."""
    c = compute_dtype(problem.dtype)
    return {"y": problem.dtype, "rstd": c, "dx": problem.dtype, "dw": str(problem.w_dtype)}


def differing(field: Field, problem: Problem, wanted: dict[str, np.ndarray], got: dict[str, Result]) -> dict[str, int]:
    """How many elements of each result are not the wanted ones, where any is not.

    Args:
        wanted: patterns, as `table.evaluate` gives them.
        got: what a program gave; another dtype or number of elements makes all of them wrong. A result that is not
            wanted is not looked at, nor one that is missing.
    """
    counts = {}
    for name in wanted.keys() & got.keys():
        patterns, dtype = got[name]
        if dtype != result_dtypes(problem)[name] or patterns.size != wanted[name].size:
            counts[name] = wanted[name].size
        else:
            got_elements = field.decode(patterns.reshape(wanted[name].shape), dtype)
            counts[name] = int((got_elements != field.decode(wanted[name], dtype)).sum())
    return {name: count for name, count in counts.items() if count}


def _refusal(error: BaseException | None) -> NotAlgebraic | None:
    """The NotAlgebraic behind an error: Triton's interpreter and autograd wrap what is raised in them."""
    while error is not None and not isinstance(error, NotAlgebraic):
        error = error.__cause__ or error.__context__
    return error


def _pair(value: Any) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, tuple | list) else (value, None)


def _torch(field: Field, program: Program, problem: Problem, settings: Settings) -> dict[str, Result | None]:
    import torch

    from references.exact import torch_world as world

    x, dy = world.to_tensor(problem.x, problem.dtype), world.to_tensor(problem.dy, problem.dtype)
    w = None if problem.w is None else torch.nn.Parameter(world.to_tensor(problem.w, str(problem.w_dtype)))
    with world.world(field):
        if program.backward is None:
            x.requires_grad_()
            y, rstd = _pair(program.forward(x, w, settings))
            if not isinstance(y, torch.Tensor) or y.shape != x.shape:
                raise TypeError(
                    f"y is {tuple(y.shape) if isinstance(y, torch.Tensor) else type(y).__name__}, not like x"
                )
            leaves = [x] if w is None else [x, w]
            dx, *rest = torch.autograd.grad(y, leaves, dy, allow_unused=True) if y.requires_grad else (None,)
            dw = rest[0] if rest else None
        else:
            y, rstd = _pair(program.forward(x, w, settings))
            dx, dw = _pair(program.backward(dy, x, w, rstd, settings))

    def result(tensor: Any) -> Result | None:
        return None if tensor is None else (world.to_patterns(tensor), dtype_name(tensor))

    return {"y": result(y), "rstd": result(rstd), "dx": result(dx), "dw": result(dw)}


def _jax(field: Field, program: Program, problem: Problem, settings: Settings) -> dict[str, Result | None]:
    import jax

    from references.exact import jax_world as world

    x, dy = (problem.x, problem.dtype), (problem.dy, problem.dtype)
    w = [] if problem.w is None else [(problem.w, str(problem.w_dtype))]

    def forward(x: Any, w: Any = None) -> Any:
        return program.forward(x, w, settings)

    y, *rstd = world.call(field, forward, x, *w)
    if program.backward is None:

        def gradients(dy: Any, *arguments: Any) -> Any:
            return jax.vjp(lambda *a: _pair(forward(*a))[0], *arguments)[1](dy)

        dx, *dw = world.call(field, gradients, dy, x, *w)
    else:
        backward = program.backward

        def closed(dy: Any, x: Any, *rest: Any) -> Any:
            return [
                g
                for g in _pair(backward(dy, x, rest[0] if w else None, rest[-1] if rstd else None, settings))
                if g is not None
            ]

        dx, *dw = world.call(field, closed, dy, x, *w, *rstd)
    return {"y": y, "rstd": rstd[0] if rstd else None, "dx": dx, "dw": dw[0] if dw else None}


def _numpy(field: Field, program: Program, problem: Problem, settings: Settings) -> dict[str, Result | None]:
    from references.exact import numpy_world as world

    if program.backward is None:
        raise ValueError("NumPy differentiates nothing: a backward is needed")
    x, dy = (world.from_patterns(field, patterns, problem.dtype) for patterns in (problem.x, problem.dy))
    w = None if problem.w is None else world.from_patterns(field, problem.w, str(problem.w_dtype))
    with world.world(field):
        y, rstd = _pair(program.forward(x, w, settings))
        dx, dw = _pair(program.backward(dy, x, w, rstd, settings))

    def result(array: Any) -> Result | None:
        return None if array is None else (bits(array.view(np.ndarray)), dtype_name(array.dtype))

    return {"y": result(y), "rstd": result(rstd), "dx": result(dx), "dw": result(dw)}
