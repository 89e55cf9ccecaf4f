"""docs/results/performance.md is what its command makes of the figures beside it, and growth becomes a section."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from tests.benchmarks import aims, table  # noqa: E402

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FIGURES = [RESULTS / f"data/{name}.json" for name in ("benchmark", "host", "growth", "residual", "programs")]


def record(axis: str, direction: str, n_rows: int, n_cols: int, liger: float) -> dict:
    times = {"floor": liger / 2, "liger": liger, "stream": liger - 1}
    sizes = {"n_rows": n_rows, "n_cols": n_cols}
    return {"extra_info": {"axis": axis, "direction": direction, **sizes, "growth_us": times}}


@pytest.fixture
def grown(tmp_path: Path) -> list[Path]:
    """The committed figures, and a run of two sizes of each axis."""
    runs = [json.loads(FIGURES[0].read_text()) for _ in range(2)]
    runs[0]["benchmarks"] = [r for r in runs[0]["benchmarks"] if "growth_us" not in r["extra_info"]]
    runs[1]["benchmarks"] = []
    for direction, liger in (("forward", 10.0), ("backward", 20.0)):
        runs[1]["benchmarks"] += [record("n_rows", direction, n, 4096, liger * n) for n in (4, 1)]
        runs[1]["benchmarks"] += [record("n_cols", direction, 4096, n, liger * n) for n in (64, 128)]
    paths = [tmp_path / f"{i}.json" for i in range(2)]
    for path, run in zip(paths, runs, strict=True):
        path.write_text(json.dumps(run))
    return paths


def test_the_page_is_what_its_command_makes() -> None:
    assert table.page(FIGURES) == (RESULTS / "performance.md").read_text(encoding="utf-8")


def test_an_aim_names_its_worst_row_and_counts_those_that_reach_it() -> None:
    ratios = {"a": 0.9, "b": 1.0, "c": 1.2}
    assert str(aims.Aim("speed", 1.0, ratios)) == "| speed | ≥ 1.00 | 0.90 (a) | 2 of 3 |"
    assert str(aims.Aim("cost", 1.1, ratios, at_least=False)) == "| cost | ≤ 1.10 | 1.20 (c) | 2 of 3 |"
    assert str(aims.Aim("mean", 1.4, {"all": 1.28})) == "| mean | ≥ 1.40 | 1.28 | 0 of 1 |"


def test_aims_are_measured_by_the_committed_figures() -> None:
    infos = table.records(table.read(FIGURES))
    times = table.speeds(infos)
    found = {aim.name: aim for aim in (*aims.speed_aims(times), *aims.settings_aims(infos), *aims.host_aims(infos))}
    shape = "4096×1024 bfloat16"
    row = {p: info["kernel_us"] for (p, d), info in times[shape].items() if d == "backward"}
    best = min(us for name, us in row.items() if name not in ("liger", "liger out of place"))
    assert found["backward in place: best peer ÷ ours"].ratios[shape] == best / row["liger"]
    assert found["backward out of place: best peer ÷ ours"].ratios[shape] == best / row["liger out of place"]
    assert set(found["forward: time a column beside 4096 columns"].ratios) == {
        "4096×4104 bfloat16",
        "4096×4100 float32",
    }
    shares = {name: set(aim.ratios) for name, aim in found.items()}
    wide, narrow, heads, few = "2048×32768 bfloat16", "4096×4096 float32", "262144×256 bfloat16", "16×4096 bfloat16"
    for name, inside, outside in (
        ("forward: best peer ÷ ours", {wide, narrow, heads, few}, {"16×64 bfloat16"}),
        ("forward: share of stream, 16 MB or more, up to 16,384 columns", {narrow, heads}, {wide, few}),
        ("backward: share of stream, 64 MB or more, up to 16,384 columns", {narrow, heads}, {wide, few, shape}),
        ("backward: share of stream, 16 to 64 MB, up to 16,384 columns", {"4096×4104 bfloat16"}, {narrow, shape}),
        ("forward: share of the floor, wider rows", {wide}, {narrow, heads, few}),
        ("backward: share of the floor, head sizes", {heads}, {wide, narrow, few}),
    ):
        assert inside <= shares[name] and not outside & shares[name], name
    settings = [f"{i['n_rows']}×{i['n_cols']} {i['dtype']}, {i['direction']}" for i in infos if "settings_us" in i]
    assert settings and shares["none ÷ llama"] == set(settings)
    host = {(i["provider"], i["direction"]): i["host_us"] for i in infos if "host_us" in i}
    ratio = found["host time, forward + backward: ours ÷ torch.nn.RMSNorm"].ratios["all"]
    assert ratio == host["liger", "full"] / host["torch.nn.RMSNorm", "full"]


def info(n_rows: int, n_cols: int, provider: str, direction: str, us: float) -> dict:
    sizes = {"n_rows": n_rows, "n_cols": n_cols, "dtype": "bfloat16", "direction": direction, "provider": provider}
    return {**sizes, "kernel_us": us, "share_of_stream": 1.0, "share_of_floor": 1.0, "stream_us": us}


def test_few_columns_have_aims_of_their_own() -> None:
    infos = [
        info(n_rows, n_cols, provider, direction, us)
        for n_rows, n_cols, ours in ((16, 64, 1.5), (4096, 64, 2.0), (4096, 4096, 4.0), (4096, 24576, 8.0))
        for direction in ("forward", "backward")
        for provider, us in (("liger", ours), ("liger out of place", ours), ("quack", 2 * ours - 1.6))
    ]
    found = {aim.name: aim for aim in aims.speed_aims(table.speeds(infos))}
    behind = found["forward: µs behind the best peer, up to 512 columns below 1024 rows"]
    assert behind.ratios == {"16×64 bfloat16": pytest.approx(0.1)}
    assert "16×64 bfloat16" not in found["forward: best peer ÷ ours"].ratios
    assert len(found["backward in place: best peer ÷ ours"].ratios) == 4
    assert found["backward in place: that of the 23 rows before few columns"].ratios["all"] == pytest.approx(6.4 / 4)


def program(norms: str, ms: float | None, mode: str = "compiled") -> dict:
    about = {"program": "step", "model": "qwen3", "size": "1×512", "mode": mode, "provider": norms}
    timed = {"fault": "loss 8.3178, with transformers' norms 8.3567"} if ms is None else {"fault": None, "step_ms": ms}
    return {"extra_info": {**about, **timed, "peak_mib": 100.4}}


def test_programs_are_a_section_and_a_wrong_one_has_no_time(grown: list[Path], tmp_path: Path) -> None:
    assert "## Programs" not in table.page(grown)
    run = json.loads(grown[1].read_text())
    run["benchmarks"] += [program("transformers", 4.0), program("liger-kernel", None), program("liger", 5.0)]
    grown[1].write_text(json.dumps(run))
    page = table.page(grown)
    wrong = "**wrong**: loss 8.3178, with transformers' norms 8.3567"
    assert "| model, batch × tokens, mode | transformers | liger-kernel | liger |" in page
    assert f"| qwen3, 1×512, compiled | 4.00 (100) | {wrong} | 5.00 (100) |" in page
    assert "| training step 1×512, compiled: ours ÷ transformers' norms | ≤ 1.05 | 1.25 | 0 of 1 |" in page
    pytest.importorskip("matplotlib")
    table.main(*map(str, grown), str(tmp_path / "performance.md"))
    assert (tmp_path / "programs.svg").read_text(encoding="utf-8").rstrip().endswith("</svg>")


def with_residual(n_rows: int, n_cols: int, direction: str, ours: float, peer: float) -> dict:
    sizes = {"n_rows": n_rows, "n_cols": n_cols, "dtype": "bfloat16", "direction": direction}
    times = {"floor": 2.0, "liger": ours, "add, liger": 1.0, "quack": peer}
    worst = {"liger": 0.5, "add, liger": 2.0, "quack": 8.0 if direction == "forward" else 1.0}
    return {"extra_info": {**sizes, "add_norm_us": times, "worst_ratio": worst}}


def test_the_residual_stream_is_a_section_with_aims_of_its_own(grown: list[Path]) -> None:
    assert "## Residual" not in table.page(grown)
    run = json.loads(grown[1].read_text())
    for n_rows, ours in ((16, 8.0), (4096, 4.0), (8192, 2.5)):
        run["benchmarks"] += [
            with_residual(n_rows, 4096, "forward", ours, 3.0),
            with_residual(n_rows, 4096, "backward", ours, 5.0),
        ]
    grown[1].write_text(json.dumps(run))
    page = table.page(grown)
    assert "| n_rows × n_cols | floor | liger | add, liger | quack | best peer ÷ ours |" in page
    assert "| 4096×4096 bfloat16 | 2.0/2.0 | 4.0/4.0 | 1.0/1.0 | 3.0/5.0 | 0.75/1.25 |" in page
    assert "| error ÷ bound | – | 0.5 | 2 | 8 | – |" in page
    # 16 rows are not among those with an aim, and 8192 rows are the only ones of 64 MB.
    name = "with a residual, from 1,024 rows: best peer ÷ ours"
    assert f"| forward {name} | ≥ 1.00 | 0.75 (4096×4096 bfloat16) | 1 of 2 |" in page
    assert f"| backward {name} | ≥ 1.00 | 1.25 (4096×4096 bfloat16) | 2 of 2 |" in page
    assert "| forward with a residual, 64 MB or more: share of the floor | ≥ 0.90 | 0.80 | 0 of 1 |" in page


def test_growth_is_a_section_with_a_table_for_each_axis(grown: list[Path]) -> None:
    page = table.page(grown)
    assert "![microseconds against rows and columns](growth.svg)" in page
    rows = ["| n_rows | floor | liger | stream |", "|---|---|---|---|", "| 1 | 5.0/10.0 | 10.0/20.0 | 9.0/19.0 |"]
    assert "\n".join(rows) in page
    assert page.index("| 1 | 5.0") < page.index("| 4 | 20.0") < page.index("| 64 | 320.0/640.0") < page.index("| 128 |")


def test_settings_are_a_section_with_a_row_for_each_shape(grown: list[Path]) -> None:
    assert "## Settings" not in table.page(grown)
    assert "| gemma ÷ llama |" not in table.page(grown)
    run = json.loads(grown[1].read_text())
    for direction, llama in (("forward", 10.0), ("backward", 20.0)):
        about = {"n_rows": 16, "n_cols": 64, "dtype": "bfloat16", "direction": direction}
        settings = {"llama": llama, "gemma": llama, "none": llama + 1, "frozen weight": llama / 2}
        run["benchmarks"].append({"extra_info": {**about, "settings_us": settings}})
    grown[1].write_text(json.dumps(run))
    rows = ["| n_rows × n_cols | llama | gemma | none | frozen weight |", "|---|---|---|---|---|"]
    rows.append("| 16×64 bfloat16 | 10.0/20.0 | 10.0/20.0 | 11.0/21.0 | 5.0/10.0 |")
    page = table.page(grown)
    assert "\n".join(rows) in page
    assert "| none ÷ llama | ≤ 1.03 | 1.10 (16×64 bfloat16, forward) | 0 of 2 |" in page
    assert "| backward of a frozen weight ÷ with dW | ≤ 1.00 | 0.50 | 1 of 1 |" in page


def test_the_pictures_lie_beside_the_page(grown: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table.main(*map(str, grown), str(tmp_path / "performance.md"))
    for name in ("performance.svg", "growth.svg"):
        assert (tmp_path / name).read_text(encoding="utf-8").rstrip().endswith("</svg>")
