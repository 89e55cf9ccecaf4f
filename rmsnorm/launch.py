"""From tensors to launches: rows and strides, variant and tile, allocation, the kernel calls."""

from __future__ import annotations

import contextlib
import functools
import math

import torch
from triton import knobs

from rmsnorm import kernels
from rmsnorm.config import (
    BackwardConfig,
    ForwardConfig,
    backward_config,
    forward_config,
    next_power_of_two,
)

CASTING_MODES = {"llama": kernels.LLAMA, "gemma": kernels.GEMMA, "none": kernels.NONE}

# Read once, as @triton.jit does: in one process the kernels are either compiled or interpreted.
INTERPRETED = bool(knobs.runtime.interpret)
INTERPRETER_PROCESSORS = 4  # stands for the multiprocessor count, so that a few rows already need several programs


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
def _processor_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def processor_count(device: torch.device) -> int:
    """How many programs the device runs side by side: its streaming multiprocessors."""
    return INTERPRETER_PROCESSORS if device.type == "cpu" else _processor_count(device)


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
    align = _stride_align(x.element_size(), x_row_stride)
    if config is None:
        config = forward_config(n_rows, n_cols, x.element_size(), row_mode)
    with _on_device(x):
        kernels.rms_norm_forward_kernel[(-(-n_rows // config.block_rows),)](
            x,
            None if w is None else w.contiguous(),
            y,
            rstd,
            x_row_stride // align,
            n_rows,
            n_cols=n_cols,
            eps=eps,
            offset=offset,
            CASTING_MODE=CASTING_MODES[casting_mode],
            HAS_WEIGHT=w is not None,
            BLOCK_ROWS=config.block_rows,
            BLOCK_COLS=next_power_of_two(n_cols),
            STRIDE_ALIGN=align,
            num_warps=config.num_warps,
            enable_fp_fusion=True,
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
    config: BackwardConfig | None = None,
) -> torch.Tensor | None:
    """Write dx, unless it is None, and give dw, (n_cols,) in w's dtype, or None where it is not needed.

    dy, x: (..., n_cols), any strides; w: (n_cols,) or None; rstd: from the forward; dx: contiguous, and possibly dy
    itself. `config` replaces the tile and the program count that the shape would get.
    """
    n_cols = x.shape[-1]
    n_rows = rstd.numel()
    needs_dw = needs_dw and w is not None
    dw = torch.empty(n_cols, dtype=w.dtype, device=x.device) if needs_dw and w is not None else None
    if n_rows == 0 or (dx is None and dw is None):
        return None if dw is None else dw.zero_()
    x, x_row_stride = rows_and_stride(x)
    dy, dy_row_stride = rows_and_stride(dy)
    align = _stride_align(x.element_size(), dy_row_stride, x_row_stride)
    if config is None:
        config = backward_config(n_rows, n_cols, x.element_size(), row_mode, processor_count(x.device))
    dw_partial = None
    if dw is not None:
        dw_partial = torch.empty((config.n_programs, n_cols), dtype=rstd.dtype, device=x.device)
    with _on_device(x):
        kernels.rms_norm_backward_kernel[(config.n_programs,)](
            dy,
            x,
            None if w is None else w.contiguous(),
            rstd.contiguous(),
            dx,
            dw_partial,
            dy_row_stride // align,
            x_row_stride // align,
            n_rows,
            n_cols=n_cols,
            offset=offset,
            CASTING_MODE=CASTING_MODES[casting_mode],
            HAS_WEIGHT=w is not None,
            NEEDS_DX=dx is not None,
            NEEDS_DW=dw is not None,
            RELOAD_WEIGHT=config.reload_weight,
            BLOCK_ROWS=config.block_rows,
            BLOCK_COLS=config.block_cols,
            STRIDE_ALIGN=align,
            NUM_STAGES=config.num_stages,
            num_warps=config.num_warps,
            enable_fp_fusion=True,
        )
        if dw is not None and dw_partial is not None:
            _sum_partials(dw_partial, dw)
    return dw


def _sum_partials(dw_partial: torch.Tensor, dw: torch.Tensor) -> None:
    n_partials, n_cols = dw_partial.shape
    block_cols = min(16, next_power_of_two(n_cols))
    kernels.rms_norm_weight_gradient_kernel[(-(-n_cols // block_cols),)](
        dw_partial,
        dw,
        n_partials,
        n_cols=n_cols,
        BLOCK_PARTIALS=min(256, next_power_of_two(n_partials)),
        BLOCK_COLS=block_cols,
        num_warps=min(8, next_power_of_two(max(1, n_partials // 16))),
        enable_fp_fusion=True,
    )
