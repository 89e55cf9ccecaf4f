"""Which variant and which tile a shape gets. Pure arithmetic: no tensors, no launches."""

from __future__ import annotations

from dataclasses import dataclass

MAX_FUSED_COLS = 65536  # the widest row that one tile holds; wider rows take the eager path

BLOCK_WISE_ROWS = 16
BLOCK_WISE_MAX_COLS = 256
BLOCK_WISE_MIN_ROWS = 4096 * 8

SHARED_MEMORY_BYTES = 96 * 1024  # budget for rows in flight; every supported GPU has it


@dataclass(frozen=True)
class ForwardConfig:
    """One forward launch: rows a program, warps a program."""

    block_rows: int
    num_warps: int


@dataclass(frozen=True)
class BackwardConfig:
    """One backward launch: rows a tile, columns a chunk, warps a program, tiles in flight, programs in the grid."""

    block_rows: int
    block_cols: int
    num_warps: int
    num_stages: int
    n_programs: int
    reload_weight: bool = False


def next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def is_row_wise(n_rows: int, n_cols: int, row_mode: bool | None) -> bool:
    """The variant rule of the kernel profile, unless row_mode decides."""
    if row_mode is not None:
        return row_mode
    return next_power_of_two(n_cols) > BLOCK_WISE_MAX_COLS or n_rows < BLOCK_WISE_MIN_ROWS


def _block_rows(n_rows: int, n_cols: int, row_mode: bool | None) -> int:
    if is_row_wise(n_rows, n_cols, row_mode):
        return 1
    # A forced block-wise run of wide rows keeps the tile within what a program's registers hold.
    return max(2, min(BLOCK_WISE_ROWS, 16384 // next_power_of_two(n_cols)))


def _chunk_cols(n_cols: int) -> int:
    """The largest power of two whose multiples cover n_cols with less than an eighth to spare."""
    whole = next_power_of_two(n_cols)
    chunk = whole
    while chunk > 128 and 8 * (-(-n_cols // chunk) * chunk - n_cols) >= n_cols and 8 * chunk > whole:
        chunk //= 2
    return chunk


def _warps(elements: int, elements_a_thread: int, most: int = 32) -> int:
    return max(1, min(most, next_power_of_two(elements) // (32 * elements_a_thread)))


def forward_config(n_rows: int, n_cols: int, itemsize: int, row_mode: bool | None) -> ForwardConfig:
    """The forward launch for n_rows × n_cols of x with itemsize bytes an element."""
    block_rows = _block_rows(n_rows, n_cols, row_mode)
    return ForwardConfig(block_rows, _warps(block_rows * n_cols, 32 // itemsize if itemsize < 8 else 8))


def backward_config(
    n_rows: int, n_cols: int, itemsize: int, row_mode: bool | None, n_processors: int
) -> BackwardConfig:
    """The backward launch; n_processors is the GPU's count of streaming multiprocessors."""
    block_rows = _block_rows(n_rows, n_cols, row_mode)
    programs_a_processor = max(1, min(16, 8192 // next_power_of_two(n_cols)))
    n_tiles = -(-n_rows // block_rows)
    tile_bytes = 2 * block_rows * next_power_of_two(n_cols) * itemsize  # x and dy
    num_stages = max(1, min(3, 1 + SHARED_MEMORY_BYTES // (tile_bytes * programs_a_processor)))
    return BackwardConfig(
        block_rows=block_rows,
        block_cols=_chunk_cols(n_cols),
        num_warps=_warps(block_rows * n_cols, 16),
        num_stages=num_stages,
        n_programs=max(1, min(n_tiles, programs_a_processor * n_processors)),
        reload_weight=n_cols >= 16384,
    )
