"""Measure how long interactive reports take to open in Chromium, and to show another pipeline.

``python -m scripts.page_opening FILE...`` prints for each::

    MB    painted s    ready s    pipeline s    file

``painted`` is when all but the charts is drawn, ``ready`` when all is, since the browser was asked
for the page; ``pipeline`` the median of ten pipelines of a run of many ranks.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.support.browsers import CHROMIUM_OPTIONS

#: Shows ten pipelines, and gives how long each took in milliseconds.
_PIPELINES = """async () => {
  const { many, run } = await bubbleviz;
  const took = [];
  for (let i = 0; many && i < 10; i += 1) {
    const began = performance.now();
    await many.show(Math.floor((i * run.report.ranks.length) / 10));
    took.push(performance.now() - began);
  }
  return took;
}"""


def measured(browser: Browser, file: Path) -> tuple[float, float, float | None]:
    """Return seconds until a page is painted and ready, and until a pipeline is shown; None none.

    Args:
        browser: that opens it.
        file: of the page.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    began = time.monotonic()
    page.goto(file.resolve().as_uri(), wait_until="commit")
    waited = []
    for mark in ("painted", "ready"):
        page.locator(f"body[data-{mark}]").wait_for(timeout=300_000)
        waited.append(time.monotonic() - began)
    took_ms = page.evaluate(_PIPELINES)
    context.close()
    return waited[0], waited[1], statistics.median(took_ms) / 1e3 if took_ms else None


def main() -> None:
    """Print the times of the files that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", nargs="+", type=Path)
    files = parser.parse_args().file
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(CHROMIUM_OPTIONS)
        )
        print(f"{'MB':>7} {'painted s':>10} {'ready s':>8} {'pipeline s':>11}  file")
        for file in files:
            painted, ready, pipeline = measured(browser, file)
            shown = "-" if pipeline is None else f"{pipeline:.3f}"
            size = file.stat().st_size / 1e6
            print(f"{size:>7.1f} {painted:>10.2f} {ready:>8.2f} {shown:>11}  {file.name}")
        browser.close()


if __name__ == "__main__":
    main()
