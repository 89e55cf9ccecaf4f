"""Faults of the backward of split rows."""

from __future__ import annotations

from tests.mutation.mutant import STATIC, Mutant

FILE = "rmsnorm/fused/split_kernels.py"
TILES = "tests/rmsnorm/triton/test_tiles.py"
HARD = "tests/rmsnorm/triton/test_hard_inputs.py"
LAUNCH = "tests/rmsnorm/triton/test_launch.py::test_split_rows_do_not_wait_for_ever_on_nan"

_DX = "dx = rstd * (m - x.to(C_DTYPE) * rstd * projection)"
_LAST = "    if COLLECTS:\n        if waiting_row >= 0:\n            _finish_row("
_X_HAT = "new_dw += (dw[chunk] + m * _x_hat(x.to(C_DTYPE), rstd, X_DTYPE, CASTING_MODE),)"
_RELOAD = "        if RELOAD_ROWS:\n            x_offset = row * x_row_steps * STRIDE_ALIGN\n"
_FINISH_MASK = "        mask = cols < n_cols\n        if RELOAD_ROWS:"
_MAIN_MASK = "            mask = cols < n_cols\n            x_offset"


def _fault(id: str, old: str, new: str, fault: str, noticed_by: str = TILES + " -k test_tiles and split") -> Mutant:
    return Mutant(id, FILE, old, new, fault, noticed_by)


MUTANTS = (
    _fault(
        "S01",
        'tl.where(value == value, value, float("nan"))',
        "value",
        "a NaN that reads as empty is waited for",
        LAUNCH,
    ),
    _fault(
        "S02",
        "N_SPLITS), n_cols, C_DTYPE)",
        "N_SPLITS), N_SPLITS * N_CHUNKS * BLOCK_COLS, C_DTYPE)",
        "the projection divides by the padded width",
    ),
    _fault("S03", "split.to(tl.int64) * (N_CHUNKS * BLOCK_COLS)", "split.to(tl.int64) * BLOCK_COLS", "slices overlap"),
    _fault("S04", _LAST, _LAST.replace(">= 0", ">= n_rows"), "the last row of a group is not finished"),
    _fault(
        "S05",
        "        waiting_rstd = rstd\n",
        "        waiting_rstd += rstd\n",
        "a row is finished with RSTD of the rows before",
    ),
    _fault("S06", "w = w_slice[chunk]", "w = w_slice[0]", "every chunk gets the weight of the first"),
    _fault(
        "S07",
        "w = _load_weight(w_ptr, cols, mask)\n            else:\n                w = w_slice",
        "w = _load_weight(w_ptr, cols - first_col, mask)\n            else:\n                w = w_slice",
        "a reloaded weight is that of the first slice",
    ),
    _fault("S08", _DX, "dx = rstd * (m - x.to(C_DTYPE) * projection)", "the projection lacks a factor rstd"),
    _fault("S09", _X_HAT, "new_dw += (dw[chunk] + m * (x.to(C_DTYPE) * rstd),)", "dW is made of the unrounded x_hat"),
    _fault(
        "S10",
        "partial_offset = group.to(tl.int64) * n_cols",
        "partial_offset = split.to(tl.int64) * 0",
        "every group writes the first partial row",
    ),
    _fault(
        "S11",
        _RELOAD,
        _RELOAD.replace("row * x_row_steps", "row * dy_row_steps"),
        "a reloaded x is read with the stride of dY",
    ),
    _fault(
        "S12",
        _FINISH_MASK,
        _FINISH_MASK.replace("cols < n_cols", "cols >= 0"),
        "dX is written beyond the last column",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "S13",
        _MAIN_MASK,
        _MAIN_MASK.replace("cols < n_cols", "cols >= 0"),
        "x is read beyond the last column",
        HARD + "::test_guard_pages",
    ),
    _fault("S14", "row = tl.cast(tile, tl.int64)", "row = tile", "row indices are int32", STATIC),
    _fault(
        "S15", "tl.range(group, n_rows, n_groups,", "tl.range(group, n_rows - 1, n_groups,", "the last row is skipped"
    ),
    _fault(
        "S16",
        "m *= _shifted_weight(w_chunk, offset, X_DTYPE",
        "m *= _shifted_weight(w_chunk, 0.0, X_DTYPE",
        "the offset is left out of the projection",
    ),
    _fault(
        "S17",
        "m *= _shifted_weight(w, offset, X_DTYPE",
        "m *= _shifted_weight(w, 0.0, X_DTYPE",
        "the offset is left out of dX",
    ),
    _fault(
        "S18",
        "products += m * x.to(C_DTYPE)",
        "products = m * x.to(C_DTYPE)",
        "only the last chunk enters the projection",
    ),
    _fault("S19", "        waiting_x = new_x\n", "        waiting_x = new_dy\n", "dX is made of dY"),
    _fault(
        "S20",
        "row = tl.cast(tile, tl.int64)",
        "row = tl.cast(tile, tl.int64).to(tl.int32)",
        "row indices become int32 before they meet the stride",
        HARD + "::test_beyond_int32",
    ),
)
