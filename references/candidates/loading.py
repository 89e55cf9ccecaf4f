"""What a candidate offers, and the one door to it: `load("module:name")`.

A candidate is a PyTorch function of (X, W, eps, offset, casting_mode, in_place, row_mode) or some of these, a
`torch.nn.Module` or `torch.autograd.Function` class with such arguments, or a module or object with `forward`
and `backward` in NumPy, JAX or PyTorch.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol, Self

import numpy as np

from references import arrays
from references.candidates import repetition
from references.candidates.memory import Arguments, Contract
from references.candidates.repetition import Behaviour
from references.candidates.signatures import Signature
from references.cells.cell import Case, Inputs
from references.exact.prove import Proof


class LoadError(ValueError):
    """The target names nothing that can be judged here; the message is one line."""


@dataclass
class Outputs:
    """What a run gave: arrays as the candidate returned them, and what it did to its arguments.

    `unsupported` says which setting of the case the candidate's signature cannot express; `error` is the
    exception that it raised; `died` is how its process ended instead of answering. In these cases arrays may be
    missing. `rstd` is None where it is not exposed.
    """

    y: np.ndarray | None = None
    rstd: np.ndarray | None = None
    dx: np.ndarray | None = None
    dw: np.ndarray | None = None
    unsupported: str | None = None
    error: str | None = None
    died: str | None = None
    seconds: float = 0.0  # that the candidate took
    contract: Contract | None = None  # what became of the arguments; None where the run did not end


class Implementation(Protocol):
    """A loaded candidate. `ignored` are the permissions (in_place, row_mode) that it has no argument for.

    `takes_mode` says whether it has an argument for the casting mode, `fixed_mode` which one it computes otherwise.
    """

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def ignored(self) -> tuple[str, ...]: ...

    @property
    def takes_mode(self) -> bool: ...

    @property
    def fixed_mode(self) -> str | None: ...

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        """Forward and backward on `inputs`, laid out as the case says. Exceptions become `error`."""
        ...

    def behaviour(self, case: Case, inputs: Inputs) -> Behaviour:
        """What several runs show (`behaviour.observe`) of a cell that `run` computes."""
        ...

    def with_mode(self, casting_mode: str) -> Self:
        """The same candidate, said to compute this mode."""
        ...


@dataclass(frozen=True)
class Candidate:
    """What all kinds share: the settings that a signature can express, and the guard around a run."""

    name: str
    target: Any
    device: str
    signature: Signature
    fixed_mode: str | None = None

    @property
    def meanings(self) -> set[str]:
        return self.signature.meanings

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(name for name in ("in_place", "row_mode") if name not in self.meanings)

    @property
    def takes_mode(self) -> bool:
        return "casting_mode" in self.meanings

    def with_mode(self, casting_mode: str) -> Self:
        return replace(self, fixed_mode=casting_mode)

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        outputs = Outputs(unsupported=self._unsupported(case))
        if outputs.unsupported is None:
            started = perf_counter()
            try:
                with np.errstate(all="ignore"):  # IEEE's answers are specified, in NumPy and in the interpreter
                    self._run(case, inputs, outputs)
            except Exception as error:  # a stranger's code may raise anything: a finding, not a crash
                outputs.error = f"{type(error).__name__}: {error}"
            outputs.seconds = perf_counter() - started
        return outputs

    def behaviour(self, case: Case, inputs: Inputs) -> Behaviour:
        def results(case: Case, arguments: Arguments) -> repetition.Results:
            outputs = Outputs()
            self._compute(case, arguments, outputs)
            return {"y": outputs.y, "rstd": outputs.rstd, "dx": outputs.dx, "dw": outputs.dw}

        try:
            with np.errstate(all="ignore"):
                return repetition.observe(case, inputs, self._arguments, results)
        except Exception as error:
            return Behaviour(error=f"raised {type(error).__name__}: {error}")

    def prove(self, case: Case, shapes: Sequence[tuple[int, int]]) -> Proof:
        """What it computes in the exact world (`proving.prove`)."""
        from references.candidates import proving  # which knows the kinds of candidates that stand below

        return proving.prove(self, case, shapes)

    def _run(self, case: Case, inputs: Inputs, outputs: Outputs) -> None:
        self._compute(case, self._arguments(case, inputs), outputs)

    def _arguments(self, case: Case, inputs: Inputs) -> Arguments:
        return Arguments(case, inputs, self.library, self.device)

    @property
    def library(self) -> str:
        return "torch"

    def _compute(self, case: Case, arguments: Arguments, outputs: Outputs) -> None:
        """Fill `outputs` one after the other: what came before an exception is judged too."""
        raise NotImplementedError

    def _unsupported(self, case: Case) -> str | None:
        if "casting_mode" not in self.meanings and case.casting_mode != self.fixed_mode:
            return "no casting_mode argument" + (f", computes {self.fixed_mode}" if self.fixed_mode else "")
        if "eps" not in self.meanings:
            return "no eps argument"
        if "offset" not in self.meanings and case.offset != 0 and case.w_dtype is not None:
            return "no offset argument"
        if "w" not in self.meanings and case.w_dtype is not None:
            return "no weight argument"
        return None


class ForwardBackward(Candidate):
    """A pair: forward(x, w, …) -> y or (y, rstd), and backward(dy, x, w, …) -> dx or (dx, dw)."""

    @property
    def library(self) -> str:
        return _array_library(self.target.forward)

    def _compute(self, case: Case, arguments: Arguments, outputs: Outputs) -> None:
        values = settings(case) | arguments.views
        args, keywords = self.signature.bind(values)
        y, rstd = _pair(self.target.forward(*args, **keywords))
        outputs.y, outputs.rstd = _array(y), _array(rstd)
        args, keywords = Signature(self.target.backward).bind(values | {"rstd": rstd})
        dx, dw = _pair(self.target.backward(*args, **keywords))
        outputs.dx, outputs.dw = _array(dx), _array(dw)
        outputs.contract = arguments.observe({"y": (y, outputs.y), "rstd": (rstd, outputs.rstd)}, {"dx": dx, "dw": dw})


class Function(Candidate):
    """A PyTorch callable that autograd differentiates."""

    def _compute(self, case: Case, arguments: Arguments, outputs: Outputs) -> None:
        import torch

        x, dy, w = (arguments.views[name] for name in ("x", "dy", "w"))
        x.requires_grad_()
        leaves = [x]
        if w is not None:
            w = torch.nn.Parameter(w)  # keeps storage and strides, and modules accept nothing else
            leaves.append(w)
        y = self.call(case, x, w)
        if not isinstance(y, torch.Tensor):
            raise TypeError(f"a {type(y).__name__} was returned, not a tensor")
        rstd = _saved_rstd(y, x, w)
        outputs.y, outputs.rstd = _array(y), _array(rstd)
        dx = dw = None
        if y.shape == x.shape and y.requires_grad:
            # In another dtype than y's, autograd would refuse dY before the candidate's backward saw it.
            dx, *rest = torch.autograd.grad(y, leaves, dy.to(y.dtype), allow_unused=True)
            dw = rest[0] if rest else None
            outputs.dx, outputs.dw = _array(dx), _array(dw)
        outputs.contract = arguments.observe({"y": (y, outputs.y), "rstd": (rstd, outputs.rstd)}, {"dx": dx, "dw": dw})

    def call(self, case: Case, x: Any, w: Any) -> Any:
        args, keywords = self.signature.bind(settings(case) | {"x": x, "w": w})
        return self.target(*args, **keywords)


class AutogradFunction(Function):
    """A `torch.autograd.Function` class: `apply` takes positional arguments only."""

    def call(self, case: Case, x: Any, w: Any) -> Any:
        args, _ = self.signature.bind(settings(case) | {"x": x, "w": w})
        return self.target.apply(*args)


class Module(Function):
    """A `torch.nn.Module` class: called with x, its parameter is `weight`."""

    @property
    def meanings(self) -> set[str]:
        return self.signature.meanings | {"x", "w"}

    def _unsupported(self, case: Case) -> str | None:
        if case.w_dtype is None and "elementwise_affine" not in self.meanings:
            return "no elementwise_affine argument"
        return super()._unsupported(case)

    def call(self, case: Case, x: Any, w: Any) -> Any:
        about = {"elementwise_affine": w is not None, "device": x.device, "dtype": x.dtype}
        args, keywords = self.signature.bind(settings(case) | about)
        module = self.target(*args, **keywords)
        if w is not None:
            module.weight = w
        return module(x)


def load(target: str, device: str = "cpu", fixed_mode: str | None = None) -> Implementation:
    """The candidate that `target` names: "package.module:name", or "module" with forward and backward in it.

    Args:
        target: where the candidate lives.
        device: "cpu", "cuda" or "auto" (a GPU where PyTorch sees one): where PyTorch candidates get their
            arrays; NumPy and JAX ones ignore it.
        fixed_mode: the casting mode that a candidate without a `casting_mode` argument computes.

    Raises:
        LoadError: nothing there, nothing that can be called as described, or no such device.
    """
    module_name, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in filter(None, attribute.split(".")):
            found = getattr(found, name)
        candidate, signature = _kind(found)
    except Exception as error:  # importing a stranger's module may raise anything
        expected = isinstance(error, ImportError | AttributeError | ValueError | TypeError)
        kind = "" if expected else f"{type(error).__name__}: "
        raise LoadError(f"cannot load {target!r}: {kind}{' '.join(str(error).split())}") from error
    if device == "auto":
        device = "cuda" if _sees_gpu() else "cpu"
    if device == "cuda" and not _sees_gpu():
        raise LoadError("cuda was asked for, but PyTorch sees no GPU")
    return candidate(target, found, device, signature, fixed_mode)


def _kind(found: Any) -> tuple[type[Candidate], Signature]:
    torch = sys.modules.get("torch")  # what was never imported cannot be a PyTorch class
    if torch and isinstance(found, type) and issubclass(found, torch.autograd.Function):
        # forward's first argument is ctx, unless a setup_context of its own saves for the backward.
        function: Any = found
        separate = function.setup_context is not torch.autograd.Function.setup_context
        return AutogradFunction, Signature(function.forward, skip=0 if separate else 1)
    if torch and isinstance(found, type) and issubclass(found, torch.nn.Module):
        return Module, Signature(found)
    if callable(getattr(found, "forward", None)) and callable(getattr(found, "backward", None)):
        return ForwardBackward, Signature(found.forward)
    if isinstance(found, types.ModuleType) or not callable(found):
        raise TypeError("it is neither a callable nor a pair of forward and backward")
    signature = Signature(found)
    if "x" not in signature.meanings:
        raise TypeError("it has no argument for the input")
    return Function, signature


def settings(case: Case) -> dict[str, Any]:
    """What the arguments that are no arrays get, by meaning."""
    return {
        "eps": case.eps,
        "offset": case.offset,
        "casting_mode": str(case.casting_mode),
        "in_place": case.in_place,
        "row_mode": case.row_mode,
        "hidden_size": case.shape[-1],
        "normalized_shape": case.shape[-1:],
    }


def _array_library(function: Callable) -> str:
    """The library that the function's file imports: "torch", "jax" or (neither) "numpy"."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    imported = {v.__name__.partition(".")[0] for v in function.__globals__.values() if inspect.ismodule(v)}
    return next((name for name in ("torch", "jax") if name in imported), "numpy")


def _saved_rstd(y: Any, x: Any, w: Any) -> Any:
    """The tensor saved for the backward that can only be RSTD: one value a row, neither x nor w; or None.

    The last one in the compute dtype is preferred (X, W, RSTD is the usual order); one of another dtype is
    returned too, because that is a deviation to report.
    """
    import torch

    rows = x.shape[:-1]
    shapes = {tuple(rows), (rows.numel(),), (*rows, 1), (rows.numel(), 1)}
    given = [tensor.detach().reshape(-1) for tensor in (x, w) if tensor is not None]

    def is_given(tensor: Any) -> bool:
        return any(tensor.dtype is g.dtype and torch.equal(tensor.reshape(-1), g) for g in given)

    saved = (t.detach() for t in getattr(y.grad_fn, "saved_tensors", None) or () if t is not None)
    fitting = [t for t in saved if t.is_floating_point() and tuple(t.shape) in shapes and not is_given(t)]
    compute = torch.float64 if x.dtype is torch.float64 else torch.float32
    fitting.sort(key=lambda t: t.dtype is compute)
    return fitting[-1].reshape(rows) if fitting else None


def _array(value: Any) -> np.ndarray | None:
    """A NumPy copy: later writes to `value` don't reach it. Raises TypeError where it is no array of numbers."""
    if value is None:
        return None
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        raise TypeError(f"a {type(value).__name__} was returned, not an array")
    array = arrays.to_numpy(value)
    if array.dtype.hasobject:
        raise TypeError("an array of objects was returned")
    return array


def _pair(value: Any) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, tuple | list) else (value, None)


def _sees_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
