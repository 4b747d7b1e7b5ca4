"""Narrow operations are merged by phase and marked, in bounded files.

The drawn heights agree with a slow computation.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from bubbleviz.model.operations import BusyIntervals, Operations
from bubbleviz.model.phases import Phase
from bubbleviz.render.picture.picture import picture as render
from bubbleviz.render.picture.rows import MAX_TOOLTIPS
from bubbleviz.render.picture.style import SCREEN
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.drawn_reports import (
    SVG,
    Op,
    list_texts,
    list_tooltips,
    make_report,
    parse_svg,
    run_1f1b,
)


def random_report(ranks: int, operations_per_rank: int) -> Report:
    """Return a report of one iteration with random operations of 500 to 5,000 ns."""
    generator = np.random.default_rng(0)
    busy = generator.integers(500, 5_000, (ranks, operations_per_rank))
    end = np.cumsum(busy + generator.integers(0, 600, (ranks, operations_per_rank)), axis=1)
    rows = ranks * operations_per_rank
    columns = {name: np.full(rows, -1, np.int64) for name in Operations.column_names()}
    columns["rank"] = np.repeat(np.arange(ranks), operations_per_rank)
    columns["iteration"] = columns["chunk"] = columns["cut"] = np.zeros(rows, np.int64)
    columns["phase"] = np.tile(np.arange(operations_per_rank) % 3, ranks)
    columns["microbatch"] = np.tile(np.arange(operations_per_rank) // 3, ranks)
    columns["has_span"] = np.ones(rows, np.int64)
    columns["start_ns"], columns["end_ns"] = (end - busy).ravel(), end.ravel()
    rank_spans = [Op(rank, Phase.F, 0, 0, int(end.max())) for rank in range(ranks)]
    return replace(
        make_report(rank_spans),
        operations=make_report([]).operations.replace_columns(**columns),
        busy=BusyIntervals(np.arange(rows), columns["start_ns"], columns["end_ns"]),
    )


@pytest.mark.parametrize("operations_per_rank", [128, 500, 1_200, 2_000, 20_000])
def test_sixty_four_ranks_stay_below_five_megabytes(operations_per_rank: int) -> None:
    svg = render(random_report(64, operations_per_rank), View())

    assert len(svg) < 5_000_000
    assert len(list_tooltips(svg)) <= MAX_TOOLTIPS
    assert parse_svg(svg).get("width") == str(int(SCREEN.width))


def test_merged_operations_are_marked_and_counted() -> None:
    report = random_report(2, 5_000)

    svg = render(report, View())

    texts = " ".join(list_texts(svg))
    assert "merged: narrower than 0.5 px (10,000 operations)" in texts
    # The legend contains the number and the width, so the note does not repeat them.
    assert "Dotted below: merged operations. Height: share of time" in texts
    assert texts.count("10,000 operations") == 1
    dotted = [path for path in parse_svg(svg).iter() if path.get("stroke-dasharray") == "1 1"]
    # There is one path per row, and one swatch per phase.
    assert len(dotted) == 2 + 3


@pytest.mark.parametrize("communication", [False, True])
def test_the_legend_shows_merged_operations_in_their_colors(communication: bool) -> None:
    narrow, wide = (Phase.SEND_F, Phase.W) if communication else (Phase.W, Phase.SEND_F)
    ops = [Op(0, Phase.F, 0, 0, 10_000_000), Op(0, wide, 0, 10_000_000, 20_000_000)]
    ops += [
        Op(0, narrow, n, start, start + 500) for n, start in enumerate(range(0, 300_000, 10_000))
    ]

    svg = render(make_report(ops), View(communication=True))

    merged = {
        path.get("fill") for path in parse_svg(svg).iter() if path.get("class") == "bv-merged"
    }
    dots = [path for path in parse_svg(svg).iter() if path.get("stroke-dasharray") == "1 1"]
    paths = list(parse_svg(svg).iter(f"{SVG}path"))
    swatch = next(
        previous
        for previous, following in pairwise(paths)
        if following.get("d") == dots[-1].get("d") and following.get("stroke-dasharray")
    )
    assert len(merged) == 1
    assert swatch.get("fill") in merged


def test_idle_time_between_merged_operations_stays_bubble() -> None:
    # Work fills a quarter of every 10,000 ns, and operations are narrow enough to be merged.
    ops = [Op(0, Phase.F, n, 10_000 * n, 10_000 * n + 2_500) for n in range(5_000)]

    svg = render(make_report(ops), View())

    (merged,) = (
        path.get("d", "")
        for path in parse_svg(svg).iter()
        if path.get("class") == "bv-merged" and path.get("fill") == "#397af2"
    )
    heights = [float(y) for y in re.findall(r"V([0-9.]+)", merged)]
    # The only row is 30 px high, and a quarter of it is 7.5 px.
    assert 30 - min(heights) == pytest.approx(7.5, abs=2)


def test_merged_communication_and_unattributed_compute_are_counted() -> None:
    ops = run_1f1b(1, 1)
    # Each operation has two busy intervals but is counted once.
    ops += [
        Op(
            0,
            Phase.SEND_F,
            n,
            start,
            start + 500,
            busy=((start, start + 200), (start + 300, start + 500)),
        )
        for n, start in enumerate(range(0, 300_000, 10_000))
    ]
    bubbles = [(0, 1_000 * n, 1_000 * n + 500) for n in range(3)]

    texts = " ".join(
        list_texts(render(make_report(ops, unattributed=bubbles), View(communication=True)))
    )

    assert "(30 operations and 3 times unattributed compute)" in texts


def test_windows_too_close_to_distinguish_are_hatched_together() -> None:
    count = 4_000
    ops = [Op(0, Phase.F, 0, 100 * n, 100 * n + 90, iteration=n) for n in range(count)]
    report = make_report(ops)

    svg = render(report, View(iterations=tuple(range(count))))

    assert len(svg) < 50_000


def test_many_operations_without_device_time_are_counted() -> None:
    ops = [Op(0, Phase.F, n, 0, 9, busy=None) for n in range(1_000)]

    svg = render(make_report([*ops, *run_1f1b(1, 1)]), View())

    (names,) = (text for text in list_tooltips(svg) if text.startswith("without"))
    assert names.endswith("and 992 more")
    assert "Hollow mark: 1,000 without GPU work" in " ".join(list_texts(svg))
