"""Faults of the backward of split rows."""

from __future__ import annotations

from tests.mutation.mutant import STATIC, Mutant

FILE = "rmsnorm/fused/split_kernels.py"
TILES = "tests/rmsnorm/triton/test_tiles.py"
HARD = "tests/rmsnorm/triton/test_hard_inputs.py"
LAUNCH = "tests/rmsnorm/triton/test_launch.py::test_split_rows_do_not_wait_for_ever_on_nan"

_DX = "dx = rstd * (m - x.to(C_DTYPE) * rstd * projection)"
_LAST = "ds_row_steps,\n            cols, mask, n_cols,"
_X_HAT = "dw += m * _x_hat(x.to(C_DTYPE), rstd, X_DTYPE, CASTING_MODE)"
_RELOAD = "                    waiting_x = _load_slice(x_ptr, waiting_row, x_row_steps,"
_NEXT = "cols < tl.where(next_row < n_rows, n_cols, 0)"


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
        "N_SPLITS, N_SLOTS), n_cols, C_DTYPE)",
        "N_SPLITS, N_SLOTS), N_SPLITS * cols.shape[0], C_DTYPE)",
        "the projection divides by the padded width",
    ),
    _fault("S03", "split.to(tl.int64) * BLOCK_COLS", "split.to(tl.int64) * (BLOCK_COLS // 2)", "slices overlap"),
    _fault("S04", _LAST, _LAST.replace("mask", "cols < 0"), "the last row of a group is not finished"),
    _fault(
        "S05",
        "        waiting_rstd = rstd\n",
        "        waiting_rstd += rstd\n",
        "a row is finished with RSTD of the rows before",
    ),
    _fault("S06", "        x = next_x\n", "        x = next_dy\n", "the x of every next row is its dY"),
    _fault("S07", _RELOAD, _RELOAD.replace("waiting_row", "row"), "the x that is read again is the next row's"),
    _fault("S08", _DX, "dx = rstd * (m - x.to(C_DTYPE) * projection)", "the projection lacks a factor rstd"),
    _fault("S09", _X_HAT, "dw += m * (x.to(C_DTYPE) * rstd)", "dW is made of the unrounded x_hat"),
    _fault(
        "S10",
        "tl.cast(group, tl.int64) * n_cols + cols, dw",
        "tl.cast(split, tl.int64) * 0 + cols, dw",
        "every group writes the first partial row",
    ),
    _fault(
        "S11",
        _RELOAD,
        _RELOAD.replace("x_row_steps", "dy_row_steps"),
        "a reloaded x is read with the stride of dY",
    ),
    _fault(
        "S12",
        "dx.to(X_DTYPE), mask=mask)",
        "dx.to(X_DTYPE), mask=cols >= 0)",
        "dX is written beyond the last column",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "S13",
        _NEXT,
        _NEXT.replace("n_cols", "n_cols + 1"),
        "x is read beyond the last column",
        HARD + "::test_guard_pages",
    ),
    _fault("S14", "row = tl.cast(tile, tl.int64)", "row = tile", "row indices are int32", STATIC),
    _fault(
        "S15", "tl.range(group, n_rows, n_groups,", "tl.range(group, n_rows - 1, n_groups,", "the last row is skipped"
    ),
    _fault(
        "S16",
        "            m *= _shifted_weight(w, offset, X_DTYPE",
        "            m *= _shifted_weight(w, 0.0, X_DTYPE",
        "the offset is left out of the projection",
    ),
    _fault(
        "S17",
        "    if HAS_WEIGHT:\n        m *= _shifted_weight(w, offset, X_DTYPE",
        "    if HAS_WEIGHT:\n        m *= _shifted_weight(w, 0.0, X_DTYPE",
        "the offset is left out of dX",
    ),
    _fault(
        "S18",
        "other=0, volatile=True)\n    while",
        "other=0, volatile=True) * (splits > 0).to(exchange_ptr.dtype.element_ty)\n    while",
        "the first slice does not enter the projection",
    ),
    _fault("S19", "            waiting_x = x\n", "            waiting_x = dy\n", "dX is made of dY"),
    _fault(
        "S20",
        "row = tl.cast(tile, tl.int64)",
        "row = tl.cast(tile, tl.int64).to(tl.int32)",
        "row indices become int32 before they meet the stride",
        HARD + "::test_beyond_int32",
    ),
    _fault(
        "S21",
        _NEXT,
        "cols < n_cols",
        "a row beyond the last is read",
        HARD + "::test_guard_pages",
    ),
)
