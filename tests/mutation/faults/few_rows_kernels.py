"""Faults of the backward of few rows."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

FILE = "rmsnorm/fused/few_rows_kernels.py"
LAUNCH = "rmsnorm/fused/launch.py"
PLANS = "rmsnorm/fused/plans.py"
TILES = "tests/rmsnorm/triton/test_tiles.py -k test_tiles and few_rows"
HARD = "tests/rmsnorm/triton/test_hard_inputs.py"
HOST = "tests/rmsnorm/triton/test_host_contract.py"

_X = "x = _load_rows(x_ptr, rows, x_row_steps"
_MASK = "mask = row_mask[:, None] & col_mask[None, :]"


def _fault(id: str, old: str, new: str, fault: str, noticed_by: str = TILES, file: str = FILE) -> Mutant:
    return Mutant(id, file, old, new, fault, noticed_by)


MUTANTS = (
    _fault("FR01", "tl.range(0, n_rows, SUM_ROWS)", "tl.range(0, n_rows - 1, SUM_ROWS)", "dW lacks the last row"),
    _fault("FR02", "_x_hat(x, rstd, X_DTYPE, CASTING_MODE)", "x * rstd", "dW is made of the unrounded x_hat"),
    _fault("FR03", "-= tl.cdiv(n_rows, BLOCK_ROWS)", "-= n_rows", "the last columns of dW have no program"),
    _fault("FR04", _X, _X.replace("x_row_steps", "dy_row_steps"), "dW reads x with the stride of dY"),
    _fault(
        "FR05",
        _MASK,
        "mask = (rows >= 0)[:, None] & col_mask[None, :]",
        "dW reads rows beyond the last",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "FR06",
        _MASK,
        "mask = row_mask[:, None] & (cols >= 0)[None, :]",
        "dW reads beyond the last column",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "FR07",
        "dw_ptr.dtype.element_ty), mask=col_mask)",
        "dw_ptr.dtype.element_ty), mask=cols >= 0)",
        "dW is written beyond the last column",
        HARD + "::test_guard_pages",
    ),
    _fault(
        "FR08",
        "tl.cast(start, tl.int64) + tl.arange",
        "start + tl.arange",
        "row indices are int32",
        HARD + "::test_beyond_int32",
    ),
    _fault(
        "FR09",
        "own_dx = torch.empty_like(dy) if dx is dy else dx",
        "own_dx = dx",
        "dX is written over the dY that dW still needs",
        HOST + " -k few_rows",
        LAUNCH,
    ),
    _fault(
        "FR10",
        "            dy.copy_(own_dx)\n",
        "            pass\n",
        "dX of few rows does not reach dY",
        HOST + " -k few_rows",
        LAUNCH,
    ),
    _fault(
        "FR11",
        "n_rows <= processors.count",
        "n_rows < processors.count",
        "a row a processor is many",
        HOST + " -k few_rows",
        PLANS,
    ),
    _fault(
        "FR12",
        "+ -(-n_cols // config.sum_cols)",
        "+ max(1, n_cols // config.sum_cols)",
        "the last columns of dW are not written",
        TILES,
        PLANS,
    ),
    _fault(
        "FR13",
        "(config.tiles.n_programs if needs_dx else 0)",
        "config.tiles.n_programs",
        "programs without work where dX is not needed",
        HOST + " -k few_rows",
        PLANS,
    ),
)
