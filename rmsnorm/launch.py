"""From tensors to launches: rows and strides, variant and tile, allocation, the kernel calls.

What depends on settings and dtypes alone is computed once and remembered: a call does little more than allocate its
results and launch.
"""

from __future__ import annotations

import functools
import math

import torch

from rmsnorm import kernels, split_kernels
from rmsnorm.config import (
    BackwardConfig,
    ForwardConfig,
    Processors,
    SplitConfig,
    WeightGradientConfig,
    backward_config,
    fewest_programs,
    forward_config,
    is_row_wise,
    split_config,
    weight_gradient_config,
)
from rmsnorm.launcher import INTERPRETED, Integers, Tensors, Variant

CASTING_MODES = {"llama": kernels.LLAMA.value, "gemma": kernels.GEMMA.value, "none": kernels.NONE.value}

# Stands for a GPU in the interpreter: few processors, so that a few rows already need several programs.
INTERPRETER = Processors(count=4, shared_memory=96 * 1024, cooperative=True)

remember = functools.lru_cache(maxsize=4096, typed=True)


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


# The variants below are keyed by dtypes too: a compiled variant is specialised on them.


@remember
def _forward_variant(
    config: ForwardConfig,
    dtype: torch.dtype,
    w_dtype: torch.dtype | None,
    n_cols: int,
    eps: float,
    offset: float,
    casting_mode: str,
    align: int,
) -> Variant:
    return Variant(
        kernels.rms_norm_forward_kernel,
        (
            n_cols,
            eps,
            offset,
            CASTING_MODES[casting_mode],
            w_dtype is not None,
            config.block_rows,
            config.block_cols,
            config.n_held,
            align,
        ),
        config.num_warps,
    )


@remember
def _backward_variant(
    config: BackwardConfig,
    dtype: torch.dtype,
    w_dtype: torch.dtype | None,
    n_cols: int,
    offset: float,
    casting_mode: str,
    needs_dx: bool,
    needs_dw: bool,
    align: int,
) -> Variant:
    return Variant(
        kernels.rms_norm_backward_kernel,
        (
            n_cols,
            offset,
            CASTING_MODES[casting_mode],
            w_dtype is not None,
            needs_dx,
            needs_dw,
            config.reload_weight,
            config.block_rows,
            config.block_cols,
            align,
            config.num_stages,
        ),
        config.num_warps,
    )


@remember
def _split_variant(
    config: SplitConfig,
    dtype: torch.dtype,
    w_dtype: torch.dtype | None,
    n_cols: int,
    offset: float,
    casting_mode: str,
    needs_dw: bool,
    align: int,
    publishes: bool = True,
    collects: bool = True,
) -> Variant:
    return Variant(
        split_kernels.rms_norm_backward_split_kernel,
        (
            n_cols,
            offset,
            CASTING_MODES[casting_mode],
            w_dtype is not None,
            needs_dw,
            config.reload_rows,
            config.reload_weight,
            config.n_splits,
            config.n_chunks,
            config.block_cols,
            align,
            config.num_stages,
            publishes,
            collects,
        ),
        config.num_warps,
        cooperative=True,
    )


@remember
def _weight_gradient_variant(
    config: WeightGradientConfig, c_dtype: torch.dtype, w_dtype: torch.dtype, n_cols: int
) -> Variant:
    return Variant(
        kernels.rms_norm_weight_gradient_kernel,
        (n_cols, config.block_partials, config.block_cols),
        config.num_warps,
    )


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
    shape, dtype = tuple(x.shape), x.dtype  # new_empty takes twice as long over a torch.Size
    n_cols = shape[-1]
    y = x.new_empty(shape)
    rstd = x.new_empty(shape[:-1], dtype=compute_dtype(dtype))
    n_rows = rstd.numel()
    if n_rows == 0:
        return y, rstd
    x, x_row_stride = rows_and_stride(x)
    itemsize = dtype.itemsize
    align = _stride_align(itemsize, x_row_stride)
    w_dtype = None
    if w is not None:
        w, w_dtype = w.contiguous(), w.dtype
    if config is None:
        config = forward_config(n_cols, itemsize, is_row_wise(n_rows, n_cols, row_mode), casting_mode)
    variant = _forward_variant(config, dtype, w_dtype, n_cols, eps, offset, casting_mode, align)
    variant.launch(-(-n_rows // config.block_rows), (x, w, y, rstd), (x_row_stride // align, n_rows))
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
    dtype, n_cols, n_rows = x.dtype, x.shape[-1], rstd.numel()
    w_dtype = dw = dw_partial = None
    if w is not None:
        w, w_dtype = w.contiguous(), w.dtype
        dw = w.new_empty(n_cols) if needs_dw else None
    if n_rows == 0 or (dx is None and dw is None):
        return None if dw is None else dw.zero_()
    x, x_row_stride = rows_and_stride(x)
    dy, dy_row_stride = rows_and_stride(dy)
    rstd = rstd.contiguous()
    itemsize = dtype.itemsize
    align = _stride_align(itemsize, dy_row_stride, x_row_stride)
    integers = (dy_row_stride // align, x_row_stride // align, n_rows)
    gpu = processors(x.device)
    if config is None:
        row_wise = is_row_wise(n_rows, n_cols, row_mode)
        if row_wise and dx is not None:
            config = split_config(n_cols, itemsize, gpu)
        if config is None:
            config = backward_config(n_rows, n_cols, itemsize, row_wise, gpu)
    if dw is not None:
        n_partials = min(config.n_groups, n_rows) if isinstance(config, SplitConfig) else config.n_programs
        dw_partial = rstd.new_empty((n_partials, n_cols))
    tensors = (dy, x, w, rstd, dx, dw_partial)
    if isinstance(config, SplitConfig):
        settings = (config, dtype, w_dtype, n_cols, offset, casting_mode, dw is not None, align)
        n_groups = _launch_split(settings, tensors, integers)
        dw_partial = None if dw_partial is None else dw_partial[:n_groups]
    else:
        variant = _backward_variant(
            config, dtype, w_dtype, n_cols, offset, casting_mode, dx is not None, dw is not None, align
        )
        variant.launch(config.n_programs, tensors, integers)
    if dw is not None and dw_partial is not None:
        finish = weight_gradient_config(dw_partial.shape[0], n_cols, gpu)
        _weight_gradient_variant(finish, rstd.dtype, dw.dtype, n_cols).launch(
            -(-n_cols // finish.block_cols), (dw_partial, dw), (dw_partial.shape[0],)
        )
    return dw


_SplitSettings = tuple[SplitConfig, torch.dtype, torch.dtype | None, int, float, str, bool, int]


def _launch_split(settings: _SplitSettings, tensors: Tensors, integers: Integers) -> int:
    """Launch no more groups than can be resident, at most one a row, and give their number."""
    config, dtype, n_rows = settings[0], settings[1], integers[2]
    lead = tensors[0]
    assert lead is not None
    bits, empty = (
        (torch.int64, split_kernels.EMPTY_64) if dtype.itemsize == 8 else (torch.int32, split_kernels.EMPTY_32)
    )
    exchange = lead.new_full((n_rows, config.n_splits), empty.value, dtype=bits)
    tensors = (*tensors, exchange)
    if INTERPRETED:  # programs run one after another: none may wait for a later one
        n_groups = fewest_programs(n_rows, config.n_groups)
        _split_variant(*settings, publishes=True, collects=False).launch(n_groups * config.n_splits, tensors, integers)
        _split_variant(*settings, publishes=False, collects=True).launch(n_groups * config.n_splits, tensors, integers)
        return n_groups
    variant = _split_variant(*settings)
    resident = variant.resident_programs(tensors, integers)
    if resident < config.n_splits:
        raise RuntimeError(f"the GPU holds {resident} programs at once, a row needs {config.n_splits}: {config}")
    n_groups = fewest_programs(n_rows, min(config.n_groups, resident // config.n_splits))
    variant.launch(n_groups * config.n_splits, tensors, integers)
    return n_groups
