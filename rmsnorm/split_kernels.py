"""Kernels for very wide rows: a row is shared by N_SPLITS programs that run side by side.

Each program owns one slice of BLOCK_COLS columns, for every row of its group, so its slice of w and of dw stays in
registers. What a row needs from all slices is one sum: a program publishes its partial sum and collects the others'.

The exchange: a partial sum is stored as an int32 bit pattern into its own slot of `exchange`, (n_rows, N_SPLITS), which
holds EMPTY before. The value is its own flag: no fence is needed and nothing is added atomically, and the slots are
added in a fixed order, so the bits repeat. A sum whose pattern is EMPTY, itself a NaN, is published as another NaN: a
NaN in x never makes a reader wait for ever.

Programs wait for each other, so all must be resident: the launch is a cooperative one. A program publishes the sum of
the next row before it waits for that of the last one, which by then has long arrived. The interpreter runs programs one
after another and runs the kernel twice instead, first to publish (COLLECTS off), then to collect (PUBLISHES off).

float32 is the compute dtype here; float64 rows are one tile of the kernels in `kernels.py`.
"""

import triton
import triton.language as tl

from rmsnorm.kernels import GEMMA, NONE, _divide, _load_shifted_weight, _reciprocal_sqrt, _round

EMPTY = tl.constexpr(0x7FFFDEAD)
OTHER_NAN = tl.constexpr(0x7FC00000)


@triton.jit
def _publish(exchange_ptr, row, split, value, N_SPLITS: tl.constexpr):
    bits = value.to(tl.int32, bitcast=True)
    tl.store(exchange_ptr + row * N_SPLITS + split, tl.where(bits == EMPTY, OTHER_NAN, bits))


@triton.jit
def _collect(exchange_ptr, row, N_SPLITS: tl.constexpr):
    """The sum over all slices, once every slot of the row is filled."""
    slots = exchange_ptr + row * N_SPLITS + tl.arange(0, N_SPLITS)
    bits = tl.load(slots, volatile=True)
    while tl.max((bits == EMPTY).to(tl.int32), axis=0) != 0:
        bits = tl.load(slots, volatile=True)
    return tl.sum(bits.to(tl.float32, bitcast=True), axis=0)


@triton.jit
def _finish_forward_row(
    x_slice,
    w,
    y_ptr,
    rstd_ptr,
    exchange_ptr,
    row,
    split,
    cols,
    col_mask,
    n_cols: tl.constexpr,
    eps: tl.constexpr,
    CASTING_MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    N_SPLITS: tl.constexpr,
):
    X_DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    mean_square = _divide(_collect(exchange_ptr, row, N_SPLITS), n_cols, tl.float32)
    if CASTING_MODE == NONE:
        mean_square = _round(mean_square, X_DTYPE)  # rounding point: mean_square
    variance = mean_square + eps
    if CASTING_MODE == NONE:
        variance = _round(variance, X_DTYPE)  # rounding point: variance
    rstd = _reciprocal_sqrt(variance, tl.float32)
    if CASTING_MODE == NONE:
        rstd = _round(rstd, X_DTYPE)  # rounding point: rstd
    x_hat = x_slice.to(tl.float32) * rstd
    if CASTING_MODE != GEMMA:
        x_hat = _round(x_hat, X_DTYPE)  # rounding point: x_hat
    y = x_hat
    if HAS_WEIGHT:
        y = x_hat * w
    tl.store(rstd_ptr + row, rstd, mask=split == 0)
    tl.store(y_ptr + row * n_cols + cols, y.to(X_DTYPE), mask=col_mask)


@triton.jit(do_not_specialize=["x_row_steps", "n_rows"])
def rms_norm_forward_split_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    rstd_ptr,
    exchange_ptr,
    x_row_steps,
    n_rows,
    n_cols: tl.constexpr,
    eps: tl.constexpr,
    offset: tl.constexpr,
    CASTING_MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    N_SPLITS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PUBLISHES: tl.constexpr,
    COLLECTS: tl.constexpr,
):
    """One program: its slice of every n_groups-th row of y, and with the first slice of rstd."""
    X_DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    split = (tl.program_id(0) % N_SPLITS).to(tl.int64)
    group = tl.program_id(0) // N_SPLITS
    n_groups = tl.num_programs(0) // N_SPLITS
    cols = split * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    col_mask = cols < n_cols
    w = tl.zeros((BLOCK_COLS,), tl.float32)
    if HAS_WEIGHT:
        w = _load_shifted_weight(w_ptr, cols, col_mask, offset, CASTING_MODE, X_DTYPE, tl.float32)

    waiting_x = tl.zeros((BLOCK_COLS,), X_DTYPE)
    waiting_row = tl.cast(group, tl.int64) - n_groups
    for tile in tl.range(group, n_rows, n_groups, num_stages=NUM_STAGES):
        row = tl.cast(tile, tl.int64)
        x = tl.load(x_ptr + row * x_row_steps * STRIDE_ALIGN + cols, mask=col_mask, other=0.0)
        if PUBLISHES:
            squares = x.to(tl.float32) * x.to(tl.float32)
            if CASTING_MODE == NONE:
                squares = _round(squares, X_DTYPE)  # rounding point: squares
            _publish(exchange_ptr, row, split, tl.sum(squares, axis=0), N_SPLITS)
        if COLLECTS:
            if waiting_row >= 0:
                _finish_forward_row(
                    waiting_x, w, y_ptr, rstd_ptr, exchange_ptr, waiting_row, split, cols, col_mask, n_cols, eps,
                    CASTING_MODE, HAS_WEIGHT, N_SPLITS,
                )  # fmt: skip
        waiting_x = x
        waiting_row = row
    if COLLECTS:
        if waiting_row >= 0:
            _finish_forward_row(
                waiting_x, w, y_ptr, rstd_ptr, exchange_ptr, waiting_row, split, cols, col_mask, n_cols, eps,
                CASTING_MODE, HAS_WEIGHT, N_SPLITS,
            )  # fmt: skip


@triton.jit
def _finish_backward_row(
    x_slice,
    dy_slice,
    rstd,
    w,
    dx_ptr,
    exchange_ptr,
    row,
    cols,
    col_mask,
    n_cols: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    N_SPLITS: tl.constexpr,
):
    projection = _divide(_collect(exchange_ptr, row, N_SPLITS), n_cols, tl.float32) * rstd
    m = dy_slice.to(tl.float32)
    if HAS_WEIGHT:
        m = m * w
    dx = rstd * (m - x_slice.to(tl.float32) * rstd * projection)
    tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=col_mask)


@triton.jit(do_not_specialize=["dy_row_steps", "x_row_steps", "n_rows"])
def rms_norm_backward_split_kernel(
    dy_ptr,
    x_ptr,
    w_ptr,
    rstd_ptr,
    dx_ptr,
    dw_partial_ptr,
    exchange_ptr,
    dy_row_steps,
    x_row_steps,
    n_rows,
    n_cols: tl.constexpr,
    offset: tl.constexpr,
    CASTING_MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    NEEDS_DW: tl.constexpr,
    N_SPLITS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PUBLISHES: tl.constexpr,
    COLLECTS: tl.constexpr,
):
    """One program: its slice of every n_groups-th row of dx (it may be dy) and of its group's partial row of dw."""
    X_DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    split = (tl.program_id(0) % N_SPLITS).to(tl.int64)
    group = tl.program_id(0) // N_SPLITS
    n_groups = tl.num_programs(0) // N_SPLITS
    cols = split * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    col_mask = cols < n_cols
    w = tl.zeros((BLOCK_COLS,), tl.float32)
    if HAS_WEIGHT:
        w = _load_shifted_weight(w_ptr, cols, col_mask, offset, CASTING_MODE, X_DTYPE, tl.float32)
    dw = tl.zeros((BLOCK_COLS,), tl.float32)

    waiting_x = tl.zeros((BLOCK_COLS,), X_DTYPE)
    waiting_dy = tl.zeros((BLOCK_COLS,), X_DTYPE)
    waiting_rstd = 0.0
    waiting_row = tl.cast(group, tl.int64) - n_groups
    for tile in tl.range(group, n_rows, n_groups, num_stages=NUM_STAGES):
        row = tl.cast(tile, tl.int64)
        x = tl.load(x_ptr + row * x_row_steps * STRIDE_ALIGN + cols, mask=col_mask, other=0.0)
        dy = tl.load(dy_ptr + row * dy_row_steps * STRIDE_ALIGN + cols, mask=col_mask, other=0.0)
        rstd = tl.load(rstd_ptr + row)
        if PUBLISHES:
            m = dy.to(tl.float32)
            if HAS_WEIGHT:
                m = m * w
            _publish(exchange_ptr, row, split, tl.sum(m * x.to(tl.float32), axis=0), N_SPLITS)
        if COLLECTS:
            if NEEDS_DW:
                x_hat = x.to(tl.float32) * rstd
                if CASTING_MODE != GEMMA:
                    x_hat = _round(x_hat, X_DTYPE)  # rounding point: x_hat, as in the forward
                dw += dy.to(tl.float32) * x_hat
            if waiting_row >= 0:
                _finish_backward_row(
                    waiting_x, waiting_dy, waiting_rstd, w, dx_ptr, exchange_ptr, waiting_row, cols, col_mask, n_cols,
                    HAS_WEIGHT, N_SPLITS,
                )  # fmt: skip
        waiting_x = x
        waiting_dy = dy
        waiting_rstd = rstd
        waiting_row = row
    if COLLECTS:
        if waiting_row >= 0:
            _finish_backward_row(
                waiting_x, waiting_dy, waiting_rstd, w, dx_ptr, exchange_ptr, waiting_row, cols, col_mask, n_cols,
                HAS_WEIGHT, N_SPLITS,
            )  # fmt: skip
        if NEEDS_DW:
            tl.store(dw_partial_ptr + tl.cast(group, tl.int64) * n_cols + cols, dw, mask=col_mask)
