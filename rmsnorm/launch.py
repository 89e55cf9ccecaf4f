"""From tensors to launches: rows and strides, variant and tile, allocation, the kernel calls."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any

import torch

from rmsnorm import kernels, split_kernels
from rmsnorm.config import (
    BackwardConfig,
    ForwardConfig,
    Processors,
    SplitConfig,
    backward_config,
    forward_config,
    is_row_wise,
    split_config,
    weight_gradient_config,
)
from rmsnorm.launcher import INTERPRETED, Launcher

CASTING_MODES = {"llama": kernels.LLAMA.value, "gemma": kernels.GEMMA.value, "none": kernels.NONE.value}

# Stands for a GPU in the interpreter: few processors, so that a few rows already need several programs.
INTERPRETER = Processors(count=4, shared_memory=96 * 1024, cooperative=True)

_forward_launcher = Launcher(kernels.rms_norm_forward_kernel)
_backward_launcher = Launcher(kernels.rms_norm_backward_kernel)
_split_launcher = Launcher(split_kernels.rms_norm_backward_split_kernel)
_weight_gradient_launcher = Launcher(kernels.rms_norm_weight_gradient_kernel)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for every other dtype of x."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rows_and_stride(t: torch.Tensor) -> tuple[torch.Tensor, int]:
    """`t`, (..., n_cols), as rows that the kernels can address, and their stride in elements.

    Rows with unit column stride whose leading dimensions collapse into one stride are used in place; others are
    copied.
    """
    n_cols = t.shape[-1]
    if t.is_contiguous():
        return t, n_cols
    if n_cols == 1 or t.stride(-1) == 1:
        row_stride = _collapsed_stride(t.shape[:-1], t.stride()[:-1])
        if row_stride is not None:
            return t, row_stride
    return t.contiguous(), n_cols


def _collapsed_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """The one stride by which a walk over all indices of `shape` advances, or None where there is none."""
    row_stride = None
    expected = 0
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if row_stride is None:
            row_stride = stride
        elif stride != expected:
            return None
        expected = stride * size
    return 0 if row_stride is None else row_stride


def _stride_align(itemsize: int, *strides: int) -> int:
    """The largest power of two that divides every stride, up to 16 bytes: what one vector access can use."""
    return math.gcd(16 // itemsize, *strides)


@functools.cache
def _gpu(device: torch.device) -> Processors:
    properties = torch.cuda.get_device_properties(device)
    shared_memory = getattr(properties, "shared_memory_per_block_optin", 64 * 1024)
    return Processors(properties.multi_processor_count, shared_memory, cooperative=torch.version.hip is None)


def processors(device: torch.device) -> Processors:
    """The device's streaming multiprocessors and what a program may use of them."""
    return INTERPRETER if device.type == "cpu" else _gpu(device)


def _on_device(t: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device: make it t's for the launch, and put it back."""
    if t.device.type == "cpu" or t.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(t.device)


def rms_norm_forward(
    x: torch.Tensor,
    w: torch.Tensor | None,
    *,
    eps: float,
    offset: float,
    casting_mode: str,
    row_mode: bool | None = None,
    config: ForwardConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y, shape and dtype of x, and rstd, x.shape[:-1] in the compute dtype; both contiguous.

    x: (..., n_cols), any strides; w: (n_cols,) or None. `config` replaces the tile that the shape would get.
    """
    n_cols = x.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = torch.empty(x.shape[:-1], dtype=compute_dtype(x.dtype), device=x.device)
    n_rows = rstd.numel()
    if n_rows == 0:
        return y, rstd
    x, x_row_stride = rows_and_stride(x)
    itemsize = x.element_size()
    align = _stride_align(itemsize, x_row_stride)
    if config is None:
        config = forward_config(n_cols, itemsize, is_row_wise(n_rows, n_cols, row_mode))
    with _on_device(x):
        _forward_launcher(
            -(-n_rows // config.block_rows),
            (x, None if w is None else w.contiguous(), y, rstd),
            (x_row_stride // align, n_rows),
            (
                n_cols,
                eps,
                offset,
                CASTING_MODES[casting_mode],
                w is not None,
                config.block_rows,
                config.block_cols,
                config.n_held,
                align,
            ),
            num_warps=config.num_warps,
        )
    return y, rstd


def rms_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    *,
    offset: float,
    casting_mode: str,
    dx: torch.Tensor | None,
    needs_dw: bool,
    row_mode: bool | None = None,
    config: BackwardConfig | SplitConfig | None = None,
) -> torch.Tensor | None:
    """Write dx, unless it is None, and give dw, (n_cols,) in w's dtype, or None where it is not needed.

    dy, x: (..., n_cols), any strides; w: (n_cols,) or None; rstd: from the forward; dx: contiguous, and possibly dy
    itself. `config` replaces the tile and the program count that the shape would get.
    """
    n_cols = x.shape[-1]
    n_rows = rstd.numel()
    dw = torch.empty(n_cols, dtype=w.dtype, device=x.device) if needs_dw and w is not None else None
    if n_rows == 0 or (dx is None and dw is None):
        return None if dw is None else dw.zero_()
    x, x_row_stride = rows_and_stride(x)
    dy, dy_row_stride = rows_and_stride(dy)
    itemsize = x.element_size()
    align = _stride_align(itemsize, dy_row_stride, x_row_stride)
    if config is None:
        gpu = processors(x.device)
        row_wise = is_row_wise(n_rows, n_cols, row_mode)
        config = split_config(n_cols, itemsize, gpu) if row_wise and dx is not None else None
        config = config or backward_config(n_rows, n_cols, itemsize, row_wise, gpu)
    w = None if w is None else w.contiguous()
    rstd = rstd.contiguous()
    with _on_device(x):
        if isinstance(config, SplitConfig):
            assert dx is not None
            dw_partial = _partials(min(config.n_groups, n_rows), rstd, n_cols, dw)
            dw_partial = _launch_split(
                config,
                (dy, x, w, rstd, dx, dw_partial),
                (dy_row_stride // align, x_row_stride // align, n_rows),
                n_cols,
                offset,
                casting_mode,
                align,
            )
        else:
            dw_partial = _partials(config.n_programs, rstd, n_cols, dw)
            _backward_launcher(
                config.n_programs,
                (dy, x, w, rstd, dx, dw_partial),
                (dy_row_stride // align, x_row_stride // align, n_rows),
                (
                    n_cols,
                    offset,
                    CASTING_MODES[casting_mode],
                    w is not None,
                    dx is not None,
                    dw is not None,
                    config.reload_weight,
                    config.block_rows,
                    config.block_cols,
                    align,
                    config.num_stages,
                ),
                num_warps=config.num_warps,
            )
        if dw is not None and dw_partial is not None:
            _sum_partials(dw_partial, dw)
    return dw


def _partials(n_partials: int, rstd: torch.Tensor, n_cols: int, dw: torch.Tensor | None) -> torch.Tensor | None:
    if dw is None:
        return None
    return torch.empty((n_partials, n_cols), dtype=rstd.dtype, device=rstd.device)


def _launch_split(
    config: SplitConfig,
    tensors: tuple[torch.Tensor | None, ...],
    integers: tuple[int, int, int],
    n_cols: int,
    offset: float,
    casting_mode: str,
    align: int,
) -> torch.Tensor | None:
    """Launch as many groups as can be resident, at most one a partial row of dw; give the partial rows written."""
    _, _, w, rstd, _, dw_partial = tensors
    assert rstd is not None
    n_rows = integers[2]
    exchange = torch.full((n_rows, config.n_splits), split_kernels.EMPTY.value, dtype=torch.int32, device=rstd.device)

    def constants(publishes: bool, collects: bool) -> tuple[Any, ...]:
        return (
            n_cols,
            offset,
            CASTING_MODES[casting_mode],
            w is not None,
            dw_partial is not None,
            config.reload_rows,
            config.reload_weight,
            config.n_splits,
            config.n_chunks,
            config.block_cols,
            align,
            config.num_stages,
            publishes,
            collects,
        )

    arguments = ((*tensors, exchange), integers)
    n_groups = min(config.n_groups, n_rows)
    if INTERPRETED:  # programs run one after another: none may wait for a later one
        for phase in ((True, False), (False, True)):
            _split_launcher(n_groups * config.n_splits, *arguments, constants(*phase), num_warps=config.num_warps)
        return dw_partial
    resident = _split_launcher.resident_programs(*arguments, constants(True, True), num_warps=config.num_warps)
    n_groups = min(n_groups, resident // config.n_splits)
    if n_groups == 0:
        raise RuntimeError(f"the GPU holds {resident} programs at once, a row needs {config.n_splits}: {config}")
    _split_launcher(
        n_groups * config.n_splits,
        *arguments,
        constants(True, True),
        num_warps=config.num_warps,
        cooperative=True,
    )
    return None if dw_partial is None else dw_partial[:n_groups]


def _sum_partials(dw_partial: torch.Tensor, dw: torch.Tensor) -> None:
    n_partials, n_cols = dw_partial.shape
    config = weight_gradient_config(n_partials, n_cols, processors(dw.device))
    _weight_gradient_launcher(
        -(-n_cols // config.block_cols),
        (dw_partial, dw),
        (n_partials,),
        (n_cols, config.block_partials, config.block_cols),
        num_warps=config.num_warps,
    )
