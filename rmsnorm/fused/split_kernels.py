"""The backward of very wide rows: a row is shared by N_SPLITS programs that run side by side.

Each program owns one slice of BLOCK_COLS columns, in every row of its group, so that its slice of dw stays in
registers. What a row needs from all slices is one sum: a program publishes its partial sum and collects the others'.

The exchange: a partial sum is stored as a bit pattern, int32 or for float64 int64, into its own slot of `exchange`,
(n_rows, N_SPLITS), which holds EMPTY before. The value is its own flag: no fence is needed and nothing is added
atomically, and the slots are added in a fixed order, so the bits repeat. EMPTY is a NaN of an unusual pattern, and any
sum that is NaN is published as the usual one: a NaN in x never makes a reader wait for ever.

Programs wait for each other, so all must be resident: the launch is a cooperative one. A program keeps the memory busy
while it waits: it asks for the next row, publishes the sum of the present one, and only then waits for that of the last
one, which by then has long arrived. The interpreter runs programs one after another and runs the kernel twice instead,
first to publish (COLLECTS off), then to collect (PUBLISHES off).

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
def _collect(exchange_ptr, row, C_DTYPE: tl.constexpr, N_SPLITS: tl.constexpr, N_SLOTS: tl.constexpr):
    """The sum over all slices, once every slot of the row is filled. N_SLOTS: the next power of two of N_SPLITS."""
    EMPTY: tl.constexpr = EMPTY_64 if exchange_ptr.dtype.element_ty == tl.int64 else EMPTY_32
    splits = tl.arange(0, N_SLOTS)
    slots = exchange_ptr + row * N_SPLITS + splits
    bits = tl.load(slots, mask=splits < N_SPLITS, other=0, volatile=True)
    while tl.max((bits == EMPTY).to(tl.int32), axis=0) != 0:
        bits = tl.load(slots, mask=splits < N_SPLITS, other=0, volatile=True)
    return tl.sum(bits.to(C_DTYPE, bitcast=True), axis=0)


@triton.jit
def _load_slice(ptr, row, row_steps, cols, mask, STRIDE_ALIGN: tl.constexpr, EVICTION: tl.constexpr):
    return tl.load(ptr + row * row_steps * STRIDE_ALIGN + cols, mask=mask, other=0.0, eviction_policy=EVICTION)


@triton.jit
def _finish_row(
    x,
    dy,
    ds_ptr,
    w,
    rstd,
    dx_ptr,
    exchange_ptr,
    row,
    ds_row_steps,
    cols,
    mask,
    n_cols: tl.constexpr,
    offset: tl.constexpr,
    CASTING_MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_DS: tl.constexpr,
    N_SPLITS: tl.constexpr,
    N_SLOTS: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
):
    """The slice of one row of dx, from its slices of x, dy and w as they were loaded; that of ds is loaded here."""
    X_DTYPE: tl.constexpr = dx_ptr.dtype.element_ty
    C_DTYPE: tl.constexpr = rstd.dtype
    if HAS_DS:  # on its way while the row's sum is waited for
        ds = _load_slice(ds_ptr, row, ds_row_steps, cols, mask, STRIDE_ALIGN, "evict_first").to(C_DTYPE)
    projection = _divide(_collect(exchange_ptr, row, C_DTYPE, N_SPLITS, N_SLOTS), n_cols, C_DTYPE) * rstd
    m = dy.to(C_DTYPE)
    if HAS_WEIGHT:
        m *= _shifted_weight(w, offset, X_DTYPE, C_DTYPE, CASTING_MODE)
    dx = rstd * (m - x.to(C_DTYPE) * rstd * projection)
    if HAS_DS:
        dx += ds
    tl.store(dx_ptr + row * n_cols + cols, dx.to(X_DTYPE), mask=mask)


@triton.jit(do_not_specialize=["dy_row_steps", "ds_row_steps", "x_row_steps", "n_rows"])
def rms_norm_backward_split_kernel(
    dy_ptr,
    ds_ptr,
    x_ptr,
    w_ptr,
    rstd_ptr,
    dx_ptr,
    dw_partial_ptr,
    exchange_ptr,
    dy_row_steps,
    ds_row_steps,
    x_row_steps,
    n_rows,
    n_cols: tl.constexpr,
    offset: tl.constexpr,
    CASTING_MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_DS: tl.constexpr,
    NEEDS_DW: tl.constexpr,
    RELOAD_ROWS: tl.constexpr,
    N_SPLITS: tl.constexpr,
    N_SLOTS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
    PUBLISHES: tl.constexpr,
    COLLECTS: tl.constexpr,
):
    """One program: its slice of every n_groups-th row of dx (it may be dy) and of its group's partial row of dw.

    While a row waits for its sum, its slice of x and dy stays in registers, or, with RELOAD_ROWS, in the caches.
    """
    X_DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    C_DTYPE: tl.constexpr = rstd_ptr.dtype.element_ty
    EVICTION: tl.constexpr = "evict_last" if RELOAD_ROWS else "evict_first"
    split = tl.program_id(0) % N_SPLITS
    group = tl.program_id(0) // N_SPLITS
    n_groups = tl.num_programs(0) // N_SPLITS
    cols = split.to(tl.int64) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    w = tl.zeros((BLOCK_COLS,), X_DTYPE)
    if HAS_WEIGHT:
        w = _load_weight(w_ptr, cols, mask)
    dw = tl.zeros((BLOCK_COLS,), C_DTYPE)

    first_row = tl.cast(group, tl.int64)  # there is no group without a row
    x = _load_slice(x_ptr, first_row, x_row_steps, cols, mask, STRIDE_ALIGN, EVICTION)
    dy = _load_slice(dy_ptr, first_row, dy_row_steps, cols, mask, STRIDE_ALIGN, EVICTION)
    waiting_x = tl.zeros((BLOCK_COLS,), X_DTYPE)
    waiting_dy = tl.zeros((BLOCK_COLS,), X_DTYPE)
    waiting_row = first_row - n_groups
    waiting_rstd = tl.full((), 0.0, C_DTYPE)
    for tile in tl.range(group, n_rows, n_groups, num_stages=1):
        row = tl.cast(tile, tl.int64)
        rstd = tl.load(rstd_ptr + row)
        next_row = row + n_groups
        next_mask = cols < tl.where(next_row < n_rows, n_cols, 0)
        next_x = _load_slice(x_ptr, next_row, x_row_steps, cols, next_mask, STRIDE_ALIGN, EVICTION)
        next_dy = _load_slice(dy_ptr, next_row, dy_row_steps, cols, next_mask, STRIDE_ALIGN, EVICTION)

        m = dy.to(C_DTYPE)
        if NEEDS_DW:
            dw += m * _x_hat(x.to(C_DTYPE), rstd, X_DTYPE, CASTING_MODE)
        if HAS_WEIGHT:
            m *= _shifted_weight(w, offset, X_DTYPE, C_DTYPE, CASTING_MODE)
        if PUBLISHES:
            _publish(exchange_ptr, row, split, tl.sum(m * x.to(C_DTYPE), axis=0), N_SPLITS)

        if COLLECTS:
            if waiting_row >= 0:
                if RELOAD_ROWS:
                    waiting_x = _load_slice(x_ptr, waiting_row, x_row_steps, cols, mask, STRIDE_ALIGN, "evict_first")
                    waiting_dy = _load_slice(dy_ptr, waiting_row, dy_row_steps, cols, mask, STRIDE_ALIGN, "evict_first")
                _finish_row(
                    waiting_x, waiting_dy, ds_ptr, w, waiting_rstd, dx_ptr, exchange_ptr, waiting_row, ds_row_steps,
                    cols, mask, n_cols, offset, CASTING_MODE, HAS_WEIGHT, HAS_DS, N_SPLITS, N_SLOTS, STRIDE_ALIGN,
                )  # fmt: skip
        if not RELOAD_ROWS:
            waiting_x = x
            waiting_dy = dy
        waiting_row = row
        waiting_rstd = rstd
        x = next_x
        dy = next_dy

    if COLLECTS:
        if RELOAD_ROWS:
            waiting_x = _load_slice(x_ptr, waiting_row, x_row_steps, cols, mask, STRIDE_ALIGN, "evict_first")
            waiting_dy = _load_slice(dy_ptr, waiting_row, dy_row_steps, cols, mask, STRIDE_ALIGN, "evict_first")
        _finish_row(
            waiting_x, waiting_dy, ds_ptr, w, waiting_rstd, dx_ptr, exchange_ptr, waiting_row, ds_row_steps,
            cols, mask, n_cols, offset, CASTING_MODE, HAS_WEIGHT, HAS_DS, N_SPLITS, N_SLOTS, STRIDE_ALIGN,
        )  # fmt: skip
        if NEEDS_DW:
            tl.store(dw_partial_ptr + tl.cast(group, tl.int64) * n_cols + cols, dw, mask=mask)
