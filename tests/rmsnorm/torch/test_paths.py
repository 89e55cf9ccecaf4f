"""One list of properties, asked of every path to a result: whoever computes it, the norm is the same function.

Paths: the kernels in the interpreter, eager PyTorch, torch.func, create_graph, torch.compile, dispatch modes, subclass
weights. Each path gives y, dx and dw, or says which of them it does not have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import func, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from references import arrays
from references.bounds import tolerances
from rmsnorm import LigerRMSNorm, LigerRMSNormFunction, liger_rms_norm
from tests.rmsnorm.torch.dispatch import Passing

pytestmark = [
    pytest.mark.torch,
    # The compiler stack and torch.func warn of torch's own older parts.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

MODES = ("llama", "gemma", "none")
H = 24
Tensors = dict[str, torch.Tensor]


class Setting:
    """What a call is given; `about` are its keyword arguments."""

    def __init__(
        self,
        mode: str = "llama",
        dtype: torch.dtype = torch.float32,
        w_dtype: torch.dtype | None = None,
        eps: Any = 0.7,
        offset: Any = 0.5,
        weighted: bool = True,
        scale: float = 1.0,
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x, self.dy = ((torch.randn(4, H, generator=generator, dtype=torch.float64)).to(dtype) for _ in range(2))
        self.x = (self.x.double() * scale).to(dtype)
        self.w = torch.randn(H, generator=generator).to(w_dtype or dtype) if weighted else None
        self.mode, self.eps, self.offset = mode, eps, offset

    def __call__(self, x: torch.Tensor, w: torch.Tensor | None) -> torch.Tensor:
        return liger_rms_norm(x, w, self.eps, self.offset, self.mode)

    def leaves(self) -> list[torch.Tensor]:
        return [t.clone().requires_grad_() for t in (self.x, self.w) if t is not None]

    def on(self, leaves: list[torch.Tensor]) -> torch.Tensor:
        return self(leaves[0], leaves[1] if len(leaves) == 2 else None)


def differentiated(setting: Setting, y: torch.Tensor, leaves: list[torch.Tensor], **options: Any) -> Tensors:
    found = torch.autograd.grad(y, leaves, setting.dy.clone(), **options)
    return {"y": y.detach()} | dict(zip(("dx", "dw"), (g.detach() for g in found), strict=False))


def function(s: Setting) -> Tensors:
    leaves = s.leaves()
    return differentiated(s, s.on(leaves), leaves)


def applied(s: Setting) -> Tensors:
    leaves = s.leaves()
    y = LigerRMSNormFunction.apply(leaves[0], leaves[1] if len(leaves) == 2 else None, s.eps, s.offset, s.mode)
    return differentiated(s, y, leaves)


def module(s: Setting) -> Tensors:
    w_dtype = None if s.w is None else s.w.dtype
    norm = LigerRMSNorm(H, s.eps, s.offset, s.mode, elementwise_affine=s.w is not None, dtype=w_dtype)
    x = s.x.clone().requires_grad_()
    if s.w is not None:
        norm.weight.data.copy_(s.w)
        assert norm.weight.dtype == s.w.dtype
    return differentiated(s, norm(x), [x, *norm.parameters()])


def create_graph(s: Setting) -> Tensors:
    leaves = s.leaves()
    return differentiated(s, s.on(leaves), leaves, create_graph=True)


def vjp(s: Setting) -> Tensors:
    inputs = [t for t in (s.x, s.w) if t is not None]
    y, back = func.vjp(lambda *leaves: s.on(list(leaves)), *inputs)
    return {"y": y} | dict(zip(("dx", "dw"), back(s.dy), strict=False))


def vmapped(s: Setting) -> Tensors:
    return {"y": func.vmap(lambda x: s(x, s.w))(s.x)}


def vmap_over_backward(s: Setting) -> Tensors:
    leaves = s.leaves()
    y = s.on(leaves)
    batch = torch.stack([s.dy, -s.dy])
    found = func.vmap(lambda dy: torch.autograd.grad(y, leaves, dy, retain_graph=True))(batch)
    return dict(zip(("dx", "dw"), (gradient[0] for gradient in found), strict=False))


def compiled(s: Setting) -> Tensors:
    torch.compiler.reset()
    leaves = s.leaves()
    y = torch.compile(lambda *leaves: s.on(list(leaves)), backend="aot_eager", fullgraph=True, dynamic=False)(*leaves)
    return differentiated(s, y, leaves)


def in_a_mode(s: Setting) -> Tensors:
    with Passing() as mode:
        found = function(s)
    assert [name for name in mode.seen if name.startswith("rmsnorm")] == [
        "rmsnorm.rms_norm_forward.default",
        "rmsnorm.rms_norm_backward.default",
    ]
    return found


def counted(s: Setting) -> Tensors:
    with FlopCounterMode(display=False):
        return function(s)


class Weight(torch.Tensor):
    """A subclass that adds nothing, as quantised and sharded weights do more of."""


def subclass_weight(s: Setting) -> Tensors:
    leaves = [s.x.clone().requires_grad_()]
    if s.w is not None:
        leaves.append(s.w.clone().as_subclass(Weight).requires_grad_())  # type: ignore[arg-type]
    found = differentiated(s, s.on(leaves), leaves)
    return {name: t.as_subclass(torch.Tensor) for name, t in found.items()}  # type: ignore[arg-type]


PATHS: dict[str, Callable[[Setting], Tensors]] = {
    path.__name__: path
    for path in (
        function,
        applied,
        module,
        create_graph,
        vjp,
        vmapped,
        vmap_over_backward,
        compiled,
        in_a_mode,
        counted,
        subclass_weight,
    )
}


def within_bounds(s: Setting, found: Tensors, eps: float, offset: float) -> None:
    x, dy = arrays.to_numpy(s.x), arrays.to_numpy(s.dy)
    w = None if s.w is None else arrays.to_numpy(s.w)
    about: dict[str, Any] = {"eps": eps, "offset": offset, "casting_mode": s.mode}
    bounds = tolerances.forward_bounds(x, w, **about) | tolerances.backward_bounds(dy, x, w, **about)
    dtypes = {"y": s.x.dtype, "dx": s.x.dtype} | ({} if s.w is None else {"dw": s.w.dtype})
    for name, got in found.items():
        assert got.dtype == dtypes[name], name
        ratio = bounds[name].ratio(arrays.to_numpy(got))
        assert (ratio <= 1).all(), f"{name}: {ratio.max()} times its bound"
        assert not bounds[name].misrounded(arrays.to_numpy(got)).any(), f"{name}: the rounding points of another mode"


SETTINGS: dict[str, Callable[[], Iterator[Setting]]] = {
    "every mode": lambda: (Setting(mode, torch.bfloat16) for mode in MODES),
    "every dtype": lambda: (Setting("llama", d) for d in (torch.float16, torch.float32, torch.float64)),
    "a weight of another dtype": lambda: (
        Setting(mode, *pair)
        for mode, pair in zip(
            itertools.cycle(MODES),
            [
                (torch.bfloat16, torch.float32),
                (torch.float32, torch.bfloat16),
                (torch.float16, torch.float64),
                (torch.float64, torch.float16),
            ],
        )
    ),
    "no weight": lambda: (Setting(mode, weighted=False) for mode in MODES),
    "offsets": lambda: (Setting("gemma", offset=offset) for offset in (-1.0, -0.25, 0.0, 3, np.float32(1.5))),
    "eps of a number's type": lambda: (
        Setting("llama", eps=eps) for eps in (1, 0, np.float64(0.3), np.float16(0.5), np.int64(2), torch.tensor(0.25))
    ),
    "two eps that agree in six digits": lambda: (
        Setting("llama", torch.float64, eps=eps) for eps in (0.1234561, 0.1234564)
    ),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", SETTINGS)
def test_every_path_is_within_the_derived_bounds(kind: str, path: str, machine: str) -> None:
    for setting in SETTINGS[kind]():
        if path == "compiled" and not {type(setting.eps), type(setting.offset)} <= {int, float}:
            continue  # Dynamo makes arrays and tensors of such scalars, and reads no number out of them
        within_bounds(setting, PATHS[path](setting), float(setting.eps), float(setting.offset))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mode", MODES)
def test_a_row_whose_squares_overflow_is_zero_and_its_neighbours_are_right(mode: str, path: str, machine: str) -> None:
    setting = Setting(mode)
    setting.x[1] = 1e25  # the square of each is infinite, RSTD is 0
    with np.errstate(all="ignore"):
        found = PATHS[path](setting)
        alone = Setting(mode)
        for name in ("x", "dy"):
            setattr(alone, name, getattr(setting, name)[[0, 2, 3]])
        wanted = PATHS[path](alone)
    for name in set(found) & {"y", "dx"}:
        assert torch.equal(found[name][[0, 2, 3]], wanted[name]), name
    if "y" in found:
        assert (found["y"][1] == 0).all()


@pytest.mark.parametrize("path", PATHS)
def test_a_zero_keeps_its_sign(path: str, machine: str) -> None:
    setting = Setting(offset=0.0)
    assert setting.w is not None
    setting.w[:] = -0.0
    setting.x.abs_()
    found = PATHS[path](setting)
    if "y" in found:
        assert (found["y"] == 0).all() and torch.signbit(found["y"]).all()


@pytest.mark.parametrize("path", PATHS)
def test_no_rows_and_one_column(path: str, machine: str) -> None:
    setting = Setting()
    setting.x, setting.dy = setting.x[:0], setting.dy[:0]
    if path != "vmapped":  # vmap has no zero samples
        found = PATHS[path](setting)
        assert all(found[name].shape == (0, H) for name in set(found) & {"y", "dx"})
        assert "dw" not in found or (found["dw"] == 0).all()


# Derivatives of higher order


def scalar(x: np.ndarray, w: np.ndarray, dy: np.ndarray, eps: float, offset: float) -> np.ndarray:
    """Σ dy·y of the formula in NumPy, for complex steps."""
    return (dy * x * ((x * x).mean(-1, keepdims=True) + eps) ** -0.5 * (w + offset)).sum()


WIDE = torch.float64
PAIRS = [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32, torch.float32), (WIDE, WIDE)]


@pytest.mark.parametrize(("dtype", "w_dtype"), PAIRS, ids=str)
def test_derivatives_to_third_order_in_mixed_dtypes(dtype: torch.dtype, w_dtype: torch.dtype, machine: str) -> None:
    """By create_graph, of a norm and of the same formula in float64: they differ by roundings to the dtypes alone."""
    generator = torch.Generator().manual_seed(0)
    x, w, dy = (torch.randn(*shape, generator=generator) for shape in ((2, 5), (5,), (2, 5)))
    x, w = x.to(dtype), w.to(w_dtype)
    eps, offset = 0.3, 100.0  # an offset that rounds in bfloat16 to another one: w + 100 has three digits there

    def formula(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (w + offset)

    def chain(norm: Callable[..., torch.Tensor], kind: tuple[torch.dtype, torch.dtype]) -> list[torch.Tensor]:
        a, b = x.to(kind[0]).requires_grad_(), w.to(kind[1]).requires_grad_()
        found = []
        loss = (norm(a, b).double() * dy.double()).sum()
        for power in (2, 2, 1):
            gradients = torch.autograd.grad(loss, (a, b), create_graph=True)
            found += list(gradients)
            loss = (gradients[0].double() ** power).sum()  # dX: what is rounded to W's dtype stays out of it
        return found

    got = chain(lambda a, b: liger_rms_norm(a, b, eps, offset, "gemma", False), (dtype, w_dtype))
    wanted = chain(formula, (WIDE, WIDE))
    for order, (one, other) in enumerate(zip(got, wanted, strict=True)):
        scale = other.abs().max().item()
        assert scale > 0, "the derivative vanishes: nothing is shown"
        # dX is rounded to X's dtype at every order, dW to W's once. An offset added in bfloat16 errs by 2^-9 of itself.
        unit = max(torch.finfo(kind).eps for kind in (dtype, one.dtype))
        assert (one.double() - other).abs().max().item() <= 2 ** (3 + order) * unit * scale, (
            f"derivative {order // 2 + 1}"
        )


def test_third_derivatives_are_numerically_right(machine: str) -> None:
    x = torch.randn(1, 4, dtype=WIDE, generator=torch.Generator().manual_seed(0), requires_grad=True)
    w = torch.randn(4, dtype=WIDE, generator=torch.Generator().manual_seed(1), requires_grad=True)

    def second(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = liger_rms_norm(x, w, 0.3, 0.5, "gemma", False)
        first = torch.autograd.grad(y.sin().sum(), (x, w), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, w), create_graph=True)

    assert torch.autograd.gradcheck(second, (x, w))


# Modes that look on


def test_a_dispatch_mode_sees_an_operator_for_forward_and_backward(machine: str) -> None:
    norm = LigerRMSNorm(H)
    with Passing() as mode:
        norm(torch.randn(2, H, requires_grad=True)).backward(torch.randn(2, H))
    names = [name for name in mode.seen if "rmsnorm" in name]
    assert names[0] == "rmsnorm.rms_norm_forward.default" and "backward" in names[1] and len(names) == 2


def test_a_mode_that_replaces_an_operator_is_obeyed(machine: str) -> None:
    class Zeros(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = operator(*args, **(kwargs or {}))
            return tuple(map(torch.zeros_like, found)) if "rms_norm_forward" in str(operator) else found

    with Zeros():
        assert (liger_rms_norm(torch.ones(2, H), None, 1e-6) == 0).all()
    assert (liger_rms_norm(torch.ones(2, H), None, 1e-6) != 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_fake_tensors_of_any_shape_have_results_of_that_shape(mode: str, machine: str) -> None:
    with FakeTensorMode():
        x, w = torch.empty(10**6, 4096, dtype=torch.bfloat16, requires_grad=True), torch.empty(4096, requires_grad=True)
        y = liger_rms_norm(x, w, 1e-6, 0.0, mode)
        dx, dw = torch.autograd.grad(y, (x, w), torch.empty_like(y))
    assert (y.shape, dx.shape, dw.shape) == ((10**6, 4096), (10**6, 4096), (4096,))
    assert (y.dtype, dx.dtype, dw.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert math.prod(y.shape) == 4096 * 10**6


def test_a_weight_subclass_with_a_dispatch_of_its_own_is_asked(machine: str) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    x = torch.randn(3, H, requires_grad=True)
    a, b = torch.randn(H), torch.randn(H)
    y = liger_rms_norm(x, nn.Parameter(TwoTensor(a, b)), 1e-6)
    assert isinstance(y, TwoTensor)
    assert torch.equal(y.a, liger_rms_norm(x, a, 1e-6)) and torch.equal(y.b, liger_rms_norm(x, b, 1e-6))
