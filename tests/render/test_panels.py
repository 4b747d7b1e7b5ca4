"""All panels have the same time scale and aligned rows, whatever their texts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.phases import Phase
from bubbleviz.render.picture.panels import draw_panels, draw_theory
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.drawn_reports import (
    MS,
    SVG,
    Op,
    list_texts,
    make_rank,
    make_report,
    parse_svg,
    run_1f1b,
)
from tests.support.hostile import HOSTILE
from tests.support.pipeline_jobs import Job, simulate_job

SHORT = make_report(run_1f1b(2, 4))
LONG = make_report(run_1f1b(2, 4, forward=20 * MS, backward=40 * MS))


def drawn(*reports: Report, heading: str = "runs") -> str:
    return draw_panels([(f"run {n}", report, View()) for n, report in enumerate(reports)], heading)


def list_rows(svg: str) -> list[tuple[float, float, list[float]]]:
    """Return (left, top, right edges of boxes) of each row that contains boxes."""
    rows_of_boxes = []
    for group in parse_svg(svg).iter(f"{SVG}g"):
        translation = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", group.get("transform", ""))
        if translation is None:
            continue
        boxes = [
            (float(x), float(width))
            for path in group.iter(f"{SVG}path")
            for x, width in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", path.get("d", ""))
        ]
        rows_of_boxes.append(
            (float(translation[1]), float(translation[2]), [x + width for x, width in boxes])
        )
    return rows_of_boxes


# Tests of empty reports.


def test_no_panels_are_an_empty_picture() -> None:
    assert list_texts(draw_panels([], "runs")) == ["Nothing to draw: no run"]


def test_a_panel_without_work_says_so_next_to_others() -> None:
    texts = list_texts(drawn(make_report([]), SHORT))

    assert texts[:3] == ["runs", "(a) run 0", "Nothing to draw: no GPU ran any operation"]
    assert "(b) run 1" in texts
    assert list_texts(drawn(make_report([], ranks=(make_rank(0),))))[-1] == (
        "Nothing to draw: no iteration was found"
    )


# Tests of alignment.


def test_equal_runs_are_aligned_to_the_pixel() -> None:
    panel_rows = list_rows(drawn(SHORT, SHORT))

    assert len(panel_rows) == 4
    assert [(left, edges) for left, _, edges in panel_rows[:2]] == [
        (left, edges) for left, _, edges in panel_rows[2:]
    ]
    assert len({top for _, top, _ in panel_rows}) == 4


@pytest.mark.parametrize("reports", [(SHORT, LONG), (LONG, SHORT)])
def test_a_run_twice_as_long_is_twice_as_wide(reports: tuple[Report, Report]) -> None:
    panel_rows = list_rows(drawn(*reports))
    right_edges = [max(edges) for _, _, edges in panel_rows]
    short, long = (
        (right_edges[:2], right_edges[2:])
        if reports[0] is SHORT
        else (right_edges[2:], right_edges[:2])
    )

    assert long == pytest.approx([2 * end for end in short], abs=0.05)
    assert {left for left, _, _ in panel_rows} == {panel_rows[0][0]}


def test_each_run_begins_at_its_own_first_work() -> None:
    later = make_report(run_1f1b(2, 4, start=10**15))

    svg = drawn(SHORT, later)

    assert [edges for _, _, edges in list_rows(svg)[:2]] == [
        edges for _, _, edges in list_rows(svg)[2:]
    ]


def test_there_is_one_axis_for_the_longest_run() -> None:
    texts = list_texts(drawn(SHORT, LONG, SHORT))

    # (m + p - 1) (F + BW) = 5 x 60 ms: the last tick has its label.
    assert "300\u00a0ms" in texts


# Tests of titles.


def test_a_single_panel_has_no_letter() -> None:
    assert list_texts(drawn(SHORT))[:2] == ["runs", "run 0"]


def test_letters_continue_after_z_as_in_a_spreadsheet() -> None:
    titles = [text for text in list_texts(drawn(*[SHORT] * 28)) if text.startswith("(")]

    assert titles[:2] == ["(a) run 0", "(b) run 1"]
    assert titles[25:] == ["(z) run 25", "(aa) run 26", "(ab) run 27"]


def test_titles_and_ratios_share_a_line_on_paper() -> None:
    view = View(style="paper")
    svg = draw_panels([("one", SHORT, view), ("two", LONG, view)], "runs")
    texts = list(parse_svg(svg).iter(f"{SVG}text"))
    title = next(index for index, text in enumerate(texts) if text.text == "(a) one")

    assert texts[title + 1].text == "20.0\u00a0%"
    assert texts[title + 1].get("y") == texts[title].get("y")


# Tests of texts.


def test_panels_have_titles_and_ratios_and_one_legend() -> None:
    texts = list_texts(drawn(SHORT, LONG, heading="two runs"))

    assert texts[0] == "two runs"
    assert [texts.count(title) for title in ("(a) run 0", "(b) run 1")] == [1, 1]
    assert sum(text.startswith("schedule bubble ratio") for text in texts) == 2
    assert texts.count("F forward") == 1
    assert texts.count("bubble") == 3  # once above the ratios of each panel, and once in the legend


def test_the_legend_has_the_shades_of_every_panel() -> None:
    chunks = make_report(
        [Op(0, Phase.F, 0, 0, 9 * MS), Op(0, Phase.F, 1, 9 * MS, 18 * MS, chunk=1)]
    )

    paths_of_one, paths_of_two = (
        len(list(parse_svg(svg).iter(f"{SVG}path")))
        for svg in (drawn(chunks), drawn(chunks, chunks))
    )
    mixed = drawn(SHORT, chunks)

    assert paths_of_two > paths_of_one
    assert list_texts(mixed).count("F forward") == 1
    assert {"0", "1"} <= set(list_texts(mixed))


def test_limitations_are_listed_without_reasons() -> None:
    harmless = LimitationKind.ITERATIONS_MATCHED
    notes = (Limitation("a", "b"), Limitation("c", "d", 2), Limitation("e", "f", kind=harmless))
    limited = replace(SHORT, limitations=notes)

    text = " ".join(list_texts(drawn(limited, SHORT, limited)))
    assert "Limitations: (a) run 0: a; c (2). (c) run 2: a; c (2)." in text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_titles_are_text(name: str) -> None:
    svg = draw_panels([(name, SHORT, View()), (name, make_report([]), View())], name)

    assert not list(ET.fromstring(svg).iter(f"{SVG}script"))
    assert len(svg) < 60_000


def test_simulated_panels_get_no_advice(tmp_path: Path) -> None:
    job = Job(rank={1: 1.5}, iterations=3)
    report = bubbleviz.analyze(simulate_job(job).written(tmp_path / "operations.csv"), ideal=True)
    texts = list_texts(draw_theory(report, View()))

    below = " ".join(texts)
    assert "(b) 1f1b at the measured times" in texts
    # The mark is before the row of the rank and before the advice below.
    assert below.count("►") == 2
    assert "► (c) measured: Find out why rank 1 is slow (-" in below


def test_advice_below_panels_says_which_run_it_is_about(tmp_path: Path) -> None:
    slow = [simulate_job(Job(stage={stage: 1.4}, iterations=3)) for stage in (1, 2)]
    paths = [job.written(tmp_path / f"{number}.csv") for number, job in enumerate(slow)]
    below = " ".join(list_texts(drawn(*map(bubbleviz.analyze, paths))))

    for number, stage in enumerate((1, 2)):
        assert re.search(rf"► \({'ab'[number]}\) run {number}: [^.►]*stage {stage}\b", below)
