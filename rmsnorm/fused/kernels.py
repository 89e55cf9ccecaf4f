"""The Triton kernels: load, compute, store.

    mean_square = sum(x * x) / n_cols
    rstd        = 1 / sqrt(mean_square + eps)
    x_hat       = x * rstd
    y           = x_hat * (w + offset)

    m  = dy * (w + offset)
    dx = rstd * (m - x * rstd^2 * sum(m * x) / n_cols)
    dw = sum over rows of dy * x_hat

With a residual r, s = x + r takes x's place, rounded to x's dtype: the bits of x + r in PyTorch. The gradient ds that
arrives at s is added to dx before its rounding.

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

A tile is BLOCK_ROWS whole rows: one row is the row-wise variant, more are the block-wise one. A row is cut into chunks
of BLOCK_COLS columns, five of 1024 for 5120 columns where one power of two would have to be 8192. Row offsets are
int64. Products and sums may be contracted to fused multiply-adds; the launch pins that, so that the bits repeat.
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
def _load_weight(w_ptr, cols, col_mask):
    return tl.load(w_ptr + cols, mask=col_mask, other=0.0, eviction_policy="evict_last")


@triton.jit
def _shifted_weight(w, offset: tl.constexpr, X_DTYPE: tl.constexpr, C_DTYPE: tl.constexpr, CASTING_MODE: tl.constexpr):
    """w + offset in the compute dtype."""
    shifted_weight = w.to(C_DTYPE)
    if offset != 0.0:  # not added when zero: -0.0 keeps its sign
        shifted_weight = shifted_weight + offset
    if CASTING_MODE == NONE:
        shifted_weight = _round(shifted_weight, X_DTYPE)  # rounding point: shifted_weight
    return shifted_weight


@triton.jit
def _load_rows(ptr, rows, row_steps, cols, mask, STRIDE_ALIGN: tl.constexpr, EVICTION: tl.constexpr):
    """Rows of a matrix with unit column stride, [BLOCK_ROWS, BLOCK_COLS].

    The row stride is row_steps * STRIDE_ALIGN elements. The factor known at compile time is what shows the compiler
    that rows are aligned for 16-byte accesses, also where n_cols is no multiple of 16; unlike a hint it cannot lie.
    """
    offsets = (rows * row_steps * STRIDE_ALIGN)[:, None] + cols[None, :]
    return tl.load(ptr + offsets, mask=mask, other=0.0, eviction_policy=EVICTION)


@triton.jit
def _load_input(
    x_ptr,
    r_ptr,
    rows,
    x_row_steps,
    r_row_steps,
    cols,
    mask,
    STRIDE_ALIGN: tl.constexpr,
    EVICTION: tl.constexpr,
    C_DTYPE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """What is normalized: rows of x, or of s = x + r, in x's dtype, as s is stored."""
    x = _load_rows(x_ptr, rows, x_row_steps, cols, mask, STRIDE_ALIGN, EVICTION)
    if HAS_RESIDUAL:
        r = _load_rows(r_ptr, rows, r_row_steps, cols, mask, STRIDE_ALIGN, EVICTION)
        x = (x.to(C_DTYPE) + r.to(C_DTYPE)).to(x.dtype)  # rounding point: s
    return x


@triton.jit
def _store_rows(ptr, rows, n_cols: tl.constexpr, cols, mask, value):
    """Round value to the dtype of the contiguous matrix, once, and store its rows."""
    tl.store(ptr + (rows * n_cols)[:, None] + cols[None, :], value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _squares(x, X_DTYPE: tl.constexpr, CASTING_MODE: tl.constexpr):
    squares = x * x
    if CASTING_MODE == NONE:
        squares = _round(squares, X_DTYPE)  # rounding point: squares
    return squares


@triton.jit
def _rstd(
    sum_of_squares,
    n_cols: tl.constexpr,
    eps: tl.constexpr,
    X_DTYPE: tl.constexpr,
    C_DTYPE: tl.constexpr,
    CASTING_MODE: tl.constexpr,
):
    mean_square = _divide(sum_of_squares, n_cols, C_DTYPE)
    if CASTING_MODE == NONE:
        mean_square = _round(mean_square, X_DTYPE)  # rounding point: mean_square
    variance = mean_square + eps
    if CASTING_MODE == NONE:
        variance = _round(variance, X_DTYPE)  # rounding point: variance
    rstd = _reciprocal_sqrt(variance, C_DTYPE)
    if CASTING_MODE == NONE:
        rstd = _round(rstd, X_DTYPE)  # rounding point: rstd
    return rstd


@triton.jit
def _x_hat(x, rstd, X_DTYPE: tl.constexpr, CASTING_MODE: tl.constexpr):
    x_hat = x * rstd
    if CASTING_MODE != GEMMA:
        x_hat = _round(x_hat, X_DTYPE)  # rounding point: x_hat
    return x_hat


@triton.jit(do_not_specialize=["x_row_steps", "r_row_steps", "n_rows"])
def rms_norm_forward_kernel(
    x_ptr,
    r_ptr,
    w_ptr,
    y_ptr,
    s_ptr,
    rstd_ptr,
    x_row_steps,
    r_row_steps,
    n_rows,
    n_cols: tl.constexpr,
    eps: tl.constexpr,
    offset: tl.constexpr,
    CASTING_MODE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    STORES_RSTD: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    N_HELD: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
):
    """One program: BLOCK_ROWS rows of y and s (contiguous), and of rstd, where a backward may ask for it.

    The first N_HELD chunks of a row stay in registers between the sum and the product. Those that registers cannot
    hold are loaded twice: the second time, last chunk first, they come from the caches. s is summed again then, and
    never read: other threads of the program may have stored it, and nobody waits for them.
    """
    X_DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    C_DTYPE: tl.constexpr = tl.float64 if tl.float64 == X_DTYPE else tl.float32
    N_CHUNKS: tl.constexpr = (n_cols + BLOCK_COLS - 1) // BLOCK_COLS
    HOLDS_ALL: tl.constexpr = N_HELD == N_CHUNKS
    # The caches are left to the chunks that need them.
    HELD_EVICTION: tl.constexpr = "" if HOLDS_ALL else "evict_first"
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row_mask = rows < n_rows
    chunk_cols = tl.arange(0, BLOCK_COLS)

    held_x = ()
    held_w = ()
    squares = tl.zeros((BLOCK_ROWS, BLOCK_COLS), C_DTYPE)
    for chunk in tl.static_range(N_HELD):
        cols = chunk * BLOCK_COLS + chunk_cols
        mask = row_mask[:, None] & (cols < n_cols)[None, :]
        held_x += (
            _load_input(
                x_ptr, r_ptr, rows, x_row_steps, r_row_steps, cols, mask, STRIDE_ALIGN, HELD_EVICTION, C_DTYPE,
                HAS_RESIDUAL,
            ),
        )  # fmt: skip
        if HAS_WEIGHT and HOLDS_ALL:  # there is room to load it before the sum is known, not after
            held_w += (_load_weight(w_ptr, cols, cols < n_cols),)
        squares += _squares(held_x[chunk].to(C_DTYPE), X_DTYPE, CASTING_MODE)
    if not HOLDS_ALL:
        for chunk in tl.range(N_HELD, N_CHUNKS, num_stages=1):
            cols = chunk * BLOCK_COLS + chunk_cols
            mask = row_mask[:, None] & (cols < n_cols)[None, :]
            x = _load_input(
                x_ptr, r_ptr, rows, x_row_steps, r_row_steps, cols, mask, STRIDE_ALIGN, "evict_last", C_DTYPE,
                HAS_RESIDUAL,
            )  # fmt: skip
            squares += _squares(x.to(C_DTYPE), X_DTYPE, CASTING_MODE)

    rstd = _rstd(tl.sum(squares, axis=1), n_cols, eps, X_DTYPE, C_DTYPE, CASTING_MODE)
    if STORES_RSTD:
        tl.store(rstd_ptr + rows, rstd, mask=row_mask)

    if not HOLDS_ALL:
        for reverse_chunk in tl.range(0, N_CHUNKS - N_HELD, num_stages=1):
            cols = (N_CHUNKS - 1 - reverse_chunk) * BLOCK_COLS + chunk_cols
            mask = row_mask[:, None] & (cols < n_cols)[None, :]
            x = _load_input(
                x_ptr, r_ptr, rows, x_row_steps, r_row_steps, cols, mask, STRIDE_ALIGN, "evict_first", C_DTYPE,
                HAS_RESIDUAL,
            )  # fmt: skip
            if HAS_RESIDUAL:
                _store_rows(s_ptr, rows, n_cols, cols, mask, x)
            y = _x_hat(x.to(C_DTYPE), rstd[:, None], X_DTYPE, CASTING_MODE)
            if HAS_WEIGHT:
                w = _load_weight(w_ptr, cols, cols < n_cols)
                y *= _shifted_weight(w, offset, X_DTYPE, C_DTYPE, CASTING_MODE)[None, :]
            _store_rows(y_ptr, rows, n_cols, cols, mask, y)
    for chunk in tl.static_range(N_HELD):
        cols = chunk * BLOCK_COLS + chunk_cols
        mask = row_mask[:, None] & (cols < n_cols)[None, :]
        if HAS_RESIDUAL:
            _store_rows(s_ptr, rows, n_cols, cols, mask, held_x[chunk])
        y = _x_hat(held_x[chunk].to(C_DTYPE), rstd[:, None], X_DTYPE, CASTING_MODE)
        if HAS_WEIGHT:
            if HOLDS_ALL:
                w = held_w[chunk]
            else:
                w = _load_weight(w_ptr, cols, cols < n_cols)
            y *= _shifted_weight(w, offset, X_DTYPE, C_DTYPE, CASTING_MODE)[None, :]
        _store_rows(y_ptr, rows, n_cols, cols, mask, y)


@triton.jit(do_not_specialize=["dy_row_steps", "ds_row_steps", "x_row_steps", "n_rows"])
def rms_norm_backward_kernel(
    dy_ptr,
    ds_ptr,
    x_ptr,
    w_ptr,
    rstd_ptr,
    dx_ptr,
    dw_partial_ptr,
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
    NEEDS_DW: tl.constexpr,
    RELOAD_WEIGHT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STRIDE_ALIGN: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """One program: every n_programs-th tile of dx (contiguous; it may be dy itself) and one row of partial sums of dw.

    A tile's dy is read before its dx is written and no two tiles share a row, which is what lets dx be dy.
    """
    X_DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    C_DTYPE: tl.constexpr = rstd_ptr.dtype.element_ty
    N_CHUNKS: tl.constexpr = (n_cols + BLOCK_COLS - 1) // BLOCK_COLS
    # Tiles on their way through shared memory are read once; without them the caches hide the latency.
    EVICTION: tl.constexpr = "evict_first" if NUM_STAGES > 1 else ""
    program = tl.program_id(0)
    chunk_cols = tl.arange(0, BLOCK_COLS)
    w = ()
    dw = ()
    for chunk in tl.static_range(N_CHUNKS):
        cols = chunk * BLOCK_COLS + chunk_cols
        if HAS_WEIGHT and NEEDS_DX and not RELOAD_WEIGHT:
            w += (_load_weight(w_ptr, cols, cols < n_cols),)
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
            x = _load_rows(x_ptr, rows, x_row_steps, cols, mask, STRIDE_ALIGN, EVICTION).to(C_DTYPE)
            dy = _load_rows(dy_ptr, rows, dy_row_steps, cols, mask, STRIDE_ALIGN, EVICTION).to(C_DTYPE)
            x_hat += (x * rstd,)
            if NEEDS_DW:  # here, so that dy need not live in registers across the reduction
                new_dw += (dw[chunk] + dy * _x_hat(x, rstd, X_DTYPE, CASTING_MODE),)
            if NEEDS_DX:
                if HAS_WEIGHT:
                    if RELOAD_WEIGHT:
                        w_chunk = _load_weight(w_ptr, cols, cols < n_cols)
                    else:
                        w_chunk = w[chunk]
                    dy *= _shifted_weight(w_chunk, offset, X_DTYPE, C_DTYPE, CASTING_MODE)[None, :]
                m += (dy,)
                products += m[chunk] * x
        dw = new_dw

        if NEEDS_DX:
            # x * rstd^2 * dot / n_cols as x_hat * (rstd * dot / n_cols): rstd^2 alone overflows for tiny rows.
            projection = _divide(tl.sum(products, axis=1), n_cols, C_DTYPE)[:, None] * rstd
            for chunk in tl.static_range(N_CHUNKS):
                cols = chunk * BLOCK_COLS + chunk_cols
                mask = row_mask[:, None] & (cols < n_cols)[None, :]
                dx = rstd * (m[chunk] - x_hat[chunk] * projection)
                if HAS_DS:
                    dx += _load_rows(ds_ptr, rows, ds_row_steps, cols, mask, STRIDE_ALIGN, EVICTION).to(C_DTYPE)
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
