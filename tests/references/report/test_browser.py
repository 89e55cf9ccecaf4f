"""The page in headless Chromium: nothing is loaded, nothing complains, the table sorts and filters."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from references.candidates.loading import load
from references.cells.levels import SMOKE
from references.judge.verdict import Verdict, check
from references.report import page

pytestmark = pytest.mark.browser

ABOUT = {"implementation": "a:b", "device": "cpu", "interpreted": False, "python": "3", "versions": {"numpy": "2"}}
# As root Chromium has no sandbox; the rest keeps it from calling home.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(ARGUMENTS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judged reference, with a failure and an unsupported cell planted."""
    verdicts = [check(load("references.numpy_reference"), case) for case in SMOKE[:12]]
    verdicts[3].status = "fail"
    verdicts.append(Verdict(SMOKE[12], "unsupported", "no offset argument"))
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(page.page(verdicts, ABOUT, 13), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Any, document: Path) -> Iterator[Any]:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: request.url.startswith("file:") or complaints.append(request.url))
    tab.goto(document.as_uri())
    yield tab
    tab.close()
    assert complaints == []


def _column(tab: Any, number: int) -> list[str]:
    return tab.locator(f"#cells tbody tr:visible td:nth-child({number})").all_text_contents()


def test_it_is_drawn(opened: Any) -> None:
    assert opened.locator("h1").text_content() == "a:b"
    assert "Deviates" in opened.locator(".verdict").text_content()
    assert opened.locator("#cells tbody tr").count() == 13
    assert opened.locator("svg").count() in (0, 3)  # with matplotlib


def test_a_heading_sorts_numbers_as_numbers_and_again_the_other_way(opened: Any) -> None:
    heading = opened.get_by_role("button", name="dX")
    heading.click()
    assert heading.locator("xpath=..").get_attribute("aria-sort") == "ascending"
    values = [-1.0 if text == "–" else float(text) for text in _column(opened, 14)]
    assert values == sorted(values)
    heading.click()
    values = [-1.0 if text == "–" else float(text) for text in _column(opened, 14)]
    assert values == sorted(values, reverse=True)
    opened.get_by_role("button", name="mode").click()
    assert opened.locator("[aria-sort]").count() == 1
    modes = _column(opened, 2)
    assert modes == sorted(modes)


def test_words_filter(opened: Any) -> None:
    field = opened.get_by_role("searchbox")
    field.fill("FAIL")
    assert _column(opened, 1) == ["fail ✗"]
    assert opened.locator("output").text_content() == "1 of 13 cells"
    field.fill("unsupported nonsense")
    assert _column(opened, 1) == []
    field.fill("")
    assert len(_column(opened, 1)) == 13


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_off(opened: Any, width: int) -> None:
    opened.set_viewport_size({"width": width, "height": 844})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    wide = opened.locator("#matrix td").first
    assert wide.bounding_box()["x"] < width


def test_without_scripts_it_is_a_plain_table(browser: Any, document: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(document.as_uri())
    assert tab.locator("#cells tbody tr").count() == 13
    assert tab.locator("button, input").count() == 0
    context.close()


def test_in_print_the_filter_is_gone(opened: Any) -> None:
    opened.emulate_media(media="print", color_scheme="dark")
    assert not opened.locator(".filter").is_visible()
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
