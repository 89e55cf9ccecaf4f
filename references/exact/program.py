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
        forward: (x, w, settings) -> y or (y, rstd); x (n_rows, n_cols), w (n_cols,) or None. With a residual
            (x, r, w, settings) -> (y, s) or (y, s, rstd).
        backward: (dy, x, w, rstd, settings) -> dx or (dx, dw). None: PyTorch's or JAX's autograd differentiates. With
            a residual (dy, ds, x, r, w, rstd, settings) -> (dx, dr, dw), or as without.
        takes_mode, takes_weight: whether settings.casting_mode and w reach it.
        eps, offsets: what it may use, where the settings do not reach it; None where they do.
        n_cols: the only width that it takes, or None.
        residual: whether it takes one.
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
    residual: bool = False


def run(field: Field, program: Program, problem: Problem, casting_mode: str = "llama") -> dict[str, Result]:
    """y, dx and, where there are any, s, rstd, dr and dw.

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
    return {"rstd": c, "dw": str(problem.w_dtype)} | dict.fromkeys(("y", "s", "dx", "dr"), problem.dtype)


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


def forward_results(value: Any, residual: bool) -> dict[str, Any]:
    """What a forward that may show RSTD returned, by name: y or (y, rstd), with a residual (y, s) or (y, s, rstd).

    Raises:
        TypeError: there is a residual, and less than y and s came back.
    """
    if residual:
        y, s, *rstd = several(value)
        return {"y": y, "s": s, "rstd": rstd[0] if rstd else None}
    y, rstd, *_ = (*value, None) if isinstance(value, tuple | list) else (value, None)
    return {"y": y, "rstd": rstd}


def backward_results(value: Any, residual: bool) -> dict[str, Any]:
    """What a backward returned, by name: dx, (dx, dw), or with a residual (dx, dr, dw); without dr, dx is both."""
    dx, *rest = value if isinstance(value, tuple | list) else (value,)
    dw = rest[-1] if rest else None
    return {"dx": dx, "dr": rest[0] if len(rest) > 1 else dx, "dw": dw} if residual else {"dx": dx, "dw": dw}


def several(value: Any) -> tuple[Any, ...]:
    """Y, S and what else was returned. Raises TypeError where it is less."""
    if not isinstance(value, tuple | list) or len(value) < 2:
        raise TypeError(f"a {type(value).__name__} was returned, not Y and S")
    return tuple(value)


def _given(problem: Problem) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The patterns that a program is called with beside w, and those that arrive at its results."""
    if problem.r is None or problem.ds is None:
        return {"x": problem.x}, {"y": problem.dy}
    return {"x": problem.x, "r": problem.r}, {"y": problem.dy, "s": problem.ds}


def _torch(field: Field, program: Program, problem: Problem, settings: Settings) -> dict[str, Result | None]:
    import torch

    from references.exact import torch_world as world

    inputs, arriving = (
        {name: world.to_tensor(patterns, problem.dtype) for name, patterns in given.items()}
        for given in _given(problem)
    )
    w = None if problem.w is None else torch.nn.Parameter(world.to_tensor(problem.w, str(problem.w_dtype)))
    with world.world(field):
        if program.backward is None:
            for tensor in inputs.values():
                tensor.requires_grad_()
            early = forward_results(program.forward(*inputs.values(), w, settings), program.residual)
            for name in arriving:
                got, x = early[name], inputs["x"]
                if not isinstance(got, torch.Tensor) or got.shape != x.shape:
                    shown = tuple(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
                    raise TypeError(f"{name} is {shown}, not like x")
            leaves = inputs if w is None else inputs | {"w": w}
            differentiable = [name for name in arriving if early[name].requires_grad]
            late: dict[str, Any] = {}
            if differentiable:
                values, gradients = (
                    [early[name] for name in differentiable],
                    [arriving[name] for name in differentiable],
                )
                found = torch.autograd.grad(values, list(leaves.values()), gradients, allow_unused=True)
                late = {f"d{name}": gradient for name, gradient in zip(leaves, found, strict=True)}
        else:
            early = forward_results(program.forward(*inputs.values(), w, settings), program.residual)
            called = (*arriving.values(), *inputs.values(), w, early["rstd"], settings)
            late = backward_results(program.backward(*called), program.residual)

    def result(tensor: Any) -> Result | None:
        return None if tensor is None else (world.to_patterns(tensor), dtype_name(tensor))

    return {name: result(tensor) for name, tensor in (early | late).items()}


def _jax(field: Field, program: Program, problem: Problem, settings: Settings) -> dict[str, Result | None]:
    import jax

    from references.exact import jax_world as world

    inputs, arriving = ([(patterns, problem.dtype) for patterns in given.values()] for given in _given(problem))
    n = len(inputs)
    w = [] if problem.w is None else [(problem.w, str(problem.w_dtype))]

    def forward(*arguments: Any) -> list[Any]:
        given = (*arguments[:n], arguments[n] if w else None)
        found = forward_results(program.forward(*given, settings), program.residual)
        return [found[name] for name in ("y", "s", "rstd") if found.get(name) is not None]

    early = world.call(field, forward, *inputs, *w)
    rstd = early[n:]
    if program.backward is None:

        def gradients(*arguments: Any) -> Any:
            return jax.vjp(lambda *a: forward(*a)[:n], *arguments[n:])[1](list(arguments[:n]))

        late = world.call(field, gradients, *arriving, *inputs, *w)
    else:
        backward = program.backward

        def closed(*arguments: Any) -> list[Any]:
            called, rest = arguments[: 2 * n], arguments[2 * n :]
            given = (*called, rest[0] if w else None, rest[-1] if rstd else None, settings)
            found = backward_results(backward(*given), program.residual)
            return [found[name] for name in ("dx", "dr", "dw") if found.get(name) is not None]

        late = world.call(field, closed, *arriving, *inputs, *w, *rstd)
    names = (*("y", "s")[:n], *("rstd",) * len(rstd), *("dx", "dr")[:n], *("dw",) * (len(late) - n))
    return dict(zip(names, (*early, *late), strict=True))


def _numpy(field: Field, program: Program, problem: Problem, settings: Settings) -> dict[str, Result | None]:
    from references.exact import numpy_world as world

    if program.backward is None:
        raise ValueError("NumPy differentiates nothing: a backward is needed")
    inputs, arriving = (
        [world.from_patterns(field, patterns, problem.dtype) for patterns in given.values()]
        for given in _given(problem)
    )
    w = None if problem.w is None else world.from_patterns(field, problem.w, str(problem.w_dtype))
    with world.world(field):
        early = forward_results(program.forward(*inputs, w, settings), program.residual)
        found = program.backward(*arriving, *inputs, w, early["rstd"], settings)
        late = backward_results(found, program.residual)

    def result(array: Any) -> Result | None:
        return None if array is None else (bits(array.view(np.ndarray)), dtype_name(array.dtype))

    return {name: result(array) for name, array in (early | late).items()}
