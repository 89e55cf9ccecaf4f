"""The operators `torch.ops.rmsnorm.*`: schemas, implementations for CUDA and CPU, shapes for tracing.

    rms_norm_forward    y, shape and dtype of x, and rstd, x.shape[:-1] in the compute dtype
    rms_norm_backward   dx and dw; one that is not needed is an empty tensor
    rms_norm_backward_  dw, with dx written over dy, which must be contiguous

CUDA tensors run the Triton kernels. CPU tensors run eager PyTorch, or, with TRITON_INTERPRET=1, the kernels in Triton's
interpreter. Rows of more than 65,536 columns run eager PyTorch everywhere.
"""

from __future__ import annotations

import torch

from rmsnorm import eager
from rmsnorm.checks import check_backward, check_forward
from rmsnorm.fused import launch, plans
from rmsnorm.fused.tiles import MAX_FUSED_COLS

_LIBRARY = torch.library.Library("rmsnorm", "DEF")
_BACKWARD_ARGUMENTS = "Tensor x, Tensor? w, Tensor rstd, float offset, str casting_mode, bool? row_mode"
_LIBRARY.define(
    "rms_norm_forward(Tensor x, Tensor? w, float eps, float offset, str casting_mode, bool? row_mode)"
    " -> (Tensor, Tensor)"
)
# needs_dx and needs_dw are bools in type int: DTensor remembers a sharding by the tensors and what follows an int.
_LIBRARY.define(f"rms_norm_backward(Tensor dy, {_BACKWARD_ARGUMENTS}, int needs_dx, int needs_dw) -> (Tensor, Tensor)")
_LIBRARY.define(f"rms_norm_backward_(Tensor(a!) dy, {_BACKWARD_ARGUMENTS}, bool needs_dw) -> Tensor")


def _uses_kernels(x: torch.Tensor) -> bool:
    return (x.device.type != "cpu" or launch.INTERPRETED) and x.shape[-1] <= MAX_FUSED_COLS


def _forward(
    x: torch.Tensor,
    w: torch.Tensor | None,
    eps: float,
    offset: float,
    casting_mode: str,
    row_mode: bool | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_forward(x, w, eps, offset, casting_mode)
    if _uses_kernels(x):
        return launch.rms_norm_forward(x, w, eps=eps, offset=offset, casting_mode=casting_mode, row_mode=row_mode)
    y, rstd = eager.rms_norm_forward(
        x.contiguous(),
        w,
        eps=eps,
        offset=offset,
        casting_mode=casting_mode,
        c_dtype=plans.compute_dtype(x.dtype),
    )
    return y, rstd


def _backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    casting_mode: str,
    row_mode: bool | None,
    needs_dx: bool,
    needs_dw: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_backward(dy, x, w, rstd, offset, casting_mode)
    if _uses_kernels(x):
        dx = x.new_empty(x.shape) if needs_dx else None
        dw = launch.rms_norm_backward(
            dy,
            x,
            w,
            rstd,
            offset=offset,
            casting_mode=casting_mode,
            dx=dx,
            needs_dw=needs_dw,
            row_mode=row_mode,
        )
    else:
        dx, dw = _eager_backward(dy, x, w, rstd, offset, casting_mode, needs_dx, needs_dw)
    return _or_empty(dx, x), _or_empty(dw, x)


def _backward_(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    casting_mode: str,
    row_mode: bool | None,
    needs_dw: bool,
) -> torch.Tensor:
    check_backward(dy, x, w, rstd, offset, casting_mode)
    if not dy.is_contiguous():
        raise ValueError(f"dY must be contiguous to be overwritten, got shape {dy.shape}, strides {dy.stride()}")
    if _uses_kernels(x):
        dw = launch.rms_norm_backward(
            dy,
            x,
            w,
            rstd,
            offset=offset,
            casting_mode=casting_mode,
            dx=dy,
            needs_dw=needs_dw,
            row_mode=row_mode,
        )
    else:
        dx, dw = _eager_backward(dy, x, w, rstd, offset, casting_mode, True, needs_dw)
        assert dx is not None
        dy.copy_(dx)
    return _or_empty(dw, x)


def _eager_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    casting_mode: str,
    needs_dx: bool,
    needs_dw: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    # Contiguous copies: an eager reduction orders its additions by the strides, and so would its bits.
    return eager.rms_norm_backward(
        dy.contiguous(),
        x.contiguous(),
        w,
        rstd,
        offset=offset,
        casting_mode=casting_mode,
        needs_dx=needs_dx,
        needs_dw=needs_dw,
    )


def _or_empty(gradient: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """An operator returns tensors only: an unneeded gradient is an empty one."""
    return x.new_empty(0) if gradient is None else gradient


def _forward_fake(
    x: torch.Tensor,
    w: torch.Tensor | None,
    eps: float,
    offset: float,
    casting_mode: str,
    row_mode: bool | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_forward(x, w, eps, offset, casting_mode)
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=plans.compute_dtype(x.dtype))


def _backward_fake(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    casting_mode: str,
    row_mode: bool | None,
    needs_dx: bool,
    needs_dw: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_backward(dy, x, w, rstd, offset, casting_mode)
    dx = x.new_empty(x.shape) if needs_dx else x.new_empty(0)
    return dx, _dw_fake(x, w, needs_dw)


def _backward_fake_(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    casting_mode: str,
    row_mode: bool | None,
    needs_dw: bool,
) -> torch.Tensor:
    check_backward(dy, x, w, rstd, offset, casting_mode)
    return _dw_fake(x, w, needs_dw)


def _dw_fake(x: torch.Tensor, w: torch.Tensor | None, needs_dw: bool) -> torch.Tensor:
    return w.new_empty(w.shape) if needs_dw and w is not None else x.new_empty(0)


for _device in ("CUDA", "CPU"):
    _LIBRARY.impl("rms_norm_forward", _forward, _device)
    _LIBRARY.impl("rms_norm_backward", _backward, _device)
    _LIBRARY.impl("rms_norm_backward_", _backward_, _device)
torch.library.register_fake("rmsnorm::rms_norm_forward", _forward_fake, lib=_LIBRARY)
torch.library.register_fake("rmsnorm::rms_norm_backward", _backward_fake, lib=_LIBRARY)
torch.library.register_fake("rmsnorm::rms_norm_backward_", _backward_fake_, lib=_LIBRARY)

# The overloads, looked up once: an attribute chain from torch.ops costs a microsecond a call.
rms_norm_forward = torch.ops.rmsnorm.rms_norm_forward.default
rms_norm_backward = torch.ops.rmsnorm.rms_norm_backward.default
rms_norm_backward_ = torch.ops.rmsnorm.rms_norm_backward_.default


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def needs_dispatcher(x: torch.Tensor, w: torch.Tensor | None) -> bool:
    """Whether a call must go through the dispatcher: subclasses, tracing, dispatch modes, other devices.

    For plain tensors of which nobody keeps a record it only costs host time, twice that of a launch.
    """
    return (
        torch.compiler.is_compiling()  # first: Dynamo knows the answer, and cannot trace the last question
        or type(x) not in _PLAIN
        or (w is not None and type(w) not in _PLAIN)
        or not (x.is_cuda or x.is_cpu)
        or torch._C._len_torch_dispatch_stack() > 0
    )


def forward(
    x: torch.Tensor, w: torch.Tensor | None, eps: float, offset: float, casting_mode: str, row_mode: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rms_norm_forward by the shortest way."""
    run = rms_norm_forward if needs_dispatcher(x, w) else _forward
    return run(x, w, eps, offset, casting_mode, row_mode)


def backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    casting_mode: str,
    row_mode: bool | None,
    needs_dx: bool,
    needs_dw: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """rms_norm_backward by the shortest way."""
    direct = not needs_dispatcher(x, w) and type(dy) in _PLAIN and not torch._C._functorch.is_legacy_batchedtensor(dy)
    run = _backward if direct else rms_norm_backward  # a batch of dY, of is_grads_batched, is no plain tensor either
    return run(dy, x, w, rstd, offset, casting_mode, row_mode, needs_dx, needs_dw)


def backward_(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    casting_mode: str,
    row_mode: bool | None,
    needs_dw: bool,
) -> torch.Tensor:
    """rms_norm_backward_ by the shortest way; dy is a plain tensor."""
    if needs_dispatcher(x, w):
        return rms_norm_backward_(dy, x, w, rstd, offset, casting_mode, row_mode, needs_dw)
    dw = _backward_(dy, x, w, rstd, offset, casting_mode, row_mode, needs_dw)
    torch.autograd.graph.increment_version(dy)  # as the dispatcher does for an argument that is written
    return dw
