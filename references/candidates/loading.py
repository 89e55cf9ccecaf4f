"""What a candidate offers, and the one door to it: `load("module:name")`.

A candidate is a function of (X, W, eps, offset, casting_mode, in_place, row_mode) or some of these in PyTorch, JAX or
NumPy, a `torch.nn.Module` or `torch.autograd.Function` class with such arguments, or a module or object with `forward`
and `backward`. One that takes a residual R beside X returns (Y, S).
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from references.candidates.kinds import (
    FUNCTIONS,
    AutogradFunction,
    Candidate,
    ForwardBackward,
    Function,
    Module,
    residual_call,
    settings,
)
from references.candidates.memory import Arguments
from references.candidates.outputs import Implementation
from references.candidates.signatures import Signature
from references.cells.cell import Case, make_inputs
from references.exact.program import forward_results


class LoadError(ValueError):
    """The target names nothing that can be judged here; the message is one line."""


def load(
    target: str, device: str = "cpu", fixed_mode: str | None = None, array_library: str = "auto"
) -> Implementation:
    """The candidate that `target` names: "package.module:name", "path/to/file.py:name", or either without a name for a
    module with forward and backward in it.

    Args:
        target: where the candidate lives.
        device: "cpu", "cuda" or "auto" (a GPU where PyTorch sees one): where PyTorch candidates get their
            arrays; NumPy and JAX ones ignore it.
        fixed_mode: the casting mode that a candidate without a `casting_mode` argument computes.
        array_library: "torch", "jax" or "numpy", whose arrays a function or a pair takes; "auto" is the library that
            its file imports and, where there are several or none, the first that it accepts.

    Raises:
        LoadError: nothing there, nothing that can be called as described, or no such device.
    """
    module_name, _, attribute = target.partition(":")
    try:
        found: Any = _import(module_name)
        for name in filter(None, attribute.split(".")):
            found = getattr(found, name)
        candidate, signature = _kind(found)
        library = _library(candidate, found, signature) if array_library == "auto" else array_library
    except Exception as error:  # importing a stranger's module may raise anything
        expected = isinstance(error, ImportError | AttributeError | ValueError | TypeError)
        kind = "" if expected else f"{type(error).__name__}: "
        raise LoadError(f"cannot load {target!r}: {kind}{' '.join(str(error).split())}") from error
    if device == "auto":
        device = "cuda" if _sees_gpu() else "cpu"
    if device == "cuda" and not _sees_gpu():
        raise LoadError("cuda was asked for, but PyTorch sees no GPU")
    if candidate is Function:
        candidate = FUNCTIONS[library]
    return candidate(target, found, device, signature, fixed_mode, library)


def _import(name: str) -> Any:
    """A module by its name, or by the path of its file, whose folder is then searched for what it imports."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    if not path.is_file():
        raise ImportError(f"there is no file {name}")
    sys.path.insert(0, str(path.parent))
    known_as = path.stem if path.stem not in sys.modules else f"candidate_{path.stem}"
    spec = importlib.util.spec_from_file_location(known_as, path)
    assert spec is not None and spec.loader is not None
    sys.modules[known_as] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _kind(found: Any) -> tuple[type[Candidate], Signature]:
    torch = sys.modules.get("torch")  # what was never imported cannot be a PyTorch class
    if torch and isinstance(found, type) and issubclass(found, torch.autograd.Function):
        # forward's first argument is ctx, unless a setup_context of its own saves for the backward.
        function: Any = found
        separate = function.setup_context is not torch.autograd.Function.setup_context
        return AutogradFunction, Signature(function.forward, skip=0 if separate else 1)
    if torch and isinstance(found, type) and issubclass(found, torch.nn.Module):
        residual_call(found)
        return Module, Signature(found, first="hidden_size")
    if callable(getattr(found, "forward", None)) and callable(getattr(found, "backward", None)):
        return ForwardBackward, Signature(found.forward)
    if isinstance(found, types.ModuleType) or not callable(found):
        raise TypeError("it is neither a callable nor a pair of forward and backward")
    signature = Signature(found, first="x")
    if "x" not in signature.meanings:
        raise TypeError("it has no argument for the input")
    return Function, signature


def _library(kind: type[Candidate], found: Any, signature: Signature) -> str:
    """Whose arrays a candidate takes: those of the library that it names; else the first that it accepts."""
    if kind not in (Function, ForwardBackward):
        return "torch"
    function = _python_function(found.forward if kind is ForwardBackward else found)
    likely = [name for name in FUNCTIONS if name in _libraries(_names(function))]
    if len(likely) == 1 or (likely and kind is ForwardBackward):
        return likely[0]
    likely = likely or [name for name in FUNCTIONS if name in _libraries(getattr(function, "__globals__", {}))]
    if kind is ForwardBackward or likely in (["torch"], ["jax"]):
        return next((name for name in ("torch", "jax") if name in likely), "numpy")
    likely += [name for name in FUNCTIONS if name not in likely and importlib.util.find_spec(name) is not None]
    return next((name for name in likely if _accepts(found, signature, name)), likely[0])


def _python_function(function: Any) -> Any:
    function = inspect.unwrap(getattr(function, "__func__", function))
    return function if hasattr(function, "__globals__") else inspect.unwrap(type(function).__call__)


def _names(function: Any) -> Mapping[str, Any]:
    """What the function's own body refers to."""
    try:
        variables = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # not written in Python
        return {}
    return {**variables.globals, **variables.nonlocals}


def _libraries(names: Mapping[str, Any]) -> set[str]:
    """The libraries of modules, and of functions and classes out of them."""
    origins = (v.__name__ if inspect.ismodule(v) else getattr(v, "__module__", None) for v in names.values())
    return {str(origin).partition(".")[0] for origin in origins}


def _accepts(function: Callable, signature: Signature, library: str) -> bool:
    """Whether it makes an array of a library's arrays."""
    needed = "r" in signature.meanings - signature.optional
    case = Case("gemma", 0.0, "float32", "same", False, (2, 8), 1e-6, residual=needed)
    try:
        views = Arguments(case, make_inputs(case), library, "cpu").views
        args, keywords = signature.bind(settings(case) | views)
        y = forward_results(function(*args, **keywords), needed)["y"]
    except Exception:
        return False
    return type(y).__module__.partition(".")[0] in (library, "jaxlib" if library == "jax" else library)


def _sees_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
