"""Measure how long the interactive report takes to draw a frame, in browsers that are installed.

``python -m scripts.page_frames`` makes a page of 64 ranks by 20,000 operations, pans and zooms it,
and prints the median and the 95th percentile of the time from frame to frame, without a limit on
their rate::

    browser   width  view        paint: least, median   pan: median, p95   zoom: median, p95   ms

``paint`` is the page's own work, the rest what the browser adds; other programs slow both.

A planted run is analysed, and its timeline repeated until a rank has that many operations.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bubbleviz.api import analyze
from bubbleviz.model.columns import Ints
from bubbleviz.render.json_document import document
from bubbleviz.render.web.page import packed, page
from bubbleviz.report.timeline import Timeline, timeline_of
from tests.planting import Planting, plant
from tests.support.browsers import CHROMIUM_OPTIONS, Firefox

#: Pans by 2 % and zooms by 3 % a frame, and gives the times between frames in milliseconds.
_FRAMES = """
const { run, timeline } = await bubbleviz;
const next = () => new Promise((done) => requestAnimationFrame(done));
const whole = run.endNs - run.startNs, span = whole / PARTS;
const from = run.startNs + 0.41 * (whole - span);
const paints = [];
const times = async (move) => {
  timeline.show(from, from + span);
  for (let i = 0; i < 5; i += 1) await next();
  const all = [];
  let last = await next();
  for (let i = 0; i < 60; i += 1) {
    move(i);
    const now = await next();
    all.push(now - last);
    paints.push(Number(timeline.canvas.dataset.tookMs));
    last = now;
  }
  return all;
};
const pans = await times((i) => timeline.pan(i % 20 < 10 ? 0.02 : -0.02));
const zooms = await times((i) => timeline.zoom(i % 20 < 10 ? 0.97 : 1 / 0.97));
return [paints, pans, zooms];
"""
_PARTS = {"whole run": 1.1, "1/10": 10.0, "1/100": 100.0, "1/1000": 1000.0}


def page_of(ranks: int, operations: int) -> str:
    """Return a page of a run of so many ranks, with at least so many operations on each."""
    with tempfile.TemporaryDirectory() as folder:
        plant(
            Planting(stages=ranks, microbatches=100, iterations=3, kernels=1, jitter=0.05),
            Path(folder),
        )
        report = analyze(folder)
    numbers, timeline = document(report), timeline_of(report)
    own = len(timeline.tables["operations"]["rank"]) // ranks
    packed_document, columns, _ = packed(
        numbers, _repeated(timeline, -(-operations // own)), None, ""
    )
    return page(packed_document, columns)


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


def _measured(name: str, file: Path, width: int) -> dict[str, Any]:
    """Return the times between frames by view, in a browser of that width."""
    scripts = {view: _FRAMES.replace("PARTS", str(parts)) for view, parts in _PARTS.items()}
    if name == "firefox":
        with Firefox(width, 1000 if width < 2000 else 1440, frame_rate=0) as firefox:
            firefox.open(file.as_uri())
            return {view: firefox.run(script) for view, script in scripts.items()}
    from playwright.sync_api import sync_playwright

    options = [*CHROMIUM_OPTIONS, "--disable-frame-rate-limit", "--disable-gpu-vsync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=options)
        own = browser.new_page(viewport={"width": width, "height": 1000 if width < 2000 else 1440})
        own.goto(file.as_uri())
        own.locator("body[data-ready]").wait_for(timeout=120_000)
        found = {v: own.evaluate(f"async () => {{ {s} }}") for v, s in scripts.items()}
        browser.close()
        return found


def main() -> None:
    """Print a line for each browser, width and view."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--browsers", nargs="+", default=["chromium", "firefox"])
    parser.add_argument("--widths", nargs="+", type=int, default=[1280, 2560])
    parser.add_argument("--page", type=Path, help="measure this page instead")
    parser.add_argument("--keep", type=Path, help="write the page there, and stay")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = asked.page or asked.keep or Path(folder) / "page.html"
        if asked.page is None:
            file.write_text(page_of(asked.ranks, asked.operations), encoding="utf-8")
        print(f"{file.stat().st_size / 1e6:.1f} MB")
        print(
            "browser   width  view        paint: least, median   pan: median, p95   zoom: ...   ms"
        )
        for name in asked.browsers:
            for width in asked.widths:
                for view, times in _measured(name, file.resolve(), width).items():
                    points = ((0, 50), (50, 95), (50, 95))
                    cells = (
                        f"{np.percentile(own, at):8.1f}"
                        for own, pair in zip(times, points, strict=True)
                        for at in pair
                    )
                    print(f"{name:9} {width:5}  {view:10} {' '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
