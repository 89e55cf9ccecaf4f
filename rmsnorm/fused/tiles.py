"""Which variant and which tiles a shape gets. Pure arithmetic over a table: no tensors, no launches.

`tuned.json` holds the tiles that were fastest, or within the noise of it, in sweeps on an H200, one entry for each
element size of x, number of columns and variant (docs/maintain/tuning.md); an entry that names a casting mode is for
that one alone, where the others' tile does not suit it. Another GPU gets the same tiles, which depend on what
a row is and not on the GPU, with its own number of programs and no more rows in flight than its shared memory holds. A
number of columns that is not in the table gets the tiles of the next larger one.

Variant and tiles depend on the columns, the element size and the mode, never on the number of rows, so neither do the
bits of a row's y, rstd and dx. The number of programs does depend on it, and decides how dw is summed, nothing
else; so does the number of warps of a forward tile of several rows, where it leaves a row's threads as they are.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

MAX_FUSED_COLS = 65536  # wider rows take the eager path


@dataclass(frozen=True)
class ForwardConfig:
    """One forward launch.

    A program has block_rows rows, in chunks of block_cols columns, of which the first n_held stay in registers.
    """

    block_rows: int
    block_cols: int
    n_held: int
    num_warps: int


@dataclass(frozen=True)
class BackwardConfig:
    """One backward launch of tiles.

    n_programs programs take tiles of block_rows rows, in chunks of block_cols columns, with num_stages - 1 tiles in
    flight; reload_weight reads w again for every tile, where registers cannot hold it.
    """

    block_rows: int
    block_cols: int
    num_warps: int
    num_stages: int
    n_programs: int
    reload_weight: bool


@dataclass(frozen=True)
class FewRowsConfig:
    """One backward launch of few rows: a program for each of the tiles, and one for sum_cols columns of dw.

    Those of dw read sum_rows rows at a time.
    """

    tiles: BackwardConfig
    sum_rows: int
    sum_cols: int


@dataclass(frozen=True)
class SplitConfig:
    """One backward launch of split rows: n_groups groups of n_splits programs, block_cols columns each.

    reload_rows reads x and dy again where a row's sum has arrived, in place of holding them in registers until then.
    """

    n_splits: int
    block_cols: int
    num_warps: int
    n_groups: int
    reload_rows: bool


@dataclass(frozen=True)
class WeightGradientConfig:
    """One launch that sums partial rows of dw: block_cols columns a program, block_partials partial rows at a time."""

    block_partials: int
    block_cols: int
    num_warps: int


@dataclass(frozen=True)
class Processors:
    """What the configurations need to know of a GPU: multiprocessors, shared memory a program, cooperative launches."""

    count: int
    shared_memory: int
    cooperative: bool


def next_power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def is_row_wise(direction: str, n_cols: int, itemsize: int, row_mode: bool | None) -> bool:
    """The variant: what row_mode says, or block-wise up to the columns to which tiles of several rows were faster.

    The kernel profile asks for row-wise where n_rows < 4096 * 8, too. Left on purpose (docs/maintain/tuning.md):
    the norms of queries and keys, 16384 × 128 bfloat16, took 11.3/9.3 µs forward/backward row by row on an H200 and
    3.4/7.9 in tiles, 32767 × 64 took 21.1/12.5 and 3.3/8.1, and a row's bits changed with the number of rows beside it.
    """
    if row_mode is not None:
        return row_mode
    return n_cols > _block_wise_max_cols()[direction, itemsize]


@functools.cache
def _tuned() -> dict[str, Any]:
    tuned: dict[str, Any] = json.loads(resources.files("rmsnorm.fused").joinpath("tuned.json").read_text())
    return tuned


@functools.cache
def _block_wise_max_cols() -> dict[tuple[str, int], int]:
    """(direction, itemsize) → the widest row that is block-wise unless row_mode says otherwise."""
    return {(entry["direction"], entry["itemsize"]): entry["max_cols"] for entry in _tuned()["block_wise"]}


@functools.lru_cache(maxsize=4096)
def with_half_the_warps(config: ForwardConfig, itemsize: int) -> ForwardConfig:
    """The same tile on half the warps, each with twice the rows, for many rows of few columns.

    Only where a row's 16-byte pieces find a thread each on half the warps, too: then the row lies on as many threads as
    before, in the same order, and so its bits are the same. Other tiles stay as they are.
    """
    threads_a_row = config.block_cols * itemsize // 16
    half = config.num_warps // 2
    return replace(config, num_warps=half) if config.block_rows > 1 and threads_a_row <= 32 * half else config


@functools.cache
def _held_with_residual() -> dict[tuple[int, bool, int], int]:
    """(itemsize, row-wise, n_cols) of a forward entry → its n_held with a residual, where that is another."""
    entries = [entry for entry in _tuned()["entries"] if entry["direction"] == "residual"]
    return {(entry["itemsize"], entry["row_wise"], entry["n_cols"]): entry["n_held"] for entry in entries}


@functools.cache
def _table() -> dict[tuple[str, int, bool], list[dict[str, Any]]]:
    """(direction, itemsize, row-wise) → entries by rising n_cols, those of one casting mode before those of all."""
    table: dict[tuple[str, int, bool], list[dict[str, Any]]] = {}
    for entry in _tuned()["entries"]:
        table.setdefault((entry["direction"], entry["itemsize"], entry["row_wise"]), []).append(entry)
    for entries in table.values():
        entries.sort(key=lambda entry: (entry["n_cols"], "casting_mode" not in entry))
    return table


def _entry(
    direction: str, n_cols: int, itemsize: int, row_wise: bool, casting_mode: str | None = None
) -> dict[str, Any]:
    for entry in _table()[direction, itemsize, row_wise]:
        if entry["n_cols"] >= n_cols and entry.get("casting_mode") in (None, casting_mode):
            return entry
    # Block-wise was forced on wide rows: two rows of the row-wise tile.
    return {**_entry(direction, n_cols, itemsize, True, casting_mode), "block_rows": 2}


def _chunk_cols(n_cols: int, itemsize: int, entry: dict[str, Any]) -> int:
    """The entry's block_cols, halved while more than an eighth of the work would lie beyond n_cols.

    Not below 16 bytes a thread, except for rows that are narrower than that.
    """
    block_cols: int = entry["block_cols"]
    least = 32 * entry["num_warps"] * 16 // itemsize
    while block_cols > least and 8 * (-n_cols % block_cols) > n_cols:
        block_cols //= 2
    return min(block_cols, next_power_of_two(n_cols))


@functools.lru_cache(maxsize=4096)
def forward_config(
    n_cols: int, itemsize: int, row_wise: bool, casting_mode: str, has_residual: bool = False
) -> ForwardConfig:
    """The forward launch for rows of n_cols elements of itemsize bytes.

    A residual changes how many chunks are held, nothing that decides in which order a row is summed.
    """
    entry = _entry("forward", n_cols, itemsize, row_wise, casting_mode)
    block_cols = _chunk_cols(n_cols, itemsize, entry)
    n_held = entry["n_held"]
    if has_residual and "casting_mode" not in entry:
        n_held = _held_with_residual().get((itemsize, row_wise, entry["n_cols"]), n_held)
    n_held = min(-(-n_cols // block_cols), n_held * entry["block_cols"] // block_cols)
    return ForwardConfig(entry["block_rows"], block_cols, n_held, entry["num_warps"])


@functools.lru_cache(maxsize=4096)
def _backward_tiles(
    n_cols: int, itemsize: int, row_wise: bool, processors: Processors, has_ds: bool = False
) -> BackwardConfig:
    """The backward launch for any number of rows; n_programs is the most that the processors run side by side."""
    entry = _entry("backward", n_cols, itemsize, row_wise)
    block_cols = _chunk_cols(n_cols, itemsize, entry)
    num_stages = entry["num_stages"]
    arrays_in_flight = 2 + entry["reload_weight"] + has_ds
    tile_bytes = arrays_in_flight * entry["block_rows"] * (n_cols + -n_cols % block_cols) * itemsize
    while num_stages > 1 and (num_stages - 1) * tile_bytes + 2048 > processors.shared_memory:
        num_stages -= 1
    return BackwardConfig(
        block_rows=entry["block_rows"],
        block_cols=block_cols,
        num_warps=entry["num_warps"],
        num_stages=num_stages,
        n_programs=entry["programs_a_processor"] * processors.count,
        reload_weight=entry["reload_weight"],
    )


@functools.lru_cache(maxsize=4096)
def _with_programs(config: BackwardConfig, n_programs: int) -> BackwardConfig:
    return replace(config, n_programs=n_programs)


def fewest_programs(n_tiles: int, most: int) -> int:
    """The fewest programs that are done as soon as `most` would be: each has a partial row of dw to be summed."""
    return -(-n_tiles // -(-n_tiles // most))


def backward_config(
    n_rows: int, n_cols: int, itemsize: int, row_wise: bool, processors: Processors, has_ds: bool = False
) -> BackwardConfig:
    """The backward launch for n_rows × n_cols of x with itemsize bytes an element; never more programs than tiles."""
    config = _backward_tiles(n_cols, itemsize, row_wise, processors, has_ds)
    return _with_programs(config, fewest_programs(-(-n_rows // config.block_rows), config.n_programs))


@functools.lru_cache(maxsize=4096)
def few_rows_config(
    n_rows: int, n_cols: int, itemsize: int, row_wise: bool, processors: Processors, has_ds: bool = False
) -> FewRowsConfig:
    """The one backward launch for few rows: their tiles, and about a program a processor for dw.

    A thread of dw has sixteen elements at a time, where there are as many rows.
    """
    tiles = _backward_tiles(n_cols, itemsize, row_wise, processors, has_ds)
    tiles = _with_programs(tiles, -(-n_rows // tiles.block_rows))
    sum_cols = min(next_power_of_two(n_cols), max(16, next_power_of_two(n_cols // processors.count)))
    sum_rows = min(next_power_of_two(n_rows), max(1, 32 * tiles.num_warps * 16 // sum_cols))
    return FewRowsConfig(tiles, sum_rows, sum_cols)


@functools.lru_cache(maxsize=4096)
def split_config(n_cols: int, itemsize: int, processors: Processors) -> SplitConfig | None:
    """The backward launch of split rows, or None where rows are narrow enough for tiles.

    n_groups is the most that the table's GPU keeps resident; the launch lowers it where the compiled kernel needs more.
    """
    entries = _table().get(("split", itemsize, True), [])
    entry = next((entry for entry in entries if entry["n_cols"] >= n_cols > entry["above_n_cols"]), None)
    if entry is None or not processors.cooperative:
        return None
    n_splits = -(-n_cols // entry["block_cols"])
    n_groups = entry["programs_a_processor"] * processors.count // n_splits
    if n_groups == 0:
        return None
    return SplitConfig(n_splits, entry["block_cols"], entry["num_warps"], n_groups, entry["reload_rows"])


@functools.lru_cache(maxsize=4096)
def weight_gradient_config(n_partials: int, n_cols: int, processors: Processors) -> WeightGradientConfig:
    """About eight programs a processor, of 16 columns or more (64 bytes of every partial row) and 32 at most.

    Wide rows fill the processors with fewer partial rows at a time: on an H200, 64 or 128 of 16,384 to 65,536 columns
    took 6.6 to 16.5 µs, 256 took 8.7 to 25.8 (tests.tuning.tune --only finish:bf16).
    """
    block_partials = min(64 if n_cols > 8192 else 256, next_power_of_two(n_partials))
    share = next_power_of_two(n_cols // (8 * processors.count))
    return WeightGradientConfig(
        block_partials=block_partials,
        block_cols=min(next_power_of_two(n_cols), max(16, min(32, share))),
        num_warps=min(8, next_power_of_two(max(1, min(n_partials, block_partials) // 16))),
    )
