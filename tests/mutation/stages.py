"""What judges one mutant, in a child process whose working directory is the scratch copy: cheap checks first.

A stage returns how it noticed the fault, or None. The mutant's own stage comes first, then those that it names, or all.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from references.candidates.loading import load
from references.cells.cell import Case
from references.judge.comparison import Finding
from references.judge.verdict import check
from tests.mutation.mutant import CELLS, STATIC, VOTE
from tests.references import vote
from tests.rmsnorm.triton import static_rules

NEAR = 2  # a tolerance exceeded by less may be exceeded by chance
PATIENCE = 60  # seconds for one test or all cells: ten times what the slowest takes
TARGET = "rmsnorm:liger_rms_norm"
SUITE = (  # in the order of what they cost
    "tests/rmsnorm/triton/test_host_contract.py",
    "tests/rmsnorm/torch/test_errors.py",
    "tests/rmsnorm/torch/test_in_place.py",
    "tests/rmsnorm/torch/test_module.py",
    "tests/rmsnorm/triton/test_launch.py",
    "tests/rmsnorm/triton/test_tiles.py",
    "tests/rmsnorm/torch/test_eager_cells.py",
    "tests/references/test_vote.py",
    "tests/rmsnorm/torch/test_gradcheck.py",
    "tests/rmsnorm/torch/test_residual.py",
    "tests/rmsnorm/torch/test_properties.py",
    "tests/rmsnorm/triton/test_hard_inputs.py",
    "tests/rmsnorm/triton/test_state.py",
    "tests/rmsnorm/triton/test_values.py",
    "tests/rmsnorm/torch/test_paths.py",
    "tests/rmsnorm/torch/test_transforms.py",
)
EVERYTHING = (STATIC, CELLS, VOTE, *SUITE)
MODULES = ("rmsnorm", "rmsnorm.fused.launch", "references.judge.verdict")


class Kill(dict[str, Any]):
    """How a fault was noticed: by (kind of check), where, margin, text."""


def static(device: str) -> Kill | None:
    for text in static_rules.violations_in(Path.cwd()):
        return Kill(by="static rules", where=text, margin=None, text=text)
    return None


def judged_cells(seed: int) -> list[Case]:
    """Cells in which most faults show, the telling ones first."""
    telling = [
        Case(mode, offset, dtype, weight, in_place, (2, 4, 41), eps)
        for mode, offset, dtype, weight, in_place, eps in (
            ("llama", 0.5, "bfloat16", "same", False, 0.7),
            ("gemma", 0.5, "bfloat16", "same", True, 0.7),
            ("none", 0.5, "bfloat16", "same", False, 0.7),
            ("gemma", 1.0, "float32", "same", False, 0.7),
            ("llama", 0.5, "float64", "same", False, 0.7),
            ("gemma", 0.5, "bfloat16", "none", True, 0.7),
            ("llama", 0.5, "bfloat16", "float32", False, 1e-6),
            ("none", 0.5, "float16", "same", True, 0.7),
        )
    ]
    rows = [
        Case(mode, 0.5, dtype, "same", False, (16, 200), 0.7, row_mode=row_mode)
        for mode, dtype, row_mode in (
            ("llama", "bfloat16", True),
            ("gemma", "bfloat16", False),
            ("gemma", "float64", False),
            ("llama", "float16", None),
        )
    ]
    # Three columns: in a longer row roundings of squares average out and the mean swallows them.
    rows.append(Case("none", 0.5, "bfloat16", "same", False, (256, 3), 0.7, row_mode=False))
    data = [
        Case("llama", 0.5, dtype, "same", True, (3, 17), 1e-6, data=kind)
        for dtype, kind in (
            ("float32", "huge"),
            ("float32", "tiny"),
            ("bfloat16", "non_finite"),
            ("float32", "zero_rows"),
        )
    ]
    layouts = [
        Case("llama", 0.5, "float32", "same", in_place, (2, 5, 24), 0.7, x_layout=x, dy_layout=dy, w_layout=w)
        for in_place, x, dy, w in (
            (True, "row_strided", "column_strided", "column_strided"),
            (True, "transposed", "expanded", "misaligned"),
            (False, "heads", "transposed", "contiguous"),
        )
    ]
    cells = [*telling, *rows, *data, *layouts, Case("llama", 0.5, "float32", "same", True, (0, 16), 1e-6)]
    return [replace(case, seed=seed) for case in cells]


def judge_cells(device: str, seed: int) -> Kill | None:
    implementation = load(TARGET, device=device)
    for case in judged_cells(seed):
        verdict = check(implementation, case)
        if verdict.status == "unsupported":  # every cell is one that we claim
            return Kill(by="error", where=case.id, margin=None, text=f"unsupported: {verdict.reason}")
        if verdict.status != "pass":
            finding = strongest(verdict.findings)
            margin = float(finding.ratio or 0) if finding.check == "value" else None
            return Kill(by=CHECKS.get(finding.check, finding.check), where=case.id, margin=margin, text=str(finding))
    return None


CHECKS = {
    "value": "tolerance",
    "exact": "exactness",
    "rounding": "enclosure",
    "special": "special values",
    "run": "error",
}


def strongest(findings: list[Finding]) -> Finding:
    """The finding that leaves least to chance: a tolerance exceeded by little comes last."""
    order = {"run": 4, "dtype": 4, "shape": 4, "special": 3, "contract": 3, "rounding": 2, "exact": 2}

    def strength(finding: Finding) -> tuple[int, float]:
        if finding.check != "value":
            return order.get(finding.check, 3), 0.0
        ratio = float(finding.ratio or 0)
        return (3 if ratio >= NEAR else 1), ratio

    return max(findings, key=strength)


def outvote(device: str, seed: int) -> Kill | None:
    named, why = vote.odd_one_out(replace(case, seed=seed) for case in vote.cases())
    return Kill(by="vote", where=named, margin=None, text=why) if named else None


def suite(selection: str) -> Callable[[str], Kill | None]:
    """A stage of pytest's: the first failing test of "path" or "path::name", perhaps with " -k expression"."""
    node, _, expression = selection.partition(" -k ")

    def stage(device: str) -> Kill | None:
        import pytest

        recorder = _Recorder()
        mark = "gpu or multigpu" if device == "cuda" else "not gpu and not slow and not mutation"
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # hypothesis' alone costs seconds
        options = ["-o", "addopts=--strict-markers --strict-config --import-mode=importlib", "-p", "pytest_timeout"]
        options += ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-m", mark, f"--timeout={PATIENCE}"]
        options += ["--rootdir", os.getcwd(), "-k", expression]
        code = pytest.main([*options, node], plugins=[recorder])
        if recorder.kill is None and code not in (0, 5):
            raise RuntimeError(f"pytest ended with {code} for {selection}")
        return recorder.kill

    return stage


class _Recorder:
    kill: Kill | None = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and self.kill is None:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else str(report.longrepr)
            self.kill = Kill(
                by="timeout" if "Timeout" in text[:20] else "test",
                where=report.nodeid,
                margin=None,
                text=text.splitlines()[0] if text else "",
            )


def stages(noticed_by: str, then: list[str] | None, seed: int) -> Iterator[tuple[str, Callable[[str], Kill | None]]]:
    """(name, stage): first that of the mutant, then those in `then`; None is all the rest."""
    own: dict[str, Callable[[str], Kill | None]] = {
        STATIC: static,
        CELLS: partial(judge_cells, seed=seed),
        VOTE: partial(outvote, seed=seed),
    }
    if then is None:
        then = [name for name in EVERYTHING if name != noticed_by]
    for name in (noticed_by, *then):
        yield name, own[name] if name in own else suite(name)


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """TimeoutError after so many seconds; 0 sets no limit (pytest has its own)."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"did not end in {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judge(noticed_by: str, then: list[str] | None, device: str, result: Path, depth: int, seed: int) -> None:
    """Write {status, kill, stage} to `result`: "killed", "survived", or "broken" where nothing imports.

    Only the first `depth` stages are run.
    """
    outcome: dict[str, Any] = {"status": "survived", "stage": None, "kill": None}
    try:
        from references.candidates import interpreter

        interpreter.install()
        with limited(PATIENCE):
            for module in MODULES:
                importlib.import_module(module)
        for name, stage in itertools.islice(stages(noticed_by, then, seed), depth):
            result.with_suffix(".stage").write_text(name)
            try:
                with limited(PATIENCE if name in (STATIC, CELLS, VOTE) else 0):
                    kill = stage(device)
            except TimeoutError as error:
                kill = Kill(by="timeout", where=name, margin=None, text=str(error))
            except ImportError as error:
                outcome = {"status": "broken", "stage": name, "kill": Kill(by="import error", text=str(error))}
                break
            except Exception as error:  # a crash of the mutant outside of a candidate's guard
                kill = Kill(by="crash", where=name, margin=None, text=f"{type(error).__name__}: {error}")
            if kill:
                outcome = {"status": "killed", "stage": name, "kill": kill}
                break
    except Exception as error:
        outcome = {"status": "broken", "stage": None, "kill": Kill(by="import error", text=repr(error))}
    with contextlib.suppress(TypeError):
        result.write_text(json.dumps(outcome))
