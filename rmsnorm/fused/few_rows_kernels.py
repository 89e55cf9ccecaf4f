"""The backward of few rows in one launch: no partial rows of dw, and no second kernel that sums them.

    dw = sum over rows of dy * x_hat

takes rstd, which the forward has left, and nothing from the other columns of a row. So programs of dw stand beside
those of dx and sum their columns over all rows, which they read from the caches, while there are few.

dx must not be dy: a program of dw would find dx where it looks for dy.
"""

import triton
import triton.language as tl

from rmsnorm.fused.kernels import _load_rows, _x_hat, rms_norm_backward_kernel


@triton.jit
def _sum_columns(
    dy_ptr,
    x_ptr,
    rstd_ptr,
    dw_ptr,
    dy_row_steps,
    x_row_steps,
    n_rows,
    cols,
    n_cols: tl.constexpr,
    CASTING_MODE: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
    SUM_ROWS: tl.constexpr,
    SUM_COLS: tl.constexpr,
):
    """Columns of dw, summed over all rows, SUM_ROWS at a time, and rounded once to w's dtype."""
    X_DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    C_DTYPE: tl.constexpr = rstd_ptr.dtype.element_ty
    col_mask = cols < n_cols
    total = tl.zeros((SUM_ROWS, SUM_COLS), C_DTYPE)
    for start in tl.range(0, n_rows, SUM_ROWS):
        rows = tl.cast(start, tl.int64) + tl.arange(0, SUM_ROWS)
        row_mask = rows < n_rows
        mask = row_mask[:, None] & col_mask[None, :]
        rstd = tl.load(rstd_ptr + rows, mask=row_mask, other=0.0)[:, None]
        x = _load_rows(x_ptr, rows, x_row_steps, cols, mask, STRIDE_ALIGN, "").to(C_DTYPE)
        dy = _load_rows(dy_ptr, rows, dy_row_steps, cols, mask, STRIDE_ALIGN, "").to(C_DTYPE)
        total += dy * _x_hat(x, rstd, X_DTYPE, CASTING_MODE)
    dw = tl.sum(total, axis=0)
    tl.store(dw_ptr + cols, dw.to(dw_ptr.dtype.element_ty), mask=col_mask)


@triton.jit(do_not_specialize=["dy_row_steps", "ds_row_steps", "x_row_steps", "n_rows"])
def rms_norm_backward_few_rows_kernel(
    dy_ptr,
    ds_ptr,
    x_ptr,
    w_ptr,
    rstd_ptr,
    dx_ptr,
    dw_ptr,
    dy_row_steps,
    ds_row_steps,
    x_row_steps,
    n_rows,
    n_cols: tl.constexpr,
    offset: tl.constexpr,
    CASTING_MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_DS: tl.constexpr,
    NEEDS_DX: tl.constexpr,
    RELOAD_WEIGHT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    SUM_ROWS: tl.constexpr,
    SUM_COLS: tl.constexpr,
):
    """One program: one tile of dx, as of `rms_norm_backward_kernel`, or, beyond the tiles, SUM_COLS columns of dw."""
    slice_of_dw = tl.program_id(0)
    if NEEDS_DX:
        # A program beyond the tiles has none: that kernel's loop starts where it ends.
        rms_norm_backward_kernel(
            dy_ptr, ds_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, dy_row_steps, ds_row_steps, x_row_steps, n_rows,
            n_cols, offset, CASTING_MODE, HAS_WEIGHT, HAS_DS, True, False, RELOAD_WEIGHT, BLOCK_ROWS, BLOCK_COLS,
            STRIDE_ALIGN, NUM_STAGES,
        )  # fmt: skip
        slice_of_dw -= tl.cdiv(n_rows, BLOCK_ROWS)
    if slice_of_dw >= 0:
        cols = slice_of_dw.to(tl.int64) * SUM_COLS + tl.arange(0, SUM_COLS)
        _sum_columns(
            dy_ptr, x_ptr, rstd_ptr, dw_ptr, dy_row_steps, x_row_steps, n_rows, cols, n_cols, CASTING_MODE,
            STRIDE_ALIGN, SUM_ROWS, SUM_COLS,
        )  # fmt: skip
