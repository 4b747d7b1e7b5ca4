"""The table, CSV and JSON contain all values, and each number has a label."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import Any

import pytest

from bubbleviz.count.iterations import make_iteration_records
from bubbleviz.count.ratios import list_ratios
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import Rank, RankCoverage
from bubbleviz.render.formats.csv import render as csv_of
from bubbleviz.render.json_document import make_document
from bubbleviz.render.text.report import render_text as render
from bubbleviz.render.text.terminal import WIDTH
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.drawn_reports import make_rank_iterations


def find_section(text: str, title: str) -> list[str]:
    """Return the lines of a section without its title."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(title))
    end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
    return lines[start + 1 : end]


def split_ratio_table(text: str) -> tuple[str, list[str]]:
    """Return the second header line and the rows of the table of bubble ratios."""
    _, header, _, *rows = find_section(text, "Bubble ratios")
    return header, rows


def change_first_iteration(
    report: Report, ranks_of_report: tuple[Rank, ...] | None = None, **changes: Any
) -> Report:
    """Return a copy of the report with other ranks, and with a changed first iteration."""
    first, *rest = report.iterations
    iterations = make_iteration_records((replace(first, **changes), *rest))
    return replace(report, ranks=ranks_of_report or report.ranks, iterations=iterations)


def test_every_ratio_is_one_line_with_its_count(report: Report) -> None:
    header, rows = split_ratio_table(render(report, View()))

    assert header.split()[:2] == ["ratio", "mean"]
    assert [row.split()[0] for row in rows] == [s.name for s in list_ratios()]
    count_column = header.index(" n ") + 1
    assert [row[count_column] for row in rows] == ["3", "3", "3", "2"]
    assert all(len(row) <= WIDTH for row in rows)


def test_coverage_is_shown_by_rank(report: Report) -> None:
    coverage = tuple(RankCoverage(i, 200, 200 - 50 * i, 0, 0, 0) for i in range(3))

    text = render(replace(report, coverage=coverage), View())
    header, _, *rows, note = find_section(text, "Iteration 0")

    assert header.endswith("attributed %")
    assert note == "Measured over the whole run: attributed %"
    assert [row.split()[-1] for row in rows] == ["100.00", "75.00", "50.00", "-"]


def limited(report: Report, *limitations: Limitation) -> list[str]:
    return find_section(render(replace(report, limitations=limitations), View()), "Limitations")


def test_equal_reasons_are_joined(report: Report) -> None:
    lines = limited(report, Limitation("one", "because", 2), Limitation("two", "because", 3))

    assert lines == ["  - one; two (5): because"]


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("F0  two  blanks ", "F0  two  blanks "),
        ("a\x1b[31m\x01b", "a [31m b"),
        ("\u202eright\u2066 to\u2069left", " right  to left"),
        ("one\r\ntwo\x85three\u2028four", "one  two three four"),
        ("\t=1+1", "' =1+1"),
        ("\ud800 half", "  half"),
        ("µ é \U0001f680", "µ é \U0001f680"),
    ],
)
def test_a_name_stays_in_its_cell(name: str, cell: str, report: Report) -> None:
    names = (name,) * len(report.operations.names)
    changed = replace(report, operations=replace(report.operations, names=names))

    rows = csv.DictReader(io.StringIO(csv_of(changed, View())))

    assert {row["name"] for row in rows} == {cell}


@pytest.mark.parametrize("interval", [None, (0.1, 0.2)])
def test_ratios_with_a_common_clock_have_an_interval(
    interval: tuple[float, float] | None, report: Report
) -> None:
    of_first = report.iteration(0).ratios.items()
    ratios = {name: replace(ratio, interval=interval) for name, ratio in of_first}

    (first_iteration, *_) = make_document(change_first_iteration(report, ratios=ratios))[
        "iterations"
    ]
    assert first_iteration["bubble_interval"] == {"schedule": interval, "step": interval}


def set_profiles(report: Report, *clocks: tuple[str, int, float, int | None]) -> Report:
    """Return the report with profiles given as (host, offset_ns, drift_ppm, uncertainty_ns)."""
    (profile,) = report.profiles
    return replace(
        report,
        profiles=tuple(
            replace(
                profile,
                host=host,
                clock_offset_ns=offset_ns,
                clock_drift_ppm=drift_ppm,
                clock_uncertainty_ns=uncertainty_ns,
            )
            for host, offset_ns, drift_ppm, uncertainty_ns in clocks
        ),
    )


def test_every_clock_is_one_line(report: Report) -> None:
    clocks = (
        ("a", 0, 0.0, 0),
        ("b", -5_250_000, 0.0, 12_340),
        ("b", 9_000_000_000, 0.0, 12_340),
        ("b", 7, 0.0, 99_000),
        ("c", 1_000, -12.5, None),
    )

    header, _, *rows = find_section(render(set_profiles(report, *clocks), View()), "Clocks")

    assert header.split() == ["host", "offset", "ms", "±", "us", "drift", "ppm"]
    assert [row.split() for row in rows] == [
        ["a", "0.000", "0.0", "-"],
        ["b", "-5.250", "12.3", "-"],
        ["b", "0.000", "99.0", "-"],
        ["c", "0.001", "-", "-12.500"],
    ]


def test_clock_bounds_are_next_to_the_ratio(report: Report) -> None:
    summary = replace(
        report.summary, bubble_interval={"schedule": (0.2718, 0.27182), "step": (0.25, 0.31)}
    )

    text = render(replace(report, summary=summary), View())

    assert "clock bounds 27.180 to 27.182 %" in text.splitlines()[0]
    header, rows = split_ratio_table(text)
    bounds_column = header.index("bounds") + len("bounds") - len("27.180 to 27.182")
    bounds = [row[bounds_column : bounds_column + len("27.180 to 27.182")].strip() for row in rows]
    assert bounds == ["27.180 to 27.182", "not needed", "25.00 to 31.00", "not needed"]


def test_clocks_that_contradict_mark_the_ratios_that_need_them(report: Report) -> None:
    ratios = {
        name: replace(ratio, contradicted=name in ("schedule", "step"))
        for name, ratio in report.iteration(0).ratios.items()
    }
    changed = change_first_iteration(report, ratios=ratios)

    text = render(changed, View())

    assert "! (clocks contradict each other)" in text.splitlines()[0]
    _, rows = split_ratio_table(text)
    assert {row.split()[0] for row in rows if row.split()[2] == "!"} == {"schedule", "step"}
    assert make_document(changed)["iterations"][0]["clocks_contradict"] is True
    assert make_document(report)["iterations"][0]["clocks_contradict"] is False


def test_replicas_of_a_stage_are_one_line_with_their_mean(report: Report) -> None:
    ranks = tuple(
        replace(rank, stage=rank.index % 2, pipeline=rank.index // 2) for rank in report.ranks
    )
    rank_iterations = [
        replace(r, bubble_ratio={**r.bubble_ratio, "schedule": 0.1 * (1 + r.rank)})
        for r in report.iteration(0).ranks
    ]
    changed = change_first_iteration(report, ranks, ranks=make_rank_iterations(rank_iterations))
    view = View(iterations=(0,), rows="stage")

    header, _, *rows, note = find_section(render(changed, view), "Iteration 0")

    assert "by stage (mean of its replicas), ms" in render(changed, view)
    assert note == "Measured over the whole run: attributed %"
    ratio_column = header.split().index("ratio")
    assert [row.split()[:3] for row in rows] == [["0", "2", "replicas"], ["1", "2", "replicas"]]
    assert [row.split()[ratio_column] for row in rows] == ["20.00", "30.00"]


def test_a_stage_has_no_ratio_if_one_replica_has_none(report: Report) -> None:
    ranks = tuple(replace(rank, stage=0, pipeline=None) for rank in report.ranks)
    first, second, *remaining = report.iteration(0).ranks
    without_ratios = replace(second, bubble_ratio=dict.fromkeys(second.bubble_ratio))
    changed = change_first_iteration(
        report, ranks, ranks=make_rank_iterations([first, without_ratios, *remaining])
    )

    view = View(iterations=(0,), rows="stage")
    header, _, row, _ = find_section(render(changed, view), "Iteration 0")

    # In this row, the cell of "#" is empty, and the cell of "rank" contains two words.
    assert row.split()[header.split().index("ratio")] == "-"
    assert [r["pipeline"] for r in make_document(changed)["ranks"]] == [None] * 4
