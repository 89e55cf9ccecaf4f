"""What this project wants to be as fast as, and how far the benchmark's figures are from it, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.shapes import geometric_mean

OURS = ("liger", "liger out of place")
MB = 10**6
ITEMSIZE = {"bfloat16": 2, "float32": 4}
DIRECTIONS = ("forward", "backward")

Info = dict[str, Any]  # a benchmark's extra_info
Row = Mapping[tuple[str, str], Info]  # (provider, direction) → extra_info
Times = Mapping[str, Row]  # shape → row


@dataclass(frozen=True)
class Aim:
    """A ratio for each row, and what it should be: at least so much, or at most."""

    name: str
    wanted: float
    ratios: dict[str, float]
    at_least: bool = True

    def reached(self, ratio: float) -> bool:
        return ratio >= self.wanted if self.at_least else ratio <= self.wanted

    def __str__(self) -> str:
        """A line of the page's table."""
        worst = (min if self.at_least else max)(self.ratios, key=self.ratios.__getitem__)
        count = sum(map(self.reached, self.ratios.values()))
        where = f" ({worst})" if len(self.ratios) > 1 else ""
        sign = "≥" if self.at_least else "≤"
        cells = (
            self.name,
            f"{sign} {self.wanted:.2f}",
            f"{self.ratios[worst]:.2f}{where}",
            f"{count} of {len(self.ratios)}",
        )
        return f"| {' | '.join(cells)} |"


def best_peer(row: Row, direction: str) -> float:
    """Microseconds of the fastest provider that is not ours."""
    return min(info["kernel_us"] for (p, d), info in row.items() if d == direction and p not in OURS)


def speed_aims(times: Times) -> Iterator[Aim]:
    """Those on kernel times."""

    def ratios(direction: str, of: Any, where: Any = lambda info: True, ours: str = "liger") -> dict[str, float]:
        infos = {shape: row[ours, direction] for shape, row in times.items()}
        return {shape: of(times[shape], info) for shape, info in infos.items() if where(info)}

    def to_best_peer(row: Row, info: Info) -> float:
        return best_peer(row, info["direction"]) / info["kernel_us"]

    def of_stream(row: Row, info: Info) -> float:
        return info["share_of_stream"]

    def of_floor(row: Row, info: Info) -> float:
        return info["share_of_floor"]

    def tensor(info: Info) -> float:
        return info["n_rows"] * info["n_cols"] * ITEMSIZE[info["dtype"]] / MB

    def narrow(info: Info) -> bool:
        return info["n_cols"] <= 16384

    def behind(row: Row, info: Info) -> float:
        return info["kernel_us"] - best_peer(row, info["direction"])

    def short(info: Info) -> bool:
        """Few columns and few rows: a launch, and little else."""
        return info["n_cols"] <= 512 and info["n_rows"] < 1024

    yield Aim("forward: best peer ÷ ours", 0.97, ratios("forward", to_best_peer, lambda info: not short(info)))
    below = ratios("forward", behind, short)
    yield Aim("forward: µs behind the best peer, up to 512 columns below 1024 rows", 0.3, below, False)
    yield Aim(
        "forward: share of stream, 16 MB or more, up to 16,384 columns",
        0.95,
        ratios("forward", of_stream, lambda info: narrow(info) and tensor(info) >= 16),
    )
    for ours, place in zip(OURS, ("in place", "out of place"), strict=True):
        found = ratios("backward", to_best_peer, ours=ours)
        yield Aim(f"backward {place}: best peer ÷ ours", 1.0, found)
        before = [found[shape] for shape, row in times.items() if _was_there_before(row["liger", "backward"])]
        yield Aim(f"backward {place}: its geometric mean", 1.5, {"all": geometric_mean(list(found.values()))})
        yield Aim(f"backward {place}: that of the 23 rows before few columns", 1.33, {"all": geometric_mean(before)})
    liger_kernel = [
        row["liger-kernel", "backward"]["kernel_us"] / row["liger", "backward"]["kernel_us"]
        for row in times.values()
        if ("liger-kernel", "backward") in row
    ]
    if liger_kernel:
        yield Aim("backward: geometric mean of liger-kernel ÷ ours", 2.3, {"all": geometric_mean(liger_kernel)})
    for size, least, most, wanted in (("64 MB or more", 64, float("inf"), 0.9), ("16 to 64 MB", 16, 64, 0.85)):
        yield Aim(
            f"backward: share of stream, {size}, up to 16,384 columns",
            wanted,
            ratios("backward", of_stream, lambda info, a=least, b=most: narrow(info) and a <= tensor(info) < b),
        )
    yield Aim("forward: share of the floor, wider rows", 0.88, ratios("forward", of_floor, lambda i: not narrow(i)))
    for dtype, wanted in (("bfloat16", 0.8), ("float32", 0.9)):
        yield Aim(
            f"backward: share of the floor, wider rows, {dtype}",
            wanted,
            ratios("backward", of_floor, lambda i, dtype=dtype: not narrow(i) and i["dtype"] == dtype),
        )
    for direction in DIRECTIONS:
        heads = ratios(direction, of_floor, lambda info: info["n_cols"] <= 256 and info["n_rows"] >= 262144)
        yield Aim(f"{direction}: share of the floor, head sizes", 0.97, heads)
    for direction in DIRECTIONS:
        yield Aim(f"{direction}: time a column beside 4096 columns", 1.1, beside_4096(times, direction), False)
    yield Aim(
        "up to 512 rows: best peer ÷ ours",
        1.0,
        {
            f"{shape}, {direction}": ratio
            for direction in DIRECTIONS
            for shape, ratio in ratios(
                direction, to_best_peer, lambda info: info["n_rows"] <= 512 and not short(info)
            ).items()
        },
    )


def _was_there_before(info: Info) -> bool:
    """Whether the row is one of the 23 that the table had before those of few columns and of 24,576."""
    return info["n_cols"] != 24576 and (info["n_cols"] > 512 or info["n_rows"] >= 262144)


def beside_4096(times: Times, direction: str) -> dict[str, float]:
    """Rows of 4104 and 4100 columns: their time a column over that of 4096 columns."""
    found = {}
    for n_cols, dtype in ((4104, "bfloat16"), (4100, "float32")):
        odd, even = (f"4096×{n} {dtype}" for n in (n_cols, 4096))
        if odd in times and even in times:
            us = {shape: times[shape]["liger", direction]["kernel_us"] for shape in (odd, even)}
            found[odd] = us[odd] / us[even] * 4096 / n_cols
    return found


def best_with_residual(us: Mapping[str, float]) -> float:
    """Microseconds of the fastest provider of addition and norm that is not ours."""
    return min(value for name, value in us.items() if name not in (*OURS, "add, liger", "floor"))


def residual_aims(infos: list[Info]) -> Iterator[Aim]:
    """Those on the residual stream."""
    measured = [info for info in infos if "add_norm_us" in info]
    for direction in DIRECTIONS:
        rows = {
            f"{info['n_rows']}×{info['n_cols']} {info['dtype']}": info
            for info in measured
            if info["direction"] == direction and info["n_rows"] >= 1024
        }
        to_best_peer = {
            row: best_with_residual(info["add_norm_us"]) / info["add_norm_us"]["liger"] for row, info in rows.items()
        }
        yield Aim(f"{direction} with a residual, from 1,024 rows: best peer ÷ ours", 1.0, to_best_peer)
        of_floor = {
            row: info["add_norm_us"]["floor"] / info["add_norm_us"]["liger"]
            for row, info in rows.items()
            if info["n_rows"] * info["n_cols"] * ITEMSIZE[info["dtype"]] >= 64 * MB
        }
        yield Aim(f"{direction} with a residual, 64 MB or more: share of the floor", 0.9, of_floor)


def settings_aims(infos: list[Info]) -> Iterator[Aim]:
    """Those on our own settings: no mode is slower than llama, and a frozen weight costs nothing."""
    settings = {
        f"{info['n_rows']}×{info['n_cols']} {info['dtype']}, {info['direction']}": info["settings_us"]
        for info in infos
        if "settings_us" in info
    }
    if not settings:
        return
    for mode in ("gemma", "none"):
        yield Aim(f"{mode} ÷ llama", 1.03, {row: us[mode] / us["llama"] for row, us in settings.items()}, False)
    frozen = {row: us["frozen weight"] / us["llama"] for row, us in settings.items() if row.endswith("backward")}
    yield Aim("backward of a frozen weight ÷ with dW", 1.0, frozen, False)


def host_aims(infos: list[Info]) -> Iterator[Aim]:
    """Those on the host time of an eager call."""
    host = {(info["provider"], info["direction"]): info["host_us"] for info in infos if "host_us" in info}
    for provider, direction, name, wanted in (
        ("torch.nn.RMSNorm", "no_grad", "forward, no_grad", 1.15),
        ("torch.nn.RMSNorm", "full", "forward + backward", 1.35),
        ("liger-kernel", "forward", "forward", 1 / 3),
    ):
        if (provider, direction) in host:
            ratio = host["liger", direction] / host[provider, direction]
            yield Aim(f"host time, {name}: ours ÷ {provider}", wanted, {"all": ratio}, False)


def program_aims(infos: list[Info]) -> Iterator[Aim]:
    """Those on training steps: ours beside transformers' own norms, compiled."""
    steps = {
        (i["model"], i["size"], i["mode"], i["provider"]): i["step_ms"]
        for i in infos
        if i.get("program") == "step" and "step_ms" in i
    }
    for size, wanted in (("1×512", 1.05), ("4×2048", 1.0)):
        ratio = {
            f"{model}, {mode}": ms / steps[model, size, mode, "transformers"]
            for (model, at, mode, provider), ms in steps.items()
            if (at, provider) == (size, "liger") and mode != "eager" and (model, size, mode, "transformers") in steps
        }
        yield Aim(f"training step {size}, compiled: ours ÷ transformers' norms", wanted, ratio, False)


def at_stream(times: Times) -> float:
    """The geometric mean of best peer ÷ ours in the backward, if ours took what stream takes."""
    infos = {shape: row["liger", "backward"] for shape, row in times.items()}
    return geometric_mean([best_peer(times[shape], "backward") / info["stream_us"] for shape, info in infos.items()])


def table(times: Times, infos: list[Info]) -> list[str]:
    """The page's lines."""
    aims = (
        *speed_aims(times), *residual_aims(infos), *settings_aims(infos), *host_aims(infos), *program_aims(infos)
    )  # fmt: skip
    return [
        "| ratio | aim | worst row | reached |",
        "|---|---|---|---|",
        *(str(aim) for aim in aims if aim.ratios),
    ]
