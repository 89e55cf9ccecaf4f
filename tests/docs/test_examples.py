"""The programs in examples/ do what they say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from rmsnorm.fused import launch  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def eager_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a reader runs them: eager PyTorch on a CPU."""
    monkeypatch.setattr(launch, "INTERPRETED", False)


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_a_model_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = example("train", monkeypatch).main(steps=20)
    assert last < 0.8 * first


def test_a_converted_model_has_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    report, same = example("convert", monkeypatch).main()
    assert same and len(report.replaced) == 2


def test_a_fused_decoder_has_the_losses_of_the_unfused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, where the operations are the same; a GPU may contract product and sum, and Adam carries that on."""
    fused, unfused = example("residual_stream", monkeypatch).main(steps=10, device="cpu")
    assert fused[-1] < 0.8 * fused[0]
    assert fused == unfused


def test_the_judge_tells_one_conversion_from_two(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = example("judge", monkeypatch).judge
    assert [verdict.status for verdict in judge("converts_once")] == ["pass", "pass"]
    for verdict in judge("converts_twice"):
        assert verdict.status == "fail" and {finding.tensor for finding in verdict.findings} == {"dx"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_runs_as_a_program(path: Path, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
