"""Lines and words of the first screen at any width, with and without colors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example as with_example
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.count.iterations import make_iteration_records
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.phases import Phase
from bubbleviz.render.picture.picture import picture as render
from bubbleviz.render.text.first_screen import MAX_LINES, render_first_screen
from bubbleviz.render.text.terminal import Display, join_plain_lines
from bubbleviz.render.wrapping import measure_cells, wrap_text
from bubbleviz.report.advice import advise
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import (
    HOSTILE,
    Op,
    change_ratios,
    list_texts,
    make_pipelines,
    make_report,
    rename_all,
)
from tests.support.pipeline_jobs import Job, simulate_job
from tests.support.places import FIXTURES
from tests.support.planted_runs import analyze_planting

WIDTHS = (60, 80, 100, 160)
DISPLAYS = [
    Display(width, color, unicode)
    for width in WIDTHS
    for color, unicode in ((False, True), (True, True), (False, False), (True, False))
]


@cache
def make_run(ranks: int) -> Report:
    """Return a report with the given number of ranks, in pipelines of up to 64 stages."""
    stages = min(ranks, 64)
    ops, ranks_of_job = make_pipelines(ranks // stages, stages, 8)
    return make_report(ops, ranks=ranks_of_job)


@cache
def example() -> Report:
    return bubbleviz.analyze([str(FIXTURES / "zb-v")])


def render_lines(report: Report, display: Display, view: View | None = None) -> list[str]:
    return join_plain_lines(render_first_screen(report, view or View(), display)).splitlines()


def select_rows(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("stage ", "0 GPU ", "node"))]


def test_a_report_without_ranks_and_iterations_has_a_screen() -> None:
    empty = replace(make_report([]), ranks=(), iterations=make_iteration_records(()))

    for display in DISPLAYS:
        lines = render_lines(empty, display)
        assert lines[0] == "Bubble ratio (schedule): unknown"
        assert not select_rows(lines)
        assert any(line.startswith("More:") for line in lines[-3:])


@pytest.mark.parametrize("ranks", [1, 2, 4, 16, 31, 32, 64, 1024])
@pytest.mark.parametrize("display", DISPLAYS, ids=str)
def test_the_first_screen_fits_on_one_screen(ranks: int, display: Display) -> None:
    lines = render_lines(make_run(ranks), display)

    assert all(measure_cells(line) <= display.width for line in lines)
    assert display.unicode or all(line.isascii() for line in lines)
    assert len(select_rows(lines)) == (16 if ranks > 16 else ranks)
    max_lines = MAX_LINES + max(min(ranks, 32) - 8, 0) // 2
    assert display.width < 80 or len(lines) <= max_lines


@pytest.mark.parametrize("display", DISPLAYS, ids=str)
def test_advice_that_does_not_fit_ends_with_the_option_that_shows_it(
    display: Display, tmp_path: Path
) -> None:
    job = Job(slows={5: (1.6, 3)}, host_step={2: 14.0, 3: 13.0}, link={(0, 0): 9.0}, link_since=3)
    table = simulate_job(job).written(tmp_path / "slow.csv")
    lines = render_lines(bubbleviz.analyze(table), display)
    first = next(index for index, line in enumerate(lines) if line.startswith("First:"))
    last = next(index for index in range(first, len(lines)) if lines[index + 1][:1] != " ")

    assert lines[last].endswith((" … (-v advice)", " ~ (-v advice)"))
    assert measure_cells(lines[last]) <= display.width


#: Two pipelines.
#: The second one has a slow rank and a slow stage.
SLOW_COPY = Planting(
    stages=3, microbatches=6, replicas=2, slow_rank=4, slow_rank_factor=1.5, slow_stage=2
)


@pytest.mark.parametrize("width", [40, 48, 60, 72, 80])
def test_a_narrow_screen_shows_every_number_of_a_wide_one(width: int) -> None:
    """Lines wrap between words, and all words of the title and the advice are shown."""
    report = analyze_planting(SLOW_COPY)
    narrow, wide = (
        " ".join(" ".join(render_lines(report, Display(width=columns))).split())
        for columns in (width, 160)
    )
    advice = wide[wide.index("First: ") : wide.index(", F takes 1.")]
    assert "-" in advice
    assert advice in narrow
    # The single faults are parts of the first advice, so nothing follows.
    assert "Then: " not in wide
    title = wide[wide.index("Iteration ") : wide.index("stage 0")].split()
    assert title[-2:] == ["p1)", "bubble"]
    assert set(title) <= set(narrow.split())


def test_the_title_says_that_rows_are_ranks_if_ranks_share_a_stage() -> None:
    report = analyze_planting(Planting(stages=3, microbatches=6, replicas=2))
    by_rank, by_stage = (
        " ".join(render_lines(report, Display(), View(rows=rows))) for rows in ("rank", "stage")
    )

    assert ": one row per rank " in by_rank
    assert ": one row per stage (first of 2 ranks) " in by_stage


def test_rows_of_one_pipeline_have_the_same_labels_as_in_the_picture() -> None:
    operations, ranks = make_pipelines(2, 3, 8)
    report = make_report(operations, ranks=ranks)
    numbers = tuple(rank.number for rank in report.ranks if rank.pipeline == 1)
    expected_labels = [f"p1 stage {stage}" for stage in range(3)]

    screen = render_lines(report, Display(), View(ranks=numbers))
    drawn = list_texts(render(report, View(ranks=numbers)))

    assert [line[:10] for line in screen if line.startswith("p1 ")] == expected_labels
    assert [text for text in drawn if text.startswith("p1 ")] == expected_labels


@pytest.mark.parametrize(("slow", "words"), [(4, "(pipeline p1)"), (0, "(pipeline p0)")])
def test_the_title_says_which_replica_a_row_draws(slow: int, words: str) -> None:
    """The title fits on one line of a terminal of the default width."""
    report = analyze_planting(Planting(stages=3, microbatches=6, replicas=2, slow_rank=slow))
    (title,) = [line for line in render_lines(report, Display()) if line.startswith("Iteration ")]

    assert f": one row per stage {words} " in title
    assert title.endswith(" bubble")


@given(st.integers(1, 60), st.integers(1, 5), st.lists(st.integers(0, 10**9), min_size=1))
@with_example(width=1, max_lines=4, numbers=[0, 10_000_000, 0, 100_000_000, 0])
def test_no_number_of_a_text_is_cut(width: int, max_lines: int, numbers: list[int]) -> None:
    words = [f"{number / 100:.2f}" for number in numbers]
    lines = wrap_text(" ".join(words), max(width, 13), max_lines=max_lines, hanging_indent=2)

    wrapped_words = " ".join(lines).split()
    cut = wrapped_words[-1] == "…"
    assert wrapped_words == ([*words[: len(wrapped_words) - 1], "…"] if cut else words)
    assert len(lines) <= max_lines
    assert all(measure_cells(line) <= max(width, 13) for line in lines)


def test_stages_are_grouped_unless_they_all_fit() -> None:
    grouped, tall = (
        select_rows(render_lines(make_run(32), Display(height=rows))) for rows in (24, 60)
    )

    assert [row.split()[2] for row in grouped] == [
        f"({first_stage}-{first_stage + 1})" for first_stage in range(0, 32, 2)
    ]
    # With 32 stages and 8 microbatches, 31 of 39 slots are idle.
    assert {tuple(row.split()[-2:]) for row in grouped} == {("79.49", "%")}
    assert [row.split()[1] for row in tall] == [str(stage) for stage in range(32)]


def test_very_many_stages_are_grouped() -> None:
    lines = render_lines(make_run(1024), Display())
    rows = select_rows(lines)

    assert [row.split()[2] for row in rows] == [
        f"({4 * group}-{4 * group + 3})" for group in range(16)
    ]
    assert any(": 4 stages per row, the most unusual" in line for line in lines)
    stage_rows = select_rows(render_lines(make_run(64), Display(), View(rows="stage")))
    assert [row.split()[1] for row in stage_rows] == [str(stage) for stage in range(64)]


def test_the_pipeline_of_an_outlier_is_drawn_and_its_row_is_marked() -> None:
    operations, ranks = make_pipelines(2, 3, 8)
    report = change_ratios(make_report(operations, ranks=ranks), {4: 0.01})
    assert advise(report).marked_ranks == ()

    screen = "\n".join(render_lines(report, Display()))

    assert "(pipeline p1)" in screen
    assert "\nstage 1►" in screen
    assert ": outlier" in screen
    assert ", p1 stage 1: busier than the other ranks" in " ".join(screen.split())


def test_the_most_unusual_rank_of_a_group_is_drawn() -> None:
    report = make_run(64)
    changed = change_ratios(report, {23: 0.99, 41: 0.01})

    lines = render_lines(changed, Display())

    words_of_row = [row.replace("►", " ").split() for row in select_rows(lines)]
    ratio_of_row = {tuple(words[1:3]): words[-2] for words in words_of_row}
    assert ratio_of_row["23", "(20-23)"] == "99.00"
    assert ratio_of_row["41", "(40-43)"] == "1.00"
    assert ratio_of_row["0", "(0-3)"] == "50.00"
    assert any("Outliers: node2:7 GPU 7 (pipeline order 23)" in line for line in lines)


@pytest.mark.parametrize("display", DISPLAYS, ids=str)
def test_no_word_is_broken(display: Display) -> None:
    """Except for shortened names, each word of a narrow screen occurs on a very wide screen."""
    report = replace(example(), limitations=(Limitation("a thing", "for some reason " * 9),) * 2)
    widest = replace(display, width=2_000)
    wide_words = {word for line in render_lines(report, widest) for word in line.split()}

    for line in render_lines(report, display):
        words = {word for word in line.split() if word.isalpha() and word.islower()}
        assert words <= wide_words, line


def test_hostile_names_stay_on_their_lines() -> None:
    hostile = rename_all(make_run(4), HOSTILE)
    ranks = tuple(replace(rank, stage=None) for rank in hostile.ranks)
    changed = replace(hostile, ranks=ranks, limitations=hostile.limitations[:1])

    for display in DISPLAYS:
        lines = render_lines(changed, display)
        assert len(lines) <= MAX_LINES + 5
        assert all(measure_cells(line) <= display.width for line in lines)
        assert all(line.isprintable() for line in lines)


def test_parts_of_the_bubble_add_up_to_the_headline() -> None:
    lines = render_lines(example(), Display(200))
    (title,) = (line for line in lines if line.startswith("What the bubble is made of"))
    legend = lines[lines.index(title) + 2]

    assert title.endswith("(sum: 7.14)")
    assert lines[0].startswith("Bubble ratio (schedule): 7.14 %")
    assert round(sum(float(word) for word in legend.split() if word[0].isdecimal()), 2) == 7.14


def test_operations_are_drawn_where_they_ran() -> None:
    report = make_run(4)
    columns = [
        row.split(" ", 2)[2].rsplit(maxsplit=2)[0]
        for row in select_rows(render_lines(report, Display(71, False, False)))
    ]

    # 330 ms take 55 columns.
    # F of 10 ms takes 5/3 columns, and BW of 20 ms takes 10/3.
    assert [len(bar) for bar in columns] == [55] * 4
    assert columns[3].startswith("." * 5 + "F")
    assert columns[0].startswith("F" * 6)
    assert set("".join(columns)) == {"F", "B", "."}
    assert [round(100 * c.count(".") / 55) for c in columns] == pytest.approx([27.3] * 4, abs=1.3)


def test_colors_double_the_resolution() -> None:
    lines = render_first_screen(make_run(4), View(), Display(80, True, True))
    row = next(line for line in lines if line and line[0].text.startswith("stage 1"))

    assert any(" on #" in span.style for span in row)
    assert {"▌", "▐"} & set("".join(span.text for span in row))
    plain = render_first_screen(make_run(4), View(), Display())
    assert not any("#" in span.style for line in plain for span in line)


def test_the_restriction_of_a_ratio_is_named_on_one_line() -> None:
    lost_kernels = Limitation("kernels", "they have no times", kind=LimitationKind.KERNELS_LOST)
    model = Limitation("GPU models", "they are unknown", kind=LimitationKind.DETAILS)
    notes = (lost_kernels, Limitation("a thing", "it is so"), model)

    lines = render_lines(replace(make_run(4), limitations=notes), Display())

    assert "Limits: kernels (-v coverage)" in lines
    assert "-v coverage (3 notes)" in lines[-1]


def test_an_unknown_ratio_names_no_iteration_and_says_how_to_measure_it(tmp_path: Path) -> None:
    copies = Planting(stages=4, tensor=2, replicas=2, servers=2, slow_rank=5, iterations=6)
    plant(copies, tmp_path)

    lines = render_lines(bubbleviz.analyze(tmp_path), Display(100))
    first, *rest = (line for line in lines if line.startswith("First:"))

    assert lines[0] == "Bubble ratio (schedule): unknown"
    assert ", 0 of 6 iterations averaged" in lines[1]
    assert first.startswith("First: Set the sizes of the run with --parallel tp=,pp=,dp=: ")
    assert not rest
    report = bubbleviz.analyze(tmp_path, parallel=Parallel(tp=2, pp=4, dp=2))
    assert report.bubble_ratio is not None


@pytest.mark.parametrize(("cut_ns", "limit"), [(20_000_000, True), (80_000_000, False)])
def test_the_capture_restricts_a_ratio_if_it_cut_most_iterations(
    cut_ns: int, limit: bool, tmp_path: Path
) -> None:
    plant(Planting(iterations=3, cut_ns=cut_ns), tmp_path)

    limits = [n for n in render_lines(bubbleviz.analyze(tmp_path), Display()) if "Limits:" in n]

    assert any("iterations cut off by the capture" in line for line in limits) == limit


def test_a_marked_rank_has_the_same_name_as_in_the_advice(tmp_path: Path, cli: CommandLine) -> None:
    """File names do not contain the rank in the job, so row numbers are not ranks of the job."""
    plant(Planting(slow_stage=2, slow_factor=1.5), tmp_path)
    screen = " ".join(cli.printed("analyze", str(tmp_path)).split())

    assert "► node0 GPU 2 (pipeline order 2): see the advice" in screen
    assert "On node0 GPU 2 (pipeline order 2), F takes 1.50x" in screen


@pytest.mark.parametrize(
    ("fault", "culprit", "advised"),
    [
        ({"rank": {22: 1.5}}, "rank 22", "why rank 22 "),
        ({"stage": {6: 1.3}}, "stage 6", "Move layers off stage 6 "),
        # The rank is not slow in the typical iteration.
        ({"slows": {22: (1.5, 2)}, "iterations": 4}, "rank 22", "slow in 2 iterations (2, 3)"),
    ],
)
def test_a_culprit_is_marked_in_its_row_among_all_stages(
    fault: dict[str, Any], culprit: str, advised: str, tmp_path: Path, cli: CommandLine
) -> None:
    job = simulate_job(replace(Job(stages=16, microbatches=16, replicas=2, iterations=3), **fault))
    screen = cli.printed("analyze", str(job.written(tmp_path / "operations.csv")))

    assert [line.split()[1] for line in select_rows(screen.splitlines())] == [
        str(stage) for stage in range(16)
    ]
    assert "\nstage 6 ►" in screen
    assert f"► {culprit}: see the advice" in screen
    assert advised in " ".join(screen.split())
    ratios = [float(line.split()[-2]) for line in select_rows(screen.splitlines())]
    assert min(ratios) == ratios[6] < ratios[5] - 3
    assert ("(pipeline p1)" in screen) == (culprit == "rank 22")
    assert len(screen.splitlines()) <= 36


#: Two pipelines, in which one rank is slow in the last iteration only.
SLOW_IN_ONE = Planting(
    stages=4, microbatches=8, replicas=2, iterations=5, slow_rank=6, slow_rank_from=4, kernels=1
)


@pytest.mark.parametrize("rows", ["stage", "rank"])
def test_a_row_has_the_ratio_of_the_rank_and_the_iteration_that_it_draws(rows: str) -> None:
    report = analyze_planting(SLOW_IN_ONE)
    for iteration in report.iterations:
        ratio_of = {
            rank_iteration.rank: rank_iteration.bubble_ratio["schedule"]
            for rank_iteration in iteration.ranks
        }
        # The ranks of the second pipeline are drawn, because the advice is about one of them.
        expected_ranks = [r for r in report.ranks if rows == "rank" or r.pipeline == 1]
        view = View(rows=rows, iterations=(iteration.index,))
        lines = render_lines(report, Display(100, height=60), view)
        timeline = [line for line in lines if line.endswith(" %") and " stage " in f" {line}"]
        printed = [float(line.split()[-2]) for line in timeline]

        assert printed == [round(100 * (ratio_of[rank.index] or 0), 2) for rank in expected_ranks]
    assert ("(pipeline p1)" in "".join(lines)) == (rows == "stage")


def test_the_title_has_the_window_of_the_ratio_and_not_what_is_drawn() -> None:
    """The optimizer is drawn although it runs after the window of ``schedule``."""
    report = analyze_planting(Planting(stages=2, microbatches=2, optimizer_ns=500_000))
    iteration = report.iterations[0]
    lines = render_lines(report, Display(), View(iterations=(0,)))
    title = next(line for line in lines if line.startswith("Iteration "))

    window_ns = iteration.ratios["schedule"].window_ns or 0
    assert title.startswith(f"Iteration {iteration.name}, {window_ns / 1e6:.3f} ms (schedule): ")
    assert iteration.end_ns - iteration.start_ns >= window_ns + 500_000


def test_an_iteration_without_a_window_says_what_is_drawn() -> None:
    report = make_report([Op(0, Phase.F, 0, 0, 2_000_000)])
    (iteration,) = report.iterations
    ratios = {
        name: replace(ratio, value=None, window_ns=None) for name, ratio in iteration.ratios.items()
    }
    bare = replace(report, iterations=make_iteration_records((replace(iteration, ratios=ratios),)))
    (title,) = (line for line in render_lines(bare, Display()) if line.startswith("Iteration "))

    assert title.startswith("Iteration 0, 2.000 ms drawn: one row per ")
