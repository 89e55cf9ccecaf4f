"""The operators `torch.ops.rmsnorm.*`: schemas, implementations for CUDA and CPU, shapes for tracing, derivatives.

    rms_norm_forward       y, shape and dtype of x, and rstd, x.shape[:-1] in the compute dtype
    rms_norm_backward      dx and dw; one that is not needed is an empty tensor
    rms_norm_backward_     dw, with dx written over dy, which must be contiguous
    add_rms_norm_forward   y and rstd of s = x + r in x's place, and s: y, s, rstd
    add_rms_norm_backward  dx, which is dr too, and dw: x is s, and ds, the gradient that arrives at it, is added to dx

CUDA tensors run the Triton kernels. CPU tensors run eager PyTorch, or, with TRITON_INTERPRET=1, the kernels in Triton's
interpreter. Rows of more than 65,536 columns run eager PyTorch everywhere.

All but the one that writes over dy carry their derivatives, so that a traced or exported program trains. A backward
takes rstd for what it is, a function of x: eps is among its arguments for that derivative alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._library.triton
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

from rmsnorm import eager
from rmsnorm.checks import check_backward, check_forward, check_inputs, check_like_x, check_residual, compute_dtype
from rmsnorm.fused import launch
from rmsnorm.fused.tiles import MAX_FUSED_COLS

_LIBRARY = torch.library.Library("rmsnorm", "DEF")
_SETTINGS = "float eps, float offset, str casting_mode, bool? row_mode"
_BACKWARD_ARGUMENTS = f"Tensor x, Tensor? w, Tensor rstd, {_SETTINGS}"
_LIBRARY.define(f"rms_norm_forward(Tensor x, Tensor? w, {_SETTINGS}) -> (Tensor, Tensor)")
# needs_dx and needs_dw are bools in type int: DTensor remembers a sharding by the tensors and what follows an int.
_LIBRARY.define(f"rms_norm_backward(Tensor dy, {_BACKWARD_ARGUMENTS}, int needs_dx, int needs_dw) -> (Tensor, Tensor)")
_LIBRARY.define(f"rms_norm_backward_(Tensor(a!) dy, {_BACKWARD_ARGUMENTS}, bool needs_dw) -> Tensor")
_LIBRARY.define(f"add_rms_norm_forward(Tensor x, Tensor r, Tensor? w, {_SETTINGS}) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"add_rms_norm_backward(Tensor dy, Tensor x, Tensor? w, Tensor rstd, Tensor ds, {_SETTINGS}, int needs_dw)"
    " -> (Tensor, Tensor)"
)

Weight = torch.Tensor | None
Pair = tuple[torch.Tensor, torch.Tensor]
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _uses_kernels(x: torch.Tensor) -> bool:
    return (x.device.type != "cpu" or launch.INTERPRETED) and x.shape[-1] <= MAX_FUSED_COLS


def _forward(x: torch.Tensor, w: Weight, *settings: Any) -> Pair:
    check_forward(x, w, *settings[:3])
    return _normalize(x, w, *settings)


def _normalize(x: torch.Tensor, w: Weight, *settings: Any, needs_rstd: bool = True) -> Pair:
    if _uses_kernels(x):
        return launch.rms_norm_forward(x, w, *settings, needs_rstd=needs_rstd)
    return _composed(x, w, *settings)


def _composed(x: torch.Tensor, w: Weight, eps: float, offset: float, casting_mode: str, row_mode: bool | None) -> Pair:
    settings: dict[str, Any] = {"eps": eps, "offset": offset, "casting_mode": casting_mode}
    return eager.rms_norm_forward(x.contiguous(), w, **settings, c_dtype=compute_dtype(x.dtype))


def _add_forward(x: torch.Tensor, r: torch.Tensor, w: Weight, *settings: Any) -> Triple:
    check_forward(x, w, *settings[:3])
    check_residual(r, x)
    return _add_and_normalize(x, r, w, *settings)


def _add_and_normalize(
    x: torch.Tensor, r: torch.Tensor, w: Weight, *settings: Any, records: bool = False, needs_rstd: bool = True
) -> Triple:
    """y, s and, with needs_rstd, rstd; records: into the graph that torch.compile is making."""
    if not _uses_kernels(x):
        return _add_composed(x, r, w, *settings)
    s = torch.empty_like(x, memory_format=torch.contiguous_format)
    y, rstd = launch.rms_norm_forward(x, w, *settings, r=r, s=s, records=records, needs_rstd=needs_rstd)
    return y, s, rstd


def _add_composed(x: torch.Tensor, r: torch.Tensor, w: Weight, *settings: Any) -> Triple:
    s = x.contiguous() + r.contiguous()
    y, rstd = _composed(s, w, *settings)
    return y, s, rstd


def _backward(dy: torch.Tensor, x: torch.Tensor, w: Weight, rstd: torch.Tensor, *rest: Any) -> Pair:
    check_backward(dy, x, w, rstd, *rest[:3])
    return _gradients(dy, x, w, rstd, *rest)


def _add_backward(
    dy: torch.Tensor, x: torch.Tensor, w: Weight, rstd: torch.Tensor, ds: torch.Tensor, *rest: Any
) -> Pair:
    *settings, needs_dw = rest
    check_backward(dy, x, w, rstd, *settings[:3])
    check_like_x("dS", ds, x)
    return _gradients(dy, x, w, rstd, *settings, True, needs_dw, ds=ds)


def _gradients(
    dy: torch.Tensor, x: torch.Tensor, w: Weight, rstd: torch.Tensor, *rest: Any, ds: torch.Tensor | None = None
) -> Pair:
    *settings, needs_dx, needs_dw = rest
    dx: torch.Tensor | None
    if _uses_kernels(x):
        dx = torch.empty_like(x, memory_format=torch.contiguous_format) if needs_dx else None
        dw = _launch_backward(dy, x, w, rstd, settings, dx, needs_dw, ds)
    else:
        dx, dw = _eager_backward(dy, x, w, rstd, settings, needs_dx, needs_dw, ds)
    return _or_empty(dx, x), _or_empty(dw, x)


def _backward_(
    dy: torch.Tensor, x: torch.Tensor, w: Weight, rstd: torch.Tensor, *rest: Any, ds: torch.Tensor | None = None
) -> torch.Tensor:
    *settings, needs_dw = rest
    check_backward(dy, x, w, rstd, *settings[:3])
    if not dy.is_contiguous():
        raise ValueError(f"dY must be contiguous to be overwritten, got shape {dy.shape}, strides {dy.stride()}")
    if _uses_kernels(x):
        dw = _launch_backward(dy, x, w, rstd, settings, dy, needs_dw, ds)
    else:
        dx, dw = _eager_backward(dy, x, w, rstd, settings, True, needs_dw, ds)
        dy.copy_(dx)  # type: ignore[arg-type]
    return _or_empty(dw, x)


def _launch_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: Weight,
    rstd: torch.Tensor,
    settings: list[Any],
    dx: torch.Tensor | None,
    needs_dw: bool,
    ds: torch.Tensor | None = None,
    records: bool = False,
) -> torch.Tensor | None:
    return launch.rms_norm_backward(
        dy, x, w, rstd, *settings[1:], dx=dx, needs_dw=bool(needs_dw), records=records, ds=ds
    )


def _eager_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: Weight,
    rstd: torch.Tensor,
    settings: list[Any],
    needs_dx: bool,
    needs_dw: bool,
    ds: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    _, offset, casting_mode, _ = settings
    about: dict[str, Any] = {"offset": offset, "casting_mode": casting_mode}
    needs: dict[str, Any] = {"needs_dx": bool(needs_dx), "needs_dw": bool(needs_dw)}
    # Contiguous copies: an eager reduction orders its additions by the strides, and so would its bits.
    return eager.rms_norm_backward(dy.contiguous(), x.contiguous(), w, rstd, **about, **needs, ds=ds)


def _or_empty(gradient: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """An operator returns tensors only: an unneeded gradient is an empty one."""
    return x.new_empty(0) if gradient is None else gradient


def _forward_fake(x: torch.Tensor, w: Weight, *settings: Any) -> Pair:
    check_forward(x, w, *settings[:3])
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=compute_dtype(x.dtype))


def _backward_fake(dy: torch.Tensor, x: torch.Tensor, w: Weight, rstd: torch.Tensor, *rest: Any) -> Pair:
    *settings, needs_dx, needs_dw = rest
    check_backward(dy, x, w, rstd, *settings[:3])
    return x.new_empty(x.shape) if needs_dx else x.new_empty(0), _dw_fake(x, w, needs_dw)


def _backward_fake_(dy: torch.Tensor, x: torch.Tensor, w: Weight, rstd: torch.Tensor, *rest: Any) -> torch.Tensor:
    *settings, needs_dw = rest
    check_backward(dy, x, w, rstd, *settings[:3])
    return _dw_fake(x, w, needs_dw)


def _add_forward_fake(x: torch.Tensor, r: torch.Tensor, w: Weight, *settings: Any) -> Triple:
    y, rstd = _forward_fake(x, w, *settings)
    check_residual(r, x)
    return y, x.new_empty(x.shape), rstd


def _add_backward_fake(
    dy: torch.Tensor, x: torch.Tensor, w: Weight, rstd: torch.Tensor, ds: torch.Tensor, *rest: Any
) -> Pair:
    *settings, needs_dw = rest
    dx, dw = _backward_fake(dy, x, w, rstd, *settings, True, needs_dw)
    check_like_x("dS", ds, x)
    return dx, dw


def _dw_fake(x: torch.Tensor, w: Weight, needs_dw: bool) -> torch.Tensor:
    return w.new_empty(w.shape) if needs_dw and w is not None else x.new_empty(0)


for _name, _run, _fake in (
    ("rms_norm_forward", _forward, _forward_fake),
    ("rms_norm_backward", _backward, _backward_fake),
    ("rms_norm_backward_", _backward_, _backward_fake_),
    ("add_rms_norm_forward", _add_forward, _add_forward_fake),
    ("add_rms_norm_backward", _add_backward, _add_backward_fake),
):
    _LIBRARY.impl(_name, _run, "CUDA")
    _LIBRARY.impl(_name, _run, "CPU")
    torch.library.register_fake(f"rmsnorm::{_name}", _fake, lib=_LIBRARY)

# The overloads, looked up once: an attribute chain from torch.ops costs a microsecond a call.
rms_norm_forward = torch.ops.rmsnorm.rms_norm_forward.default
rms_norm_backward = torch.ops.rmsnorm.rms_norm_backward.default
rms_norm_backward_ = torch.ops.rmsnorm.rms_norm_backward_.default
add_rms_norm_forward = torch.ops.rmsnorm.add_rms_norm_forward.default
add_rms_norm_backward = torch.ops.rmsnorm.add_rms_norm_backward.default


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
    x, w, *ctx.settings = inputs
    ctx.save_for_backward(x, w, output[1])
    ctx.set_materialize_grads(False)


def _differentiate_forward(ctx: Any, dy: torch.Tensor | None, drstd: torch.Tensor | None) -> Any:
    needs_dx, needs_dw = ctx.needs_input_grad[:2]
    return *_first_derivative(ctx, dy, None, drstd, needs_dx, needs_dw), None, None, None, None


def _first_derivative(
    ctx: Any,
    dy: torch.Tensor | None,
    ds: torch.Tensor | None,
    drstd: torch.Tensor | None,
    needs_dx: bool,
    needs_dw: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """dx and dw, or None for what is not needed, of the gradients that arrive at y, at s and at rstd."""
    x, w, rstd = ctx.saved_tensors
    dx, dw = ds, None
    if dy is not None:
        dx, dw = differentiable_backward(dy, x, w, rstd, *ctx.settings, needs_dx, needs_dw, ds=ds)
    if drstd is not None and needs_dx:  # of a program that uses the last result
        c_dtype = rstd.dtype
        through_rstd = (x.to(c_dtype) * (drstd * -rstd.pow(3) / x.shape[-1]).unsqueeze(-1)).to(x.dtype)
        dx = through_rstd if dx is None else dx + through_rstd
    return dx if needs_dx else None, dw if needs_dw else None


def differentiable_backward(
    dy: torch.Tensor, x: torch.Tensor, w: Weight, rstd: torch.Tensor, *rest: Any, ds: torch.Tensor | None = None
) -> Pair:
    """dx and dw by the operator, which knows its derivative: rms_norm_backward, or add_rms_norm_backward with ds."""
    *settings, needs_dx, needs_dw = rest
    if ds is None or not needs_dx:
        return rms_norm_backward(dy, x, w, rstd, *rest)
    return add_rms_norm_backward(dy, x, w, rstd, ds, *settings, needs_dw)


def _setup_add_forward(ctx: Any, inputs: tuple[Any, ...], output: Triple) -> None:
    _, _, w, *ctx.settings = inputs
    _, s, rstd = output
    ctx.save_for_backward(s, w, rstd)
    ctx.set_materialize_grads(False)


def _differentiate_add_forward(
    ctx: Any, dy: torch.Tensor | None, ds: torch.Tensor | None, drstd: torch.Tensor | None
) -> Any:
    needs_dx, needs_dr, needs_dw = ctx.needs_input_grad[:3]
    dx, dw = _first_derivative(ctx, dy, ds, drstd, needs_dx or needs_dr, needs_dw)
    return dx if needs_dx else None, dx if needs_dr else None, dw, None, None, None, None


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
    dy, x, w, rstd, ctx.eps, ctx.offset, *_, ctx.needs_dx, ctx.needs_dw = inputs
    ctx.save_for_backward(dy, x, w)
    ctx.c_dtype = rstd.dtype
    ctx.set_materialize_grads(False)


def _differentiate_backward(ctx: Any, ddx: torch.Tensor | None, ddw: torch.Tensor | None) -> Any:
    """The derivative of the unrounded formula in eager PyTorch, of any order; roundings have derivative one."""
    grads = (ddx if ctx.needs_dx else None, ddw if ctx.needs_dw else None)
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: dY may itself be a function of X, and what flows through it is the engine's to add.
        inputs: list[Any] = [None if t is None else t.view_as(t) for t in ctx.saved_tensors]
        wanted = [t for t, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
        outputs = eager.unrounded_backward(*inputs, eps=ctx.eps, offset=ctx.offset, c_dtype=ctx.c_dtype)
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o is not None and g is not None]
        found = iter(
            torch.autograd.grad(
                [o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph=create_graph, allow_unused=True
            )
            if pairs
            else [None] * len(wanted)
        )
    gradients = [next(found) if needed else None for needed in ctx.needs_input_grad[:3]]
    return (*gradients, *[None] * 7)


def _setup_add_backward(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
    *tensors, _, eps, offset, casting_mode, row_mode, needs_dw = inputs
    _setup_backward(ctx, (*tensors, eps, offset, casting_mode, row_mode, True, needs_dw), output)


def _differentiate_add_backward(ctx: Any, ddx: torch.Tensor | None, ddw: torch.Tensor | None) -> Any:
    gradients = _differentiate_backward(ctx, ddx, ddw)
    return (*gradients[:4], ddx if ctx.needs_input_grad[4] else None, *[None] * 5)


for _name, _differentiate, _setup in (
    ("rms_norm_forward", _differentiate_forward, _setup_forward),
    ("rms_norm_backward", _differentiate_backward, _setup_backward),
    ("add_rms_norm_forward", _differentiate_add_forward, _setup_add_forward),
    ("add_rms_norm_backward", _differentiate_add_backward, _setup_add_backward),
):
    torch.library.register_autograd(f"rmsnorm::{_name}", _differentiate, setup_context=_setup, lib=_LIBRARY)


def _recorded(run: Callable[..., Any]) -> Callable[..., Any]:
    """What torch.compile makes of an operator: the launches themselves, so that a compiled graph calls no Python.

    An exported program keeps the operator, and so does whatever `run` refuses.
    """

    def rule(mode: Any, op: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        from torch.export import _trace

        plain = all(issubclass(t, torch.Tensor) and t in _TRACED for t in types)
        if not plain:
            return NotImplemented
        exports = _trace.custom_triton_ops_decomposition_disabled()
        if exports or kwargs or not all(t.is_cuda for t in args if isinstance(t, torch.Tensor)):
            return mode.__torch_dispatch__(op, types, args, kwargs)
        with mode:
            result = run(*args)
        return mode.__torch_dispatch__(op, types, args, kwargs) if result is NotImplemented else result

    return rule


_TRACED = (torch.Tensor, FunctionalTensor, FakeTensor)


def _record_forward(x: torch.Tensor, w: Weight, eps: float, offset: float, casting_mode: str, row_mode: Any) -> Any:
    check_forward(x, w, eps, offset, casting_mode)
    if not _uses_kernels(x) or isinstance(x.shape[-1], torch.SymInt):
        return NotImplemented
    return launch.rms_norm_forward(x, w, eps, offset, casting_mode, row_mode, records=True)


def _record_add_forward(x: torch.Tensor, r: torch.Tensor, w: Weight, *settings: Any) -> Any:
    check_forward(x, w, *settings[:3])
    check_residual(r, x)
    if not _uses_kernels(x) or isinstance(x.shape[-1], torch.SymInt):
        return NotImplemented
    return _add_and_normalize(x, r, w, *settings, records=True)


def _record_add_backward(
    dy: torch.Tensor, x: torch.Tensor, w: Weight, rstd: torch.Tensor, ds: torch.Tensor, *rest: Any
) -> Any:
    *settings, needs_dw = rest
    check_like_x("dS", ds, x)
    return _record_backward(dy, x, w, rstd, *settings, True, needs_dw, ds=ds)


def _record_backward(
    dy: torch.Tensor, x: torch.Tensor, w: Weight, rstd: torch.Tensor, *rest: Any, ds: torch.Tensor | None = None
) -> Any:
    *settings, needs_dx, needs_dw = rest
    check_backward(dy, x, w, rstd, *settings[:3])
    # The number of partial rows of dw, and the tile that sums them, follow from the number of rows.
    strides = *dy.stride(), *x.stride(), *(() if ds is None else ds.stride())
    symbolic = any(isinstance(size, torch.SymInt) for size in (*dy.shape, *strides))
    if not _uses_kernels(x) or symbolic or (needs_dx and launch.splits_rows(x, settings[3])):
        return NotImplemented
    dx = x.new_empty(x.shape) if needs_dx else None
    dw = _launch_backward(dy, x, w, rstd, settings, dx, needs_dw, ds, records=True)
    return _or_empty(dx, x), _or_empty(dw, x)


for _name, _record, _kernels in (
    ("rmsnorm::rms_norm_forward", _record_forward, launch.FORWARD_KERNELS),
    ("rmsnorm::rms_norm_backward", _record_backward, launch.BACKWARD_KERNELS),
    ("rmsnorm::add_rms_norm_forward", _record_add_forward, launch.FORWARD_KERNELS),
    ("rmsnorm::add_rms_norm_backward", _record_add_backward, launch.BACKWARD_KERNELS),
):
    torch.library.register_torch_dispatch(_name, FunctionalTensorMode, _recorded(_record), lib=_LIBRARY)
    # PyTorch's cache of compiled graphs is keyed by the sources of the kernels that it finds here.
    torch._library.triton.triton_ops_to_kernels[_name] = list(_kernels)

# The table that torch.onnx reads: an ONNX model holds PyTorch's operators only. torch.compile does not look there.
torch._decomp.register_decomposition(rms_norm_forward)(_composed)
torch._decomp.register_decomposition(add_rms_norm_forward)(_add_composed)

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def needs_dispatcher(x: torch.Tensor, w: Weight, r: torch.Tensor | None = None) -> bool:
    """Whether a call must go through the dispatcher: subclasses, tracing, dispatch modes, other devices.

    For plain tensors of which nobody keeps a record it only costs host time, twice that of a launch.
    """
    return (
        torch.compiler.is_compiling()  # first: Dynamo knows the answer, and cannot trace the last question
        or type(x) not in _PLAIN
        or (w is not None and type(w) not in _PLAIN)
        or (r is not None and type(r) not in _PLAIN)
        or not (x.is_cuda or x.is_cpu)
        or torch._C._len_torch_dispatch_stack() > 0
    )


def overwrites(x: torch.Tensor, w: Weight, ds: torch.Tensor | None = None) -> bool:
    """Whether writing dx over dy saves memory: eager PyTorch has made dx already, and few rows would need a copy.

    With ds there is no operator that does so, for those who look at operators.
    """
    return _uses_kernels(x) and not launch.reads_dy_late(x) and (ds is None or not needs_dispatcher(x, w, ds))


def forward(x: torch.Tensor, w: Weight, *settings: Any) -> Pair:
    """rms_norm_forward by the shortest way; the settings are checked already."""
    if needs_dispatcher(x, w):
        return rms_norm_forward(x, w, *settings)
    check_inputs(x, w)
    return _normalize(x, w, *settings)


def normalize(x: torch.Tensor, w: Weight, *settings: Any) -> torch.Tensor:
    """y by the shortest way, where nobody can ask for a gradient."""
    if needs_dispatcher(x, w):
        return rms_norm_forward(x, w, *settings)[0]
    check_inputs(x, w)
    return _normalize(x, w, *settings, needs_rstd=False)[0]


def add_forward(x: torch.Tensor, r: torch.Tensor, w: Weight, *settings: Any) -> Triple:
    """add_rms_norm_forward by the shortest way."""
    if needs_dispatcher(x, w, r):
        return add_rms_norm_forward(x, r, w, *settings)
    check_inputs(x, w)
    check_residual(r, x)
    return _add_and_normalize(x, r, w, *settings)


def add_and_normalize(x: torch.Tensor, r: torch.Tensor, w: Weight, *settings: Any) -> Pair:
    """y and s by the shortest way, where nobody can ask for a gradient."""
    if needs_dispatcher(x, w, r):
        return add_rms_norm_forward(x, r, w, *settings)[:2]
    check_inputs(x, w)
    check_residual(r, x)
    return _add_and_normalize(x, r, w, *settings, needs_rstd=False)[:2]


def backward(dy: torch.Tensor, x: torch.Tensor, w: Weight, *rest: Any, ds: torch.Tensor | None = None) -> Pair:
    """The backward by the shortest way: x, w and rstd are the forward's, and autograd has checked dy and ds."""
    direct = not needs_dispatcher(x, w) and _is_plain(dy) and (ds is None or _is_plain(ds))
    run = _gradients if direct else differentiable_backward
    return run(dy, x, w, *rest, ds=ds)


def _is_plain(gradient: torch.Tensor) -> bool:
    """Whether it is no subclass and no batch, of is_grads_batched."""
    return type(gradient) in _PLAIN and not torch._C._functorch.is_legacy_batchedtensor(gradient)


def backward_(dy: torch.Tensor, x: torch.Tensor, w: Weight, *rest: Any, ds: torch.Tensor | None = None) -> torch.Tensor:
    """The backward with dx written over dy, a plain tensor, by the shortest way; `overwrites` says where it is one."""
    if ds is None and needs_dispatcher(x, w):
        return rms_norm_backward_(dy, x, w, *rest)
    dw = _backward_(dy, x, w, *rest, ds=ds)
    torch.autograd.graph.increment_version(dy)  # as the dispatcher does for an argument that is written
    return dw
