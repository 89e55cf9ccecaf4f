"""Plans: rows and strides, variant and tile of a launch.

What depends on shapes, strides, dtypes and settings alone is a plan, made once and remembered.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch

from rmsnorm.fused import few_rows_kernels, kernels, split_kernels
from rmsnorm.fused.tiles import (
    BackwardConfig,
    FewRowsConfig,
    ForwardConfig,
    Processors,
    SplitConfig,
    WeightGradientConfig,
    backward_config,
    few_rows_config,
    fewest_programs,
    forward_config,
    is_row_wise,
    next_power_of_two,
    split_config,
    weight_gradient_config,
    with_half_the_warps,
)
from rmsnorm.fused.variant import Integers, Variant

CASTING_MODES = {"llama": kernels.LLAMA.value, "gemma": kernels.GEMMA.value, "none": kernels.NONE.value}

# Stands for a GPU in the interpreter: few processors, so that a few rows already need several programs.
INTERPRETER = Processors(count=4, shared_memory=96 * 1024, cooperative=True)
remember = functools.lru_cache(maxsize=4096, typed=True)


def row_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """The stride in elements of the rows of an (..., n_cols) tensor, or None where the kernels cannot address them.

    They can where columns lie side by side and the leading dimensions collapse into one stride.
    """
    n_cols = shape[-1]
    if n_cols != 1 and strides[-1] != 1:
        return None
    stride = None
    expected = 0
    for dimension_size, dimension_stride in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        if dimension_size == 1:
            continue
        if stride is None:
            stride = dimension_stride
        elif dimension_stride != expected:
            return None
        expected = dimension_stride * dimension_size
    return n_cols if stride is None else stride


def _rows(
    shape: tuple[int, ...], itemsize: int, *operands: tuple[int, ...] | None
) -> tuple[tuple[bool, ...], tuple[int, ...], int]:
    """Of every operand, given by its strides: whether it must be copied, and its row stride in steps of `align`.

    `align` is the largest power of two that divides every stride, up to 16 bytes: what one vector access can use. An
    operand that is not there, None, has no steps and does not count.
    """
    strides = [0 if operand is None else row_stride(shape, operand) for operand in operands]
    known = [shape[-1] if stride is None else stride for stride in strides]
    align = math.gcd(16 // itemsize, *known)
    return tuple(stride is None for stride in strides), tuple(stride // align for stride in known), align


@functools.cache
def _gpu(device: torch.device) -> Processors:
    properties = torch.cuda.get_device_properties(device)
    shared_memory = getattr(properties, "shared_memory_per_block_optin", 64 * 1024)
    return Processors(properties.multi_processor_count, shared_memory, cooperative=torch.version.hip is None)


def processors(device: torch.device) -> Processors:
    """The device's streaming multiprocessors and what a program may use of them."""
    return INTERPRETER if device.type == "cpu" else _gpu(device)


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
    has_residual: bool,
    needs_rstd: bool,
) -> Variant:
    return Variant(
        kernels.rms_norm_forward_kernel,
        (
            n_cols,
            eps,
            offset,
            CASTING_MODES[casting_mode],
            has_residual,
            w_dtype is not None,
            needs_rstd,
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
    has_ds: bool,
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
            has_ds,
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
def _few_rows_variant(
    config: FewRowsConfig,
    dtype: torch.dtype,
    w_dtype: torch.dtype | None,
    n_cols: int,
    offset: float,
    casting_mode: str,
    has_ds: bool,
    needs_dx: bool,
    align: int,
) -> Variant:
    tiles = config.tiles
    return Variant(
        few_rows_kernels.rms_norm_backward_few_rows_kernel,
        (
            n_cols,
            offset,
            CASTING_MODES[casting_mode],
            w_dtype is not None,
            has_ds,
            needs_dx,
            tiles.reload_weight,
            tiles.block_rows,
            tiles.block_cols,
            align,
            tiles.num_stages,
            config.sum_rows,
            config.sum_cols,
        ),
        tiles.num_warps,
    )


@remember
def split_variant(
    config: SplitConfig,
    dtype: torch.dtype,
    w_dtype: torch.dtype | None,
    n_cols: int,
    offset: float,
    casting_mode: str,
    has_ds: bool,
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
            has_ds,
            needs_dw,
            config.reload_rows,
            config.n_splits,
            next_power_of_two(config.n_splits),
            config.block_cols,
            align,
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


class ForwardPlan(NamedTuple):
    """One forward launch. `copies`: whether it takes x and r themselves or contiguous copies."""

    copies: tuple[bool, ...]
    variant: Variant
    n_programs: int
    integers: Integers


class BackwardPlan(NamedTuple):
    """One backward launch: `variant` for tiles, `split` for split rows.

    `copies`: whether it takes dy, ds and x themselves or contiguous copies. With tiles each program has a partial row
    of dw; split rows have no more than n_partials. Few rows have none of them and n_programs programs, which write dw
    itself.
    """

    copies: tuple[bool, ...]
    variant: Variant | None
    split: SplitSettings | None
    n_partials: int
    integers: Integers
    n_programs: int = 0


SplitSettings = tuple[SplitConfig, torch.dtype, torch.dtype | None, int, float, str, bool, bool, int]


def are_many(n_rows: int, n_cols: int, itemsize: int) -> bool:
    """Whether x has 32 MB or more, from where half the warps a tile of several rows were faster on an H200.

    bfloat16, µs, the table's number of warps and half of it: 34.9 and 31.6 at 524288×64, 32.1 and 30.4 at 262144×128,
    33.4 and 31.0 at 65536×512; with 2 MB, 2.24 and 2.37 at 16384×64 (docs/maintain/tuning.md). Never of a number of
    rows that torch.compile leaves open.
    """
    return isinstance(n_rows, int) and n_rows * n_cols * itemsize >= 2**25


@remember
def forward_plan(
    shape: tuple[int, ...],
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    w_dtype: torch.dtype | None,
    eps: float,
    offset: float,
    casting_mode: str,
    row_mode: bool | None,
    config: ForwardConfig | None,
    needs_rstd: bool = True,
    r_strides: tuple[int, ...] | None = None,
) -> ForwardPlan:
    n_rows, n_cols, itemsize = math.prod(shape[:-1]), shape[-1], dtype.itemsize
    copies, row_steps, align = _rows(shape, itemsize, x_strides, r_strides)
    if config is None:
        row_wise = is_row_wise("forward", n_cols, itemsize, row_mode)
        config = forward_config(n_cols, itemsize, row_wise, casting_mode, r_strides is not None)
        if are_many(n_rows, n_cols, itemsize) and align * itemsize == 16:  # else other threads would hold a row
            config = with_half_the_warps(config, itemsize)
    about = dtype, w_dtype, n_cols, eps, offset, casting_mode, align
    variant = _forward_variant(config, *about, r_strides is not None, needs_rstd)
    return ForwardPlan(copies, variant, -(-n_rows // config.block_rows), (*row_steps, n_rows))


@remember
def backward_plan(
    shape: tuple[int, ...],
    dy_strides: tuple[int, ...],
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    w_dtype: torch.dtype | None,
    offset: float,
    casting_mode: str,
    needs_dx: bool,
    needs_dw: bool,
    row_mode: bool | None,
    device: torch.device,
    config: BackwardConfig | FewRowsConfig | SplitConfig | None,
    ds_strides: tuple[int, ...] | None = None,
) -> BackwardPlan:
    n_rows, n_cols, itemsize = math.prod(shape[:-1]), shape[-1], dtype.itemsize
    has_ds = ds_strides is not None
    copies, row_steps, align = _rows(shape, itemsize, dy_strides, ds_strides, x_strides)
    integers = (*row_steps, n_rows)
    if config is None:
        row_wise = is_row_wise("backward", n_cols, itemsize, row_mode)
        gpu = processors(device)
        if row_wise and needs_dx:
            config = split_config(n_cols, itemsize, gpu)
        if config is None and are_few(n_rows, n_cols, gpu):
            config = few_rows_config(n_rows, n_cols, itemsize, row_wise, gpu, has_ds)
        if config is None:
            config = backward_config(n_rows, n_cols, itemsize, row_wise, gpu, has_ds)
    about = dtype, w_dtype, n_cols, offset, casting_mode, has_ds
    if isinstance(config, FewRowsConfig) and needs_dw:
        n_programs = (config.tiles.n_programs if needs_dx else 0) + -(-n_cols // config.sum_cols)
        variant = _few_rows_variant(config, *about, needs_dx, align)
        return BackwardPlan(copies, variant, None, 0, integers, n_programs)
    if isinstance(config, FewRowsConfig):
        config = config.tiles
    if isinstance(config, SplitConfig):
        settings = (config, *about, needs_dw, align)
        return BackwardPlan(copies, None, settings, fewest_programs(n_rows, config.n_groups), integers)
    variant = _backward_variant(config, *about, needs_dx, needs_dw, align)
    return BackwardPlan(copies, variant, None, config.n_programs, integers)


def are_few(n_rows: int, n_cols: int, processors: Processors) -> bool:
    """Whether one launch without partial rows of dw is faster: up to a row a processor, where a row is not wide.

    On an H200 it was in every width of 64 to 8192 bfloat16 columns at up to 128 rows, 16×4096 in 2.6 µs instead of 4.0;
    at 512 rows it was not in most of them, and at 16,384 columns in none of 16 rows or more (tests.tuning.few_rows).
    """
    return n_rows <= processors.count and n_cols <= 8192


@remember
def weight_gradient_plan(
    n_partials: int, n_cols: int, c_dtype: torch.dtype, w_dtype: torch.dtype, device: torch.device
) -> tuple[Variant, int]:
    """The launch that sums so many partial rows of dw, and its number of programs."""
    config = weight_gradient_config(n_partials, n_cols, processors(device))
    return _weight_gradient_variant(config, c_dtype, w_dtype, n_cols), -(-n_cols // config.block_cols)
