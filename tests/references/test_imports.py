"""What an import brings along: `import rmsnorm` needs torch and triton alone, the references need neither."""

from __future__ import annotations

import subprocess
import sys

import pytest


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


def blocked(*names: str) -> str:
    return "".join(f"sys.modules['{name}'] = None; " for name in names)


@pytest.mark.torch
def test_rmsnorm_needs_torch_and_triton_alone() -> None:
    unwanted = ("jax", "ml_dtypes", "mpmath", "typer", "rich", "matplotlib", "hypothesis", "transformers", "references")
    loaded = modules_after(blocked(*unwanted) + "import rmsnorm; rmsnorm.LigerRMSNorm(8)")
    assert {"torch", "triton"} <= loaded


@pytest.mark.parametrize(
    "module",
    [
        *("numpy_reference", "oracle", "spec", "arrays", "bounds.tolerances", "cells.levels"),
        *("judge.verdict", "judge.shrinking", "candidates.probing", "candidates.process", "pytest_plugin"),
    ],
)
def test_the_judge_needs_neither_torch_nor_jax(module: str) -> None:
    loaded = modules_after(blocked("torch", "jax", "triton", "rmsnorm") + f"import references.{module}")
    assert "numpy" in loaded or module == "spec"


def test_the_face_costs_nothing_until_it_is_asked() -> None:
    loaded = modules_after("import references")
    assert not {"numpy", "torch", "jax"} & loaded
    names = "load, check, check_all, Case, LEVELS, Profile, Verdict"
    modules_after(blocked("torch", "jax", "triton", "rmsnorm") + f"from references import {names}")
