"""Hostile and broken candidates: each fails in the cells where it misbehaves, and the run goes on."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from references.candidates.loading import LoadError, load
from references.candidates.probing import probe
from references.candidates.process import Isolated
from references.candidates.profile import Profile
from references.cells.cell import Case
from references.judge.verdict import Verdict, check_all

CANDIDATES = str(Path(__file__).parent / "strangers")
SPOILED = Case("gemma", 0.5, "float16", "same", False, (3, 2, 41), 0.7)
FINE = dataclasses.replace(SPOILED, dtype="float32")


@pytest.fixture(scope="module")
def eps() -> dict[str, float]:
    """The eps that makes the candidate misbehave, by misbehaviour."""
    spec = importlib.util.spec_from_file_location("hostile", f"{CANDIDATES}/hostile.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EPS


@pytest.fixture(scope="module")
def candidate() -> Iterator[Isolated]:
    with Isolated("hostile", paths=[CANDIDATES]) as candidate:
        yield candidate


@pytest.fixture
def judge(candidate: Isolated, eps: dict[str, float]) -> Callable[..., list[Verdict]]:
    def judge(misdeed: str, cases: list[Case], profile: Profile | None = None) -> list[Verdict]:
        seen: list[Verdict] = []
        cases = [dataclasses.replace(case, eps=eps[misdeed]) for case in cases]
        verdicts = check_all(candidate, cases, seen.append, profile or Profile())
        assert seen == verdicts and len(verdicts) == len(cases)
        return verdicts

    return judge


@pytest.mark.parametrize(
    ("target", "check", "tensor", "says"),
    [
        ("Raises", "run", "y", "raised RuntimeError: out of registers"),
        ("RaisesInBackward", "run", "dx", "raised RuntimeError: no gradient today"),
        ("Segfaults", "run", "y", "died of SIGSEGV"),
        ("Aborts", "run", "y", "died of SIGABRT"),
        ("Exits", "run", "y", "ended its process with exit status 0"),
        ("ExitsPolitely", "run", "y", "ended its process with exit status 7"),
        ("KillsItself", "run", "y", "died of SIGKILL"),
        ("ClosesEverything", "run", "y", "ended its process with exit status 1"),
        ("WritesPastTheEnd", "contract", "x", "storage outside the tensor was overwritten"),
        ("WritesBeforeTheStart", "contract", "dy", "storage outside the tensor was overwritten"),
        ("OverwritesX", "contract", "x", "was overwritten"),
        ("OverwritesW", "contract", "w", "was overwritten"),
        ("ReturnsTheInput", "contract", "y", "shares the storage of x"),
        ("ReturnsAViewOfX", "contract", "y", "shares the storage of x"),
        ("ReturnsNaN", "special", "y", "NaN differs in 246 of 246 elements"),
        ("ReturnsZeros", "value", "y", "outside the tolerance in 246 of 246"),
        ("ReturnsTheLastOutput", "repeat", "y", "a second run on the same content gives other bits"),
        ("CachesByPointer", "repeat", "y", "other content at the same address gives the same bits"),
        ("CachesByPointer", "repeat", "dx", "other content at the same address gives the same bits"),
        ("DependsOnTheCall", "rounding", "y", "cannot come from the rounding points of gemma"),
        ("WrongDtype", "dtype", "y", "is float32, specified is float16"),
        ("WrongShape", "shape", "y", "is (246,), specified is (3, 2, 41)"),
        ("WrongType", "run", "y", "a list was returned, not an array"),
        ("ReturnsText", "run", "y", "a str was returned, not an array"),
        ("ReturnsNone", "run", "y", "nothing was returned"),
        ("ReturnsObjects", "run", "y", "an array of objects was returned"),
    ],
)
def test_it_fails_where_it_misbehaves_and_the_next_cell_passes(
    judge: Callable[..., list[Verdict]], target: str, check: str, tensor: str, says: str
) -> None:
    spoiled, fine = judge(target, [SPOILED, FINE])
    assert spoiled.status == "fail"
    found = [(f.check, f.tensor, f.message) for f in spoiled.findings]
    assert any((c, t) == (check, tensor) and says in message for c, t, message in found), found
    assert (fine.status, fine.findings) == ("pass", [])
    assert fine.measures["y"].ratio <= 1


def test_a_hanging_cell_ends_at_its_limit(
    candidate: Isolated, judge: Callable[..., list[Verdict]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate, "time_limit", 2.0)
    (spoiled,) = judge("Hangs", [SPOILED])
    assert [f.message for f in spoiled.findings] == ["gave no answer in 2 s"]
    monkeypatch.undo()
    (fine,) = judge("Hangs", [FINE])
    assert fine.status == "pass"


def test_a_candidate_that_dies_is_not_probed_further() -> None:
    with Isolated("hostile:segfaultsonbfloat16", paths=[CANDIDATES]) as dies:
        found = probe(dies, {"dtypes": ["bfloat16"]})
    assert found.profile == Profile(dtypes=("bfloat16",))
    assert found.notes == {"everything": "a probe died of SIGSEGV, so every setting is claimed"}


@pytest.mark.parametrize(("claimed", "status"), [(False, "pass"), (True, "fail")])
def test_the_batch_is_measured_and_judged_only_where_claimed(
    judge: Callable[..., list[Verdict]], claimed: bool, status: str
) -> None:
    # Off by an ulp in a batch: in float32 that is within the tolerance.
    (verdict,) = judge("DependsOnTheBatch32", [FINE], Profile(batch_invariant=claimed))
    assert verdict.behaviour is not None and verdict.behaviour.batch_dependent == ("y",)
    assert verdict.status == status
    assert [f.message for f in verdict.findings] == ["a row has other bits alone than in the batch"] * claimed


@pytest.mark.parametrize(("claimed", "status"), [(True, "fail"), (False, "pass")])
def test_bits_repeat_unless_the_profile_says_otherwise(
    judge: Callable[..., list[Verdict]], claimed: bool, status: str
) -> None:
    (verdict,) = judge("DependsOnTheCall32", [FINE], Profile(repeatable=claimed))
    assert verdict.behaviour is not None and verdict.behaviour.unrepeated == ("y",)
    assert verdict.status == status


def test_a_setting_that_is_not_claimed_may_not_crash_either(judge: Callable[..., list[Verdict]]) -> None:
    profile = Profile(dtypes=("float32",))
    verdicts = judge("Segfaults", [SPOILED, FINE], profile)
    (finding,) = verdicts[0].findings
    assert finding.check == "refusal" and "not claimed, and no error says so: run: y: died of SIGSEGV" in str(finding)
    verdicts = judge("Raises", [SPOILED, FINE], profile)
    assert [v.status for v in verdicts] == ["unsupported", "pass"]


@pytest.mark.parametrize(
    ("body", "says"), [("raise RuntimeError('no\\nGPU')", "RuntimeError: no GPU"), ("def f(:", "SyntaxError: invalid")]
)
def test_a_module_that_raises_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, says: str
) -> None:
    (tmp_path / "unloadable.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError, match="cannot load 'unloadable:f'") as raised:
        load("unloadable:f")
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_a_module_that_kills_its_process_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text("import ctypes; ctypes.string_at(0)")
    with pytest.raises(LoadError, match="cannot load 'deadly:f': it died of SIGSEGV"):
        Isolated("deadly:f", paths=[str(tmp_path)])


@pytest.mark.gpu
def test_a_gpu_that_stops_answering_gets_a_new_process() -> None:
    cases = [dataclasses.replace(case, offset=0.0) for case in (SPOILED, FINE)]
    with Isolated("gpu_assert:rms_norm", "cuda", "gemma", paths=[CANDIDATES]) as candidate:
        spoiled, fine = check_all(candidate, cases, lambda verdict: None)
    (finding,) = spoiled.findings
    assert finding.check == "run" and "raised" in finding.message and "assert" in finding.message
    assert (fine.status, fine.findings) == ("pass", [])


def children_of(process: int) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "ppid=,pid="], capture_output=True, text=True, check=True).stdout
    return [pid for parent, pid in map(str.split, listed.splitlines()) if parent == str(process)]


def alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_orphan_is_left_and_results_are_kept(tmp_path: Path, number: signal.Signals) -> None:
    pytest.importorskip("typer", reason="the command line needs typer")
    (tmp_path / "p.toml").write_text('dtypes = ["float32", "float16"]')
    cells = [FINE_CELL, HANGING_CELL]
    run = subprocess.Popen(
        [sys.executable, "-m", "references", "check", "hostile:hangsloudly", "--json", str(tmp_path / "o.json")]
        + [argument for cell in cells for argument in ("--case", cell)]
        + ["--profile", str(tmp_path / "p.toml")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), CANDIDATES])},
        cwd=tmp_path,
        # A script's background jobs ignore SIGINT, and so does what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "hanging").exists() and run.poll() is None:
        time.sleep(0.05)
    (child,) = children_of(run.pid)
    run.send_signal(number)
    out, err = run.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(child)
    if number is not signal.SIGKILL:
        assert run.returncode == 130, err
        assert "ended after 1 of 2" in out
        assert [cell["id"] for cell in json.loads((tmp_path / "o.json").read_text())["cells"]] == [FINE_CELL]


FINE_CELL = "gemma-off0.5-f32-wsame-notinplace-2x4x41-normal-eps0.7-xc-dyc-wc-auto-s0"
HANGING_CELL = "gemma-off0.5-f16-wsame-notinplace-2x4x41-normal-eps0.7-xc-dyc-wc-auto-s0"
