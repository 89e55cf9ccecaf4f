"""From the benchmark's JSON, of one run or of several, to docs/results/performance.md and its pictures beside it.

The words are in page.md, whose $names stand for what is made here. The command is in it too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from string import Template
from typing import Any

from tests.benchmarks import aims
from tests.benchmarks.shapes import geometric_mean

COLOURS = {
    "liger": "#0b6",
    "torch.nn.RMSNorm": "#888",
    "torch.compile": "#c60",
    "liger-kernel": "#06c",
    "quack": "#a3c",
}
PROGRAM_COLOURS = {"transformers": "#aaa", "torch.nn": "#666", "liger-kernel": "#06c", "liger": "#0b6"}
AXES = {"n_rows": "rows", "n_cols": "columns"}

MODES = {"eager": "eager", "compiled": "compiled", "graphs": "CUDA graphs"}

Growth = dict[tuple[str, str], dict[int, dict[str, float]]]  # (axis, direction) → size → line → microseconds
Programs = dict[tuple[str, str, str], dict[str, dict[str, Any]]]  # (model, size, mode) → norms → extra_info
Times = dict[str, dict[tuple[str, str], dict[str, Any]]]  # shape → (provider, direction) → extra_info


def read(sources: list[Path]) -> list[dict[str, Any]]:
    """The runs."""
    return [json.loads(path.read_text()) for path in sources]


def records(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What every benchmark of the runs says of itself."""
    return [record["extra_info"] for run in runs for record in run["benchmarks"]]


def speeds(infos: list[dict[str, Any]]) -> Times:
    """Kernel times by shape."""
    times: Times = {}
    for info in infos:
        if "kernel_us" in info:
            times.setdefault(shape_of(info), {})[info["provider"], info["direction"]] = info
    return times


def peers(row: dict[tuple[str, str], dict[str, Any]], direction: str) -> dict[str, float]:
    return {p: info["kernel_us"] for (p, d), info in row.items() if d == direction and p not in aims.OURS}


def cell(row: dict[tuple[str, str], dict[str, Any]], provider: str) -> str:
    parts = [row.get((provider, direction)) for direction in ("forward", "backward")]
    return "/".join("–" if part is None else f"{part['kernel_us']:.1f}" for part in parts)


def speed_table(times: Times) -> list[str]:
    providers = list(dict.fromkeys(p for row in times.values() for p, _ in row))
    lines = header("n_rows × n_cols", ["floor", "stream", *providers, "best peer ÷ ours"])
    for shape, row in times.items():
        forward, backward = (row["liger", direction] for direction in ("forward", "backward"))
        floors = "/".join(f"{i['share_of_floor'] * i['kernel_us']:.1f}" for i in (forward, backward))
        streams = "/".join(f"{i['stream_us']:.1f}" for i in (forward, backward))
        ratios = "/".join(
            f"{aims.best_peer(row, d) / i['kernel_us']:.2f}" for d, i in (("forward", forward), ("backward", backward))
        )
        lines.append(
            f"| {shape} | {floors} | {streams} | " + " | ".join(cell(row, p) for p in providers) + f" | {ratios} |"
        )
    return lines


def summary(times: Times) -> list[str]:
    lines = []
    for direction in ("forward", "backward"):
        ours = {shape: row["liger", direction] for shape, row in times.items()}
        best = [aims.best_peer(times[shape], direction) / info["kernel_us"] for shape, info in ours.items()]
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


def host_table(infos: list[dict[str, Any]]) -> list[str]:
    names = {"forward": "forward", "no_grad": "forward, no_grad", "full": "forward + backward"}
    host = {(info["provider"], info["direction"]): info["host_us"] for info in infos if "host_us" in info}
    directions = [direction for direction in names if ("liger", direction) in host]
    lines = header("provider", [names[direction] for direction in directions])
    for provider in dict.fromkeys(p for p, _ in host):
        cells = (f"{host[provider, direction]:.0f}" for direction in directions)
        lines.append(f"| {provider} | " + " | ".join(cells) + " |")
    return lines


def memory_table(infos: list[dict[str, Any]]) -> list[str]:
    lines = header("provider", ["forward", "backward"])
    for info in infos:
        if "peak_bytes" in info:
            peaks = (f"{info['peak_bytes'][d] / 2**20:.1f}" for d in ("forward", "backward"))
            lines.append(f"| {info['provider']} | " + " | ".join(peaks) + " |")
    return lines


def growth(infos: list[dict[str, Any]]) -> Growth:
    """What test_growth measured."""
    found: Growth = {}
    for info in infos:
        if "growth_us" in info:
            found.setdefault((info["axis"], info["direction"]), {})[info[info["axis"]]] = info["growth_us"]
    return found


def growth_table(found: Growth, axis: str) -> list[str]:
    """Forward/backward microseconds by size: the floor, "stream" and every provider."""
    if not found:
        return []
    forward, backward = found[axis, "forward"], found[axis, "backward"]
    names = list(next(iter(forward.values())))
    lines = header(axis, names)
    for size in sorted(forward):
        cells = (f"{forward[size][name]:.1f}/{backward[size][name]:.1f}" for name in names)
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return lines


def growth_picture(found: Growth, path: Path) -> None:
    """Microseconds against rows and against columns, both logarithmic: a straight line of slope one is no overhead."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), sharey=True)
    for (axis, direction), sizes in found.items():
        plot = axes[("forward", "backward").index(direction)][list(AXES).index(axis)]
        for name in next(iter(sizes.values())):
            style = {"floor": {"color": "black", "linestyle": ":"}, "stream": {"color": "black", "linewidth": 0.8}}.get(
                name, {"color": COLOURS.get(name), "marker": "o", "markersize": 3}
            )
            label = "this project" if name == "liger" else name
            plot.plot(sorted(sizes), [sizes[size][name] for size in sorted(sizes)], label=label, **style)
        plot.set(xscale="log", yscale="log", title=f"{direction}, by {AXES[axis]}", xlabel=axis)
    for line in axes:
        line[0].set_ylabel("µs")
    measured = (us for sizes in found.values() for us_of in sizes.values() for n, us in us_of.items() if n != "floor")
    axes[0][0].set_ylim(bottom=min(measured) / 2)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path)


def settings_table(infos: list[dict[str, Any]]) -> list[str]:
    """What test_settings measured: our own settings of each shape, forward/backward microseconds."""
    times = by_shape(infos, "settings_us")
    if not times:
        return []
    names = list(next(iter(times.values()))["forward"])
    return [*header("n_rows × n_cols", names), *(both_directions(shape, row, names) for shape, row in times.items())]


def residual_table(infos: list[dict[str, Any]]) -> list[str]:
    """What test_residual measured: every provider of each shape, and how far the best peer is from ours."""
    times = by_shape(infos, "add_norm_us")
    if not times:
        return []
    names = list(next(iter(times.values()))["forward"])
    lines = header("n_rows × n_cols", [*names, "best peer ÷ ours"])
    for shape, row in times.items():
        ratios = "/".join(f"{aims.best_with_residual(us) / us['liger']:.2f}" for us in row.values())
        lines.append(f"{both_directions(shape, row, names)} {ratios} |")
    errors = [info["worst_ratio"] for info in infos if "add_norm_us" in info]
    worst = (max(error[name] for error in errors) for name in names if name != "floor")
    return [*lines, f"| error ÷ bound | – | {' | '.join(f'{ratio:.3g}' for ratio in worst)} | – |"]


def by_shape(infos: list[dict[str, Any]], key: str) -> dict[str, dict[str, dict[str, float]]]:
    """Shape → direction → name → microseconds, of the records that have the key."""
    times: dict[str, dict[str, dict[str, float]]] = {}
    for info in infos:
        if key in info:
            times.setdefault(shape_of(info), {})[info["direction"]] = info[key]
    return times


def shape_of(info: dict[str, Any]) -> str:
    return f"{info['n_rows']}×{info['n_cols']} {info['dtype']}"


def header(first: str, names: list[str]) -> list[str]:
    return [f"| {first} | {' | '.join(names)} |", "|---|" + "---|" * len(names)]


def both_directions(shape: str, row: dict[str, dict[str, float]], names: list[str]) -> str:
    cells = (f"{row['forward'][name]:.1f}/{row['backward'][name]:.1f}" for name in names)
    return f"| {shape} | {' | '.join(cells)} |"


def programs(infos: list[dict[str, Any]]) -> Programs:
    """What test_programs measured."""
    found: Programs = {}
    for info in infos:
        if "program" in info:
            found.setdefault((info["model"], info["size"], info["mode"]), {})[info["provider"]] = info
    return found


def programs_table(found: Programs) -> list[str]:
    if not found:
        return []
    names = list(dict.fromkeys(provider for row in found.values() for provider in row))
    lines = header("model, batch × tokens, mode", names)
    for (model, size, mode), row in found.items():
        cells = (program_cell(row.get(name)) for name in names)
        lines.append(f"| {model}, {size}, {MODES[mode]} | " + " | ".join(cells) + " |")
    return lines


def program_cell(info: dict[str, Any] | None) -> str:
    if info is None:
        return "–"
    if info["fault"] is not None:
        return f"**wrong**: {info['fault']}"
    peak = f" ({info['peak_mib']:.0f})" if "peak_mib" in info else ""
    return f"{info['step_ms']:.2f}{peak}"


def programs_picture(found: Programs, path: Path) -> None:
    """A bar for each kind of norms: the time of a step beside that with transformers' own norms."""
    pyplot = _pyplot()
    rows = {key: row for key, row in found.items() if "step_ms" in row.get("transformers", {})}
    models = list(dict.fromkeys(model for model, _, _ in rows))
    figure, axes = pyplot.subplots(1, len(models), figsize=(4 * len(models), 6), sharex=True, squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        places = [key for key in rows if key[0] == model]
        for i, (name, colour) in enumerate(PROGRAM_COLOURS.items()):
            for place, key in enumerate(places):
                if "step_ms" in (info := rows[key].get(name, {})):
                    share = info["step_ms"] / rows[key]["transformers"]["step_ms"]
                    label = ("this project" if name == "liger" else name) if place == 0 else None
                    axis.barh(place + 0.2 * i - 0.3, share, 0.2, color=colour, label=label)
        axis.set_yticks(range(len(places)), [f"{size}\n{MODES[mode]}" for _, size, mode in places])
        axis.invert_yaxis()
        axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
        axis.set(title=model, xlabel="time ÷ with transformers' norms")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "rmsnorm"  # the same picture from the same figures
    from matplotlib import pyplot

    return pyplot


def picture(times: Times, path: Path) -> None:
    """Share of the floor against hidden size, for every provider, forward and backward."""
    pyplot = _pyplot()
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


def about(run: dict[str, Any]) -> str:
    gpu = run["machine_info"].get("gpu", {})
    commit = run["commit_info"]["id"][:12]
    return f"One {gpu.get('name')}; {gpu.get('versions')}; commit {commit}; {run['datetime'][:10]}."


def tables(runs: list[dict[str, Any]]) -> dict[str, str]:
    """What stands for each $name of page.md; nothing for what no run has measured."""
    infos = records(runs)
    times, grown = speeds(infos), growth(infos)
    lines = {
        "about": list(dict.fromkeys(map(about, runs))),
        "programs": programs_table(programs(infos)),
        "summary": summary(times),
        "speeds": speed_table(times),
        "residual": residual_table(infos),
        "aims": aims.table(times, infos),
        "at_stream": [f"{aims.at_stream(times):.2f}"],
        "settings": settings_table(infos),
        "growth_by_rows": growth_table(grown, "n_rows"),
        "growth_by_columns": growth_table(grown, "n_cols"),
        "host": host_table(infos),
        "memory": memory_table(infos),
    }
    return {name: "\n".join(text) for name, text in lines.items()}


def page(sources: list[Path]) -> str:
    """page.md with its tables; a section of which one is empty is left out."""
    found = tables(read(sources))
    sections = Path(__file__).with_name("page.md").read_text(encoding="utf-8").split("\n## ")
    told = [Template(text) for text in sections]
    told = [template for template in told if all(found[name] for name in template.get_identifiers())]
    return "\n## ".join(template.substitute(found) for template in told)


def main(*paths: str) -> None:
    *sources, target = map(Path, paths)
    target.write_text(page(sources), encoding="utf-8")
    infos = records(read(sources))
    picture(speeds(infos), target.with_suffix(".svg"))
    if steps := programs(infos):
        programs_picture(steps, target.with_name("programs.svg"))
    if found := growth(infos):
        growth_picture(found, target.with_name("growth.svg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
