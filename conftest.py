"""Markers, the rule for missing backends, and the report header. No numerics.

A marker says what a test needs. A need that is not met skips the test, unless the environment variable RMSNORM_REQUIRE
names it (a comma-separated list, say `gpu,jax`): then it is an error, so that a green run cannot mean that nothing ran.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

MARKERS = {
    "gpu": "needs a CUDA GPU and compiled kernels",
    "multigpu": "needs two CUDA GPUs",
    "big": "needs tens of gigabytes of GPU memory",
    "interpret": "needs Triton's interpreter (TRITON_INTERPRET=1, the default where there is no GPU)",
    "torch": "needs torch",
    "jax": "needs jax",
    "hf": "needs transformers",
    "peers": "needs the peers that run on a CPU",
    "slow": "takes more than a minute",
    "mutation": "runs a planted fault in a child process",
    "browser": "needs Chromium and playwright",
}


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _gpu_count() -> int:
    if not _has("torch"):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


GPU_COUNT = _gpu_count()
# Before any test module imports rmsnorm: @triton.jit reads the choice when it decorates.
INTERPRETED = False
if _has("torch") and _has("triton"):
    from references.candidates import interpreter

    INTERPRETED = interpreter.install()

AVAILABLE = {
    "gpu": GPU_COUNT >= 1 and not INTERPRETED,
    "multigpu": GPU_COUNT >= 2 and not INTERPRETED,
    "interpret": INTERPRETED,
    "torch": _has("torch"),
    "jax": _has("jax"),
    "hf": _has("transformers"),
    "browser": _has("playwright") and shutil.which("chromium") is not None,
    "peers": all(map(_has, ("transformers", "flax", "haiku", "equinox", "keras"))),
}
REQUIRED = [need for need in os.environ.get("RMSNORM_REQUIRE", "").split(",") if need]


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Stand-ins for options of pyproject.toml whose plugins a GPU machine may lack: they change nothing there."""
    if not pluginmanager.hasplugin("benchmark"):
        parser.addoption("--benchmark-skip", action="store_true", help="needs pytest-benchmark")
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "needs pytest-timeout")


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    unknown = [need for need in REQUIRED if need not in AVAILABLE]
    if unknown:
        raise pytest.UsageError(f"RMSNORM_REQUIRE names {unknown}, known are {sorted(AVAILABLE)}")
    missing = [need for need in REQUIRED if not AVAILABLE[need]]
    if missing:
        raise pytest.UsageError(f"RMSNORM_REQUIRE demands {missing}, which this machine does not offer")


def pytest_report_header() -> list[str]:
    versions = []
    for name in ("torch", "triton", "jax", "numpy", "ml_dtypes"):
        if _has(name):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    device = "none"
    if GPU_COUNT:
        import torch

        device = f"{GPU_COUNT} × {torch.cuda.get_device_name(0)}"
    return [
        "rmsnorm: " + ", ".join(versions),
        f"rmsnorm: GPU {device}; Triton kernels {'interpreted' if INTERPRETED else 'compiled'}; "
        f"required: {', '.join(REQUIRED) or 'nothing'}",
    ]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for need, available in AVAILABLE.items():
        if not available and item.get_closest_marker(need):
            pytest.skip(f"needs {need}: {MARKERS[need]}")


@pytest.fixture(scope="session")
def device() -> str:
    """Where the kernels run in this process: "cuda", or "cpu" through the interpreter."""
    return "cuda" if AVAILABLE["gpu"] else "cpu"


@pytest.fixture
def candidate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """An object made in a test, loaded as a stranger's candidate is."""

    def load_object(found: Any) -> Any:
        from references.candidates.loading import load

        module = types.ModuleType("a_candidate")
        module.it = found
        monkeypatch.setitem(sys.modules, "a_candidate", module)
        return load("a_candidate:it")

    return load_object


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    # `pytest -m gpu` without a GPU collects and skips; only a selection that matches nothing is an error.
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not session.config.option.collectonly:
        print("\nno test was selected")
