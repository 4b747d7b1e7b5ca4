"""What is too narrow to be seen: merged by phase, marked, bounded, and as a slow count says."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model.operations import BusyIntervals, Operations
from bubbleviz.model.phases import Phase
from bubbleviz.render.picture import marks as merging
from bubbleviz.render.picture.legend import picture as render
from bubbleviz.render.picture.marks import (
    NARROWEST,
    UNATTRIBUTED_KIND,
    Marks,
    split,
)
from bubbleviz.render.picture.page import SCREEN
from bubbleviz.render.picture.rows import MOST_TOOLTIPS
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.drawn_reports import Op, one_f_one_b, parsed, report_of, tooltips, written

# Against a slow count: a px is so many ticks, and every tick of every mark is counted.
TICKS = 8
PIXELS = 6
ROWS = 2

MARK = st.tuples(
    st.integers(0, ROWS - 1),
    st.sampled_from((Phase.F, Phase.B, Phase.FB, UNATTRIBUTED_KIND)),
    st.integers(0, 1),
    st.integers(0, TICKS * PIXELS),
    # Zero, just narrow, just wide, and wide.
    st.sampled_from((0, 1, 2, 3, 4, 5, 13)),
)


def marks_of(found: list[tuple[int, int, int, int, int]]) -> Marks:
    """Return the marks of (row, kind, other, first tick, ticks); each is an operation."""
    ends = [min(first + length, TICKS * PIXELS) for *_, first, length in found]
    rows, kinds, others, firsts, _ = zip(*found, strict=True) if found else ((),) * 5
    return Marks(
        np.array(rows, np.int64),
        np.array(kinds, np.int64),
        np.arange(len(found)),
        np.array(others, np.int64),
        np.array(firsts, np.float64) / TICKS,
        np.array(ends, np.float64) / TICKS,
    )


def ticks_of(marks: Marks) -> list[tuple[int, tuple[int, int], range]]:
    """Return (row, layer, ticks) of every mark."""
    return [
        (row, (kind, other), range(round(left * TICKS), round(right * TICKS)))
        for row, kind, other, left, right in zip(
            *(getattr(marks, name).tolist() for name in ("row", "kind", "other", "left", "right")),
            strict=True,
        )
    ]


def slow_shares(marks: Marks, pixels: int) -> dict[tuple[int, tuple[int, int], int], Fraction]:
    """Return by row, layer and column the share of the time that no wide mark covers."""
    narrow = [mark for mark in ticks_of(marks) if len(mark[2]) < NARROWEST * TICKS]
    covered = {
        (row, tick)
        for row, _, ticks in ticks_of(marks)
        if len(ticks) >= NARROWEST * TICKS
        for tick in ticks
    }
    found = {}
    for row in range(ROWS):
        for column in range(-(-PIXELS // pixels)):
            own = range(column * pixels * TICKS, min((column + 1) * pixels, PIXELS) * TICKS)
            free = sum((row, tick) not in covered for tick in own)
            time: dict[tuple[int, int], int] = {}
            for other_row, layer, ticks in narrow:
                if other_row == row:
                    time[layer] = time.get(layer, 0) + len(set(ticks) & set(own))
            whole = max(free, sum(time.values()))
            for layer, spent in time.items():
                if free and spent:
                    found[row, layer, column] = Fraction(spent, whole)
    return found


@given(st.lists(MARK, max_size=40), st.sampled_from((1, 2, 4)), st.integers(1, 20))
def test_shares_are_those_of_a_slow_count(
    found: list[tuple[int, int, int, int, int]], pixels: int, block: int
) -> None:
    marks = marks_of(found)
    blocks = [marks.take(np.arange(len(marks))[n : n + block]) for n in range(0, len(found), block)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "COLUMNS", (pixels,))
        alone, merged = split(blocks, ROWS, PIXELS)

    expected = slow_shares(marks, pixels)
    assert merged.column == pixels
    for row in range(ROWS):
        for layer, kind in enumerate(merged.kinds):
            for column, share in enumerate(merged.share[row, layer].tolist()):
                assert share == pytest.approx(float(expected.pop((row, kind, column), 0)))
    assert not expected
    narrow = [m for m in ticks_of(marks) if len(m[2]) < NARROWEST * TICKS]
    assert len(alone) == len(found) - len(narrow)
    kinds = [kind for _, (kind, _), _ in narrow]
    assert merged.by_kind() == {kind: kinds.count(kind) for kind in kinds}
    for row, _, ticks in narrow:
        assert all(merged.there[row, tick // TICKS] for tick in ticks)


def test_an_operation_in_parts_is_one_operation() -> None:
    parts = marks_of([(0, Phase.F, 0, 0, 2), (0, Phase.F, 0, 4, 2), (0, Phase.B, 0, 9, 2)])
    marks = replace(parts, operation=np.array([5, 5, 6]))

    for blocks in ([marks], [marks.take(np.array([n])) for n in range(3)]):
        assert split(blocks, ROWS, PIXELS)[1].by_kind() == {Phase.F: 1, Phase.B: 1}


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


def random_report(ranks: int, each: int, longest: int = 5_000) -> Report:
    """Return a report of that many operations a rank, in one iteration, of 500 to so many ns."""
    generator = np.random.default_rng(0)
    busy = generator.integers(500, longest, (ranks, each))
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
    ops += [Op(0, Phase.SEND_F, n, 10_000 * n, 10_000 * n + 500) for n in range(30)]
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
