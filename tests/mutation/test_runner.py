"""The runner's own figures: what counts as killed, what a stage makes of a verdict, what a copy holds, how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from references.judge.comparison import Finding
from references.judge.verdict import Verdict
from tests.mutation import __main__ as command
from tests.mutation import forkserver, runner, stages
from tests.mutation.mutant import CELLS, Mutant
from tests.mutation.runner import Result

FAULT = Mutant("F", "conftest.py", "", "", "a fault", at=0)
CONTROL = Mutant("C", "conftest.py", "", "", "no fault", at=0, equivalent="it computes the same")


def result(mutant: Mutant, status: str, text: str | None = None, margin: float | None = None) -> Result:
    return Result(mutant, status, "a stage", "a check" if text else None, "there", margin, text, 1.0, 60.0)


def test_only_what_is_killed_counts_as_killed() -> None:
    faults = [result(FAULT, status) for status in ("killed", "killed", "killed", "survived", "broken")]
    controls = [result(CONTROL, status) for status in ("survived", "survived", "killed", "broken")]
    lines = runner.conclusion([*faults, *controls])
    assert lines[:3] == ["killed 3 of 5", "equivalent: 2 of 4 survived, as they must", "processor time: 9.0 min"]
    assert [line.split()[:2] for line in lines[3:]] == [
        ["F", "survived"],
        ["F", "broken"],
        ["C", "killed"],
        ["C", "broken"],
    ]


@pytest.mark.parametrize(
    ("status", "margin", "text", "near"),
    [
        ("killed", 1.99, "y", True),
        ("killed", 2.0, "y", False),
        ("killed", None, "differs in 3 of 100 elements", True),
        ("killed", None, "differs in 4 of 100 elements", False),
        ("killed", None, "differs in 31 of 100 elements", False),
        ("survived", 1.0, "y", False),
    ],
)
def test_a_kill_by_little_is_named(status: str, margin: float | None, text: str, near: bool) -> None:
    found = result(FAULT, status, text, margin)
    assert found.near_miss == near
    assert any(line.startswith("near miss: F") for line in runner.conclusion([found])) == near


@pytest.mark.parametrize("status", ["pass", "fail", "unsupported"])
def test_a_cell_that_does_not_pass_is_noticed(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Any] = []

    def check(implementation: Any, case: Any) -> Verdict:
        judged.append(case)
        findings = [Finding("run", "y", "nothing was returned")] if status == "fail" else []
        return Verdict(case, status, "it says no" if status == "unsupported" else None, findings=findings)

    monkeypatch.setattr(stages, "load", lambda target, device: None)
    monkeypatch.setattr(stages, "check", check)
    kill = stages.judge_cells("cpu", seed=3)
    assert {case.seed for case in judged} == {3}
    if status == "pass":
        assert kill is None and len(judged) == 21
    else:
        assert kill is not None and kill["where"] == judged[0].id and len(judged) == 1
        assert kill["text"] == ("run: y: nothing was returned" if status == "fail" else "unsupported: it says no")


def test_the_strongest_finding_leaves_least_to_chance() -> None:
    def value(ratio: float) -> Finding:
        return Finding("value", "y", "", ratio=ratio)

    rounding, refused = Finding("rounding", "y", ""), Finding("dtype", "y", "")
    assert stages.strongest([value(1.5), rounding]) is rounding
    found = [value(1.5), value(7.0), value(3.0)]
    assert stages.strongest(found) is found[1]
    assert stages.strongest([value(1e9), refused]) is refused
    assert stages.strongest([rounding, value(2.0)]).check == "value"


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ((("F", "killed"), ("C", "survived")), 0),
        ((("F", "survived"),), 1),
        ((("F", "broken"),), 1),
        ((("C", "killed"),), 1),
        ((("C", "broken"),), 1),
    ],
)
def test_the_exit_status(
    statuses: tuple[tuple[str, str], ...], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = [result({"F": FAULT, "C": CONTROL}[kind], status) for kind, status in statuses]
    monkeypatch.setattr(runner, "run", lambda *_, **__: results)
    written = tmp_path / "results.json"
    monkeypatch.setattr(sys, "argv", ["mutation", "F03", "--device", "cpu", "--json", str(written)])
    assert command.main() == code
    assert [entry["status"] for entry in json.loads(written.read_text())] == [status for _, status in statuses]


def test_an_unknown_id_and_a_suite_that_fails_are_two(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["mutation", "no-such", "--device", "cpu"])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 2 and "no mutant 'no-such'" in capsys.readouterr().err

    def fails(*_: Any, **__: Any) -> None:
        raise runner.SuiteFails("nothing is planted, and it fails")

    monkeypatch.setattr(runner, "run", fails)
    monkeypatch.setattr(sys, "argv", ["mutation", "F03", "--device", "cpu"])
    assert command.main() == 2


class Judges:
    """Stands for the child processes: `kills` holds (fault, stage) pairs at which a planted fault is noticed."""

    kills: ClassVar[set[tuple[str, str]]] = set()
    fails: ClassVar[set[str]] = set()
    asked: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, mutants: Any, *, task: str, on_answer: Any, depth: int, seed: int) -> list[dict[str, Any]]:
        answers = []
        for mutant in mutants:
            answer: dict[str, Any] = {"status": "survived", "stage": None, "kill": None, "seconds": 1, "processor": 1}
            for stage in (mutant.noticed_by, *(mutant.then or ()))[:depth]:
                planted = mutant.new != mutant.old
                self.asked.append((mutant.fault if planted else "nothing", stage))
                if (planted and (mutant.fault, stage) in self.kills) or stage in self.fails:
                    answer |= {"status": "killed", "stage": stage, "kill": {"by": "test", "text": "no"}}
                    break
            answers.append(answer)
            on_answer(mutant, answer)
        return answers


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> type[Judges]:
    Judges.kills, Judges.fails, Judges.asked = set(), set(), []
    monkeypatch.setattr(runner, "Judges", Judges)
    return Judges


def planted(name: str, own: str, *then: str) -> Mutant:
    return Mutant(name, "rmsnorm/eager.py", "a", "b", name, own, then=then)


def test_a_stage_is_silent_in_a_copy_before_a_fault_is_judged_by_it(judges: type[Judges]) -> None:
    judges.kills = {("one", "first"), ("two", "third")}
    told: list[Result] = []
    mutants = [planted("one", "first", "second"), planted("two", "first", "second", "third"), planted("three", "first")]
    results = runner.run(mutants, "cpu", told.append)
    assert [(r.mutant.id, r.status, r.stage) for r in results] == [
        ("one", "killed", "first"),
        ("two", "killed", "third"),
        ("three", "survived", None),
    ]
    assert {r.mutant.id: r.status for r in told} == {"one": "killed", "two": "killed", "three": "survived"}
    assert [r.mutant.noticed_by for r in results] == ["first"] * 3
    for stage in ("first", "second", "third"):
        order = [who for who, asked in judges.asked if asked == stage]
        assert order[0] == "nothing" and order.count("nothing") == 1 and len(order) > 1
    assert ("one", "second") not in judges.asked


@pytest.mark.parametrize("stage", ["first", "second"])
def test_a_stage_that_fails_by_itself_shows_nothing(stage: str, judges: type[Judges]) -> None:
    judges.fails = {stage}
    with pytest.raises(runner.SuiteFails, match=f"{stage} fails: no"):
        runner.run([planted("one", "first", "second")])


def test_the_judge_is_silent_in_a_copy_of_its_own(judges: type[Judges]) -> None:
    files = ("rmsnorm/eager.py", "references/spec.py", "tests/mutation/stages.py")
    runner.run([Mutant(file, file, "a", "b", file, "first", then=()) for file in files])
    assert [who for who, _ in judges.asked] == ["nothing", "nothing", *files], "one copy links to the judge, one not"


def test_a_copy_holds_what_tests_read(tmp_path: Path) -> None:
    runner.copy_checkout(tmp_path, linked=["docs"])
    for name in ("rmsnorm", "references", "tests", "docs", "README.md", "pyproject.toml", "tox.ini", "conftest.py"):
        assert (tmp_path / name).exists(), name
    assert (tmp_path / "docs").is_symlink() and not (tmp_path / "references").is_symlink()
    assert not list((tmp_path / "rmsnorm").rglob("__pycache__"))


def test_the_recorder_keeps_the_first_failure_of_any_phase() -> None:
    recorder = stages._Recorder()
    for failed, name in ((False, "a"), (True, "b"), (True, "c")):
        recorder.pytest_runtest_logreport(SimpleNamespace(failed=failed, nodeid=name, longrepr=f"no {name}\nmore"))
    assert recorder.kill == {"by": "test", "where": "b", "margin": None, "text": "no b"}
    timed = stages._Recorder()
    timed.pytest_runtest_logreport(SimpleNamespace(failed=True, nodeid="d", longrepr="Failed: Timeout (>60.0s)"))
    assert timed.kill is not None and timed.kill["by"] == "timeout"


def test_a_stage_is_asked_once_and_in_order() -> None:
    assert [name for name, _ in stages.stages(CELLS, None, 0)] == [
        CELLS,
        *[name for name in stages.EVERYTHING if name != CELLS],
    ]
    assert [name for name, _ in stages.stages("a", ["b"], 0)] == ["a", "b"]


def test_a_fault_that_hangs_on_import_ends_and_is_no_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loops.py").write_text("while True:\n    pass\n")
    monkeypatch.setattr(forkserver, "IMPORT_LIMIT", 1)
    request = {"scratch": str(tmp_path), "checkout": "", "timeout": 100, "task": "loops", "about": {}}
    answer = forkserver._serve(request)
    assert answer["status"] == "broken" and 1 <= answer["seconds"] < 50
