"""From tensors to launches: a call looks its plan up, allocates its results and launches."""

from __future__ import annotations

from typing import Any

import torch

from rmsnorm.checks import compute_dtype
from rmsnorm.fused import few_rows_kernels, kernels, plans, split_kernels
from rmsnorm.fused.tiles import BackwardConfig, FewRowsConfig, ForwardConfig, SplitConfig, fewest_programs
from rmsnorm.fused.variant import INTERPRETED, Integers, Tensors

FORWARD_KERNELS = (kernels.rms_norm_forward_kernel,)
BACKWARD_KERNELS = (
    kernels.rms_norm_backward_kernel,
    kernels.rms_norm_weight_gradient_kernel,
    few_rows_kernels.rms_norm_backward_few_rows_kernel,
)


def rms_norm_forward(
    x: torch.Tensor,
    w: torch.Tensor | None,
    eps: float,
    offset: float,
    casting_mode: str,
    row_mode: bool | None = None,
    *,
    config: ForwardConfig | None = None,
    records: bool = False,
    needs_rstd: bool = True,
    r: torch.Tensor | None = None,
    s: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Any]:
    """y, shape and dtype of x, and rstd, x.shape[:-1] in the compute dtype, or None; both contiguous.

    x: (..., n_cols), any strides; w: (n_cols,) or None. `config` replaces the tile that the shape would get. `records`
    puts the launch into the graph that torch.compile is making; the number of rows may be symbolic there. Without
    `needs_rstd`, where nobody can ask for a gradient, rstd is neither stored nor allocated.

    With a residual r, like x, of any strides, the sum x + r is written to s, like x and contiguous, and normalized.
    """
    shape, dtype = tuple(x.shape), x.dtype  # new_empty takes twice as long over a torch.Size
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    rstd = x.new_empty(shape[:-1], dtype=compute_dtype(dtype)) if needs_rstd else None
    if y.numel() == 0:
        return y, rstd
    w_dtype = None
    if w is not None:
        w, w_dtype = w.contiguous(), w.dtype
    make_plan = plans.forward_plan.__wrapped__ if records else plans.forward_plan  # a symbol cannot be looked up
    r_strides = None if r is None else r.stride()
    plan = make_plan(
        shape, x.stride(), dtype, w_dtype, eps, offset, casting_mode, row_mode, config, needs_rstd, r_strides
    )
    copies_x, copies_r = plan.copies
    if copies_x:
        x = x.contiguous()
    if copies_r and r is not None:
        r = r.contiguous()
    submit = plan.variant.record if records else plan.variant.launch
    submit(plan.n_programs, (x, r, w, y, s, rstd), plan.integers)
    return y, rstd


def rms_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    casting_mode: str,
    row_mode: bool | None = None,
    *,
    dx: torch.Tensor | None,
    needs_dw: bool,
    config: BackwardConfig | FewRowsConfig | SplitConfig | None = None,
    records: bool = False,
    ds: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Write dx, unless it is None, and give dw, (n_cols,) in w's dtype, or None where it is not needed.

    dy, x: (..., n_cols), any strides; w: (n_cols,) or None; rstd: from the forward; dx: contiguous, and possibly dy
    itself, the same tensor object. `config` replaces the tile and the program count that the shape would get. `records`
    puts the launches into the graph that torch.compile is making, which holds no cooperative launch: rows that are
    split cannot be recorded. `ds`, like dy, is added to dx before its rounding.
    """
    shape = tuple(x.shape)
    n_cols = shape[-1]
    w_dtype = dw = dw_partial = None
    if w is not None:
        w, w_dtype = w.contiguous(), w.dtype
        dw = w.new_empty(n_cols) if needs_dw else None
    if rstd.numel() == 0 or (dx is None and dw is None):
        return None if dw is None else dw.zero_()
    device, needs = x.device, (dx is not None, dw is not None)
    ds_strides = None if ds is None else ds.stride()
    strides = dy.stride(), x.stride()
    plan = plans.backward_plan(
        shape, *strides, x.dtype, w_dtype, offset, casting_mode, *needs, row_mode, device, config, ds_strides
    )
    copies_dy, copies_ds, copies_x = plan.copies
    if copies_dy:
        dy = dy.contiguous()
    if copies_ds and ds is not None:
        ds = ds.contiguous()
    if copies_x:
        x = x.contiguous()
    rstd = rstd.contiguous()
    n_partials = plan.n_partials
    if plan.n_programs:
        assert plan.variant is not None
        own_dx = torch.empty_like(dy) if dx is dy else dx  # the programs of dw still read dy
        submit = plan.variant.record if records else plan.variant.launch
        submit(plan.n_programs, (dy, ds, x, w, rstd, own_dx, dw), plan.integers)
        if dx is dy and own_dx is not None:
            dy.copy_(own_dx)
        return dw
    if dw is not None:
        dw_partial = rstd.new_empty((n_partials, n_cols))
    tensors = (dy, ds, x, w, rstd, dx, dw_partial)
    if plan.split is not None:
        n_partials = _launch_split(plan.split, tensors, plan.integers)
    elif plan.variant is not None:
        submit = plan.variant.record if records else plan.variant.launch
        submit(n_partials, tensors, plan.integers)
    if dw is not None:
        finish, n_programs = plans.weight_gradient_plan(n_partials, n_cols, rstd.dtype, dw.dtype, device)
        submit = finish.record if records else finish.launch
        submit(n_programs, (dw_partial, dw), (n_partials,))
    return dw


def splits_rows(x: torch.Tensor, row_mode: bool | None) -> bool:
    """Whether the backward of x with dx is a launch of split rows."""
    n_cols, itemsize = x.shape[-1], x.dtype.itemsize
    row_wise = plans.is_row_wise("backward", n_cols, itemsize, row_mode)
    return row_wise and plans.split_config(n_cols, itemsize, plans.processors(x.device)) is not None


def reads_dy_late(x: torch.Tensor) -> bool:
    """Whether the backward of x still reads dy where dx is written already: in place would cost a copy there."""
    n_cols = x.shape[-1]
    return plans.are_few(x.numel() // n_cols, n_cols, plans.processors(x.device))


def _launch_split(settings: plans.SplitSettings, tensors: Tensors, integers: Integers) -> int:
    """Launch no more groups than can be resident, at most one a row, and give their number."""
    config, dtype, n_rows = settings[0], settings[1], integers[-1]
    lead = tensors[0]
    assert lead is not None
    bits, empty = (
        (torch.int64, split_kernels.EMPTY_64) if dtype.itemsize == 8 else (torch.int32, split_kernels.EMPTY_32)
    )
    exchange = lead.new_full((n_rows, config.n_splits), empty.value, dtype=bits)
    tensors = (*tensors, exchange)
    if INTERPRETED:  # programs run one after another: none may wait for a later one
        n_groups = fewest_programs(n_rows, config.n_groups)
        n_programs = n_groups * config.n_splits
        plans.split_variant(*settings, publishes=True, collects=False).launch(n_programs, tensors, integers)
        plans.split_variant(*settings, publishes=False, collects=True).launch(n_programs, tensors, integers)
        return n_groups
    variant = plans.split_variant(*settings)
    resident = variant.resident_programs(tensors, integers)
    if resident < config.n_splits:
        raise RuntimeError(f"the GPU holds {resident} programs at once, a row needs {config.n_splits}: {config}")
    n_groups = fewest_programs(n_rows, min(config.n_groups, resident // config.n_splits))
    variant.launch(n_groups * config.n_splits, tensors, integers)
    return n_groups
