"""Up to how many rows one backward launch is faster than two: `python3 -m tests.tuning.few_rows [--json FILE]`.

Few rows take one launch, in which programs of dW read all rows once more; more of them take a launch of tiles and one
that sums their partial rows. Both are timed side by side, each call after a cleaned L2, with the tiles of the table,
and the one launch with several tiles of dW. `plans.are_few` and `tiles.few_rows_config` follow what this finds.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import torch

from rmsnorm.fused import plans, tiles
from rmsnorm.fused.tiles import BackwardConfig, FewRowsConfig
from tests.benchmarks.timing import KernelTimer
from tests.tuning.candidates import DTYPES, Target
from tests.tuning.tune import Problem

ROWS = (1, 16, 64, 128, 256, 512, 1024)
COLUMNS = (64, 128, 512, 1024, 4096, 8192, 16384)
SUM_COLS = (16, 32, 64)
THREAD_ELEMENTS = 16  # of dW's tile


def configurations(
    n_rows: int, n_cols: int, itemsize: int, gpu: tiles.Processors
) -> dict[str, BackwardConfig | FewRowsConfig]:
    """Two launches, one launch as the rule has it, and one launch with other tiles of dW."""
    row_wise = tiles.is_row_wise("backward", n_cols, itemsize, None)
    rule = tiles.few_rows_config(n_rows, n_cols, itemsize, row_wise, gpu)
    found: dict[str, BackwardConfig | FewRowsConfig] = {
        "two": tiles.backward_config(n_rows, n_cols, itemsize, row_wise, gpu),
        "one": rule,
    }
    for cols in SUM_COLS:
        most = max(1, 32 * rule.tiles.num_warps * THREAD_ELEMENTS // cols)
        rows = min(tiles.next_power_of_two(n_rows), most)
        found[f"{rows}x{cols}"] = FewRowsConfig(rule.tiles, rows, cols)
    return found


def measure(dtype: str, n_rows: int, n_cols: int, timer: KernelTimer) -> dict[str, Any]:
    """Microseconds of every configuration for one shape."""
    target = Target("backward", dtype, n_cols, True)
    problem = Problem(target, n_rows)
    gpu = plans.processors(problem.x.device)
    found = configurations(n_rows, n_cols, DTYPES[dtype].itemsize, gpu)
    calls = {name: functools.partial(problem.run, config) for name, config in found.items()}
    times = {name: timing.median for name, timing in timer.time(calls).items()}
    return {"dtype": dtype, "n_rows": n_rows, "n_cols": n_cols, "microseconds": times}


def line(record: dict[str, Any]) -> str:
    times = record["microseconds"]
    others = {name: us for name, us in times.items() if name not in ("two", "one")}
    best = min(others, key=others.__getitem__)
    cells = (f"{times['two']:.2f}", f"{times['one']:.2f}", f"{others[best]:.2f} ({best})")
    return f"| {record['n_rows']}×{record['n_cols']} {record['dtype']} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write every time there")
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "f32"], choices=DTYPES)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA GPU")
    timer, records = KernelTimer(), []
    print("| n_rows × n_cols | two launches | one | one, best tile of dW |\n|---|---|---|---|")
    for dtype in arguments.dtypes:
        for n_cols in COLUMNS:
            for n_rows in ROWS:
                records.append(measure(dtype, n_rows, n_cols, timer))
                print(line(records[-1]), flush=True)
                if arguments.json:
                    arguments.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
