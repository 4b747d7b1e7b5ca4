"""What is too narrow to be seen: merged by phase, marked, bounded, and as a slow count says."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from bubbleviz.model.columns import Floats
from bubbleviz.model.operations import BusyIntervals, Operations
from bubbleviz.model.phases import Phase
from bubbleviz.render.picture import marks as merging
from bubbleviz.render.picture.legend import picture as render
from bubbleviz.render.picture.marks import (
    NARROWEST,
    Marks,
    split,
)
from bubbleviz.render.picture.page import SCREEN
from bubbleviz.render.picture.rows import MOST_TOOLTIPS
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.drawn_reports import Op, one_f_one_b, parsed, report_of, tooltips, written


def test_a_full_row_keeps_its_widest_and_says_how_wide_the_rest_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merging, "MARKS_PER_ROW", 200)
    each, zero = np.arange(300), np.zeros(300, np.int64)
    left = np.linspace(0.0, 897.0, 300, dtype=np.float64)
    marks = Marks(
        zero, zero, each, zero, left, left + np.linspace(0.6, 0.899, 300, dtype=np.float64)
    )

    alone, merged = split([marks], 1, 1000.0)

    assert alone.operation.tolist() == list(range(100, 300))
    assert merged.by_kind() == {Phase.F: 100}
    assert merged.narrower == pytest.approx(0.7)


# In the picture


def random_report(ranks: int, each: int) -> Report:
    """Return a report of that many operations a rank, in one iteration, of 500 to 5,000 ns."""
    generator = np.random.default_rng(0)
    busy = generator.integers(500, 5_000, (ranks, each))
    end = np.cumsum(busy + generator.integers(0, 600, (ranks, each)), axis=1)
    rows = ranks * each
    columns = {name: np.full(rows, -1, np.int64) for name in Operations.column_names()}
    columns["rank"] = np.repeat(np.arange(ranks), each)
    columns["iteration"] = columns["chunk"] = columns["cut"] = np.zeros(rows, np.int64)
    columns["phase"] = np.tile(np.arange(each) % 3, ranks)
    columns["microbatch"] = np.tile(np.arange(each) // 3, ranks)
    columns["has_span"] = np.ones(rows, np.int64)
    columns["start_ns"], columns["end_ns"] = (end - busy).ravel(), end.ravel()
    whole = [Op(rank, Phase.F, 0, 0, int(end.max())) for rank in range(ranks)]
    return replace(
        report_of(whole),
        operations=report_of([]).operations.changed(**columns),
        busy=BusyIntervals(np.arange(rows), columns["start_ns"], columns["end_ns"]),
    )


def told(svg: str) -> int:
    """Return how many operations the merged stretches tell."""
    numbers = [path.get("data-operations") for path in parsed(svg).iter()]
    return sum(int(number) for number in numbers if number)


def heights(path: str, columns: int, pixels: int) -> Floats:
    """Return the height at the beginning of each column of an area that stands on 30."""
    x, y, found = 0.0, 30.0, np.zeros(columns)
    for letter, number in re.findall(r"([HV])([0-9.]+)", path):
        if letter == "V":
            y = float(number)
            continue
        places = (np.arange(columns) + 0.1) * pixels
        found[(places > x) & (places < float(number))] = 30 - y
        x = float(number)
    return found


def spent(of: Operations, edges: Floats) -> Floats:
    """Return how long operations ran between each edge and the next."""
    times = np.column_stack([of.start_ns, of.end_ns]).ravel()
    done = np.repeat(np.cumsum(of.end_ns - of.start_ns), 2)
    return np.diff(np.interp(edges, [0, *times], [0, 0, *done][: len(times) + 1]))


@pytest.mark.parametrize("pixels", [1, 2, 4])
# All are narrow, or most are wide.
@pytest.mark.parametrize("each", [5_000, 1_200])
def test_areas_are_as_high_as_the_share_of_the_time_that_no_wide_mark_covers(
    each: int, pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "COLUMNS", (pixels,))
    report = random_report(1, each)
    svg = render(report, View())
    areas = re.findall(r'<path d="([^"]*)"[^>]* class="bv-merged"', svg)
    (width,) = re.findall(r'd="M149 71.5h(\d+)v30h', svg)
    ran = report.operations
    pixel_ns = int(ran.end_ns.max()) / int(width)
    edges = pixel_ns * np.append(np.arange(0, int(width), pixels), int(width))
    narrow = ran.end_ns - ran.start_ns < NARROWEST * pixel_ns
    free = np.diff(edges) - spent(ran.take(~narrow), edges)

    assert len(areas) == 3
    below = np.zeros(len(edges) - 1)
    for phase, area in zip((Phase.F, Phase.B, Phase.W), areas[::-1], strict=True):
        own = spent(ran.take(narrow & (ran.phase == phase)), edges) / np.maximum(free, 1)
        below += 30 * own
        # Heights are rounded, each layer's by itself.
        shown = heights(area, len(below), pixels)
        assert shown == pytest.approx(np.where(own > 0, below, 0), abs=0.16)


@pytest.mark.parametrize("each", [128, 500, 1_200, 2_000, 20_000])
def test_sixty_four_ranks_stay_below_five_megabytes(each: int) -> None:
    svg = render(random_report(64, each), View())

    assert len(svg) < 5_000_000
    assert len(tooltips(svg)) <= MOST_TOOLTIPS + 64 * SCREEN.width / merging.STRETCH
    assert parsed(svg).get("width") == str(int(SCREEN.width))


def test_what_is_merged_is_marked_and_told() -> None:
    report = random_report(2, 5_000)

    svg = render(report, View())

    texts = " ".join(written(svg))
    assert "merged: narrower than 0.5 px (10,000 operations)" in texts
    assert "Dotted below: 10,000 operations narrower than 0.5 px" in texts
    assert told(svg) == 10_000
    assert re.fullmatch(r"\d+ operations \(F \d+, B \d+, W \d+\), merged", tooltips(svg)[0])
    dotted = [path for path in parsed(svg).iter() if path.get("stroke-dasharray") == "1 1"]
    # A row each, and both halves of the swatch.
    assert len(dotted) == 4


def test_idle_time_between_merged_operations_stays_bubble() -> None:
    # A quarter of each of 10,000 ns is work; so narrow that they are merged.
    ops = [Op(0, Phase.F, n, 10_000 * n, 10_000 * n + 2_500) for n in range(5_000)]

    svg = render(report_of(ops), View())

    (merged,) = (
        path.get("d", "")
        for path in parsed(svg).iter()
        if path.get("class") == "bv-merged" and path.get("fill") == "#397af2"
    )
    heights = [float(y) for y in re.findall(r"V([0-9.]+)", merged)]
    # Rows of one are 30 px high, and a quarter of that is 7.5.
    assert 30 - min(heights) == pytest.approx(7.5, abs=2)


def test_merged_communication_and_unattributed_compute_are_told() -> None:
    ops = one_f_one_b(1, 1)
    # Each in two parts, and one operation all the same.
    ops += [
        Op(0, Phase.SEND_F, n, at, at + 500, busy=((at, at + 200), (at + 300, at + 500)))
        for n, at in enumerate(range(0, 300_000, 10_000))
    ]
    bubbles = [(0, 1_000 * n, 1_000 * n + 500) for n in range(3)]

    texts = " ".join(
        written(render(report_of(ops, unattributed=bubbles), View(communication=True)))
    )

    assert "(30 operations and 3 times unattributed compute)" in texts


def test_windows_too_close_to_be_told_apart_are_hatched_as_one() -> None:
    count = 4_000
    ops = [Op(0, Phase.F, 0, 100 * n, 100 * n + 90, iteration=n) for n in range(count)]
    report = report_of(ops)

    svg = render(report, View(iterations=tuple(range(count))))

    assert len(svg) < 50_000
    assert "are hatched, too." in " ".join(written(svg))


def test_many_operations_without_device_time_are_counted() -> None:
    ops = [Op(0, Phase.F, n, 0, 9, busy=None) for n in range(1_000)]

    svg = render(report_of([*ops, *one_f_one_b(1, 1)]), View())

    (names,) = (text for text in tooltips(svg) if text.startswith("without"))
    assert names.endswith("and 992 more")
    assert "Hollow mark: 1,000 without GPU work" in " ".join(written(svg))
