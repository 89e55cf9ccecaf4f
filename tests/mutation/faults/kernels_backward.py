"""Faults of the backward kernel (B, K where a tile has several rows) and of the sum of its partial rows (W)."""

from __future__ import annotations

from tests.mutation.mutant import CELLS, STATIC, Mutant

FILE = "rmsnorm/fused/kernels.py"
TILES = "tests/rmsnorm/triton/test_tiles.py"
HARD = "tests/rmsnorm/triton/test_hard_inputs.py"

_M = "dy *= _shifted_weight(w_chunk, offset, X_DTYPE, C_DTYPE, CASTING_MODE)[None, :]"
_DOT = "_divide(tl.sum(products, axis=1), n_cols, C_DTYPE)"
_DX = "dx = rstd * (m[chunk] - x_hat[chunk] * projection)"
_DW = "dw[chunk] + dy * _x_hat(x, rstd, X_DTYPE, CASTING_MODE),)"
_STORE_DX = "_store_rows(dx_ptr, rows, n_cols, cols, mask, dx)"
_STORE_DW = "tl.sum(dw[chunk], axis=0), mask=cols < n_cols)"
_TILES = "tl.range(program, tl.cdiv(n_rows, BLOCK_ROWS), tl.num_programs(0), num_stages"
_ROWS = "rows = tl.cast(tile, tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)"
_RSTD = "tl.load(rstd_ptr + rows, mask=row_mask, other=0.0)"
_LOAD_X = "_load_rows(x_ptr, rows, x_row_steps, cols, mask, STRIDE_ALIGN, EVICTION).to(C_DTYPE)"
_PRODUCTS = "products += m[chunk] * x"
_TOTAL = "total += tl.load("
_PARTIAL_MASK = "mask = (partials < n_partials)[:, None] & col_mask[None, :]"


def _fault(id: str, old: str, new: str, fault: str, noticed_by: str = CELLS, equivalent: str | None = None) -> Mutant:
    return Mutant(id, FILE, old, new, fault, noticed_by, equivalent=equivalent)


MUTANTS = (
    _fault("B01", _M, "dy *= 1.0", "the weight is left out of dX"),
    _fault("B02", _M, _M.replace("offset", "0.0"), "the offset is left out of dX"),
    _fault("B03", _DOT, _DOT.replace("n_cols", "N_CHUNKS * BLOCK_COLS"), "the projection divides by the padded width"),
    _fault("B04", _DX, "dx = rstd * m[chunk]", "dX has no projection"),
    _fault("B05", _DX, _DX.replace("] - x", "] + x"), "the projection has the wrong sign"),
    _fault("B06", _DX, "dx = m[chunk] - x_hat[chunk] * projection", "dX has no factor rstd"),
    _fault("B07", _DW, "dw[chunk] + dy * x,)", "dW is made of x"),
    _fault("B08", _DW, "dw[chunk] + dy * (x * rstd),)", "dW is made of the unrounded x_hat"),
    _fault("B09", _DW, f"_round({_DW[:-2]}, X_DTYPE),)", "dW is accumulated in x's dtype"),
    _fault(
        "B10",
        "row_mask = rows < n_rows\n        rstd",
        "row_mask = rows >= 0\n        rstd",
        "rows beyond the last are read and written",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "B11",
        "tl.cdiv(n_rows, BLOCK_ROWS), tl.num",
        "n_rows // BLOCK_ROWS, tl.num",
        "the rows of the last tile are lost",
        TILES + " -k test_tiles and block",
    ),
    _fault(
        "B12",
        _STORE_DW,
        _STORE_DW.replace("cols < n_cols", "(cols < n_cols) & (program < tl.num_programs(0) - 1)"),
        "the last program writes no partial dW",
    ),
    _fault(
        "B16",
        _STORE_DX,
        "tl.store(dx_ptr + (rows * dy_row_steps * STRIDE_ALIGN)[:, None] + cols[None, :],"
        " dx.to(dx_ptr.dtype.element_ty), mask=mask)",
        "dX is stored with the row stride of dY",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "B17",
        _LOAD_X,
        _LOAD_X.replace("x_row", "dy_row"),
        "x is read with the row stride of dY",
        HARD + "::test_layouts",
    ),
    _fault("B18", _ROWS, _ROWS.replace("tl.cast(tile, tl.int64)", "tile"), "row indices are int32", STATIC),
    _fault("B19", _RSTD, _RSTD.replace("+ rows", "+ rows * 0"), "every row gets the RSTD of the first"),
    _fault(
        "B20",
        _PRODUCTS,
        "products += _load_rows(dy_ptr, rows, dy_row_steps, cols, mask, STRIDE_ALIGN, EVICTION).to(C_DTYPE) * x",
        "the weight is left out of the projection",
    ),
    _fault(
        "B21",
        f"                {_STORE_DX}",
        "                if X_DTYPE != C_DTYPE:\n"
        '                    dx = dx.to(X_DTYPE, fp_downcast_rounding="rtz")\n'
        f"                {_STORE_DX}",
        "dX is rounded toward zero",
    ),
    _fault(
        "B23", "    dw = tl.sum(total, axis=0)\n", "    dw = tl.sum(total, axis=0) / n_partials\n", "dW is an average"
    ),
    _fault("B24", _M, _M.replace("CASTING_MODE", "NONE"), "the backward rounds w + offset in every mode"),
    _fault("B25", "x_hat += (x * rstd,)", "x_hat += (_round(x * rstd, X_DTYPE),)", "dX is made of a rounded x_hat"),
    _fault(
        "B26",
        "            w += (_load_weight(w_ptr, cols, cols < n_cols),)",
        "            w += (tl.load(w_ptr + cols),)",
        "the backward loads w without a mask",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "B28",
        "dw += (tl.zeros((BLOCK_ROWS, BLOCK_COLS), C_DTYPE),)",
        "dw += (tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32),)",
        "none",
        equivalent="the interpreter promotes the first sum to float64, and the compiler refuses the loop",
    ),
    _fault(
        "B29",
        "w_chunk = _load_weight(w_ptr, cols, cols < n_cols)",
        "w_chunk = _load_weight(w_ptr, cols, cols >= 0)",
        "a reloaded w has no mask",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "B30",
        "w_chunk = w[chunk]",
        "w_chunk = w[0]",
        "every chunk gets the weight of the first",
        TILES + " -k test_tiles and all_streamed",
    ),
    _fault("B31", "m += (dy,)", "m += (dy.to(X_DTYPE).to(C_DTYPE),)", "m is rounded to x's dtype"),
    _fault(
        "B32",
        "# x * rstd^2 * dot / n_cols as x_hat",
        "products = products.to(X_DTYPE).to(C_DTYPE)\n            # x * rstd^2 * dot / n_cols as x_hat",
        "the terms of the projection are rounded to x's dtype",
        TILES + " -k test_tiles and one_chunk",
    ),
    _fault(
        "K04",
        _TILES,
        _TILES.replace("tl.num_programs(0)", "tl.maximum(1, tl.num_programs(0) - 1)"),
        "rows are counted twice",
    ),
    _fault("K05", _TILES, _TILES.replace("(program", "(2 * program"), "programs start at the wrong tile"),
    _fault(
        "K08",
        _PRODUCTS,
        "products += m[chunk] * (x if BLOCK_ROWS == 1 else x_hat[chunk])",
        "block-wise, rstd enters the projection twice",
        TILES + " -k test_tiles and block",
    ),
    _fault(
        "K09",
        _DW,
        "dw[chunk] + dy * (_x_hat(x, rstd, X_DTYPE, CASTING_MODE) if BLOCK_ROWS == 1 else"
        " _x_hat(x, rstd, X_DTYPE, CASTING_MODE) * _load_weight(w_ptr, cols, cols < n_cols).to(C_DTYPE)[None, :]),)",
        "block-wise, dW is made of dY times the weight",
        TILES + " -k test_tiles and block",
    ),
    _fault(
        "K10",
        _ROWS,
        f"rows = ({_ROWS[7:]}).to(tl.int32)",
        "row indices become int32 before they meet the stride",
        HARD + "::test_beyond_int32",
    ),
    _fault("K11", _RSTD, _RSTD.replace(", other=0.0", ""), "masked RSTD is undefined", STATIC),
    _fault(
        "W01",
        _PARTIAL_MASK,
        _PARTIAL_MASK.replace("partials < n_partials", "partials >= 0"),
        "partial rows beyond the last are summed",
        HARD + "::test_guard_pages",
    ),
    _fault("W02", _TOTAL, "total = tl.load(", "only the last block of partial rows counts", TILES + " -k partial_rows"),
    _fault(
        "W03",
        "tl.range(0, n_partials,",
        "tl.range(BLOCK_PARTIALS, n_partials,",
        "the first block of partial rows is skipped",
    ),
    _fault(
        "W04",
        "    dw = tl.sum(total, axis=0)\n",
        "    dw = tl.sum(_round(total, dw_ptr.dtype.element_ty), axis=0)\n",
        "partial rows are rounded before their sum",
        TILES + " -k partial_rows",
    ),
    _fault(
        "W05",
        "cols = tl.program_id(0).to(tl.int64) * BLOCK_COLS",
        "cols = tl.program_id(0) * BLOCK_COLS",
        "column indices are int32",
        STATIC,
    ),
    _fault(
        "W06",
        "dw.to(dw_ptr.dtype.element_ty), mask=col_mask)",
        "dw.to(dw_ptr.dtype.element_ty), mask=cols >= 0)",
        "columns beyond the last are written",
        HARD + "::test_guard_pages",
    ),
    _fault("W07", "program.to(tl.int64) * n_cols", "program * n_cols", "the offset of a partial row is int32", STATIC),
)
