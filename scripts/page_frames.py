"""Measure how long the interactive report takes to draw a frame in Chromium.

    python -m scripts.page_frames

Plants 64 ranks, repeats their timeline until each has 20,000 operations, and pans and zooms the
page at four scales. Prints the page's own work per frame; the browser and other programs add to it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, sync_playwright

from bubbleviz.api import analyze
from bubbleviz.model.columns import Ints
from bubbleviz.render.web.page import packed, page
from bubbleviz.render.web.unsaved import UnsavedNumbers
from bubbleviz.report.summarizing import summary_of
from bubbleviz.report.timeline import Timeline, timeline_of
from tests.planting import Planting, plant
from tests.support.browsers import CHROMIUM_OPTIONS

#: Pans by 2 % and zooms by 3 % a frame; returns the milliseconds of work of each frame.
_FRAMES = """async (parts) => {
  const { run, timeline } = await bubbleviz;
  const next = () => new Promise((done) => requestAnimationFrame(done));
  const whole = run.endNs - run.startNs, span = whole / parts;
  const from = run.startNs + 0.41 * (whole - span);
  const tookMs = [];
  for (const move of [
    (i) => timeline.pan(i % 20 < 10 ? 0.02 : -0.02),
    (i) => timeline.zoom(i % 20 < 10 ? 0.97 : 1 / 0.97),
  ]) {
    timeline.show(from, from + span);
    await next();
    for (let i = 0; i < 60; i += 1) {
      move(i);
      await next();
      tookMs.push(Number(timeline.canvas.dataset.tookMs));
    }
  }
  return tookMs;
}"""
#: Minimum number of operations of each rank.
_OPERATIONS = 20_000
#: Views by name: how many of them fit into the run.
_VIEWS = {"whole run": 1.1, "1/10": 10.0, "1/100": 100.0, "1/1000": 1000.0}


def write_page(file: Path, folder: Path) -> None:
    """Write the page of a planted run, whose timeline is repeated."""
    plant(Planting(stages=64, microbatches=100, iterations=3, kernels=1, jitter=0.05), folder)
    report = analyze(folder)
    timeline = timeline_of(report)
    planted = len(timeline.tables["operations"]["rank"]) // 64
    repeated = _repeated(timeline, -(-_OPERATIONS // planted))
    packed_document, columns, _ = packed(summary_of(report), repeated, None, "", UnsavedNumbers())
    file.write_text(page(packed_document, columns), encoding="utf-8")


def _repeated(timeline: Timeline, times: int) -> Timeline:
    """Return a timeline that runs so many times, one after the other."""
    ends = [
        int((own["start_ns"] + own["length_ns"]).max())
        for own in timeline.tables.values()
        if "start_ns" in own and len(own["start_ns"])
    ]
    rows = len(timeline.tables["operations"]["rank"])
    operation_rank = timeline.tables["operations"]["rank"]
    place = _places(operation_rank, times)
    return Timeline(
        timeline.base_ns,
        timeline.names,
        {
            name: _table(own, times, max(ends), place, operation_rank)
            for name, own in timeline.tables.items()
            if rows
        },
    )


def _places(rank: Ints, times: int) -> Ints:
    """Return where each operation of each repetition stands, in order of rank: (times, rows)."""
    order = np.argsort(np.tile(rank, times), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place.reshape(times, len(rank))


def _table(
    own: Mapping[str, Ints], times: int, length_ns: int, place: Ints, operation_rank: Ints
) -> dict[str, Ints]:
    first = next(iter(own.values()))
    rank = own["rank"] if "rank" in own else operation_rank[own["operation"]]
    order = np.argsort(np.tile(rank, times), kind="stable")
    later = np.repeat(np.arange(times), len(first))
    made = {}
    for name, column in own.items():
        values = np.tile(column, times)
        if name == "start_ns":
            values = values + later * length_ns
        elif name in ("operation", "after", "peer_operation"):
            values = np.where(values < 0, values, place[later, values])
        made[name] = values[order]
    return made


def measure(tab: Page, parts: float) -> tuple[float, float]:
    """Return the median and the 95th percentile of the work per frame, in milliseconds."""
    took_ms = tab.evaluate(_FRAMES, parts)
    return float(np.median(took_ms)), float(np.percentile(took_ms, 95))


def main() -> None:
    """Print one line per view."""
    options = [*CHROMIUM_OPTIONS, "--disable-frame-rate-limit", "--disable-gpu-vsync"]
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        file = Path(name) / "page.html"
        write_page(file, Path(name) / "run")
        print(f"{file.stat().st_size / 1e6:.1f} MB; work per frame: median, 95th percentile, ms")
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=options)
        tab = browser.new_page(viewport={"width": 1280, "height": 1000})
        tab.goto(file.as_uri())
        tab.locator("body[data-ready]").wait_for(timeout=300_000)
        for view, parts in _VIEWS.items():
            median, high = measure(tab, parts)
            print(f"{view:10} {median:6.1f} {high:6.1f}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
