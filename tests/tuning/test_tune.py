"""The tuner without a GPU: what it would measure, how it chooses, what it writes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from rmsnorm.fused import tiles  # noqa: E402
from rmsnorm.fused.tiles import BackwardConfig, ForwardConfig, Processors  # noqa: E402
from tests.benchmarks.timing import Timing  # noqa: E402
from tests.tuning import few_rows, many_rows, tune  # noqa: E402
from tests.tuning.candidates import Target, candidates, configuration, entries, present, targets  # noqa: E402

H200 = Processors(count=132, shared_memory=232448, cooperative=True)
SIMPLE, MIDDLE, COMPLEX = (ForwardConfig(1, 64 * i, 1, i) for i in (1, 2, 4))
OTHER = ForwardConfig(1, 64, 1, 32)


@pytest.mark.parametrize(
    ("times", "now", "chosen"),
    [
        ((10.0, 9.0, 8.0), COMPLEX, COMPLEX),
        ((10.0, 9.0, 8.0), SIMPLE, COMPLEX),
        ((8.1, 9.0, 8.0), SIMPLE, SIMPLE),  # within the hysteresis: it stays
        ((8.2, 9.0, 8.0), SIMPLE, COMPLEX),  # beyond it
        ((8.05, 8.05, 8.0), OTHER, SIMPLE),  # equally fast: the simplest
        ((9.0, 8.05, 8.0), SIMPLE, MIDDLE),
        ((9.0, 8.1, 8.0), SIMPLE, COMPLEX),
    ],
)
def test_choice(times: tuple[float, ...], now: ForwardConfig, chosen: ForwardConfig) -> None:
    assert tune.choose(dict(zip((SIMPLE, MIDDLE, COMPLEX), times, strict=True)), now) == chosen


def test_a_choice_is_kept_by_the_next_run() -> None:
    chosen = tune.choose({SIMPLE: 9.0, MIDDLE: 8.05, COMPLEX: 8.0}, SIMPLE)
    assert tune.choose({SIMPLE: 9.0, MIDDLE: 8.1, COMPLEX: 8.0}, chosen) == chosen


def test_finalists_are_the_fastest_and_the_present_one_in_order() -> None:
    times = {ForwardConfig(1, 64, 1, i): float(20 - i) for i in range(10)}
    slow = ForwardConfig(1, 64, 1, 1)
    assert tune.finalists(times, slow) == [slow, *(ForwardConfig(1, 64, 1, i) for i in range(4, 10))]


def test_the_table_is_written_as_it_is() -> None:
    text = tune.TABLE.read_text()
    table = json.loads(text)
    assert tune.table_text({**table, "entries": table["entries"][::-1]}) == text
    assert tune.updated(table, {"targets": {}}, table["device"]) == text


def record(entry: dict[str, Any], changed: bool = True, microseconds: float = 1.0) -> dict[str, Any]:
    return {"entry": entry, "changed": changed, "microseconds": microseconds}


def test_changed_entries_replace_theirs_or_are_added() -> None:
    about = {"direction": "forward", "itemsize": 2, "row_wise": True, "block_rows": 1, "num_warps": 4}
    replaced, kept = {**about, "n_cols": 64, "found": "trial sweep"}, {**about, "n_cols": 128}
    better, added = {**about, "n_cols": 64, "num_warps": 16}, {**about, "n_cols": 96}
    log = {
        "targets": {
            "a": record(better),
            "b": record(added),
            "c": record({**kept, "found": "trial sweep"}, changed=False),
            "e": record({**about, "n_cols": 100}, changed=False),  # none of its own: that of 128 was kept
            "d": record({**kept, "direction": "finish", "num_warps": 16}),
        }
    }
    table = {"block_wise": [], "entries": [{**kept, "found": "trial sweep"}, replaced]}
    written = json.loads(tune.updated(table, log, "a GPU"))
    assert written == {"device": "a GPU", "block_wise": [], "entries": [better, added, kept]}, "what is measured, is so"


@pytest.mark.parametrize(
    ("times", "most"),
    [
        ({}, 256),
        ({512: (2.0, 1.0)}, 512),
        ({512: (2.0, 1.0), 1024: (1.0, 1.0)}, 1024),
        ({512: (2.0, 1.0), 1024: (0.9, 1.0), 2048: (2.0, 1.0)}, 512),
        ({128: (0.9, 1.0), 512: (2.0, 1.0)}, 64),
        ({512: (2.0, None), 256: (None, 9.0)}, 256),
    ],
)
def test_rows_are_block_wise_up_to_where_row_wise_was_first_faster(times: dict, most: int) -> None:
    log: dict[str, Any] = {"targets": {}}
    for n_cols, by_variant in times.items():
        for row_wise, microseconds in zip((True, False), by_variant, strict=True):
            about = {"direction": "backward", "itemsize": 4, "n_cols": n_cols, "row_wise": row_wise}
            if microseconds is not None:
                log["targets"][f"{n_cols} {row_wise}"] = record(about, microseconds=microseconds)
            other = record({**about, "itemsize": 2}, microseconds=float(row_wise))
            log["targets"][f"{n_cols} {row_wise} other"] = other
    assert tune.block_wise_max_cols({"direction": "backward", "itemsize": 4, "max_cols": 256}, log) == most


def test_patterns_name_targets_in_their_order() -> None:
    assert [str(t) for t in targets(["backward:f64:1024:row", "forward:bf16:4096"])] == [
        "backward:f64:1024:row",
        "forward:bf16:4096:row",
    ]
    assert {t.direction for t in targets(["f32:4096"])} == {"forward", "backward", "finish"}
    assert targets(["forward:bf16:5121"]) == [Target("forward", "bf16", 5121, True)], "not in the table"
    assert targets(["forward:bf16:5121:none"]) == [Target("forward", "bf16", 5121, True, "none")]
    everything = {(t.direction, t.itemsize, t.row_wise, t.n_cols, t.casting_mode) for t in targets(list(tune.ORDER))}
    assert {about for about in everything if about[0] != "residual"} == {
        about for about in map(tune._identity, entries()) if about[0] != "residual"
    }
    several_chunks = {("residual", 2, True, n, None) for n in (4104, 5120, 16384, 32768, 65536)}
    assert several_chunks == {about for about in everything if about[:2] == ("residual", 2) and about[2]}
    for nonsense in (
        "bf17",
        "5121",
        "sideways:bf16:64",
        "forward:bf16:many",
        "forward:bf16:64:nine",
        "backward:bf16:5121:none",
    ):
        with pytest.raises(ValueError, match="names no entry"):
            targets([nonsense])


@pytest.mark.parametrize(
    "target",
    targets([*tune.ORDER, "finish", "forward:bf16:4105", "forward:bf16:4105:none", "backward:f64:32768"]),
    ids=str,
)
def test_candidates_start_with_the_present_entry_and_differ(target: Target) -> None:
    found = candidates(target, H200)
    first, entry = next(iter(found.items()))
    assert entry == present(target, H200)
    assert all(configuration(target, e, H200) == c for c, e in found.items())
    if target.direction == "forward":
        assert first == tiles.forward_config(target.n_cols, target.itemsize, target.row_wise, target.casting_mode)
    elif target.direction == "backward":
        assert first == tiles._backward_tiles(target.n_cols, target.itemsize, target.row_wise, H200)
    elif target.direction == "residual":
        assert first == tiles.forward_config(target.n_cols, target.itemsize, target.row_wise, "llama", True)
        assert {replace(c, n_held=0) for c in found} == {replace(first, n_held=0)}, "a row's bits are the forward's"
    elif target.direction == "split":
        assert first == tiles.split_config(target.n_cols, target.itemsize, H200)
    assert len(found) > 1


def test_the_number_of_programs_is_no_kernel_of_its_own() -> None:
    target = Target("backward", "f32", 4096, True)
    kernels = tune.kernels_of(target, H200)
    assert len(kernels) < len(candidates(target, H200))
    assert all(isinstance(c, BackwardConfig) and c.n_programs == 2 for c in kernels)
    # But a number of partial rows may be another kernel that sums them.
    counts = {c.n_programs for c in candidates(target, H200)}
    assert {c.n_programs for c in tune.to_compile(target, H200)} == counts | {2}


def test_dry_run(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["tune", "--dry-run", "--only", "forward:f32:4096:row"])
    tune.main()
    assert capsys.readouterr().out == "forward:f32:4096:row: 39 candidates, 39 kernels, rows (512, 4096)\n"


def test_a_log_of_other_kernels_is_refused(tmp_path) -> None:
    log = tmp_path / "log.json"
    assert tune.load_log(log, {"sources": "1"}) == {"about": {"sources": "1"}, "targets": {}}
    log.write_text(json.dumps({"about": {"sources": "1"}, "targets": {"t": {}}}))
    assert tune.load_log(log, {"sources": "1"})["targets"] == {"t": {}}
    with pytest.raises(SystemExit, match="name another log"):
        tune.load_log(log, {"sources": "2"})


class FakeTimer:
    """The last candidate of every session is the fastest; all are run once."""

    def __init__(self) -> None:
        self.timed: list[int] = []

    def time(self, calls: Any, repetitions: int = 1) -> dict[str, Timing]:
        for call in calls.values():
            call()
        self.timed.append(len(calls))
        return {name: Timing(100.0 - 10 * i, 0.0, 0.0) for i, name in enumerate(calls)}


@pytest.mark.interpret
@pytest.mark.parametrize(
    "name",
    [
        "forward:f32:64:row",
        "forward:bf16:512:none",
        "residual:f32:8192",
        "backward:f64:64:row",
        "finish:bf16:64",
        "split:f32:32768",
    ],
)
def test_a_target_is_judged_timed_and_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Processors(count=8, shared_memory=232448, cooperative=True)
    (target,) = targets([name])
    monkeypatch.setattr(Target, "row_counts", (3,))
    found = candidates(target, few)
    monkeypatch.setattr(tune, "candidates", lambda *_: dict(list(found.items())[:3]))
    timer = FakeTimer()
    result = tune.tune(target, few, timer)
    n_candidates = min(3, len(found))
    assert timer.timed == [n_candidates, n_candidates]
    assert [c["fault"] for c in result["candidates"]] == [None] * n_candidates
    assert result["entry"] == list(found.values())[n_candidates - 1]
    assert result["changed"]
    assert result["present_microseconds"] == pytest.approx(100.0)
    assert "→" in tune.progress(target, result, 1.0)
    json.dumps(result)


@pytest.mark.interpret
def test_a_faulty_candidate_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("forward", "f32", 512, True)
    found = list(candidates(target, H200))
    judge = tune.Judge._judge
    monkeypatch.setattr(Target, "row_counts", (3,))
    monkeypatch.setattr(tune.Judge, "_judge", lambda self, c: "y is wrong" if c == found[-1] else judge(self, c))
    timer = FakeTimer()
    result = tune.tune(target, H200, timer)
    assert timer.timed[0] == len(found) - 1
    assert result["candidates"][-1]["fault"] == "y is wrong"
    assert result["candidates"][-1]["first"] is None


def test_wrong_results_are_a_fault() -> None:
    judge = tune.Judge(Target("forward", "f32", 64, True))
    judge.problem.forward = lambda config: (torch.zeros(8, 64), torch.zeros(8))
    assert "times its bound" in judge.fault(SIMPLE)


@pytest.fixture
def machine(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run without a GPU, into a table and a log of its own: run(patterns, time_budget)."""
    monkeypatch.setattr(Target, "row_counts", (3,))
    monkeypatch.setattr(tune, "TABLE", tmp_path / "tuned.json")
    table = json.loads(resources.files("rmsnorm.fused").joinpath("tuned.json").read_text())
    tune.TABLE.write_text(tune.table_text({**table, "device": "another GPU"}))
    monkeypatch.setattr(tune, "KernelTimer", FakeTimer)
    monkeypatch.setattr(tune, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    monkeypatch.setattr(tune, "compile_candidate", lambda *_: None)
    monkeypatch.setattr(tune, "fingerprint", lambda: {"device": "this GPU"})
    monkeypatch.setattr(tune.plans, "processors", lambda _: H200)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    log = tmp_path / "log.json"
    return lambda patterns, time_budget: tune.run(targets(patterns), log, tune.TABLE, time_budget)


@pytest.mark.interpret
def test_a_run_writes_the_table_and_goes_on_from_its_log(machine: Any, capsys: pytest.CaptureFixture) -> None:
    machine(["forward:f32:512:row"], 60.0)
    table = json.loads(tune.TABLE.read_text())
    assert table["device"] == "this GPU"
    changed = [entry for entry in table["entries"] if entry not in entries()]
    assert [(e["direction"], e["n_cols"], e["itemsize"], e["row_wise"]) for e in changed] == [("forward", 512, 4, True)]
    capsys.readouterr()
    machine(["forward:f32:512:row", "forward:f32:256:row"], 60.0)
    assert "1 targets to measure, 1 in the log" in capsys.readouterr().out
    table = json.loads(tune.TABLE.read_text())
    assert len([entry for entry in table["entries"] if entry not in entries()]) == 2


@pytest.mark.interpret
def test_no_target_is_started_when_time_is_up(machine: Any, capsys: pytest.CaptureFixture) -> None:
    before = tune.TABLE.read_text()
    machine(["forward:f32:512:row"], 0.0)
    assert "time is up: forward:f32:512:row" in capsys.readouterr().out
    assert tune.TABLE.read_text() == before


@pytest.mark.interpret
def test_one_launch_of_few_rows_is_timed_beside_two() -> None:
    record = few_rows.measure("f32", 3, 64, FakeTimer())
    assert {"two", "one", "4x16", "4x64"} <= set(record["microseconds"])
    assert few_rows.line(record).startswith("| 3×64 f32 | 100.00 | 90.00 | ")


@pytest.mark.interpret
def test_half_the_warps_are_timed_beside_all() -> None:
    assert many_rows.line("bf16", 64, 5, FakeTimer()) == "| 5×64 bf16 | 8 | 100.00 | 90.00 |"
    assert many_rows.line("f32", 512, 5, FakeTimer()) is None
