"""Faults of the forward kernel: F in any tile, C where a row has several chunks, K where a tile has several rows."""

from __future__ import annotations

from tests.mutation.mutant import CELLS, STATIC, Mutant

FILE = "rmsnorm/fused/kernels.py"
TILES = "tests/rmsnorm/triton/test_tiles.py"
HARD = "tests/rmsnorm/triton/test_hard_inputs.py"

_SUM = "_rstd(tl.sum(squares, axis=1), n_cols, eps"
_VARIANCE = "    variance = mean_square + eps"
_HELD_WEIGHT = (
    "                w = _load_weight(w_ptr, cols, cols < n_cols)\n            y *= _shifted_weight(w, offset,"
)
_STREAMED_WEIGHT = (
    "                w = _load_weight(w_ptr, cols, cols < n_cols)\n                y *= _shifted_weight(w, offset,"
)
_HELD_Y = "y = _x_hat(held_x[chunk].to(C_DTYPE), rstd[:, None]"
_MEAN = "mean_square = _divide(sum_of_squares, n_cols, C_DTYPE)"
_HELD_SUM = "squares += _squares(held_x[chunk].to(C_DTYPE), X_DTYPE"
_STORE = "cols[None, :], value.to(ptr.dtype.element_ty), mask=mask)"
_STORE_RSTD = "tl.store(rstd_ptr + rows, rstd, mask=row_mask)"
_ROWS = "rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)"
_LOAD_ROWS = "mask=mask, other=0.0, eviction_policy=EVICTION)"
_LOAD_HELD = "rows, x_row_steps, r_row_steps, cols, mask, STRIDE_ALIGN, HELD_EVICTION"
_LOAD_STREAMED = 'rows, x_row_steps, r_row_steps, cols, mask, STRIDE_ALIGN, "evict_last"'
_WEIGHT = "tl.load(w_ptr + cols, mask=col_mask, other=0.0, eviction_policy"
_SQUARES_POINT = "    if CASTING_MODE == NONE:\n        squares ="


def _fault(id: str, old: str, new: str, fault: str, noticed_by: str = CELLS, equivalent: str | None = None) -> Mutant:
    return Mutant(id, FILE, old, new, fault, noticed_by, equivalent=equivalent)


def _shifted(old: str, offset: str) -> str:
    return old.replace("_shifted_weight(w, offset,", f"_shifted_weight(w, {offset},")


MUTANTS = (
    _fault("F01", _SUM, _SUM.replace("n_cols", "N_CHUNKS * BLOCK_COLS"), "the mean divides by the padded width"),
    _fault("F02", _SUM, _SUM.replace("n_cols", "n_cols - 1"), "the mean divides by n - 1"),
    _fault("F03", _VARIANCE, "    variance = mean_square", "eps is left out"),
    _fault(
        "F04",
        _VARIANCE,
        "    variance = (tl.sqrt(mean_square) + eps) * (tl.sqrt(mean_square) + eps)",
        "eps is added outside of the root",
    ),
    _fault("F05", _VARIANCE, "    variance = mean_square + eps * eps", "eps is squared"),
    _fault(
        "F06",
        _HELD_WEIGHT.replace("offset,", "offset,"),
        _shifted(_HELD_WEIGHT, "0.0 if CASTING_MODE == GEMMA else offset"),
        "the offset is left out of y in gemma",
    ),
    _fault(
        "F07",
        _HELD_WEIGHT,
        _shifted(_HELD_WEIGHT, "1.0 if CASTING_MODE == GEMMA else offset"),
        "the offset is always 1 in gemma",
    ),
    _fault(
        "F08",
        _HELD_WEIGHT,
        _shifted(_HELD_WEIGHT, "0.0 if CASTING_MODE != GEMMA else offset"),
        "the offset is left out of y in llama and none",
    ),
    _fault("F09", "if CASTING_MODE != GEMMA:", "if CASTING_MODE == NONE:", "llama does not round x_hat"),
    _fault("F10", "if CASTING_MODE != GEMMA:", "if CASTING_MODE != 99:", "gemma rounds x_hat"),
    _fault("F11", _HELD_Y, _HELD_Y.replace("rstd[", "_round(rstd, X_DTYPE)["), "y is made of a rounded rstd"),
    _fault("F12", _SQUARES_POINT, _SQUARES_POINT.replace("== NONE", "!= 99"), "squares are rounded in every mode"),
    _fault(
        "F13",
        "(cols < n_cols)[None, :]\n        held_x",
        "(cols <= n_cols)[None, :]\n        held_x",
        "the column mask is one too wide",
    ),
    _fault("F14", _STORE, _STORE.replace(", mask=mask", ""), "results are stored without a mask", STATIC),
    _fault("F15", _LOAD_ROWS, _LOAD_ROWS.replace("0.0", "1.0"), "padding is loaded as 1"),
    _fault("F16", _ROWS, _ROWS.replace(".to(tl.int64)", ""), "row indices are int32", STATIC),
    _fault(
        "F17",
        _LOAD_HELD,
        "rows, n_cols, r_row_steps, cols, mask, 1, HELD_EVICTION",
        "x is addressed with the row stride of y",
    ),
    _fault(
        "F18", _STORE_RSTD, _STORE_RSTD.replace("rstd,", "tl.sum(squares, axis=1) / n_cols,"), "RSTD is the mean square"
    ),
    _fault("F19", _STORE_RSTD, _STORE_RSTD.replace("rstd,", "_round(rstd, X_DTYPE),"), "RSTD is rounded to x's dtype"),
    _fault(
        "F20",
        _WEIGHT,
        "tl.load(w_ptr + cols, eviction_policy",
        "w is loaded without a mask",
        HARD + "::test_guard_pages",
    ),
    _fault("F21", "    return rstd\n", "    return tl.where(rstd == rstd, rstd, 0.0)\n", "rows with NaN become zero"),
    _fault("F22", _MEAN, _MEAN.replace("_divide(", "tl.minimum(1e29, _divide(") + ")", "the mean square is clamped"),
    _fault(
        "F23",
        _HELD_SUM,
        "squares += _squares(tl.where((cols < n_cols - 1)[None, :], held_x[chunk].to(C_DTYPE), 0.0), X_DTYPE",
        "the last column is left out of the sum",
    ),
    _fault(
        "F24",
        "    tl.store(ptr + (rows * n_cols)[:, None] + cols[None, :], value.to(ptr.dtype.element_ty), mask=mask)",
        "    if ptr.dtype.element_ty != value.dtype:\n"
        '        value = value.to(ptr.dtype.element_ty, fp_downcast_rounding="rtz")\n'
        "    tl.store(ptr + (rows * n_cols)[:, None] + cols[None, :], value, mask=mask)",
        "results are rounded toward zero",
    ),
    _fault("F25", _MEAN, _MEAN + " * 1.001", "the mean square is 0.1 % too large"),
    _fault("F26", _LOAD_ROWS, _LOAD_ROWS.replace("other=0.0, ", ""), "masked elements of x are undefined", STATIC),
    _fault(
        "F27",
        _SUM,
        "_rstd(tl.sum(squares.to(tl.float32), axis=1).to(C_DTYPE), n_cols, eps",
        "float64 squares are summed in float32",
    ),
    _fault(
        "F28", "    x_hat = x * rstd\n", "    x_hat = rstd * x\n", "none", equivalent="a product commutes, bit for bit"
    ),
    _fault(
        "F29", _VARIANCE, "    variance = mean_square + tl.cast(eps, tl.float32)", "eps is a float32 in float64 kernels"
    ),
    _fault(
        "F36",
        _VARIANCE,
        "    variance = mean_square + _round(tl.full((), eps, C_DTYPE), X_DTYPE)",
        "eps is rounded to x's dtype",
    ),
    _fault(
        "F38",
        "_store_rows(y_ptr, rows, n_cols, cols, mask, y)\n    for",
        "_store_rows(y_ptr, rows, n_cols, cols, row_mask[:, None] & (cols <= n_cols)[None, :], y)\n    for",
        "a row of y is written one column too far",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "F30",
        "    if CASTING_MODE == NONE:\n        variance =",
        "    if CASTING_MODE == 99:\n        variance =",
        "none does not round mean square + eps",
    ),
    _fault(
        "F31",
        "    if CASTING_MODE == NONE:\n        mean_square =",
        "    if CASTING_MODE == 99:\n        mean_square =",
        "none does not round the mean square",
        CELLS,
    ),
    _fault(
        "F32",
        "    if CASTING_MODE == NONE:\n        shifted_weight =",
        "    if CASTING_MODE == 99:\n        shifted_weight =",
        "none does not round w + offset",
    ),
    _fault("F33", _SQUARES_POINT, _SQUARES_POINT.replace("NONE", "99"), "none does not round squares"),
    _fault(
        "F34",
        "    if CASTING_MODE == NONE:\n        rstd =",
        "    if CASTING_MODE == 99:\n        rstd =",
        "none does not round rstd",
    ),
    _fault(
        "F35",
        "    if offset != 0.0:  # not added when zero",
        "    if offset != 99.0:  # not added when zero",
        "a weight of -0.0 loses its sign to offset 0",
        HARD + "::test_a_weight_of_minus_zero_keeps_its_sign",
    ),
    _fault(
        "C01",
        "tl.range(N_HELD, N_CHUNKS,",
        "tl.range(N_HELD + 1, N_CHUNKS,",
        "a chunk is left out of the sum",
        TILES + " -k some_streamed",
    ),
    _fault(
        "C02",
        "N_CHUNKS - 1 - reverse_chunk",
        "N_CHUNKS - 2 - reverse_chunk",
        "the last chunk is not written",
        TILES + " -k some_streamed",
    ),
    _fault(
        "C03",
        _STREAMED_WEIGHT,
        _shifted(_STREAMED_WEIGHT, "0.0"),
        "streamed chunks ignore the offset",
        TILES + " -k some_streamed",
    ),
    _fault(
        "C04",
        "squares += _squares(x.to(C_DTYPE), X_DTYPE, CASTING_MODE)",
        "squares += x.to(C_DTYPE) * x.to(C_DTYPE)",
        "streamed squares are not rounded",
        TILES + " -k squares_in_none",
    ),
    _fault(
        "C05",
        _LOAD_STREAMED,
        'rows, n_cols, r_row_steps, cols, mask, 1, "evict_last"',
        "streamed chunks are addressed with the row stride of y",
        TILES + " -k some_streamed",
    ),
    _fault(
        "C06",
        "w = held_w[chunk]",
        "w = held_w[0]",
        "every held chunk gets the weight of the first",
        TILES + " -k held_chunks",
    ),
    _fault(
        "C07",
        "y = _x_hat(x.to(C_DTYPE), rstd[:, None], X_DTYPE, CASTING_MODE)",
        "y = x.to(C_DTYPE) * rstd[:, None]",
        "streamed x_hat is not rounded",
        TILES + " -k some_streamed and bfloat16",
    ),
    _fault(
        "C08",
        "tl.range(0, N_CHUNKS - N_HELD,",
        "tl.range(0, N_CHUNKS - N_HELD - 1,",
        "a streamed chunk is not written",
        TILES + " -k some_streamed",
    ),
    _fault(
        "K01",
        "row_mask = rows < n_rows\n    chunk_cols",
        "row_mask = rows >= 0\n    chunk_cols",
        "rows beyond the last are read and written",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "K02",
        _STORE_RSTD,
        _STORE_RSTD.replace("row_mask", "rows >= 0"),
        "RSTD of rows beyond the last is written",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "K03",
        _ROWS,
        "rows = (tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int32)",
        "row indices become int32 before they meet the stride",
        HARD + "::test_beyond_int32",
    ),
    _fault(
        "K07",
        _SUM,
        _SUM.replace("n_cols", "n_cols if BLOCK_ROWS == 1 else N_CHUNKS * BLOCK_COLS"),
        "block-wise, the mean divides by the padded width",
        TILES + " -k test_tiles and block",
    ),
)
