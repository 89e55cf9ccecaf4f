"""From the benchmark's JSON to docs/performance.md and its picture.

python -m tests.benchmarks.table docs/benchmark.json docs/performance.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.shapes import geometric_mean

OURS = ("liger", "liger out of place")
COLOURS = {
    "liger": "#0b6",
    "torch.nn.RMSNorm": "#888",
    "torch.compile": "#c60",
    "liger-kernel": "#06c",
    "quack": "#a3c",
}

Times = dict[str, dict[tuple[str, str], dict[str, Any]]]  # shape → (provider, direction) → extra_info


def load(path: Path) -> tuple[Times, list[dict[str, Any]], dict[str, Any]]:
    """Kernel times by shape, the host and memory records, and the machine."""
    data = json.loads(path.read_text())
    times: Times = {}
    rest = []
    for record in data["benchmarks"]:
        info = record["extra_info"]
        if "kernel_us" in info:
            shape = f"{info['n_rows']}×{info['n_cols']} {info['dtype']}"
            times.setdefault(shape, {})[info["provider"], info["direction"]] = info
        elif "provider" in info:
            rest.append(info)
    return times, rest, data


def peers(row: dict[tuple[str, str], dict[str, Any]], direction: str) -> dict[str, float]:
    return {p: info["kernel_us"] for (p, d), info in row.items() if d == direction and p not in OURS}


def cell(row: dict[tuple[str, str], dict[str, Any]], provider: str) -> str:
    parts = [row.get((provider, direction)) for direction in ("forward", "backward")]
    return "/".join("–" if part is None else f"{part['kernel_us']:.1f}" for part in parts)


def speed_table(times: Times) -> list[str]:
    providers = list(dict.fromkeys(p for row in times.values() for p, _ in row))
    lines = [
        "| n_rows × n_cols | floor | stream | " + " | ".join(providers) + " | best peer ÷ ours |",
        "|---|" + "---|" * (len(providers) + 3),
    ]
    for shape, row in times.items():
        forward, backward = (row["liger", direction] for direction in ("forward", "backward"))
        floors = "/".join(f"{i['share_of_floor'] * i['kernel_us']:.1f}" for i in (forward, backward))
        streams = "/".join(f"{i['stream_us']:.1f}" for i in (forward, backward))
        ratios = "/".join(
            f"{min(peers(row, d).values()) / i['kernel_us']:.2f}"
            for d, i in (("forward", forward), ("backward", backward))
        )
        lines.append(
            f"| {shape} | {floors} | {streams} | " + " | ".join(cell(row, p) for p in providers) + f" | {ratios} |"
        )
    return lines


def summary(times: Times) -> list[str]:
    lines = []
    for direction in ("forward", "backward"):
        ours = {shape: row["liger", direction] for shape, row in times.items()}
        best = [min(peers(times[shape], direction).values()) / info["kernel_us"] for shape, info in ours.items()]
        lines.append(
            f"- {direction}: {geometric_mean(best):.2f} × the best peer of each row (geometric mean; worst row "
            f"{min(best):.2f}), {geometric_mean([i['share_of_floor'] for i in ours.values()]):.2f} of the floor."
        )
        for peer in ("liger-kernel", "quack", "torch.nn.RMSNorm", "torch.compile"):
            ratios = [
                peers(times[s], direction)[peer] / i["kernel_us"]
                for s, i in ours.items()
                if peer in peers(times[s], direction)
            ]
            if ratios:
                lines.append(f"  - {geometric_mean(ratios):.2f} × {peer} over {len(ratios)} rows")
    return lines


def host_table(rest: list[dict[str, Any]]) -> list[str]:
    lines = ["| provider | forward | forward + backward |", "|---|---|---|"]
    host = {(info["provider"], info["direction"]): info["host_us"] for info in rest if "host_us" in info}
    for provider in dict.fromkeys(p for p, _ in host):
        lines.append(f"| {provider} | {host[provider, 'forward']:.0f} | {host[provider, 'full']:.0f} |")
    return lines


def memory_table(rest: list[dict[str, Any]]) -> list[str]:
    lines = ["| provider | forward | backward |", "|---|---|---|"]
    for info in rest:
        if "peak_bytes" in info:
            peaks = (f"{info['peak_bytes'][d] / 2**20:.1f}" for d in ("forward", "backward"))
            lines.append(f"| {info['provider']} | " + " | ".join(peaks) + " |")
    return lines


def picture(times: Times, path: Path) -> None:
    """Share of the floor against hidden size, for every provider, forward and backward."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), sharey=True)
    for column, dtype in enumerate(("float32", "bfloat16")):
        for line, direction in enumerate(("forward", "backward")):
            axis = axes[line][column]
            for provider, colour in COLOURS.items():
                points = sorted(
                    (info["n_cols"], info["share_of_floor"])
                    for row in times.values()
                    for (p, d), info in row.items()
                    if (p, d) == (provider, direction)
                    and info["dtype"] == dtype
                    and (info["n_rows"] == 4096 or info["n_cols"] >= 32768)
                    and info["n_cols"] not in (4100, 4104)
                )
                if points:
                    label = "this project" if provider == "liger" else provider
                    axis.plot(*zip(*points, strict=True), "o-", color=colour, label=label)
            axis.axhline(1, color="black", linewidth=0.8, linestyle=":")
            axis.set(xscale="log", title=f"{direction}, {dtype}", ylim=(0, 1.15))
            axis.set_xticks([1024, 4096, 16384, 65536], ["1024", "4096", "16384", "65536"])
            axis.minorticks_off()
    axes[0][0].set_ylabel("share of the floor")
    axes[1][0].set_ylabel("share of the floor")
    axes[1][0].set_xlabel("n_cols")
    axes[1][1].set_xlabel("n_cols")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path)


PROSE = """
```sh
python3 -m pytest tests/benchmarks --benchmark-only --benchmark-json docs/benchmark.json
python3 -m tests.benchmarks.table docs/benchmark.json docs/performance.md
```

Kernel time of one call in microseconds, forward / backward with dW: the sum over its kernels as the profiler sees them,
median of 15, each after the L2 was filled with clean lines, all providers of a row interleaved in one session, weight
in X's dtype, random data, gradients by `torch.autograd.grad`. *Floor* is the bytes that must move over 4.28 TB/s;
*stream* is `copy_` and `add`, the same traffic with next to no arithmetic. Every result was judged against its bounds
first; ours must conform. "–" was not measured: eager PyTorch on the largest tensors, and torch.compile beyond the
eighth shape, where this run met its recompile limit and fell back to eager PyTorch.

![share of the floor against hidden size](performance.svg)
"""


def page(source: Path) -> str:
    times, rest, data = load(source)
    gpu = data["machine_info"].get("gpu", {})
    commit = data["commit_info"]["id"][:12]
    about = f"One {gpu.get('name')}; {gpu.get('versions')}; commit {commit}; {data['datetime'][:10]}."
    parts = [
        ["# Performance", "", about, PROSE],
        summary(times),
        [""],
        speed_table(times),
        ["", "## Host time", "", "Of one eager call, 16 × 1024 bfloat16, microseconds.", ""],
        host_table(rest),
        ["", "## Memory", ""],
        [
            "Peak beyond the inputs of a forward and of a backward, 4096 × 4096 bfloat16 (one tensor is 32 MiB), MiB.",
            "",
        ],
        memory_table(rest),
        [""],
    ]
    return "\n".join(line for part in parts for line in part)


def main(source: str, target: str) -> None:
    Path(target).write_text(page(Path(source)), encoding="utf-8")
    picture(load(Path(source))[0], Path(target).with_suffix(".svg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
