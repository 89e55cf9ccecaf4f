"""The command line as a user meets it: exit status, one clear line on stderr, reports, interruption."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

import pytest

typer = pytest.importorskip("typer", reason="the command line needs typer")

ROOT = Path(__file__).parents[2]
MATRIX_CELL = "gemma-off0.5-bf16-wf32-notinplace-2x4x41-normal-eps0.7-xc-dyc-wc-auto-s0"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "references", *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the app here, which saves a start of Python: (exit status, stdout, stderr)."""
    from references.cli import app

    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            app(list(arguments), prog_name="rmsnorm-verify")
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return call


def test_a_smoke_check_of_the_reference(tmp_path: Path) -> None:
    target = "references.numpy_reference"
    done = run("check", target, "--level", "smoke", "--json", str(tmp_path / "o.json"), "--html", str(tmp_path / "h"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"{target} on cpu" in done.stdout and "numpy 2" in done.stdout
    assert re.search(r"conforms: \d+ cells pass$", done.stdout.strip())
    assert "\nexact: asked for gemma: bfloat16: equals gemma exactly at 6 shapes\n" in done.stdout
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["environment"]["profile"]["dtypes"] == ["float16", "bfloat16", "float32", "float64"]
    assert sum(cell["behaviour"] is not None for cell in report["cells"]) == 12  # every mode and dtype once
    assert report["complete"] and {cell["status"] for cell in report["cells"]} == {"pass"}
    assert str(tmp_path) not in (tmp_path / "o.json").read_text()
    assert "<h1>references.numpy_reference</h1>" in (tmp_path / "h" / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("check", "no_such_module:f"), "cannot load 'no_such_module:f': No module named"),
        (("check", "references.spec"), "neither a callable nor a pair"),
        (("check", "references.numpy_reference", "--case", "gemma"), "no case 'gemma'; the nearest is"),
        (("explain", "gemma", "references.numpy_reference"), "no case 'gemma'"),
        (("check", "references.numpy_reference", "--json", "/dev/null/o.json"), "cannot write to /dev/null"),
        (("check", "references.numpy_reference", "--html", "/dev/null/h"), "cannot write to /dev/null"),
        (("check", "references.numpy_reference", "--profile", "/dev/null/p"), "cannot read the profile /dev/null/p"),
        (("check", "references.numpy_reference", "--profile", __file__), "has no dict called 'profile'"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(in_process, arguments: tuple[str, ...], says: str) -> None:
    code, out, err = in_process(*arguments)
    assert code == 2 and out in ("", f"loading {arguments[-1]} …\n")
    assert err.startswith("rmsnorm-verify: ") and says in err and err.count("\n") == 1


def test_a_subprocess_agrees_on_wrong_usage() -> None:
    done = run("check", "no_such_module:f")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "loading no_such_module:f …\n", 1)


@pytest.mark.interpret
def test_cuda_without_a_gpu_is_wrong_usage(in_process) -> None:
    code, _, err = in_process("check", "references.numpy_reference", "--device", "cuda")
    assert code == 2 and "no GPU" in err and err.count("\n") == 1


def test_levels_are_those_of_the_cases(in_process) -> None:
    from references.cells.levels import LEVELS
    from references.cli import Level

    assert list(Level) == list(LEVELS)
    code, out, _ = in_process("cases")
    assert code == 0 and out.split() == [case.id for case in LEVELS["full"]]


def test_explain_takes_a_cell_apart(in_process) -> None:
    code, out, _ = in_process("explain", MATRIX_CELL, "references.numpy_reference")
    assert code == 0
    for part in (f"{MATRIX_CELL}: pass", "RSTD: error / tolerance", "worst element", "rounding", "made of"):
        assert part in out


WRONG = """
from references import numpy_reference
from references.numpy_reference import backward


def forward(x, w, *, eps, offset, casting_mode):
    y, rstd = numpy_reference.forward(x, w, eps=eps, offset=offset, casting_mode=casting_mode)
    return 2 * y, rstd
"""
SLOW = """
import time

calls = []


def forward(x, w, *, eps, offset, casting_mode):
    calls.append(x.shape)
    if calls.count((2, 4, 41)) == 8:  # the second cell of the matrix, after the first one's repetitions
        open('started', 'w').close()
    time.sleep(0.1)
    return x * 1


def backward(dy, x, w):
    return dy * 1, w
"""


def test_a_deviating_candidate_in_the_working_directory_gives_1(
    in_process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong_norm.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    code, out, _ = in_process("check", "wrong_norm", "--case", MATRIX_CELL)
    assert code == 1
    assert "Y leaves its bound everywhere (1 of 1 cells): all elements, by one factor 2" in out
    assert f"rmsnorm-verify explain {MATRIX_CELL} wrong_norm" in out
    assert out.rstrip().endswith("deviates: in 1 of 1 cells")
    code, out, _ = in_process("check", "wrong_norm.py", "--case", MATRIX_CELL, "-v")
    assert code == 1 and "value: Y (1)" in out and f"{MATRIX_CELL}: value: y[" in out
    code, out, _ = in_process("check", "wrong_norm.py", "--case", MATRIX_CELL, "-q")
    assert code == 1 and len(out.splitlines()) == 3


def test_a_profile_is_used_and_shown(in_process, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('dtypes = ["float32"]\ncolumn_sums = "pairwise"\n')
    profile = ("--profile", str(tmp_path / "p.toml"))
    code, out, _ = in_process("check", "references.numpy_reference", "--case", MATRIX_CELL, *profile)
    assert code == 3 and "claims: dtypes float32; column_sums pairwise" in out
    assert out.rstrip().endswith(
        "nothing judged: dtype bfloat16 is not claimed; computed right all the same; 1 unsupported"
    )
    (tmp_path / "p.toml").write_text('dtypes = ["float33"]\n')
    code, out, err = in_process("check", "references.numpy_reference", *profile)
    assert (code, out) == (2, "")
    assert err.startswith("rmsnorm-verify: dtypes cannot be 'float33'; it can be float16") and err.count("\n") == 1


TAIL = """
from references import numpy_reference
from references.numpy_reference import backward


def forward(x, w, eps, offset, casting_mode):
    y, rstd = numpy_reference.forward(x, w, eps=eps, offset=offset, casting_mode=casting_mode)
    y[..., 32:] = 0
    return y, rstd
"""


def test_explain_shrinks_a_failing_cell(in_process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tail_norm.py").write_text(TAIL)
    monkeypatch.chdir(tmp_path)
    code, out, _ = in_process("explain", MATRIX_CELL, "tail_norm", "--shrink")
    assert code == 1
    assert "columns 32 and up, all 0: usually a mask or a chunk loop ends early" in out
    smallest = MATRIX_CELL.replace("2x4x41", "1x1x33")
    assert f"the smallest shape that fails alike: (1, 1, 33)\n{smallest}: fail" in out
    code, again, _ = in_process("explain", smallest, "tail_norm")
    assert code == 1 and f"{smallest}: fail" in again


@pytest.mark.torch
def test_a_candidate_that_can_express_nothing_gives_3(in_process) -> None:
    code, out, _ = in_process("check", "torch.nn.functional:rms_norm", "--case", MATRIX_CELL)
    assert code == 3 and "nothing judged: " in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_keeps_what_it_has(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "slow_norm.py").write_text(SLOW)
    # A script's background jobs ignore SIGINT, and so would what this one starts.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        started = subprocess.Popen(
            command("check", "slow_norm", "--level", "matrix", "--json", "o.json"),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, inherited)
    while not (tmp_path / "started").exists() and started.poll() is None:
        time.sleep(0.05)
    started.send_signal(number)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130, err
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["complete"] is False and 0 < len(report["cells"]) < 216
    assert f"ended after {len(report['cells'])} of 216" in out


@pytest.mark.parametrize(
    "name",
    ["numpy", pytest.param("torch", marks=pytest.mark.torch), pytest.param("jax", marks=pytest.mark.jax)],
)
def test_the_references_are_judged_through_the_same_door(in_process, name: str) -> None:
    code, out, _ = in_process("check", f"references.{name}_reference", "--device", "cpu", "-k", "bf16 and normal")
    assert code == 0, out
    assert "cells pass" in out


@pytest.mark.torch
def test_a_forward_alone_deviates_unless_it_is_said(in_process, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "forward_alone.py").write_text(
        "def f(x, w, eps):\n"
        "    h = x.detach().float()\n"
        "    return (h * (h.square().mean(-1, keepdim=True) + eps).rsqrt() * w.detach().float()).to(x.dtype)\n"
    )
    monkeypatch.chdir(tmp_path)
    code, out, _ = in_process("check", "forward_alone.py:f", "-k", "2x4x41")
    assert code == 1 and "everywhere" in out and "a kernel for inference is judged with --forward-only" in out
    code, out, _ = in_process("check", "forward_alone.py:f", "-k", "2x4x41", "--forward-only")
    assert code == 0 and "conforms, the forward alone: " in out


def test_the_selection_and_its_seed(in_process) -> None:
    target = "references.numpy_reference"
    code, out, err = in_process("check", target, "-k", "f32 and 2x4x41 and not off0.5", "--seed", "3", "--json", "-")
    report = json.loads(out)
    ids = [cell["id"] for cell in report["cells"]]
    assert code == 0 and report["status"] == 0 and report["verdict"].startswith("conforms")
    assert report["diagnosis"] == []
    assert ids and all("f32" in i and "2x4x41" in i and "off0.5" not in i and i.endswith("-s3") for i in ids)
    assert "conforms" in err
    code, _, err = in_process("check", target, "-k", "no_such_word")
    assert code == 2 and err == "rmsnorm-verify: no cell is selected\n"


def test_it_stops_at_the_first_failure(in_process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_norm.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    files = ("--junit", "j.xml", "--json", "o.json")
    code, out, _ = in_process("check", "wrong_norm", "-x", "--dtype", "float32", *files)
    report = json.loads((tmp_path / "o.json").read_text())
    assert code == 1 and len(report["cells"]) == 1 and "ended after 1 of" in out
    assert report["diagnosis"][0]["case"] == report["cells"][0]["id"]
    suite = xml.etree.ElementTree.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1") and "outside the tolerance" in str(
        [failure.get("message") for failure in suite.iter("failure")]
    )
    code, _, _ = in_process("check", "wrong_norm", "--maxfail", "3", "--dtype", "float32", "--json", "o.json")
    assert len(json.loads((tmp_path / "o.json").read_text())["cells"]) == 3


def test_several_processes_give_the_same_verdicts(in_process, tmp_path: Path) -> None:
    for jobs in ("1", "3"):
        files = ("--json", str(tmp_path / f"{jobs}.json"))
        in_process("check", "references.numpy_reference", "-k", "f16 and 2x4x41", "--jobs", jobs, *files)
    one, three = (json.loads((tmp_path / f"{jobs}.json").read_text())["cells"] for jobs in "13")
    assert [(c["id"], c["status"], c["measures"]) for c in one] == [
        (c["id"], c["status"], c["measures"]) for c in three
    ]


def test_compare_says_where_nothing_ran(in_process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "claims.toml").write_text('dtypes = ["float32"]\n')
    monkeypatch.chdir(tmp_path)
    target = "references.numpy_reference"
    code, _, err = in_process("compare", target, target, "--case", MATRIX_CELL, "--profile", "claims.toml", "-q")
    assert code == 3 and "no cell was judged in both" in err
    code, out, _ = in_process("compare", target, target, "--case", MATRIX_CELL)
    assert code == 0 and "1 cells in both" in out


def test_the_version(in_process) -> None:
    code, out, _ = in_process("--version")
    assert code == 0 and re.fullmatch(r"rmsnorm-verify \S+\n", out)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_characters_gets_others(encoding: str) -> None:
    arguments = command("check", "references.numpy_reference", "--case", MATRIX_CELL)
    env = environment() | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(arguments, cwd=ROOT, env=env, capture_output=True, timeout=300)
    assert done.returncode == 0 and b"conforms: 1 cells pass" in done.stdout and done.stderr == b""


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from references import __main__

    monkeypatch.setattr(__main__, "NEEDED", ("numpy", "no_such_package"))
    with pytest.raises(SystemExit) as stopped:
        __main__.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        "rmsnorm-verify: no_such_package not installed: pip install 'rmsnorm[verify]' brings what it needs\n"
    )


def test_a_folder_called_references_beside_the_kernel_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "references").mkdir()
    (tmp_path / "references" / "__init__.py").write_text("raise RuntimeError('the wrong package')")
    (tmp_path / "my_norm.py").write_text("from references.numpy_reference import backward, forward")
    script = "import sys; from references.__main__ import main; sys.argv[0] = 'rmsnorm-verify'; main()"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "rmsnorm-verify").write_text(script)
    arguments = [sys.executable, str(tmp_path / "bin" / "rmsnorm-verify"), "check", "my_norm", "--case", MATRIX_CELL]
    done = subprocess.run(arguments, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_claimed_and_never_judged_is_told() -> None:
    from references.candidates.profile import Profile
    from references.cells.cell import Case
    from references.judge.verdict import Verdict
    from references.report.summary import conclusion, exit_code, unjudged

    case = Case("gemma", 0.0, "float32", "none", False, (2, 8), 1e-6)
    other = Case("gemma", 0.0, "float16", "none", False, (2, 8), 1e-6)
    verdicts = [Verdict(case), Verdict(other, "unsupported", "no such thing")]
    missing = unjudged(verdicts, [case, other], Profile())
    assert missing == ["float16"] and exit_code(verdicts, missing) == 3
    assert conclusion(verdicts, 2, missing).startswith("not judged as a whole: float16 claimed")


def test_prove_says_what_a_candidate_computes(in_process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # as the command sets it, and so that it is set back
    code, out, _ = in_process("prove", "references.numpy_reference", "--casting-mode", "none")
    assert code == 0
    assert "asked for none: references.numpy_reference, bfloat16: equals none exactly at 40 shapes; " in out
    assert "references.numpy_reference, float32: equals the formula, in which the modes are one, exactly" in out
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\n"
        "def forward(x, w, eps):\n    c = x.astype(np.float32)\n"
        "    rstd = 1 / np.sqrt((c * c).mean(-1, keepdims=True) + np.float32(eps))\n"
        "    return (c * rstd * w.astype(np.float32)).astype(x.dtype)\n"
        "def backward(dy, x, w, eps):\n    return dy, w\n"
        "class ordered:\n    backward = staticmethod(backward)\n"
        "    forward = staticmethod(lambda x, w, eps: x / np.abs(x).max())\n"
    )
    code, out, _ = in_process("prove", str(file), "--dtype", "bfloat16")
    assert code == 1
    assert "Y is gemma's exactly at 40 shapes" in out and "dX: no formula that was tried explains it" in out
    code, out, _ = in_process("prove", f"{file}:ordered", "--dtype", "bfloat16")
    assert code == 3 and re.fullmatch(r".*ordered, bfloat16: not algebraic: numpy\.absolute\n", out)
