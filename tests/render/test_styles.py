"""With styles, letters are 7 pt high at the width on paper, and labels do not overlap."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.errors import UsageError
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.paper_lengths import parse_millimeters
from bubbleviz.model.phases import Phase
from bubbleviz.render.picture.lettering import text_width
from bubbleviz.render.picture.panels import draw_theory
from bubbleviz.render.picture.picture import picture as render
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.command_line import CommandLine
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
from tests.support.places import FIXTURES

PAPER_89, PAPER_183 = (View(style="paper", width_mm=width) for width in (89.0, 183.0))
POINTS_PER_MM = 72 / 25.4


def list_font_sizes(svg: str) -> list[float]:
    """Return the font size of each text in pt on paper, computed from the document."""
    root = parse_svg(svg)
    width = re.fullmatch(r"([0-9.]+)mm", root.get("width", ""))
    assert width is not None
    unit = float(width[1]) * POINTS_PER_MM / float(root.get("viewBox", "").split()[2])
    inherited = {
        text: group.get("font-size")
        for group in root.iter(f"{SVG}g")
        for text in group.iter(f"{SVG}text")
    }
    return [
        float(text.get("font-size") or inherited[text] or "nan") * unit
        for text in root.iter(f"{SVG}text")
    ]


# Tests of widths.


@pytest.mark.parametrize(
    ("text", "length"), [("89mm", 89), ("8.9cm", 89), ("3.5in", 88.9), (" 252 pt ", 88.9)]
)
def test_a_width_has_a_unit(text: str, length: float) -> None:
    assert parse_millimeters(text, "--width") == pytest.approx(length)


@pytest.mark.parametrize("text", ["", "89", "mm", "-89mm", "89 px", "1e3mm", "9mm", "9000mm"])
def test_other_widths_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--width"):
        parse_millimeters(text, "--width")


@pytest.mark.parametrize("width", [60.0, 89.0, 120.5, 183.0])
@pytest.mark.parametrize("style", [None, "paper"])
def test_letters_are_7_pt_at_the_width_on_paper(width: float, style: str | None) -> None:
    view = View(style=style, width_mm=width, causes=True, heat_map=True, communication=True)

    sizes = list_font_sizes(render(make_report(run_1f1b(4, 8)), view))

    assert max(sizes) == pytest.approx(7, abs=0.005)
    # Numbers in boxes may be smaller, down to the minimum size that journals accept.
    assert min(sizes) >= 5 - 0.005
    assert sum(abs(size - 7) < 0.005 for size in sizes) > 10


def test_a_paper_figure_has_no_title_and_no_notes() -> None:
    report = make_report(run_1f1b(4, 8), limitations=(Limitation("no NIC metrics", "none"),))

    screen, paper = list_texts(render(report, View())), list_texts(render(report, PAPER_89))

    for text in ("schedule bubble ratio 27.3\u00a0%", "Limitations: no NIC metrics."):
        assert text in screen
        assert text not in paper
    assert not [text for text in paper if text.startswith("iteration")]
    assert paper.count("27.3\u00a0%") == 4


def test_long_names_are_replaced_by_ranks_at_a_narrow_width() -> None:
    ranks = tuple(make_rank(index, "a-host-of-a-long-name", stage=index) for index in range(2))
    unknown = tuple(replace(rank, stage=None) for rank in ranks)

    assert "stage 1" in list_texts(render(make_report(run_1f1b(2, 2), ranks=ranks), PAPER_89))
    narrow = View(width_mm=89)
    for view in (narrow, PAPER_89):
        texts = list_texts(render(make_report(run_1f1b(2, 2), ranks=unknown), view))
        assert {"rank 0", "rank 1"} <= set(texts)
    assert not any("…" in text for text in texts)


# Tests of labels.


def list_text_boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """Return (left, top, right, bottom) of all horizontal texts outside the rows."""
    boxes = []
    root = parse_svg(svg)
    turned = {t for g in root.iter(f"{SVG}g") if g.get("transform") for t in g.iter(f"{SVG}text")}
    sizes = {text: group for group in root.iter(f"{SVG}g") for text in group.iter(f"{SVG}text")}
    for text in root.iter(f"{SVG}text"):
        if text in turned or text.get("transform"):
            continue
        group = sizes.get(text, text)
        size = float(text.get("font-size") or group.get("font-size") or "nan")
        anchor = text.get("text-anchor") or group.get("text-anchor")
        width = text_width(text.text or "", size, bold=text.get("font-weight") == "bold")
        x, y = float(text.get("x", "nan")), float(text.get("y", "nan"))
        left = x - width * {"middle": 0.5, "end": 1.0}.get(anchor or "", 0.0)
        boxes.append((left, y - 0.7 * size, left + width, y + 0.05 * size))
    return boxes


@given(
    st.integers(2, 20),
    st.integers(1, 40),
    st.sampled_from([60.0, 89.0, 183.0, None]),
    st.sampled_from([None, "paper"]),
    st.integers(1, 10**9),
    st.booleans(),
)
def test_no_text_overlaps_another_or_leaves_the_page(
    stages: int,
    microbatches: int,
    width_mm: float | None,
    style: str | None,
    unit: int,
    with_details: bool,
) -> None:
    ops = run_1f1b(stages, microbatches, forward=unit, backward=2 * unit)
    view = View(style=style, width_mm=width_mm, causes=with_details, heat_map=with_details)

    svg = render(make_report(ops), view)

    boxes = list_text_boxes(svg)
    width = float(parse_svg(svg).get("viewBox", "").split()[2])
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left <= right <= width + 0.01
        for other in boxes[number + 1 :]:
            is_disjoint = (
                other[0] >= right or other[2] <= left or other[1] >= bottom or other[3] <= top
            )
            assert is_disjoint, (boxes[number], other)


# Tests of numbers.


def count_numbered_boxes(report: Report, view: View) -> int:
    """Return the number of boxes that contain a microbatch number."""
    root = parse_svg(render(report, view))
    rows = [g for g in root.iter(f"{SVG}g") if g.get("transform", "").startswith("translate")]
    return len([text for row in rows for text in row.iter(f"{SVG}text")])


@pytest.mark.parametrize("view", [View(), PAPER_89, PAPER_183])
@pytest.mark.parametrize("microbatches", [1, 4, 8, 12, 16, 24, 32, 64, 128])
def test_all_boxes_have_numbers_or_none_has(microbatches: int, view: View) -> None:
    ops = run_1f1b(4, microbatches)

    assert count_numbered_boxes(make_report(ops), view) in {0, len(ops)}


def test_short_recomputation_takes_no_numbers_from_others() -> None:
    ops = [Op(0, Phase.F, n, n * MS, (n + 1) * MS) for n in range(4)]
    recomputed = [*ops, Op(0, Phase.R, 0, 4 * MS, 4 * MS + 100)]

    assert count_numbered_boxes(make_report(recomputed), View()) == 4


# Tests of captions.


def test_a_picture_is_described_in_one_sentence_and_a_note() -> None:
    root = parse_svg(render(make_report(run_1f1b(4, 8)), PAPER_89))

    title = root.findtext(f"{SVG}title") or ""
    assert title == ("One training iteration on 4 pipeline stages; 27.3 % of its time is bubble.")
    note = root.findtext(f"{SVG}desc") or ""
    assert note.startswith("Bubble ratio (schedule): 1 - sum of the ranks' compute")
    assert note.endswith(".")


def test_the_note_explains_only_marks_that_the_style_draws() -> None:
    report = bubbleviz.analyze(FIXTURES / "zb-h2")
    uncertain = [replace(p, clock_uncertainty_ns=1_000_000) for p in report.profiles]
    report = replace(report, profiles=tuple(uncertain))
    screen, paper = (
        parse_svg(render(report, view)).findtext(f"{SVG}desc") or "" for view in (View(), PAPER_89)
    )

    assert all(text in screen for text in ("brackets show", "± and bars"))
    assert not any(text in paper for text in ("brackets show", "± and bars"))


# Tests of the command line.


def test_commands_draw_figures_for_a_paper(tmp_path: Path) -> None:
    run, svg = str(FIXTURES / "1f1b"), tmp_path / "a.svg"
    sizes = ["--schedule", "1f1b", "-p", "4", "-m", "8", "--tf", "1", "--tb", "1", "--tw", "1"]
    for command in (["analyze", run], ["compare", run, run], ["simulate", *sizes]):
        paper = ["--style", "paper", "--width", "89mm", "--force"]
        # Files with the same content are one run, so no panels are drawn.
        if main([*command, "--svg", str(svg), *paper]) == 0:
            assert parse_svg(svg.read_text()).get("width") == "89mm"
            assert max(list_font_sizes(svg.read_text())) == pytest.approx(7, abs=0.005)


@pytest.mark.parametrize("option", [["--width", "89mm"], ["--style", "paper"]])
def test_a_width_without_a_picture_is_refused(option: list[str], cli: CommandLine) -> None:
    for command in (["analyze", str(FIXTURES / "1f1b")], ["simulate", "--schedule", "1f1b"]):
        assert f"{option[0]}: only affects pictures" in cli.refused(*command, *option, code=2)
    for unknown in (
        "poster",
        "paper,color=red",
        "row=high",
        "height=9",
        "row=9,height=9cm",
        "legend=maybe",
        "screen,paper",
    ):
        assert main(["analyze", str(FIXTURES / "1f1b"), "--svg", "-", "--style", unknown]) == 2


def test_options_after_a_style_set_rows_font_legend_and_labels() -> None:
    report = make_report(run_1f1b(2, 2))
    usual, other = (
        render(report, View(style=style))
        for style in ("paper", "paper,row=60,font=Times,legend=no,labels=yes")
    )

    assert "backward" in usual
    assert "backward" not in other
    assert 'font-family="Times, Helvetica' in other
    assert float(str(parse_svg(other).get("height"))[:-2]) > float(
        str(parse_svg(usual).get("height"))[:-2]
    )


@pytest.mark.parametrize("style", ["screen", "paper"])
def test_rows_are_as_high_as_the_whole_picture_allows(style: str) -> None:
    report = make_report(run_1f1b(16, 8))

    for draw in (render, draw_theory):
        svg = parse_svg(draw(report, View(style=f"{style},height=160mm")))
        assert svg.get("height") in {"160mm", "604.72"}
        with pytest.raises(UsageError, match=r"height=30mm: the minimum height .* is \d+mm; use"):
            draw(report, View(style=f"{style},height=30mm"))
