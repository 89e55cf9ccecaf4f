"""The offline tuner: sweeps tiles on this machine's GPU and writes the best into `rmsnorm/fused/tuned.json`.

    python3 -m tests.tuning.tune                                    every entry of the table
    python3 -m tests.tuning.tune --only bf16:4096 backward:f64      entries that a pattern names, in this order
    python3 -m tests.tuning.tune --only forward:bf16:5120           a whole name may be new to the table,
    python3 -m tests.tuning.tune --only forward:bf16:65536:none     also one of a casting mode alone,
    python3 -m tests.tuning.tune --only residual:bf16:8192          or how much a forward with a residual holds
    python3 -m tests.tuning.tune --dry-run                          what would be measured, without a GPU

Each candidate is judged against the derived bounds first, then all of a target are timed in one session, each call
after a cleaned L2; the fastest ones once more, longer. What counts is the geometric mean over the target's numbers of
rows, for all of which the tile is one. The present entry stays unless another is faster by more than HYSTERESIS; among
those that are equally fast the simplest is taken, so that a second run finds the same. Where both variants of a number
of columns were measured, they decide up to where rows are block-wise. The log holds every time and is what a run goes
on from: targets in it are not measured again. Sums of partial rows ("finish") follow a rule, not the table: they are
measured for the log alone.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as FuturesTimeoutError
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton

from rmsnorm import checks
from rmsnorm.fused import launch, plans
from rmsnorm.fused.tiles import (
    BackwardConfig,
    ForwardConfig,
    Processors,
    SplitConfig,
    WeightGradientConfig,
    fewest_programs,
)
from rmsnorm.fused.variant import Variant
from tests.benchmarks.shapes import geometric_mean
from tests.benchmarks.timing import KernelTimer
from tests.tuning.candidates import DTYPES, Config, Entry, Target, candidates, configuration, present, targets

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "rmsnorm" / "fused" / "tuned.json"
SOURCES = (
    "rmsnorm/fused/kernels.py",
    "rmsnorm/fused/split_kernels.py",
    "rmsnorm/fused/plans.py",
    "rmsnorm/fused/launch.py",
)
HYSTERESIS = 0.02  # the present entry stays while the fastest gains less
EQUAL = 0.01  # candidates this close to the fastest count as equally fast
FINALISTS = 6
SESSION = 64  # candidates that are timed side by side
REPETITIONS, FINAL_REPETITIONS = 7, 31
H200 = Processors(count=132, shared_memory=232448, cooperative=True)  # for a dry run
EPS = 1e-6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ORDER = ("forward", "residual", "backward", "split")

Times = Mapping[Config, float]


# The choice.


def choose(times: Times, now: Config) -> Config:
    """The configuration to use: `times` holds microseconds, simple configurations before others."""
    fastest = min(times.values())
    if now in times and times[now] <= fastest * (1 + HYSTERESIS):
        return now
    return next(config for config, microseconds in times.items() if microseconds <= fastest * (1 + EQUAL))


def finalists(times: Times, now: Config) -> list[Config]:
    """The fastest few and the present one, in the order of `times`."""
    fastest = sorted(times, key=times.__getitem__)[:FINALISTS]
    return [config for config in times if config in fastest or config == now]


def table_text(table: Mapping[str, Any]) -> str:
    """`tuned.json`: one entry a line, in one order."""

    def place(entry: Entry) -> tuple:
        mode = entry.get("casting_mode", "")
        return ORDER.index(entry["direction"]), not entry["row_wise"], entry["itemsize"], entry["n_cols"], mode

    def lines(entries: list[Entry]) -> str:
        return "[\n" + ",\n".join(map(json.dumps, entries)) + "\n]"

    entries = sorted(table["entries"], key=place)
    device, block_wise = json.dumps(table["device"]), lines(table["block_wise"])
    return f'{{\n"device": {device},\n"block_wise": {block_wise},\n"entries": {lines(entries)}\n}}\n'


def updated(table: dict[str, Any], log: dict[str, Any], device: str) -> str:
    """The table's text with the log's choices in place of what they replace, and no mark on what is measured."""
    entries = {_identity(entry): entry for entry in table["entries"]}
    for record in log["targets"].values():
        identity = _identity(record["entry"])
        if record["entry"]["direction"] in ORDER and (record["changed"] or identity in entries):
            entries[identity] = {name: value for name, value in record["entry"].items() if name != "found"}
    block_wise = [entry | {"max_cols": block_wise_max_cols(entry, log)} for entry in table["block_wise"]]
    return table_text({"device": device, "block_wise": block_wise, "entries": list(entries.values())})


def block_wise_max_cols(entry: Mapping[str, Any], log: dict[str, Any]) -> int:
    """Up to how many columns rows are block-wise: to below the first number of columns where row-wise was faster."""
    most: int = entry["max_cols"]
    times: dict[int, dict[bool, float]] = {}  # n_cols → row-wise → microseconds
    for record in log["targets"].values():
        about = record["entry"]
        if (about["direction"], about["itemsize"]) == (entry["direction"], entry["itemsize"]):
            times.setdefault(about["n_cols"], {})[about["row_wise"]] = record["microseconds"]
    for n_cols in sorted(n for n, found in times.items() if len(found) == 2):
        if times[n_cols][True] < times[n_cols][False]:
            return min(most, n_cols // 2)
        most = max(most, n_cols)
    return most


def _identity(entry: Entry) -> tuple:
    return entry["direction"], entry["itemsize"], entry["row_wise"], entry["n_cols"], entry.get("casting_mode")


def settings(target: Target) -> dict[str, Any]:
    return {"offset": 0.0, "casting_mode": target.casting_mode or "llama"}


# The measurement.


class Problem:
    """Random tensors of one size, and a launch with a configuration."""

    def __init__(self, target: Target, n_rows: int) -> None:
        self.target = target
        dtype, shape = DTYPES[target.dtype], (n_rows, target.n_cols)
        generator = torch.Generator(device=DEVICE).manual_seed(0)
        random = functools.partial(torch.randn, generator=generator, device=DEVICE, dtype=dtype)
        if target.direction == "finish":  # integers whose sums are exact
            integers = torch.randint(-(2**12), 2**12, shape, generator=generator, device=DEVICE)
            self.partials = integers.to(checks.compute_dtype(dtype))
            self.dw = torch.empty(target.n_cols, device=DEVICE, dtype=dtype)
            return
        self.x, self.w = random(shape), random(target.n_cols)
        self.streams: dict[str, torch.Tensor] = {}
        if target.direction == "residual":
            self.streams = {"r": random(shape), "s": torch.empty_like(self.x)}
        elif target.direction != "forward":
            self.dy, self.dx = random(shape), torch.empty_like(self.x)
            _, self.rstd = self.forward(None)

    def forward(self, config: ForwardConfig | None) -> tuple[torch.Tensor, torch.Tensor]:
        return launch.rms_norm_forward(self.x, self.w, eps=EPS, config=config, **settings(self.target), **self.streams)

    def backward(self, config: BackwardConfig | SplitConfig) -> torch.Tensor | None:
        if isinstance(config, BackwardConfig):
            n_tiles = -(-len(self.x) // config.block_rows)
            config = replace(config, n_programs=fewest_programs(n_tiles, config.n_programs))
        return launch.rms_norm_backward(
            self.dy, self.x, self.w, self.rstd, dx=self.dx, needs_dw=True, config=config, **settings(self.target)
        )

    def run(self, config: Config) -> dict[str, torch.Tensor]:
        """What a launch with the configuration computes, by name."""
        if isinstance(config, ForwardConfig):
            return dict(zip(("y", "rstd"), self.forward(config), strict=True))
        if isinstance(config, WeightGradientConfig):
            finish(config, self.partials, self.dw)
            return {"dw": self.dw}
        dw = self.backward(config)
        assert dw is not None
        return {"dx": self.dx, "dw": dw}


def finish(config: WeightGradientConfig, partials: torch.Tensor, dw: torch.Tensor) -> None:
    """Sum partial rows as the launch does, with this configuration."""
    n_partials, n_cols = partials.shape
    variant = plans._weight_gradient_variant(config, partials.dtype, dw.dtype, n_cols)
    variant.launch(-(-n_cols // config.block_cols), (partials, dw), (n_partials,))


def few_programs(config: Config) -> Config:
    """The same code in few programs, so that each has several tiles."""
    if isinstance(config, BackwardConfig):
        return replace(config, n_programs=2)
    if isinstance(config, SplitConfig):
        return replace(config, n_groups=2)
    return config


class Judge:
    """Says whether a configuration's results lie within their bounds, on a few rows."""

    def __init__(self, target: Target) -> None:
        from references import arrays
        from references.bounds import tolerances

        self._to_numpy = arrays.to_numpy
        self._faults: dict[Config, str | None] = {}
        # The bounds of long rows take long; a program has two tiles or more in any case.
        self.problem = Problem(target, max(4, min(8, 2**16 // target.n_cols)) if target.row_wise else 100)
        if target.direction == "finish":
            return
        x, w = (arrays.to_numpy(t.cpu()) for t in (self.problem.x, self.problem.w))
        if target.direction == "residual":
            x = x + arrays.to_numpy(self.problem.streams["r"].cpu())
        self.bounds = tolerances.forward_bounds(x, w, eps=EPS, **settings(target))
        if target.direction in ("backward", "split"):
            dy = arrays.to_numpy(self.problem.dy.cpu())
            self.bounds = tolerances.backward_bounds(dy, x, w, eps=EPS, **settings(target))

    def fault(self, config: Config) -> str | None:
        """What is wrong with the configuration, or None."""
        config = few_programs(config)
        if config not in self._faults:
            self._faults[config] = self._judge(config)
        return self._faults[config]

    def _judge(self, config: Config) -> str | None:
        try:
            results = {name: self._to_numpy(result.cpu()) for name, result in self.problem.run(config).items()}
        except (RuntimeError, triton.runtime.errors.TritonError) as error:
            return f"{type(error).__name__}: {error}"[:200]
        if isinstance(config, WeightGradientConfig):
            wanted = self.problem.partials.double().sum(0).to(self.problem.dw.dtype)
            return None if (results["dw"] == self._to_numpy(wanted.cpu())).all() else "dw is wrong"
        for name, result in results.items():
            ratio = float(self.bounds[name].ratio(result).max())
            if not ratio <= 1:
                return f"{name} is {ratio:.3g} times its bound"
        return None


def tune(target: Target, processors: Processors, timer: KernelTimer) -> dict[str, Any]:
    """Judge and time every candidate, and choose: the target's record in the log."""
    judge = Judge(target)
    found = candidates(target, processors)
    faults = {config: judge.fault(config) for config in found}
    right = [config for config, fault in faults.items() if fault is None]
    now = configuration(target, present(target, processors), processors)

    def time_all(configs: list[Config], repetitions: int) -> dict[Config, dict[int, float]]:
        """Microseconds of each configuration by number of rows."""
        times: dict[Config, dict[int, float]] = {config: {} for config in configs}
        for n_rows in target.row_counts:
            problem = Problem(target, n_rows)
            for start in range(0, len(configs), SESSION):
                session = configs[start : start + SESSION]
                calls = {str(i): functools.partial(problem.run, config) for i, config in enumerate(session)}
                for config, timing in zip(session, timer.time(calls, repetitions).values(), strict=True):
                    times[config][n_rows] = timing.median
        return times

    def means(times: dict[Config, dict[int, float]]) -> dict[Config, float]:
        return {config: geometric_mean(list(by_rows.values())) for config, by_rows in times.items()}

    first = time_all(right, REPETITIONS)
    final = time_all(finalists(means(first), now), FINAL_REPETITIONS)
    scores = means(final)
    chosen = choose(scores, now)
    return {
        "entry": found[chosen],
        "changed": chosen != now,
        "microseconds": scores[chosen],
        "by_rows": final[chosen],
        "present_microseconds": scores.get(now),
        "present_by_rows": final.get(now),
        "candidates": [
            {
                "config": str(config),
                "entry": found[config],
                "fault": faults[config],
                "first": first.get(config),
                "final": final.get(config),
            }
            for config in found
        ],
    }


# Compilation, in other processes: it needs no GPU, and what it leaves in Triton's cache is found there.


def compile_candidate(target: Target, config: Config, processors: Processors) -> None:
    """Compile what the launch with this configuration runs at every number of rows; launch nothing."""

    def compile_only(variant: Variant, n_programs: int, tensors: Any, integers: Any) -> None:
        variant._kernel.warmup(*tensors, *integers, *variant._constants, grid=(1,), **variant._options)

    for n_rows in target.row_counts:
        _compile(target, n_rows, config, processors, compile_only)


def _compile(target: Target, n_rows: int, config: Config, processors: Processors, compile_only: Any) -> None:
    dtype = DTYPES[target.dtype]
    x = torch.empty(n_rows, target.n_cols, dtype=dtype, device="meta")
    w = torch.empty(target.n_cols, dtype=dtype, device="meta")
    with (
        patch.object(Variant, "launch", compile_only),
        patch.object(Variant, "resident_programs", lambda *_: sys.maxsize),
        patch.object(plans, "processors", lambda _: processors),
    ):
        if isinstance(config, ForwardConfig):
            streams = {"r": x, "s": x} if target.direction == "residual" else {}
            launch.rms_norm_forward(x, w, eps=EPS, config=config, **settings(target), **streams)
        elif isinstance(config, WeightGradientConfig):
            finish(config, x.to(checks.compute_dtype(dtype)), w)
        else:
            rstd = torch.empty(n_rows, dtype=checks.compute_dtype(dtype), device="meta")
            dx = torch.empty_like(x)
            launch.rms_norm_backward(x, x, w, rstd, dx=dx, needs_dw=True, config=config, **settings(target))


def kernels_of(target: Target, processors: Processors) -> list[Config]:
    """The candidates that are different code: the number of programs is none of it."""
    return list(dict.fromkeys(map(few_programs, candidates(target, processors))))


def to_compile(target: Target, processors: Processors) -> list[Config]:
    """One configuration for every kernel, and for every number of partial rows, which decides how they are summed."""
    numbers: dict[int, Config] = {}
    for config in candidates(target, processors):
        if isinstance(config, BackwardConfig):
            numbers[config.n_programs] = config
        elif isinstance(config, SplitConfig):
            numbers[config.n_groups] = config
    return [*kernels_of(target, processors), *numbers.values()]


def start_compiling(pool: ProcessPoolExecutor, target: Target, processors: Processors) -> list[Future]:
    return [pool.submit(compile_candidate, target, config, processors) for config in to_compile(target, processors)]


# The run.


def fingerprint() -> dict[str, str]:
    """What the times in a log depend on."""
    sources = "".join((ROOT / name).read_text() for name in SOURCES)
    return {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "sources": hashlib.sha256(sources.encode()).hexdigest()[:16],
    }


def load_log(path: Path, about: dict[str, str]) -> dict[str, Any]:
    """The log to go on from, or an empty one.

    Raises SystemExit where the log belongs to another GPU, other versions or other kernels.
    """
    if not path.exists():
        return {"about": about, "targets": {}}
    log = json.loads(path.read_text())
    if log["about"] != about:
        raise SystemExit(f"{path} was measured with {log['about']}, this is {about}: name another log")
    return log


def describe(wanted: list[Target], processors: Processors) -> list[str]:
    lines = []
    for target in wanted:
        n_candidates, n_kernels = len(candidates(target, processors)), len(kernels_of(target, processors))
        lines.append(f"{target}: {n_candidates} candidates, {n_kernels} kernels, rows {target.row_counts}")
    return lines


def run(wanted: list[Target], log_path: Path, table_path: Path, time_budget: float) -> None:
    started = time.monotonic()
    processors = plans.processors(torch.device("cuda", torch.cuda.current_device()))
    log = load_log(log_path, fingerprint())
    todo = [target for target in wanted if str(target) not in log["targets"]]
    print(f"{len(todo)} targets to measure, {len(wanted) - len(todo)} in the log", flush=True)
    timer = KernelTimer()
    table = json.loads(TABLE.read_text())
    if log["targets"]:
        table_path.write_text(updated(table, log, log["about"]["device"]), encoding="utf-8")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        compiling = {target: start_compiling(pool, target, processors) for target in todo}
        for target in todo:
            try:
                for future in compiling[target]:
                    future.exception(timeout=max(0.0, started + time_budget - time.monotonic()))
                if time.monotonic() > started + time_budget:
                    raise FuturesTimeoutError
            except FuturesTimeoutError:
                print(f"time is up: {target} and what follows is not measured", flush=True)
                pool.shutdown(wait=False, cancel_futures=True)
                break
            try:
                record = tune(target, processors, timer)
            except (RuntimeError, AssertionError) as error:
                print(f"{target}: not measured: {error}", flush=True)
                continue
            log["targets"][str(target)] = record
            log_path.write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
            table_path.write_text(updated(table, log, log["about"]["device"]), encoding="utf-8")
            print(progress(target, record, time.monotonic() - started), flush=True)
            torch.cuda.empty_cache()


def progress(target: Target, record: dict[str, Any], seconds: float) -> str:
    faults = sum(candidate["fault"] is not None for candidate in record["candidates"])
    before = record["present_microseconds"]
    now = "faulty" if before is None else f"{before:.1f} µs"
    outcome = f"{record['microseconds']:.1f} µs {record['entry']}" if record["changed"] else "kept"
    return f"{seconds:5.0f} s {target}: {len(record['candidates'])} candidates, {faults} faulty; {now} → {outcome}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(ORDER), metavar="PATTERN", help="what to tune, in order")
    parser.add_argument(
        "--time-budget", type=float, default=threading.TIMEOUT_MAX, metavar="SECONDS", help="start nothing later"
    )
    parser.add_argument("--log", type=Path, default=Path("tuning_log.json"), help="every time; gone on from if there")
    parser.add_argument("--table", type=Path, default=TABLE, help="where the table goes that the log makes")
    parser.add_argument("--dry-run", action="store_true", help="list what would be measured")
    arguments = parser.parse_args()
    try:
        wanted = targets(arguments.only)
    except ValueError as error:
        parser.error(str(error))
    if arguments.dry_run:
        print("\n".join(describe(wanted, H200)))
    elif not torch.cuda.is_available():
        parser.error("tuning needs a CUDA GPU; --dry-run does not")
    else:
        run(wanted, arguments.log, arguments.table, arguments.time_budget)


if __name__ == "__main__":
    main()
