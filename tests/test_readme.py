"""The README's Python runs as it stands, and its commands are the ones that CI runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.torch
def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert tuple(names["y"].shape) == (2, 8, 4096)  # type: ignore[attr-defined]


def test_ci_finds_the_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (extract,) = re.findall(r"command=\$\((.*)\)", script)
    found = subprocess.run(["bash", "-c", extract], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert "tox run -e lint,types,references,interpret" in found
    assert "\n" not in found


def test_documents_that_the_readme_links_exist() -> None:
    links = re.findall(r"\]\((docs/[^)#]+)\)", README)
    assert links
    assert all((ROOT / link).is_file() for link in links)
