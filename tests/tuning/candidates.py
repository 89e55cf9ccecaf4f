"""What the tuner may choose from: entries of `rmsnorm/fused/tuned.json`, simple ones first, and what they launch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any
from unittest.mock import patch

import torch

from rmsnorm.checks import CASTING_MODE_NAMES
from rmsnorm.fused import tiles
from rmsnorm.fused.tiles import BackwardConfig, ForwardConfig, Processors, SplitConfig, WeightGradientConfig

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
DIRECTIONS = ("forward", "residual", "backward", "split", "finish")
WARPS = (1, 2, 4, 8, 16, 32)
VECTOR = 16  # bytes of the widest access
MOST_HELD = 256  # bytes of x that a thread holds in registers
MOST_ACCUMULATED = 256  # bytes of dw that a thread holds: beside it lie as many of x_hat and of m
MOST_WARPS = 64  # on a processor

Entry = dict[str, Any]
Config = ForwardConfig | BackwardConfig | SplitConfig | WeightGradientConfig


@dataclass(frozen=True)
class Target:
    """One entry of the table to be tuned: a direction, a dtype, a number of columns, a variant, and perhaps a mode.

    An entry of a forward may be for one casting mode alone; others are for all and are timed in llama.
    """

    direction: str
    dtype: str
    n_cols: int
    row_wise: bool
    casting_mode: str | None = None

    def __str__(self) -> str:
        name = f"{self.direction}:{self.dtype}:{self.n_cols}:{'row' if self.row_wise else 'block'}"
        return name if self.casting_mode is None else f"{name}:{self.casting_mode}"

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    @property
    def key(self) -> tuple[str, int, bool]:
        """Of the table in `rmsnorm.fused.tiles`."""
        return self.direction, self.itemsize, self.row_wise

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Numbers of rows to time it with, by columns and direction: the tile is one for all of them.

        A backward of fewer rows is one launch of its own. Of a sum they are partial rows.
        """
        if self.direction == "finish":
            return (16, 132, 264, 528, 1056)
        if self.n_cols <= 256:  # heads: of one token, and of a batch of long texts
            return (1024, 4096, 16384, 131072, 1048576)
        if self.n_cols <= 1024:
            return (1024, 4096, 16384, 131072) if self.direction == "backward" else (256, 1024, 4096, 16384, 131072)
        if self.n_cols <= 2048:
            return (1024, 4096, 16384)
        if self.n_cols <= 16384:
            return (4096,) if self.direction == "backward" else (512, 4096)
        return (2048,)

    def fits(self, pattern: str) -> bool:
        """Whether every part of a pattern such as "bf16:4096" or "backward:f64" names it."""
        return set(pattern.split(":")) <= set(str(self).split(":"))


def entries() -> list[Entry]:
    return json.loads(resources.files("rmsnorm.fused").joinpath("tuned.json").read_text())["entries"]


def targets(patterns: list[str]) -> list[Target]:
    """Those of the table that a pattern names, in the patterns' order; a whole name may also be new to the table.

    Raises ValueError for a pattern that names nothing.
    """
    names = {DTYPES[name].itemsize: name for name in DTYPES}
    known = [
        Target(e["direction"], names[e["itemsize"]], e["n_cols"], e["row_wise"], e.get("casting_mode"))
        for e in entries()
        if e["direction"] != "residual"
    ]
    known += [replace(t, direction="residual") for t in known if _has_choice_with_residual(t)]
    known += [Target("finish", name, 2**i, True) for name in DTYPES for i in range(6, 17)]
    found: dict[Target, None] = {}
    for pattern in patterns:
        fitting = [target for target in known if target.fits(pattern)] or _new_target(pattern)
        found |= dict.fromkeys(fitting)
    return list(found)


def _has_choice_with_residual(target: Target) -> bool:
    """Whether the forward's entry has several chunks, any number of which may be held."""
    if target.direction != "forward" or target.casting_mode is not None:
        return False
    return target.n_cols > tiles.forward_config(target.n_cols, target.itemsize, target.row_wise, "llama").block_cols


def _new_target(pattern: str) -> list[Target]:
    direction, *rest = pattern.split(":")
    mode = rest.pop() if direction == "forward" and len(rest) == 3 and rest[-1] in CASTING_MODE_NAMES else None
    if direction not in DIRECTIONS or len(rest) != 2 or rest[0] not in DTYPES or not rest[1].isdecimal():
        raise ValueError(
            f"{pattern!r} names no entry; a new one is DIRECTION:DTYPE:N_COLS or forward:DTYPE:N_COLS:MODE"
        )
    return [Target(direction, rest[0], int(rest[1]), True, mode)]


def present(target: Target, processors: Processors) -> Entry:
    """The entry that the target has now, under its own number of columns."""
    if target.direction == "finish":  # a rule, as an entry
        now = tiles.weight_gradient_config(processors.count, target.n_cols, processors)
        return _about(target) | vars(now)
    if target.direction == "residual":
        now = tiles.forward_config(target.n_cols, target.itemsize, target.row_wise, "llama", True)
        return _about(target) | {"n_held": now.n_held}
    if target.direction == "split":
        table = tiles._table()[target.key]
        found = next(e for e in table if e["n_cols"] >= target.n_cols > e["above_n_cols"])
    else:
        found = tiles._entry(target.direction, target.n_cols, target.itemsize, target.row_wise, target.casting_mode)
    return {**found, **_about(target)}


def _about(target: Target) -> Entry:
    about = {name: getattr(target, name) for name in ("direction", "itemsize", "row_wise", "n_cols")}
    return about if target.casting_mode is None else about | {"casting_mode": target.casting_mode}


def configuration(target: Target, entry: Entry, processors: Processors) -> Config:
    """What `rmsnorm.fused.tiles` makes of a table with this entry alone, with the most programs."""
    if target.direction == "finish":
        return WeightGradientConfig(entry["block_partials"], entry["block_cols"], entry["num_warps"])
    if target.direction == "residual":
        tile = tiles.forward_config(target.n_cols, target.itemsize, target.row_wise, "llama")
        return replace(tile, n_held=entry["n_held"])
    with patch.object(tiles, "_table", lambda: {target.key: [entry]}):
        if target.direction == "forward":
            mode = target.casting_mode or "llama"
            return tiles.forward_config.__wrapped__(target.n_cols, target.itemsize, target.row_wise, mode)
        if target.direction == "split":
            split = tiles.split_config.__wrapped__(target.n_cols, target.itemsize, processors)
            assert split is not None
            return split
        return tiles._backward_tiles.__wrapped__(target.n_cols, target.itemsize, target.row_wise, processors)


def candidates(target: Target, processors: Processors) -> dict[Config, Entry]:
    """The present entry first, then simple ones before others; one for each launch."""
    generate = {
        "forward": _forward, "residual": _residual, "backward": _backward, "split": _split, "finish": _finish,
    }[target.direction]  # fmt: skip
    now = present(target, processors)
    found: dict[Config, Entry] = {configuration(target, now, processors): now}
    for choice in generate(target, processors):
        entry = _about(target) | choice
        launched = configuration(target, entry, processors)
        if isinstance(launched, ForwardConfig | BackwardConfig):  # what it is, where the chunk would be halved
            entry |= {field: value for field, value in vars(launched).items() if field in entry}
        found.setdefault(launched, entry)
    return found


def _tiles(target: Target, most_chunks: int) -> Iterator[tuple[int, int, int]]:
    """block_rows, block_cols, num_warps: few chunks first, then few warps."""
    whole = tiles.next_power_of_two(target.n_cols)
    chunks = [whole, *(cols for cols in (8192, 4096, 2048, 1024) if cols < min(whole, target.n_cols))]
    rows = (1,) if target.row_wise else (2, 4, 8, 16, 32)
    for block_rows, block_cols, num_warps in itertools.product(rows, chunks, WARPS):
        share = block_rows * block_cols * target.itemsize / (32 * num_warps)  # bytes of a chunk a thread
        narrow = block_rows * block_cols * target.itemsize <= 32 * VECTOR
        if -(-target.n_cols // block_cols) <= most_chunks and (VECTOR <= share <= MOST_HELD or narrow > num_warps // 2):
            yield block_rows, block_cols, num_warps


def _forward(target: Target, processors: Processors) -> Iterator[Entry]:
    for block_rows, block_cols, num_warps in _tiles(target, 16):
        n_chunks = -(-target.n_cols // block_cols)
        for n_held in sorted({n_chunks, 0, 1, 2, 4} & set(range(n_chunks + 1)), reverse=True):
            if n_held * block_rows * block_cols * target.itemsize <= 32 * num_warps * MOST_HELD:
                yield {"block_rows": block_rows, "block_cols": block_cols, "n_held": n_held, "num_warps": num_warps}


def _residual(target: Target, processors: Processors) -> Iterator[Entry]:
    """The forward's tile, which decides the bits of a row, with any number of its chunks held."""
    tile = tiles.forward_config(target.n_cols, target.itemsize, target.row_wise, "llama")
    for n_held in range(-(-target.n_cols // tile.block_cols), -1, -1):
        if n_held * tile.block_rows * tile.block_cols * target.itemsize <= 32 * tile.num_warps * MOST_HELD:
            yield {"n_held": n_held}


def _backward(target: Target, processors: Processors) -> Iterator[Entry]:
    stages, counts = ((1, 2, 3, 4), (1, 2, 3, 4, 6, 8, 16)) if target.row_wise else ((1, 3), (2, 4, 8, 16))
    for block_rows, block_cols, num_warps in _tiles(target, 8):
        width = -(-target.n_cols // block_cols) * block_cols
        accumulated = block_rows * width * max(4, target.itemsize) / (32 * num_warps)
        if accumulated > MOST_ACCUMULATED and num_warps < max(WARPS):
            continue
        reloads = (False,) if target.n_cols * target.itemsize < 16384 else (False, True)
        for num_stages, reload_weight in itertools.product(stages, reloads):
            in_flight = (num_stages - 1) * (3 if reload_weight else 2) * block_rows * width * target.itemsize + 2048
            if num_stages == 1 and target.row_wise and target.n_cols * target.itemsize < 16384 and target.itemsize < 8:
                continue  # rows so short are better with the next ones in flight
            for programs in counts:
                if programs * num_warps <= MOST_WARPS and programs * in_flight <= processors.shared_memory:
                    yield {
                        "block_rows": block_rows,
                        "block_cols": block_cols,
                        "num_warps": num_warps,
                        "num_stages": num_stages,
                        "programs_a_processor": programs,
                        "reload_weight": reload_weight,
                    }


def _split(target: Target, processors: Processors) -> Iterator[Entry]:
    above_n_cols = present(target, processors)["above_n_cols"]
    for block_cols, num_warps in itertools.product((1024, 2048, 4096), (2, 4, 8, 16)):
        share = block_cols * target.itemsize / (32 * num_warps)
        if not VECTOR <= share <= MOST_HELD / 2:
            continue
        for reload_rows, programs in itertools.product((False, True), (2, 3, 4, 6, 8)):
            n_splits = -(-target.n_cols // block_cols)
            if n_splits > 1 and programs * processors.count >= n_splits and programs * num_warps <= MOST_WARPS:
                yield {
                    "above_n_cols": above_n_cols,
                    "block_cols": block_cols,
                    "num_warps": num_warps,
                    "programs_a_processor": programs,
                    "reload_rows": reload_rows,
                }


def _finish(target: Target, processors: Processors) -> Iterator[Entry]:
    for block_cols, block_partials, num_warps in itertools.product((16, 32, 64, 128), (32, 64, 128, 256), (2, 4, 8)):
        if block_cols <= target.n_cols and block_cols * block_partials <= 32 * num_warps * 64:
            yield {"block_partials": block_partials, "block_cols": block_cols, "num_warps": num_warps}
