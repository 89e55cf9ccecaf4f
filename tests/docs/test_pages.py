"""The README's command is the one that CI runs; links, paths and codes in every page are those of the checkout."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from references.cells.cell import DATA, LAYOUT_CODES, SHORT, VARIANTS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, *filter(Path.exists, (ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")), *DOCS]
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def links(page: Path) -> list[tuple[Path, str]]:
    """(file, section) of every link into the checkout."""
    found = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", FENCED.sub("", text_of(page)))
    return [((page.parent / file).resolve() if file else page, section) for file, section in found]


def sections(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_ci_finds_the_test_command() -> None:
    script = text_of(ROOT / ".ci" / "run")
    (extract,) = re.findall(r"command=\$\((.*)\)", script)
    found = subprocess.run(["bash", "-c", extract], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert "tox run -e lint,types,references,interpret" in found
    assert "\n" not in found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, section in links(page):
        assert target.exists(), target
        assert not section or section in sections(target), f"{target}#{section}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    text = re.sub(r"`[^`]*` at [0-9a-f]{7}", "", text_of(page))  # what was there at a commit
    named = re.findall(r"\b(?:tests|docs|rmsnorm|references|examples)/[\w/]+\.\w+", text)
    assert not {name for name in named if not any((root / name).exists() for root in (ROOT, ROOT / "tests"))}


def test_pages_that_the_sources_name_exist() -> None:
    for source in (path for package in ("rmsnorm", "references") for path in (ROOT / package).rglob("*.py")):
        for name in re.findall(r"\bdocs/[\w/]+\.md", text_of(source)):
            assert (ROOT / name).exists(), f"{source}: {name}"


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [README]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            waiting += [target for target, _ in links(page)]
    assert set(PAGES) <= reached


def test_the_page_of_cells_decodes_every_code() -> None:
    page = text_of(ROOT / "docs/judge/cells.md")
    for code in (*SHORT.values(), *LAYOUT_CODES.values(), *VARIANTS.values(), *DATA):
        assert f"`{code}`" in page, code


def test_the_readme_is_one_that_is_read() -> None:
    assert len(text_of(README).splitlines()) <= 110
