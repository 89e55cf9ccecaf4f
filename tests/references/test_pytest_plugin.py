"""The plugin as a kernel author uses it: in a project of their own, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

import references

WHERE = Path(references.__file__).parents[1]  # the checkout, or where the wheel is installed
PASSES = "gemma-off0-f32-wsame-inplace-2x4x41-normal-eps1e-06-xc-dyc-wc-auto-s0"
FAILS = "gemma-off0-f16-wsame-inplace-2x4x41-normal-eps1e-06-xc-dyc-wc-auto-s0"
ALSO_FAILS = "gemma-off0-f16-wsame-notinplace-2x4x41-normal-eps0.7-xc-dyc-wc-auto-s0"
UNSUPPORTED = "llama-off0-f16-wsame-inplace-2x4x41-normal-eps1e-06-xc-dyc-wc-auto-s0"
NORM = """
from references import numpy_reference

def forward(x, w, eps, offset):
    global about
    about = {"eps": eps, "offset": offset, "casting_mode": "gemma"}
    y, rstd = numpy_reference.forward(x, w, **about)
    return (y * 2 if x.dtype == "float16" else y), rstd

def backward(dy, x, w):
    return numpy_reference.backward(dy, x, w, **about)
"""
PROFILE = 'casting_modes = ["gemma"]'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "my_norm.py").write_text(NORM)
    (tmp_path / "p.toml").write_text(PROFILE)
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    return tmp_path


def run_pytest(project: Path, *arguments: str, impl: str = "my_norm") -> subprocess.CompletedProcess[str]:
    given = ["-p", "references.pytest_plugin", "--rmsnorm-impl", impl, "--rmsnorm-level", "matrix", *arguments]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", *given],
        cwd=project,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        | {"PYTHONPATH": str(WHERE)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def cells(*ids: str) -> list[str]:
    """Arguments that choose cells by id and the project's own test."""
    return ["--rmsnorm-profile", "p.toml", "-k", " or ".join(["test_own", *ids])]


def test_cells_are_tests_among_the_authors_own(project: Path) -> None:
    done = run_pytest(project, *cells(PASSES, FAILS, UNSUPPORTED), "-rA", "--junitxml", "junit.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "collected 75 items / 71 deselected / 4 selected" in done.stdout
    assert "rmsnorm: my_norm; claims: casting_modes gemma" in done.stdout
    assert f"PASSED rmsnorm::{PASSES}" in done.stdout and "PASSED test_own.py::test_own" in done.stdout
    assert f"FAILED rmsnorm::{FAILS}" in done.stdout
    assert "all elements, by one factor 2: usually a constant" in done.stdout  # the explanation
    assert "no casting_mode argument, computes gemma" in done.stdout
    junit = xml.etree.ElementTree.parse(project / "junit.xml").getroot()
    outcomes = {
        (case.get("classname"), case.get("name")): [child.tag for child in case] for case in junit.iter("testcase")
    }
    assert outcomes == {
        ("test_own", "test_own"): [],
        ("rmsnorm", PASSES): [],
        ("rmsnorm", FAILS): ["failure"],
        ("rmsnorm", UNSUPPORTED): ["skipped"],
    }


def test_the_plainest_cells_are_run_several_times(project: Path) -> None:
    counting = "\n\ncalls = 0\nright = forward\n\ndef forward(x, w, eps, offset):\n"
    counting += "    global calls\n    calls += x.dtype == 'float32'\n    y, rstd = right(x, w, eps, offset)\n"
    counting += "    return y * (1 + calls * 2e-7 if x.dtype == 'float32' else 1), rstd\n"
    (project / "my_norm.py").write_text(NORM + counting)
    done = run_pytest(project, *cells(PASSES), "-rA")
    assert f"FAILED rmsnorm::{PASSES}" in done.stdout, done.stdout
    assert "a second run on the same content gives other bits" in done.stdout


def test_without_a_target_nothing_is_added(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "references.pytest_plugin", "-p", "no:cacheprovider"],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(WHERE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


def test_known_failures_are_expected_and_stale_ones_fail(project: Path) -> None:
    (project / "known.txt").write_text(
        f"# what is known\n\n{FAILS} float16 is doubled, see #12\n{PASSES} long fixed\n{UNSUPPORTED} never ran\n"
        "gemma-off9 no such cell\n"
    )
    done = run_pytest(
        project, *cells(PASSES, FAILS, ALSO_FAILS, UNSUPPORTED, "gemma-off9"), "-rA", "--rmsnorm-xfail", "known.txt"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"XFAIL rmsnorm::{FAILS} - float16 is doubled, see #12" in done.stdout
    assert f"FAILED rmsnorm::{ALSO_FAILS}" in done.stdout  # not in the file
    assert "stale: the xfail file expects a failure (long fixed), the cell is: pass" in done.stdout
    assert "stale: the xfail file expects a failure (never ran), the cell is: unsupported" in done.stdout
    assert "stale: the xfail file names 'gemma-off9', which is no case; the nearest is 'gemma-" in done.stdout
    assert "4 failed, 1 passed, 1 xfailed" in done.stdout.replace(", 70 deselected", "")


def test_the_options_of_check_are_taken(project: Path) -> None:
    options = ["--rmsnorm-dtype", "float32", "--rmsnorm-seed", "7", "--rmsnorm-casting-mode", "gemma"]
    done = run_pytest(project, *options, "--rmsnorm-arrays", "numpy", "--collect-only", "-q")
    listed = [line for line in done.stdout.splitlines() if line.startswith("rmsnorm::")]
    assert len(listed) == 18 and all("-f32-" in line and line.endswith("-s7") for line in listed)
    done = run_pytest(project, "--rmsnorm-forward-only", "--rmsnorm-case", PASSES)
    assert "gradients False" in done.stdout


def test_a_run_that_judges_nothing_is_no_success(project: Path) -> None:
    done = run_pytest(project, "--rmsnorm-profile", "p.toml", "--rmsnorm-case", UNSUPPORTED)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
    assert "rmsnorm: no cell of my_norm was judged" in done.stdout


def test_xdist_runs_the_same_cells(project: Path) -> None:
    pytest.importorskip("xdist")
    done = run_pytest(project, *cells(PASSES, FAILS, ALSO_FAILS), "-n", "2", "-rA")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 2 passed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "impl", "says"),
    [
        ([], "no_such_module:f", "cannot load 'no_such_module:f': No module named"),
        (["--rmsnorm-profile", "bad.toml"], "my_norm", "dtypes cannot be 'float8'"),
        (["--rmsnorm-xfail", "bad.toml"], "my_norm", "bad.toml:1: dtypes"),
        (["--rmsnorm-xfail", "missing"], "my_norm", "cannot read missing"),
        (["--rmsnorm-case", "gemma"], "my_norm", "no case 'gemma'; the nearest is"),
        (["--rmsnorm-case", PASSES, "--rmsnorm-dtype", "float16"], "my_norm", "no cell is selected"),
    ],
)
def test_bad_usage_is_one_clear_line(project: Path, arguments: list[str], impl: str, says: str) -> None:
    (project / "bad.toml").write_text('dtypes=["float8"]\n')
    done = run_pytest(project, *arguments, impl=impl)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(errors) == 1 and errors[0].startswith("ERROR: ") and says in errors[0]
