"""The LaTeX table compiles in any document, whatever names the profiles contain.

The tests run pdflatex if it is on the PATH. In any case, a strict parser checks the few allowed
constructs: ASCII, known commands, balanced groups and environments, and the cells of each row.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.count.iterations import make_iteration_records
from bubbleviz.count.ratios import list_ratios
from bubbleviz.count.statistics import Spread
from bubbleviz.render.comparison import format_latex
from bubbleviz.render.formats.latex import render
from bubbleviz.render.latex import escape_latex, name_figure_file
from bubbleviz.render.picture.picture import picture
from bubbleviz.report.compared.comparison import ComparedRun, compare
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.averages import make_average
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import make_report, rename_all
from tests.support.hostile import HOSTILE
from tests.support.places import FIXTURES
from tests.support.summaries import make_saved_idle

#: All LaTeX commands that the table may contain.
KNOWN = {
    "begin",
    "end",
    "centering",
    "caption",
    "label",
    "toprule",
    "midrule",
    "bottomrule",
    "textbf",
    "emph",
    "times",
    "pm",
    "mu",
    "Delta",
    "cdot",
    "geq",
    "triangleright",
    "textbackslash",
    "textasciicircum",
    "textasciitilde",
    "textless",
    "textgreater",
    "textbar",
    "smallskip",
    "small",
    "setlength",
    "tabcolsep",
    "footnotesize",
    "raggedright",
    "par",
}


def without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("%"))


def check_latex(body: str) -> None:
    """Check that a text without comments contains only known and balanced LaTeX."""
    assert body.isascii()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", body)
    tokens = re.findall(r"\\([A-Za-z]+|.)|([{}$&#^_~%])", body)
    assert {name for name, _ in tokens if len(name) > 1} <= KNOWN
    assert {name for name, _ in tokens if len(name) == 1} <= set("\\{}$&%#_,. ")
    bare = [character for _, character in tokens if character]
    assert set(bare) <= set("{}$&")  # only groups, formulas and cell separators
    assert bare.count("$") % 2 == 0
    depth = 0
    for character in bare:
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0
    opened: list[str] = []
    for command, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        if command == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert opened == []


def list_cells(text: str) -> list[list[str]]:
    """Return the cells of the table, row by row."""
    lines = [line.strip() for line in text.splitlines() if line.endswith("\\\\")]
    return [[cell.strip() for cell in line.removesuffix("\\\\").split(" & ")] for line in lines]


# Tests of empty reports.


def test_an_empty_report_is_a_table_of_dashes() -> None:
    text = render(make_report([]), View())

    check_latex(without_comments(text))
    _, *table_rows = list_cells(text)
    assert [row[1] for row in table_rows] == ["--"] * len(list_ratios())
    assert "% Methods, ready to paste:\n%   No bubble ratio could be measured" in text


# Tests of the content.


def test_every_ratio_is_a_row_and_the_headline_is_the_first(report: Report) -> None:
    header, *table_rows = list_cells(render(report, View()))

    assert header[:2] == ["Ratio", "Mean"]
    assert table_rows[0] == [
        r"\textbf{schedule}",
        "27.27",
        "0.00",
        r"$\pm$\,0.00",
        "3",
        "33.00",
        "37.50",
    ]
    assert [row[0] for row in table_rows[1:]] == ["stage", "step", "period"]

    other = replace(report, headline="period")
    assert [row[0] for row in list_cells(render(other, View()))[1:]] == [
        r"\textbf{period}",
        "schedule",
        "stage",
        "step",
    ]


def test_the_caption_is_a_sentence_and_the_note_has_every_definition(report: Report) -> None:
    text = without_comments(render(report, View()))
    (caption,) = re.findall(r"\\caption\{(.*)\}", text)
    (note,) = re.findall(r"\\raggedright Note: (.*)", text)

    assert caption == r"Bubble ratios in \% over 3 training iterations on 4 ranks."
    for ratio in list_ratios():
        assert rf"\emph{{{ratio.name}}}" in note
    assert r"1 $-$ sum of the ranks' compute / (ranks $\times$ (last end" in note


def test_the_figure_with_its_caption_is_above_the_table(report: Report) -> None:
    text = render(report, View())

    assert (
        r"%     \caption{One training iteration of the schedule 1f1b on 4 pipeline stages with 8 "
        r"microbatches; 27.3 \% of its time is bubble.}"
    ) in text
    assert r"\includegraphics{bubbles.pdf}" in text


@pytest.mark.parametrize(
    ("view", "has_numbers"),
    [
        (View(), True),  # the figure of one column that the comment recommends
        (View(style="paper", width_mm=89), True),
        (View(style="paper", width_mm=30), False),
        (View(picture_file="x.svg"), True),
    ],
)
def test_the_note_of_the_figure_says_whether_boxes_have_numbers(
    report: Report, view: View, has_numbers: bool
) -> None:
    drawn = view if view != View() else View(style="paper", width_mm=89)

    assert ("the number in a box is its microbatch" in render(report, view)) == has_numbers
    assert ("the number in a box is its microbatch" in picture(report, drawn)) == has_numbers


def test_the_caption_names_the_drawn_stages_if_others_are_left_out(report: Report) -> None:
    text = render(report, View(ranks=(0, 2)))

    assert "on 4 pipeline stages (drawn: stages 0,2) with 8 microbatches" in text


def test_the_figure_is_the_picture_that_was_written(cli: CommandLine, tmp_path: Path) -> None:
    table, picture = tmp_path / "t.tex", tmp_path / "fig.svg"

    cli.printed("analyze", FIXTURES / "1f1b", "-o", table, "-o", picture)

    assert r"% Figure, drawn with the same options:" in table.read_text()
    assert r"\includegraphics{fig.pdf}" in table.read_text()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", "default.pdf"),
        ("out/fig.svg", "fig.pdf"),
        ("out/fig.PNG", "fig.PNG"),
        ("a b.pdf", "default.pdf"),
        ("50%.pdf", "default.pdf"),
    ],
)
def test_a_figure_has_a_file_name_that_latex_can_include(path: str, expected: str) -> None:
    assert name_figure_file(path, "default.pdf") == expected


def test_unknown_values_are_dashes_and_zeros_have_no_sign(report: Report) -> None:
    ratios = {name: Spread(-1e-17, None, 0, 0, None, 1) for name in report.summary.bubble_ratio}
    text = render(replace(report, summary=replace(report.summary, bubble_ratio=ratios)), View())

    assert list_cells(text)[1][1:5] == ["0.00", "--", "--", "1"]


def test_clock_intervals_and_contradictions_are_reported(report: Report) -> None:
    between = {**report.summary.bubble_interval, "schedule": (0.25, 0.3)}
    iterations = tuple(
        replace(i, ratios={name: replace(r, contradicted=True) for name, r in i.ratios.items()})
        for i in report.iterations
    )
    summary = replace(report.summary, bubble_interval=between)
    text = render(
        replace(report, summary=summary, iterations=make_iteration_records(iterations)), View()
    )

    assert r"Clock bounds of \emph{schedule}: 25.00 to 30.00\,\%." in text
    assert list_cells(text)[1][1] == r"27.27\,!"
    assert "A ratio marked ! depends on clocks that contradict each other." in text
    check_latex(without_comments(text))


# Tests of other commands.

SIMULATED = ("--schedule", "zb-h1,gpipe,1f1b-i", "-p", "4", "-m", "8", "--tf=1", "--tb=1", "--tw=1")


def test_several_schedules_are_a_table_in_the_given_order(cli: CommandLine) -> None:
    text = cli.printed("simulate", *SIMULATED, "--latex", "-")

    check_latex(without_comments(text))
    assert list_cells(text) == [
        ["Schedule", "$p$", "$m$", "$v$", "ms", r"Bubble \%", "Act."],
        ["zb-h1", "4", "8", "1", "27.00", "11.11", "4"],
        ["gpipe", "4", "8", "1", "33.00", "27.27", "8"],
        ["1f1b-i", "4", "8", "2", "--", "--", "--"],
    ]
    assert "% 1f1b-i: 1f1b-i is a formula without an order of operations" in text
    assert (
        r"\caption{2 simulated iterations on 4 stages with 8 microbatches: (a) zb-h1; (b) gpipe.}"
    ) in text


@pytest.mark.parametrize(
    ("schedule", "cells", "is_drawn"),
    [
        ("1f1b", ["1f1b", "4", "8", "1", "33.00", "27.27", "4"], True),
        ("1f1b-i", ["1f1b-i", "4", "8", "2", "28.50", "15.79", "--"], False),
    ],
)
def test_a_single_schedule_is_a_table_with_its_figure(
    schedule: str, cells: list[str], is_drawn: bool, cli: CommandLine
) -> None:
    text = cli.printed("simulate", "--schedule", schedule, *SIMULATED[2:], "--latex", "-")

    check_latex(without_comments(text))
    assert list_cells(text)[1:] == [cells]
    caption = (
        r"\caption{1 simulated iteration of 1f1b on 4 stages with 8 microbatches; "
        r"27.3 \% of its time is bubble.}"
    )
    assert (caption in text) == is_drawn


def test_predictions_from_a_run_have_intervals(cli: CommandLine, tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    cli.printed("analyze", FIXTURES / "1f1b", "-o", saved)

    text = cli.printed("simulate", "--from", saved, "-m", "8,16", "--latex", "-")

    check_latex(without_comments(text))
    assert [row[5][:4] for row in list_cells(text)] == [r"95\,", r"$\pm", r"$\pm"]


def test_compared_runs_are_a_table_with_one_row_per_run(cli: CommandLine) -> None:
    text = cli.printed("compare", FIXTURES / "1f1b", FIXTURES / "zb-h2", "--latex", "-")

    check_latex(without_comments(text))
    header, first, second = list_cells(text)
    assert header[:3] == ["Run", "Schedule", r"Bubble \%"]
    assert first == ["1f1b", "1f1b", "26.87", r"$\pm$\,0.00", "33.50", r"$\pm$\,0.00", "--", "--"]
    assert second[:3] == ["zb-h2", "zb-h2", "0.00"]
    # 48.25 ms for 16 microbatches, compared with 33.5 ms for 8.
    assert second[6] == "$-27.99$"
    assert r"\caption{2 runs on a common time axis: (a) 1f1b; (b) zb-h2.}" in text


def test_saved_reports_are_compared_without_a_figure(cli: CommandLine, tmp_path: Path) -> None:
    saved = [tmp_path / f"{name}.json" for name in ("1f1b", "zb-v")]
    for file in saved:
        cli.printed("analyze", FIXTURES / file.stem, "-o", file)

    text = cli.printed("compare", *saved, "--latex", "-")

    check_latex(without_comments(text))
    assert [row[0] for row in list_cells(text)] == ["Run", "1f1b", "zb-v"]


def test_idle_time_is_compared_without_schedules() -> None:
    runs = [
        ComparedRun(
            name,
            f"{name}.json",
            make_saved_idle(make_average(0.25, 0.01, 4), make_average(3e7, 1e5, 4)),
        )
        for name in ("a_b", "c")
    ]

    text = format_latex(compare(runs), View())

    check_latex(without_comments(text))
    assert list_cells(text)[0][:2] == ["Run", r"Idle \%"]
    assert list_cells(text)[1][:2] == [r"a\_b", "25.00"]


# Tests of hostile names.


def test_comments_name_the_first_of_many_profiles(report: Report) -> None:
    large_report = replace(report, profiles=report.profiles * 128)

    lines = render(large_report, View()).splitlines()
    assert sum(line.startswith("% Profile: ") for line in lines) == 16
    assert "% and 112 more profiles" in lines


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_inert(report: Report, name: str) -> None:
    text = render(rename_all(report, name), View())
    plain = render(report, View())

    check_latex(without_comments(text))
    assert without_comments(text) == without_comments(plain)
    assert text.isascii()
    assert max(map(len, text.splitlines())) < 20_000


@given(st.text())
def test_escaped_text_is_one_line_of_harmless_ascii(text: str) -> None:
    latex = escape_latex(text)

    check_latex(latex)
    assert "\n" not in latex
    assert not re.search(r"(?<!\{)[\[\]*](?!\})", latex)
