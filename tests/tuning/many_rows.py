"""From how many rows half the warps are faster: `python3 -m tests.tuning.many_rows`, with a CUDA GPU.

The forward of few columns, with the table's tile of several rows and with the same tile on half its warps, side by
side, each call after a cleaned L2, where `tiles.with_half_the_warps` says that no bit changes; both results are
compared. `plans.are_many` follows what this finds.
"""

from __future__ import annotations

import functools

import torch

from rmsnorm.fused.tiles import forward_config, with_half_the_warps
from tests.benchmarks.timing import KernelTimer
from tests.tuning.candidates import DTYPES, Target
from tests.tuning.tune import Problem

COLUMNS = (64, 128, 256, 512)
MEGABYTES = (2, 4, 8, 16, 32, 64)


def line(dtype: str, n_cols: int, n_rows: int, timer: KernelTimer) -> str | None:
    """A row of the table, or None where the tile's warps cannot be halved."""
    itemsize = DTYPES[dtype].itemsize
    tile = forward_config(n_cols, itemsize, False, "llama")
    half = with_half_the_warps(tile, itemsize)
    if half == tile:
        return None
    problem = Problem(Target("forward", dtype, n_cols, False), n_rows)
    results, fewer = problem.forward(tile), problem.forward(half)
    assert all(torch.equal(a, b) for a, b in zip(results, fewer, strict=True)), (dtype, n_cols)
    calls = {name: functools.partial(problem.forward, c) for name, c in (("all", tile), ("half", half))}
    microseconds = [timing.median for timing in timer.time(calls).values()]
    return f"| {n_rows}×{n_cols} {dtype} | {tile.num_warps} | {microseconds[0]:.2f} | {microseconds[1]:.2f} |"


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA GPU")
    timer = KernelTimer()
    print("| n_rows × n_cols | warps | µs | on half of them |\n|---|---|---|---|")
    for dtype, itemsize in ((name, DTYPES[name].itemsize) for name in DTYPES):
        for n_cols in COLUMNS:
            for megabytes in MEGABYTES:
                found = line(dtype, n_cols, (megabytes << 20) // (n_cols * itemsize), timer)
                if found:
                    print(found, flush=True)


if __name__ == "__main__":
    main()
