"""The interactive report, opened in a browser for a test.

Debian's browsers are driven headless. Playwright is imported when the first page is opened, so that
tests can be collected without it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bubbleviz.render.web import page as html
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.browsers import CHROMIUM_OPTIONS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: What scripts of tests have at hand.
PARTS_OF_PAGE = """const { run, timeline, charts, parts, significant, percent } = await bubbleviz;
const { many: many_ranks, shards } = await bubbleviz;
"""


def format_significant(number: float, decimals: int = 12) -> str:
    """Return a number with three significant digits, as the page writes it."""
    rounded = float(f"{number:.2e}")
    if rounded == 0:
        return "0"
    return f"{rounded:,.{min(decimals, max(0, 2 - floor(log10(abs(rounded)) + 1e-9)))}f}"


def format_percent(ratio: float) -> str:
    """Return a ratio from 0 on in percent, as the page writes it."""
    return "< 0.01 %" if 0 < 100 * ratio < 0.01 else f"{format_significant(100 * ratio, 2)} %"


@dataclass
class Opened:
    """A page in the browser, and what went wrong or out of it."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def run(self, script: str) -> Any:
        """Return what a script gives, with the parts of the page at hand."""
        return self.page.evaluate(f"async () => {{ {PARTS_OF_PAGE} {script} }}")

    def frame(self) -> None:
        """Wait until what was asked for is drawn."""
        self.page.evaluate("() => new Promise((next) => requestAnimationFrame(() => next()))")

    def view(self) -> list[float]:
        return list(self.run("return [timeline.fromNs, timeline.untilNs]"))

    def box(self, row: int) -> tuple[float, float]:
        """Return the middle of an operation's box, on the page."""
        x, y = self.run(
            f"""const own = run.operations, at = {row};
            const place = timeline.rows.findIndex((each) => each.rank === own.rank[at]);
            const box = timeline.canvas.getBoundingClientRect();
            return [
              box.left + timeline.x(own.start_ns[at] + own.length_ns[at] / 2),
              box.top + timeline.top(place + 0.5),
            ];"""
        )
        return float(x), float(y)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start Chromium once; each page has a context of its own."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(CHROMIUM_OPTIONS))
        yield started
        started.close()


Open = Callable[..., Opened]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Return what opens a report's page; no page may complain, or ask any host for anything."""
    pages: list[Opened] = []

    def opening(report: Report | str, width: int = 1280, scheme: Any = "light") -> Opened:
        file = tmp_path / f"report{len(pages)}.html"
        text = report if isinstance(report, str) else html.render(report, View())
        file.write_text(text, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = Opened(context.new_page())
        pages.append(page)
        watch(page)
        page.page.goto(file.as_uri())
        page.page.locator("body[data-ready]").wait_for(timeout=60_000)
        return page

    yield opening
    for page in pages:
        assert page.complaints == []
        assert page.asked == []
        page.page.context.close()


def watch(page: Opened) -> None:
    """Take down what a page complains of, and what it asks for beside itself."""

    def told(message: Any) -> None:
        if message.type == "error":
            page.complaints.append(message.text)

    def asking(request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            page.asked.append(request.url)

    page.page.on("console", told)
    page.page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.page.on("request", asking)
