"""docs/performance.md is what its command makes of the figures beside it, and growth becomes a section."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from tests.benchmarks import aims, table  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"


def record(axis: str, direction: str, n_rows: int, n_cols: int, liger: float) -> dict:
    times = {"floor": liger / 2, "liger": liger, "stream": liger - 1}
    sizes = {"n_rows": n_rows, "n_cols": n_cols}
    return {"extra_info": {"axis": axis, "direction": direction, **sizes, "growth_us": times}}


@pytest.fixture
def grown(tmp_path: Path) -> list[Path]:
    """The committed figures, and a run of two sizes of each axis."""
    runs = [json.loads((DOCS / "benchmark.json").read_text()) for _ in range(2)]
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
    sources = [path for path in (DOCS / "benchmark.json", DOCS / "growth.json") if path.exists()]
    assert table.page(sources) == (DOCS / "performance.md").read_text(encoding="utf-8")


def test_an_aim_names_its_worst_row_and_counts_those_that_reach_it() -> None:
    ratios = {"a": 0.9, "b": 1.0, "c": 1.2}
    assert str(aims.Aim("speed", 1.0, ratios)) == "| speed | ≥ 1.00 | 0.90 (a) | 2 of 3 |"
    assert str(aims.Aim("cost", 1.1, ratios, at_least=False)) == "| cost | ≤ 1.10 | 1.20 (c) | 2 of 3 |"
    assert str(aims.Aim("mean", 1.4, {"all": 1.28})) == "| mean | ≥ 1.40 | 1.28 | 0 of 1 |"


def test_aims_are_measured_by_the_committed_figures() -> None:
    infos = table.records(table.read([DOCS / "benchmark.json", DOCS / "growth.json"]))
    times = table.speeds(infos)
    found = {aim.name: aim for aim in (*aims.speed_aims(times), *aims.settings_aims(infos), *aims.host_aims(infos))}
    shape = "4096×1024 bfloat16"
    row = {p: info["kernel_us"] for (p, d), info in times[shape].items() if d == "backward"}
    best = min(us for name, us in row.items() if name not in ("liger", "liger out of place"))
    assert found["backward in place: best peer ÷ ours"].ratios[shape] == best / row["liger"]
    assert found["backward out of place: best peer ÷ ours"].ratios[shape] == best / row["liger out of place"]
    assert len(found["forward: best peer ÷ ours"].ratios) == len(times) == 23
    assert set(found["forward: time a column beside 4096 columns"].ratios) == {
        "4096×4104 bfloat16",
        "4096×4100 float32",
    }
    shares = {name: len(aim.ratios) for name, aim in found.items() if "share" in name}
    assert shares["forward: share of stream, 16 MB or more, up to 16,384 columns"] == 16
    assert shares["backward: share of stream, 64 MB or more, up to 16,384 columns"] == 10
    assert shares["backward: share of stream, 16 to 64 MB, up to 16,384 columns"] == 6
    assert shares["forward: share of the floor, wider rows"] == 4
    assert shares["backward: share of the floor, head sizes"] == 3
    assert len(found["none ÷ llama"].ratios) == 46
    assert len(found["backward of a frozen weight ÷ with dW"].ratios) == 23
    host = {(i["provider"], i["direction"]): i["host_us"] for i in infos if "host_us" in i}
    ratio = found["host time, forward + backward: ours ÷ torch.nn.RMSNorm"].ratios["all"]
    assert ratio == host["liger", "full"] / host["torch.nn.RMSNorm", "full"]


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
