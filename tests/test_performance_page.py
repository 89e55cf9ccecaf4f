"""docs/performance.md is what its command makes of the figures beside it, and growth becomes a section."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from tests.benchmarks import table  # noqa: E402

DOCS = Path(__file__).parents[1] / "docs"


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


def test_growth_is_a_section_with_a_table_for_each_axis(grown: list[Path]) -> None:
    page = table.page(grown)
    assert "![microseconds against rows and columns](growth.svg)" in page
    rows = ["| n_rows | floor | liger | stream |", "|---|---|---|---|", "| 1 | 5.0/10.0 | 10.0/20.0 | 9.0/19.0 |"]
    assert "\n".join(rows) in page
    assert page.index("| 1 | 5.0") < page.index("| 4 | 20.0") < page.index("| 64 | 320.0/640.0") < page.index("| 128 |")


def test_settings_are_a_section_with_a_row_for_each_shape(grown: list[Path]) -> None:
    assert "## Settings" not in table.page(grown)
    run = json.loads(grown[1].read_text())
    for direction, llama in (("forward", 10.0), ("backward", 20.0)):
        about = {"n_rows": 16, "n_cols": 64, "dtype": "bfloat16", "direction": direction}
        run["benchmarks"].append({"extra_info": {**about, "settings_us": {"llama": llama, "none": llama + 1}}})
    grown[1].write_text(json.dumps(run))
    rows = ["| n_rows × n_cols | llama | none |", "|---|---|---|", "| 16×64 bfloat16 | 10.0/20.0 | 11.0/21.0 |"]
    assert "\n".join(rows) in table.page(grown)


def test_the_pictures_lie_beside_the_page(grown: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table.main(*map(str, grown), str(tmp_path / "performance.md"))
    for name in ("performance.svg", "growth.svg"):
        assert (tmp_path / name).read_text(encoding="utf-8").rstrip().endswith("</svg>")
