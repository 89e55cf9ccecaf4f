"""The Triton kernels: load, compute, store.

    mean_square = sum(x * x) / n_cols
    rstd        = 1 / sqrt(mean_square + eps)
    x_hat       = x * rstd
    y           = x_hat * (w + offset)

    m  = dy * (w + offset)
    dx = rstd * (m - x * rstd^2 * sum(m * x) / n_cols)
    dw = sum over rows of dy * x_hat

Every operand is cast to the compute dtype (float32; float64 for float64 x) as it is loaded. A casting mode is the set
of places where a value is rounded to x's dtype on the way; each such place is a `_round` call under the name of the
rounding point, and y, dx and dw are rounded once more by the cast before their store:

    point          llama  gemma  none
    squares                       R
    mean_square                   R
    variance                      R      mean_square + eps
    rstd                          R
    x_hat            R            R
    shifted_weight                R      w + offset

A tile is BLOCK_ROWS rows by BLOCK_COLS >= n_cols columns, so one program sees whole rows: BLOCK_ROWS = 1 is the
row-wise variant, more rows are the block-wise one. Row offsets are int64.
"""

import triton
import triton.language as tl

LLAMA = tl.constexpr(0)
GEMMA = tl.constexpr(1)
NONE = tl.constexpr(2)


@triton.jit
def _round(value, dtype: tl.constexpr):
    """R of the specification: round to nearest even to dtype, and go on in the compute dtype."""
    return value.to(dtype).to(value.dtype)


@triton.jit
def _divide(numerator, denominator, dtype: tl.constexpr):
    """Correctly rounded division: `/` alone is approximate for float32 on a GPU."""
    if dtype == tl.float64:
        quotient = numerator / denominator
    else:
        quotient = tl.div_rn(numerator, tl.cast(denominator, tl.float32))
    return quotient


@triton.jit
def _reciprocal_sqrt(value, dtype: tl.constexpr):
    """1 / sqrt(value) from two correctly rounded steps: right for subnormal values too, which tl.rsqrt flushes."""
    if dtype == tl.float64:
        result = 1.0 / tl.sqrt(value)
    else:
        result = tl.div_rn(tl.full(value.shape, 1.0, tl.float32), tl.sqrt_rn(value))
    return result


@triton.jit
def _load_shifted_weight(w_ptr, cols, col_mask, offset: tl.constexpr, CASTING_MODE: tl.constexpr, X_DTYPE, C_DTYPE):
    """w + offset in the compute dtype, [BLOCK_COLS]."""
    w = tl.load(w_ptr + cols, mask=col_mask, other=0.0, eviction_policy="evict_last").to(C_DTYPE)
    if offset != 0.0:  # not added when zero: -0.0 keeps its sign
        w = w + offset
    if CASTING_MODE == NONE:
        w = _round(w, X_DTYPE)  # rounding point: shifted_weight
    return w


@triton.jit
def _load_rows(ptr, rows, row_steps, cols, mask, STRIDE_ALIGN: tl.constexpr, C_DTYPE: tl.constexpr):
    """Rows of a matrix with unit column stride, in the compute dtype, [BLOCK_ROWS, BLOCK_COLS].

    The row stride is row_steps * STRIDE_ALIGN elements. The factor known at compile time is what shows the compiler
    that rows are aligned for 16-byte accesses, also where n_cols is no multiple of 16; unlike a hint it cannot lie.
    """
    offsets = (rows * row_steps * STRIDE_ALIGN)[:, None] + cols[None, :]
    return tl.load(ptr + offsets, mask=mask, other=0.0).to(C_DTYPE)


@triton.jit
def _store_rows(ptr, rows, n_cols: tl.constexpr, cols, mask, value):
    """Round value to the dtype of the contiguous matrix, once, and store its rows."""
    tl.store(ptr + (rows * n_cols)[:, None] + cols[None, :], value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["x_row_steps", "n_rows"])
def rms_norm_forward_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    rstd_ptr,
    x_row_steps,
    n_rows,
    n_cols: tl.constexpr,
    eps: tl.constexpr,
    offset: tl.constexpr,
    CASTING_MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
):
    """One program: BLOCK_ROWS rows of y (contiguous) and of rstd."""
    X_DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    C_DTYPE: tl.constexpr = rstd_ptr.dtype.element_ty
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    cols = tl.arange(0, BLOCK_COLS)
    row_mask = rows < n_rows
    col_mask = cols < n_cols
    mask = row_mask[:, None] & col_mask[None, :]

    x = _load_rows(x_ptr, rows, x_row_steps, cols, mask, STRIDE_ALIGN, C_DTYPE)
    if HAS_WEIGHT:
        w = _load_shifted_weight(w_ptr, cols, col_mask, offset, CASTING_MODE, X_DTYPE, C_DTYPE)

    squares = x * x
    if CASTING_MODE == NONE:
        squares = _round(squares, X_DTYPE)  # rounding point: squares
    mean_square = _divide(tl.sum(squares, axis=1), n_cols, C_DTYPE)
    if CASTING_MODE == NONE:
        mean_square = _round(mean_square, X_DTYPE)  # rounding point: mean_square
    variance = mean_square + eps
    if CASTING_MODE == NONE:
        variance = _round(variance, X_DTYPE)  # rounding point: variance
    rstd = _reciprocal_sqrt(variance, C_DTYPE)
    if CASTING_MODE == NONE:
        rstd = _round(rstd, X_DTYPE)  # rounding point: rstd
    x_hat = x * rstd[:, None]
    if CASTING_MODE != GEMMA:
        x_hat = _round(x_hat, X_DTYPE)  # rounding point: x_hat
    y = x_hat
    if HAS_WEIGHT:
        y = x_hat * w[None, :]

    tl.store(rstd_ptr + rows, rstd, mask=row_mask)
    _store_rows(y_ptr, rows, n_cols, cols, mask, y)


@triton.jit(do_not_specialize=["dy_row_steps", "x_row_steps", "n_rows"])
def rms_norm_backward_kernel(
    dy_ptr,
    x_ptr,
    w_ptr,
    rstd_ptr,
    dx_ptr,
    dw_partial_ptr,
    dy_row_steps,
    x_row_steps,
    n_rows,
    n_cols: tl.constexpr,
    offset: tl.constexpr,
    CASTING_MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    NEEDS_DX: tl.constexpr,
    NEEDS_DW: tl.constexpr,
    RELOAD_WEIGHT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """One program: every n_programs-th tile of dx (contiguous; it may be dy itself) and one row of partial sums of dw.

    A row is cut into chunks of BLOCK_COLS columns, all held at once: five chunks of 1024 for 5120 columns, where one
    tile would have 8192. A tile's dy is read before its dx is written and no two tiles share a row, which is what lets
    dx be dy.
    """
    X_DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    C_DTYPE: tl.constexpr = rstd_ptr.dtype.element_ty
    N_CHUNKS: tl.constexpr = (n_cols + BLOCK_COLS - 1) // BLOCK_COLS
    program = tl.program_id(0)
    chunk_cols = tl.arange(0, BLOCK_COLS)
    w = ()
    dw = ()
    for chunk in tl.static_range(N_CHUNKS):
        cols = chunk * BLOCK_COLS + chunk_cols
        if HAS_WEIGHT and NEEDS_DX and not RELOAD_WEIGHT:
            w += (_load_shifted_weight(w_ptr, cols, cols < n_cols, offset, CASTING_MODE, X_DTYPE, C_DTYPE),)
        if NEEDS_DW:
            dw += (tl.zeros((BLOCK_ROWS, BLOCK_COLS), C_DTYPE),)

    for tile in tl.range(program, tl.cdiv(n_rows, BLOCK_ROWS), tl.num_programs(0), num_stages=NUM_STAGES):
        # Cast here: a loop counter is int32, and in the interpreter a Python int.
        rows = tl.cast(tile, tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        row_mask = rows < n_rows
        rstd = tl.load(rstd_ptr + rows, mask=row_mask, other=0.0)[:, None]
        x_hat = ()
        m = ()
        new_dw = ()
        products = tl.zeros((BLOCK_ROWS, BLOCK_COLS), C_DTYPE)
        for chunk in tl.static_range(N_CHUNKS):
            cols = chunk * BLOCK_COLS + chunk_cols
            mask = row_mask[:, None] & (cols < n_cols)[None, :]
            x = _load_rows(x_ptr, rows, x_row_steps, cols, mask, STRIDE_ALIGN, C_DTYPE)
            dy = _load_rows(dy_ptr, rows, dy_row_steps, cols, mask, STRIDE_ALIGN, C_DTYPE)
            x_hat += (x * rstd,)
            if NEEDS_DW:
                dw_x_hat = x_hat[chunk]
                if CASTING_MODE != GEMMA:
                    dw_x_hat = _round(dw_x_hat, X_DTYPE)  # rounding point: x_hat, as in the forward
                new_dw += (dw[chunk] + dy * dw_x_hat,)
            if NEEDS_DX:
                if not HAS_WEIGHT:
                    m += (dy,)
                elif RELOAD_WEIGHT:
                    w_chunk = _load_shifted_weight(
                        w_ptr, cols, cols < n_cols, offset, CASTING_MODE, X_DTYPE, C_DTYPE
                    )
                    m += (dy * w_chunk[None, :],)
                else:
                    m += (dy * w[chunk][None, :],)
                products += m[chunk] * x
        dw = new_dw

        if NEEDS_DX:
            # x * rstd^2 * dot / n_cols as x_hat * (rstd * dot / n_cols): rstd^2 alone overflows for tiny rows.
            projection = _divide(tl.sum(products, axis=1), n_cols, C_DTYPE)[:, None] * rstd
            for chunk in tl.static_range(N_CHUNKS):
                cols = chunk * BLOCK_COLS + chunk_cols
                mask = row_mask[:, None] & (cols < n_cols)[None, :]
                dx = rstd * (m[chunk] - x_hat[chunk] * projection)
                _store_rows(dx_ptr, rows, n_cols, cols, mask, dx)

    if NEEDS_DW:
        # One partial row a program and no atomics: the order of the sum, and so its bits, are fixed.
        partial_offset = program.to(tl.int64) * n_cols
        for chunk in tl.static_range(N_CHUNKS):
            cols = chunk * BLOCK_COLS + chunk_cols
            tl.store(dw_partial_ptr + partial_offset + cols, tl.sum(dw[chunk], axis=0), mask=cols < n_cols)


@triton.jit(do_not_specialize=["n_partials"])
def rms_norm_weight_gradient_kernel(
    dw_partial_ptr,
    dw_ptr,
    n_partials,
    n_cols: tl.constexpr,
    BLOCK_PARTIALS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    """One program: the sum of BLOCK_COLS columns of the partial rows, rounded once to w's dtype."""
    C_DTYPE: tl.constexpr = dw_partial_ptr.dtype.element_ty
    cols = tl.program_id(0).to(tl.int64) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    col_mask = cols < n_cols
    total = tl.zeros((BLOCK_PARTIALS, BLOCK_COLS), C_DTYPE)
    for start in tl.range(0, n_partials, BLOCK_PARTIALS):
        partials = tl.cast(start, tl.int64) + tl.arange(0, BLOCK_PARTIALS)
        mask = (partials < n_partials)[:, None] & col_mask[None, :]
        total += tl.load(dw_partial_ptr + (partials * n_cols)[:, None] + cols[None, :], mask=mask, other=0.0)
    dw = tl.sum(total, axis=0)
    tl.store(dw_ptr + cols, dw.to(dw_ptr.dtype.element_ty), mask=col_mask)
