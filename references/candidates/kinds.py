"""The kinds of candidates: how a function, a module, an autograd function or a pair is called, in each library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Self

import numpy as np

from references import arrays
from references.candidates import repetition
from references.candidates.memory import Arguments
from references.candidates.outputs import RESULTS, WITHOUT_GRADIENTS, Outputs
from references.candidates.repetition import Behaviour
from references.candidates.signatures import NAMES, Signature
from references.cells.cell import Case, Inputs
from references.exact.program import backward_results, forward_results, several
from references.exact.prove import Proof


@dataclass(frozen=True)
class Candidate:
    """What all kinds share: the settings that a signature can express, and the guard around a run."""

    name: str
    target: Any
    device: str
    signature: Signature
    fixed_mode: str | None = None
    arrays: str = "torch"  # whose arrays it takes

    @property
    def meanings(self) -> set[str]:
        return self.signature.meanings

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(name for name in ("in_place", "row_mode") if name not in self.meanings)

    @property
    def takes_mode(self) -> bool:
        return "casting_mode" in self.meanings

    @property
    def residual(self) -> tuple[bool, ...]:
        if "r" not in self.meanings:
            return (False,)
        return (False, True) if "r" in self._optional else (True,)

    @property
    def _optional(self) -> set[str]:
        """Meanings of the arguments that have a default."""
        return self.signature.optional

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

    def partly(self, case: Case, inputs: Inputs) -> dict[str, Outputs]:
        return {}

    def behaviour(self, case: Case, inputs: Inputs) -> Behaviour:
        def results(case: Case, arguments: Arguments) -> repetition.Results:
            outputs = Outputs()
            self._compute(case, arguments, outputs)
            return {name: getattr(outputs, name) for name in RESULTS}

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
        return Arguments(case, inputs, self.arrays, self.device)

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
        if case.residual not in self.residual:
            return "no residual argument" if case.residual else "needs a residual"
        return None


class ForwardBackward(Candidate):
    """A pair: forward(x, w, …) -> y or (y, rstd), and backward(dy, x, w, …) -> dx or (dx, dw).

    With a residual forward(x, r, w, …) -> (y, s) or (y, s, rstd), and backward(dy, ds, …) -> (dx, dr, dw), or as
    without one, dx being dr too.
    """

    def _compute(self, case: Case, arguments: Arguments, outputs: Outputs) -> None:
        values = settings(case) | arguments.views
        args, keywords = self.signature.bind(values)
        early = forward_results(self.target.forward(*args, **keywords), case.residual)
        _keep(outputs, early)
        args, keywords = Signature(self.target.backward).bind(values | early)
        late = backward_results(self.target.backward(*args, **keywords), case.residual)
        _keep(outputs, late)
        _observe(arguments, outputs, early, late)


class Function(Candidate):
    """A PyTorch callable that autograd differentiates."""

    def _compute(self, case: Case, arguments: Arguments, outputs: Outputs) -> None:
        leaves, early = self._forward(case, arguments)
        rstd = _saved_rstd(early["y"], [*leaves.values(), early.get("s")])
        _keep(outputs, early | {"rstd": rstd})
        late: dict[str, Any] = {}
        if early["y"].requires_grad and all(value.shape == leaves["x"].shape for value in early.values()):
            late = _gradients(case, arguments, leaves, early)
            _keep(outputs, late)
        _observe(arguments, outputs, early | {"rstd": rstd}, late)

    def partly(self, case: Case, inputs: Inputs) -> dict[str, Outputs]:
        ways: dict[str, Callable[[Outputs], None]] = {
            WITHOUT_GRADIENTS: lambda found: self._without_gradients(case, inputs, found),
            "with X frozen": lambda found: self._frozen(case, inputs, found, "x"),
            "with W frozen": lambda found: self._frozen(case, inputs, found, "w"),
            "with another forward before its backward": lambda found: self._interleaved(case, inputs, found),
        }
        if case.w_dtype is None:
            del ways["with W frozen"]
        if case.residual:
            ways |= {
                "with R frozen": lambda found: self._frozen(case, inputs, found, "r"),
                "with no gradient at S": lambda found: self._arriving(case, inputs, found, "ds"),
            }
            if case.data == "normal":  # it is judged as zeros, which are the same where the norm is finite
                ways["with no gradient at Y"] = lambda found: self._arriving(case, inputs, found, "dy")
        elif case.w_dtype is None:
            del ways["with X frozen"]
        results = {}
        for name, compute in ways.items():
            results[name] = Outputs()
            try:
                with np.errstate(all="ignore"):
                    compute(results[name])
            except Exception as error:
                results[name].error = f"{type(error).__name__}: {error}"
        return results

    def _forward(self, case: Case, arguments: Arguments, frozen: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
        """X, R and W as they were handed over, then Y and S; what `frozen` names needs no gradient."""
        import torch

        leaves = {name: arguments.views[name] for name in ("x", "r", "w") if arguments.views.get(name) is not None}
        for name in leaves.keys() - {"w"}:
            leaves[name].requires_grad_(name not in frozen)
        if "w" in leaves:  # a parameter keeps storage and strides, and modules accept nothing else
            leaves["w"] = torch.nn.Parameter(leaves["w"], requires_grad="w" not in frozen)
        returned = self.call(case, {"w": None} | leaves)
        return leaves, _outcome(returned, case.residual, torch.Tensor, "tensor")

    def _without_gradients(self, case: Case, inputs: Inputs, outputs: Outputs) -> None:
        import torch

        with torch.no_grad():
            _keep(outputs, self._forward(case, self._arguments(case, inputs), frozen="xrw")[1])

    def _frozen(self, case: Case, inputs: Inputs, outputs: Outputs, frozen: str) -> None:
        arguments = self._arguments(case, inputs)
        _keep_all(outputs, _gradients(case, arguments, *self._forward(case, arguments, frozen)))

    def _arriving(self, case: Case, inputs: Inputs, outputs: Outputs, absent: str) -> None:
        outputs.absent = (absent,)
        arguments = self._arguments(case, inputs)
        leaves, early = self._forward(case, arguments)
        del early[absent[1:]]
        gradients = _gradients(case, arguments, leaves, early)
        if absent == "dy" and gradients.get("dw") is None:  # W is not in the graph of S
            gradients.pop("dw", None)
        _keep_all(outputs, gradients)

    def _interleaved(self, case: Case, inputs: Inputs, outputs: Outputs) -> None:
        arguments = self._arguments(case, inputs)
        found = self._forward(case, arguments)
        others = self._forward(case, self._arguments(case, replace(inputs, x=3 * inputs.x[::-1])))
        _keep_all(outputs, _gradients(case, arguments, *found))
        del others  # alive until here, as in a model with two norms

    def call(self, case: Case, given: dict[str, Any]) -> Any:
        """What it returns for `given`: x, w (or None) and, with a residual, r."""
        args, keywords = self.signature.bind(settings(case) | given)
        return self.target(*args, **keywords)


class AutogradFunction(Function):
    """A `torch.autograd.Function` class: `apply` takes positional arguments only."""

    def call(self, case: Case, given: dict[str, Any]) -> Any:
        args, _ = self.signature.bind(settings(case) | given)
        return self.target.apply(*args)


class Module(Function):
    """A `torch.nn.Module` class, called with x, or with x and a residual by name.

    Its parameter is `weight`, or the only one that it has.
    """

    @property
    def meanings(self) -> set[str]:
        called = residual_call(self.target)
        return self.signature.meanings | {"x", "w"} | ({"r"} if called else set())

    @property
    def _optional(self) -> set[str]:
        called = residual_call(self.target)
        return called.optional if called else set()

    def _unsupported(self, case: Case) -> str | None:
        if case.w_dtype is None and "elementwise_affine" not in self.meanings:
            return "no elementwise_affine argument"
        return super()._unsupported(case)

    def call(self, case: Case, given: dict[str, Any]) -> Any:
        x, w = given["x"], given["w"]
        about = {"elementwise_affine": w is not None, "device": x.device, "dtype": x.dtype}
        args, keywords = self.signature.bind(settings(case) | about)
        module = self.target(*args, **keywords)
        if w is not None:
            names = [name for name, _ in module.named_parameters()]
            if "weight" not in names and len(names) != 1:
                raise TypeError(f"the module must have a parameter 'weight' or a single one, it has {names}")
            setattr(module, "weight" if "weight" in names else names[0], w)
        called = residual_call(self.target)
        if called is None:
            return module(x)
        args, keywords = called.bind(given)
        return module(*args, **keywords)


class JaxFunction(Candidate):
    """A function of JAX arrays, which `jax.vjp` differentiates."""

    def _compute(self, case: Case, arguments: Arguments, outputs: Outputs) -> None:
        import jax

        names = [name for name in ("x", "r", "w") if arguments.views.get(name) is not None]

        def call(*leaves: Any) -> Any:
            given = {"w": None} | dict(zip(names, leaves, strict=True))
            args, keywords = self.signature.bind(settings(case) | given)
            value = self.target(*args, **keywords)
            return several(value)[:2] if case.residual else value

        returned, pull_back = jax.vjp(call, *(arguments.views[name] for name in names))
        early = _outcome(returned, case.residual, jax.Array, "array")
        _keep(outputs, early)
        late: dict[str, Any] = {}
        if all(value.shape == arguments.views["x"].shape for value in early.values()):
            arriving = {name: arguments.views[f"d{name}"].astype(value.dtype) for name, value in early.items()}
            given = tuple(arriving.values()) if case.residual else arriving["y"]
            late = {f"d{name}": gradient for name, gradient in zip(names, pull_back(given), strict=True)}
            _keep(outputs, late)
        _observe(arguments, outputs, early, late)


class NumpyFunction(Candidate):
    """A function of NumPy arrays: forward only. It may return (y, rstd), with a residual (y, s) or (y, s, rstd)."""

    def _compute(self, case: Case, arguments: Arguments, outputs: Outputs) -> None:
        outputs.forward_only = True
        args, keywords = self.signature.bind(settings(case) | arguments.views)
        early = forward_results(self.target(*args, **keywords), case.residual)
        _keep(outputs, early)
        _observe(arguments, outputs, early, {})


FUNCTIONS: dict[str, type[Candidate]] = {"torch": Function, "jax": JaxFunction, "numpy": NumpyFunction}


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


def _gradients(case: Case, arguments: Arguments, leaves: Mapping[str, Any], early: Mapping[str, Any]) -> dict[str, Any]:
    """dX, dR and dW of what `early` holds of Y and S; nothing for a leaf that needs no gradient.

    With in_place the engine alone holds dY, which comes from the backward of an operation after the candidate's: only
    then may dX be written over it. Otherwise dY is the caller's; dS always is.
    """
    import torch

    needing = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    # In another dtype than the result's, autograd would refuse what arrives before the candidate's backward saw it.
    results = {
        name: (value, arguments.views[f"d{name}"].to(value.dtype))
        for name, value in early.items()
        if value.requires_grad
    }
    if case.in_place and "y" in early:
        y = early["y"]
        results["y"] = _after(y, lambda: arguments.lend("dy").to(y.dtype)), None
    values, arriving = zip(*results.values(), strict=True)
    found = torch.autograd.grad(values, list(needing.values()), arriving, allow_unused=True)
    return {f"d{name}": gradient for name, gradient in zip(needing, found, strict=True)}


def _after(y: Any, make_dy: Callable[[], Any]) -> Any:
    """A scalar whose gradient with respect to y is what `make_dy` makes when it is asked for."""
    import torch

    class After(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Any) -> Any:
            return y.new_zeros(())

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            return make_dy()

    return After.apply(y)


def _saved_rstd(y: Any, known: Sequence[Any]) -> Any:
    """The tensor saved for the backward that can only be RSTD: one value a row, and none of those known; or None.

    The first of those known is X; missing ones may be None.

    The last one in the compute dtype is preferred (X, W, RSTD is the usual order); one of another dtype is
    returned too, because that is a deviation to report.
    """
    import torch

    x = known[0]
    rows = x.shape[:-1]
    shapes = {tuple(rows), (rows.numel(),), (*rows, 1), (rows.numel(), 1)}
    given = [tensor.detach().reshape(-1) for tensor in known if tensor is not None]

    def is_given(tensor: Any) -> bool:
        flat = tensor.reshape(-1)
        alike = (g for g in given if g.dtype is flat.dtype and g.shape == flat.shape)
        return any(bool(((flat == g) | (flat.isnan() & g.isnan())).all()) for g in alike)  # NaN is what was given too

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


def _outcome(value: Any, residual: bool, kind: type, word: str) -> dict[str, Any]:
    """Y, and with a residual S, of what was returned. Raises TypeError where it is not arrays of that kind."""
    found = dict(zip(("y", "s"), several(value), strict=False)) if residual else {"y": value}
    for result in found.values():
        if not isinstance(result, kind):
            raise TypeError(f"a {type(result).__name__} was returned, not {'an' if word[0] == 'a' else 'a'} {word}")
    return found


def _keep(outputs: Outputs, results: Mapping[str, Any]) -> None:
    """Copies of results, by name."""
    for name, value in results.items():
        setattr(outputs, name, _array(value))


def _keep_all(outputs: Outputs, gradients: Mapping[str, Any]) -> None:
    """Copies of gradients that were all needed."""
    _keep(outputs, gradients)
    outputs.missing = tuple(name for name, gradient in gradients.items() if gradient is None)


def _observe(arguments: Arguments, outputs: Outputs, early: Mapping[str, Any], late: Mapping[str, Any]) -> None:
    """What became of the arguments, and of the forward's results since they were copied."""
    copied = {name: (value, getattr(outputs, name)) for name, value in early.items()}
    outputs.contract = arguments.observe(copied, late)


def residual_call(module: Any) -> Signature | None:
    """The arguments of a module's forward, where one of them is a residual. Raises ValueError as `Signature`."""
    names = map(str.lower, inspect.signature(module.forward).parameters)
    return Signature(module.forward, skip=1, first="x") if set(NAMES["r"]) & set(names) else None
