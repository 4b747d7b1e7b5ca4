"""Opens the interactive report in a headless browser for a test.

Playwright is imported only when the first page is opened, so that tests can be collected without
it.
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

#: JavaScript helpers for scripts in tests.
PARTS_OF_PAGE = """const { run, timeline, charts, parts, significant, percent } = await bubbleviz;
const { many: many_ranks, shards } = await bubbleviz;
"""


def format_significant(number: float, decimals: int = 12) -> str:
    """Format a number with three significant digits, in the same way as the page."""
    rounded = float(f"{number:.2e}")
    if rounded == 0:
        return "0"
    return f"{rounded:,.{min(decimals, max(0, 2 - floor(log10(abs(rounded)) + 1e-9)))}f}"


def format_percent(ratio: float) -> str:
    """Format a non-negative ratio in percent, in the same way as the page."""
    return "< 0.01 %" if 0 < 100 * ratio < 0.01 else f"{format_significant(100 * ratio, 2)} %"


@dataclass
class Opened:
    """A page in the browser, and the errors and requests that it caused."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def run(self, script: str) -> Any:
        """Run a script that can access the internals of the page, and return its result."""
        return self.page.evaluate(f"async () => {{ {PARTS_OF_PAGE} {script} }}")

    def frame(self) -> None:
        """Wait until the next frame is drawn."""
        self.page.evaluate("() => new Promise((next) => requestAnimationFrame(() => next()))")

    def view(self) -> list[float]:
        return list(self.run("return [timeline.fromNs, timeline.untilNs]"))

    def box(self, row: int) -> tuple[float, float]:
        """Return the page coordinates of the center of an operation's box."""
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
    """Start Chromium once per test session. Each page has its own browser context."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(CHROMIUM_OPTIONS))
        yield started
        started.close()


Open = Callable[..., Opened]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens a report's page.

    At the end, check that there were no errors or requests.
    """
    pages: list[Opened] = []

    def opening(report: Report | str, width: int = 1280, scheme: Any = "light") -> Opened:
        """Open a report or the text of a page, and wait until the page is ready."""
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
    """Record the errors of a page, and all requests except the one for the page itself."""

    def record_error(message: Any) -> None:
        if message.type == "error":
            page.complaints.append(message.text)

    def record_request(request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            page.asked.append(request.url)

    page.page.on("console", record_error)
    page.page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.page.on("request", record_request)
