"""The README's commands are the ones that CI runs, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_finds_the_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (extract,) = re.findall(r"command=\$\((.*)\)", script)
    found = subprocess.run(["bash", "-c", extract], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert "tox run -e lint,types,references,interpret" in found
    assert "\n" not in found


def test_documents_and_sections_that_the_readme_links_exist() -> None:
    links = re.findall(r"\]\((docs/[^)#]+)(?:#([^)]*))?\)", README)
    assert links
    for document, section in links:
        text = (ROOT / document).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        sections = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert section in sections | {""}, f"{document}#{section}"
