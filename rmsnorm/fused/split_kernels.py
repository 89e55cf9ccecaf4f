"""The backward of very wide rows: a row is shared by N_SPLITS programs that run side by side.

Each program owns one slice of N_CHUNKS * BLOCK_COLS columns, in every row of its group, so that its slice of dw stays
in registers. What a row needs from all slices is one sum: a program publishes its partial sum and collects the others'.

The exchange: a partial sum is stored as a bit pattern, int32 or for float64 int64, into its own slot of `exchange`,
(n_rows, N_SPLITS), which holds EMPTY before. The value is its own flag: no fence is needed and nothing is added
atomically, and the slots are added in a fixed order, so the bits repeat. EMPTY is a NaN of an unusual pattern, and any
sum that is NaN is published as the usual one: a NaN in x never makes a reader wait for ever.

Programs wait for each other, so all must be resident: the launch is a cooperative one. A program publishes the sum of
the next row before it waits for that of the last one, which by then has long arrived. The interpreter runs programs one
after another and runs the kernel twice instead, first to publish (COLLECTS off), then to collect (PUBLISHES off).

The rounding points are those of the kernels in `kernels.py`.
"""

import triton
import triton.language as tl

from rmsnorm.fused.kernels import _divide, _load_weight, _shifted_weight, _x_hat

EMPTY_32 = tl.constexpr(0x7FFFDEAD)
EMPTY_64 = tl.constexpr(0x7FFFDEAD7FFFDEAD)


@triton.jit
def _publish(exchange_ptr, row, split, value, N_SPLITS: tl.constexpr):
    value = tl.where(value == value, value, float("nan"))  # no NaN reads as EMPTY
    tl.store(exchange_ptr + row * N_SPLITS + split, value.to(exchange_ptr.dtype.element_ty, bitcast=True))


@triton.jit
def _collect(exchange_ptr, row, C_DTYPE: tl.constexpr, N_SPLITS: tl.constexpr):
    """The sum over all slices, once every slot of the row is filled."""
    EMPTY: tl.constexpr = EMPTY_64 if exchange_ptr.dtype.element_ty == tl.int64 else EMPTY_32
    slots = exchange_ptr + row * N_SPLITS + tl.arange(0, N_SPLITS)
    bits = tl.load(slots, volatile=True)
    while tl.max((bits == EMPTY).to(tl.int32), axis=0) != 0:
        bits = tl.load(slots, volatile=True)
    return tl.sum(bits.to(C_DTYPE, bitcast=True), axis=0)


@triton.jit
def _finish_row(
    x_ptr,
    dy_ptr,
    w_ptr,
    dx_ptr,
    exchange_ptr,
    x_row_steps,
    dy_row_steps,
    row,
    rstd,
    x_slice,
    dy_slice,
    w_slice,
    first_col,
    n_cols: tl.constexpr,
    offset: tl.constexpr,
    CASTING_MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    RELOAD_ROWS: tl.constexpr,
    RELOAD_WEIGHT: tl.constexpr,
    N_SPLITS: tl.constexpr,
    N_CHUNKS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
):
    """The slice of one row of dx."""
    X_DTYPE: tl.constexpr = dx_ptr.dtype.element_ty
    C_DTYPE: tl.constexpr = rstd.dtype
    projection = _divide(_collect(exchange_ptr, row, C_DTYPE, N_SPLITS), n_cols, C_DTYPE) * rstd
    for chunk in tl.static_range(N_CHUNKS):
        cols = first_col + chunk * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        if RELOAD_ROWS:
            x_offset = row * x_row_steps * STRIDE_ALIGN
            dy_offset = row * dy_row_steps * STRIDE_ALIGN
            x = tl.load(x_ptr + x_offset + cols, mask=mask, other=0.0, eviction_policy="evict_first")
            dy = tl.load(dy_ptr + dy_offset + cols, mask=mask, other=0.0, eviction_policy="evict_first")
        else:
            x = x_slice[chunk]
            dy = dy_slice[chunk]
        m = dy.to(C_DTYPE)
        if HAS_WEIGHT:
            if RELOAD_WEIGHT:
                w = _load_weight(w_ptr, cols, mask)
            else:
                w = w_slice[chunk]
            m *= _shifted_weight(w, offset, X_DTYPE, C_DTYPE, CASTING_MODE)
        dx = rstd * (m - x.to(C_DTYPE) * rstd * projection)
        tl.store(dx_ptr + row * n_cols + cols, dx.to(X_DTYPE), mask=mask)


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
    RELOAD_ROWS: tl.constexpr,
    RELOAD_WEIGHT: tl.constexpr,
    N_SPLITS: tl.constexpr,
    N_CHUNKS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PUBLISHES: tl.constexpr,
    COLLECTS: tl.constexpr,
):
    """One program: its slice of every n_groups-th row of dx (it may be dy) and of its group's partial row of dw.

    While a row waits for its sum, its slice of x and dy stays in registers, or, with RELOAD_ROWS, in the caches.
    """
    X_DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    C_DTYPE: tl.constexpr = rstd_ptr.dtype.element_ty
    split = tl.program_id(0) % N_SPLITS
    group = tl.program_id(0) // N_SPLITS
    n_groups = tl.num_programs(0) // N_SPLITS
    first_col = split.to(tl.int64) * (N_CHUNKS * BLOCK_COLS)
    w = ()
    dw = ()
    waiting_x = ()
    waiting_dy = ()
    for chunk in tl.static_range(N_CHUNKS):
        cols = first_col + chunk * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
        if HAS_WEIGHT and not RELOAD_WEIGHT:
            w += (_load_weight(w_ptr, cols, cols < n_cols),)
        dw += (tl.zeros((BLOCK_COLS,), C_DTYPE),)
        if not RELOAD_ROWS:
            waiting_x += (tl.zeros((BLOCK_COLS,), X_DTYPE),)
            waiting_dy += (tl.zeros((BLOCK_COLS,), X_DTYPE),)
    waiting_row = tl.cast(group, tl.int64) - n_groups
    waiting_rstd = tl.full((), 0.0, C_DTYPE)

    for tile in tl.range(group, n_rows, n_groups, num_stages=NUM_STAGES):
        row = tl.cast(tile, tl.int64)
        rstd = tl.load(rstd_ptr + row)
        new_x = ()
        new_dy = ()
        new_dw = ()
        products = tl.zeros((BLOCK_COLS,), C_DTYPE)
        for chunk in tl.static_range(N_CHUNKS):
            cols = first_col + chunk * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
            mask = cols < n_cols
            x_offset = row * x_row_steps * STRIDE_ALIGN
            dy_offset = row * dy_row_steps * STRIDE_ALIGN
            x = tl.load(x_ptr + x_offset + cols, mask=mask, other=0.0, eviction_policy="evict_last")
            dy = tl.load(dy_ptr + dy_offset + cols, mask=mask, other=0.0, eviction_policy="evict_last")
            if not RELOAD_ROWS:
                new_x += (x,)
                new_dy += (dy,)
            m = dy.to(C_DTYPE)
            if NEEDS_DW:
                new_dw += (dw[chunk] + m * _x_hat(x.to(C_DTYPE), rstd, X_DTYPE, CASTING_MODE),)
            if HAS_WEIGHT:
                if RELOAD_WEIGHT:
                    w_chunk = _load_weight(w_ptr, cols, mask)
                else:
                    w_chunk = w[chunk]
                m *= _shifted_weight(w_chunk, offset, X_DTYPE, C_DTYPE, CASTING_MODE)
            products += m * x.to(C_DTYPE)
        if NEEDS_DW:
            dw = new_dw
        if PUBLISHES:
            _publish(exchange_ptr, row, split, tl.sum(products, axis=0), N_SPLITS)
        if COLLECTS:
            if waiting_row >= 0:
                _finish_row(
                    x_ptr, dy_ptr, w_ptr, dx_ptr, exchange_ptr, x_row_steps, dy_row_steps, waiting_row, waiting_rstd,
                    waiting_x, waiting_dy, w, first_col, n_cols, offset, CASTING_MODE, HAS_WEIGHT, RELOAD_ROWS,
                    RELOAD_WEIGHT, N_SPLITS, N_CHUNKS, BLOCK_COLS, STRIDE_ALIGN,
                )  # fmt: skip
        waiting_x = new_x
        waiting_dy = new_dy
        waiting_row = row
        waiting_rstd = rstd
    if COLLECTS:
        if waiting_row >= 0:
            _finish_row(
                x_ptr, dy_ptr, w_ptr, dx_ptr, exchange_ptr, x_row_steps, dy_row_steps, waiting_row, waiting_rstd,
                waiting_x, waiting_dy, w, first_col, n_cols, offset, CASTING_MODE, HAS_WEIGHT, RELOAD_ROWS,
                RELOAD_WEIGHT, N_SPLITS, N_CHUNKS, BLOCK_COLS, STRIDE_ALIGN,
            )  # fmt: skip
        if NEEDS_DW:
            for chunk in tl.static_range(N_CHUNKS):
                cols = first_col + chunk * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
                partial_offset = group.to(tl.int64) * n_cols
                tl.store(dw_partial_ptr + partial_offset + cols, dw[chunk], mask=cols < n_cols)
