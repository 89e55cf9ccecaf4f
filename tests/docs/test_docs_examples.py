"""Every Python block of the README, of docs/use and of the judge's reference page runs, where its needs are met.

The blocks of a page run one after the other in one process, as a reader runs them: without Triton's interpreter, on a
CPU unless they say otherwise. A comment above a block names what it needs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USE = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs/use").glob("*.md"))
PAGES = ("README.md", *USE, "docs/judge/python.md")
TWO_PROCESSES = "two processes: torchrun --nproc-per-node 2"
ONNX = "onnx, onnxscript"
NEEDS = ("", "transformers", "two GPUs", ONNX, TWO_PROCESSES)

pytestmark = pytest.mark.torch


def blocks(page: str, *needs: str) -> list[str]:
    """The page's Python blocks that need nothing, or nothing but one of `needs`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"(?:^<!-- ([^\n]*) -->\n)?^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert {need for need, _ in found} <= set(NEEDS)
    return [block for need, block in found if need in needs]


def run(code: str, tmp_path: Path, *launcher: str) -> None:
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRITON_INTERPRET": "0",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *launcher, str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_a_page(page: str, tmp_path: Path) -> None:
    run("\n".join(blocks(page, "")), tmp_path)


@pytest.mark.hf
def test_blocks_with_transformers(tmp_path: Path) -> None:
    pytest.importorskip("kernels")
    assert len(blocks("docs/use/models.md", "transformers")) == 2
    run("\n".join(blocks("docs/use/models.md", "", "transformers")), tmp_path)


def test_blocks_with_onnx(tmp_path: Path) -> None:
    for module in ONNX.split(", "):
        pytest.importorskip(module)
    assert len(blocks("docs/use/pytorch.md", ONNX)) == 1
    run("\n".join(blocks("docs/use/pytorch.md", "", ONNX)), tmp_path)


@pytest.mark.multigpu
def test_blocks_for_two_gpus(tmp_path: Path) -> None:
    assert len(blocks("docs/use/pytorch.md", "two GPUs")) == 1
    run("\n".join(blocks("docs/use/pytorch.md", "", "two GPUs")), tmp_path)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.multigpu)])
def test_blocks_for_two_processes(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks("docs/use/pytorch.md", TWO_PROCESSES)
    if device == "cpu":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    # At the end of the block nothing is left to see. A thread of Gloo may abort an ordinary exit: it drops a
    # tensor, for which it needs the interpreter that is being torn down (pytorch pull request 179291).
    run(f"{block}\nos._exit(0)", tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
