"""All outputs mark the ranks that the advice is about, or else the outliers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bubbleviz.render.picture.picture import picture
from bubbleviz.render.text.first_screen import render_first_screen
from bubbleviz.render.text.report import render_summary, render_text
from bubbleviz.render.text.terminal import Display, join_plain_lines
from bubbleviz.report.advice import advise, choose_shown_iteration
from bubbleviz.report.labels import MARK
from bubbleviz.report.marked_ranks import choose_marked_ranks
from bubbleviz.report.report import Report
from bubbleviz.report.restored import restore
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.view import View
from tests.planting import Planting
from tests.support.drawn_reports import change_ratios, list_texts, make_pipelines, make_report
from tests.support.planted_runs import analyze_planting


def make_run_with_outlier() -> Report:
    """Return a run of two pipelines with three stages, in which rank 4 is an outlier."""
    operations, ranks = make_pipelines(2, 3, 8)
    return change_ratios(make_report(operations, ranks=ranks), {4: 0.01})


@pytest.mark.parametrize("rows", ["rank", "stage"])
def test_pictures_mark_outliers(rows: str) -> None:
    report = make_run_with_outlier()

    texts = list_texts(picture(report, View(rows=rows)))

    assert f"{MARK} p1 stage 1" in texts
    assert f"{MARK} Outliers: node0:4 GPU 4" in " ".join(texts)


def test_stage_rows_draw_the_pipeline_of_the_outlier() -> None:
    texts = " ".join(list_texts(picture(make_run_with_outlier(), View(rows="stage"))))

    assert "p0 stage" not in texts
    assert "each drawn as its replica in the pipeline with the outlier" in texts


def test_pictures_without_notes_have_no_marks() -> None:
    assert MARK not in picture(make_run_with_outlier(), View(style="paper", width_mm=89))


def test_tables_mark_and_explain_outliers() -> None:
    report = make_run_with_outlier()
    lines = [line for line in render_text(report, View()).splitlines() if MARK in line]

    assert [line.lstrip().startswith(f"{MARK} Outliers: node0:4 GPU 4") for line in lines] == [
        False,
        True,
    ]
    assert "\nOutliers: node0:4 GPU 4" in render_summary(report, View())


def test_tables_refer_to_the_advice_about_marked_ranks() -> None:
    report = analyze_planting(Planting(stages=4, microbatches=8, replicas=2, slow_rank=5))
    lines = [line for line in render_text(report, View()).splitlines() if MARK in line]

    assert lines[-1] == f"{MARK} see the advice"


def test_saved_reports_contain_outliers_and_their_marks() -> None:
    report = make_run_with_outlier()

    (outlier,) = summarize(report).outliers

    assert (outlier.kind, outlier.ranks, outlier.is_marked) == ("rank", (4,), True)
    assert outlier.why == "busier than the other ranks (bubble ratio 49.00 points below the median)"


def test_advice_on_ranks_takes_precedence_over_outliers() -> None:
    report = analyze_planting(Planting(stages=3, microbatches=6, replicas=2, slow_rank=4))

    marked = choose_marked_ranks(report)

    assert marked.ranks == advise(report).marked_ranks == (4,)
    assert marked.outliers == ()
    assert not any(outlier.is_marked for outlier in summarize(report).outliers)


def test_spread_rows_have_no_marks_of_outliers() -> None:
    """Rows with spread draw the median replica, and outliers have rows of their own."""
    assert MARK not in picture(make_run_with_outlier(), View(rows="spread"))


def test_outliers_that_are_most_ranks_are_not_marked() -> None:
    operations, ranks = make_pipelines(2, 3, 8)
    ratio_of_rank = {0: 0.1, 1: 0.2, 3: 0.8, 4: 0.9}
    report = change_ratios(make_report(operations, ranks=ranks), ratio_of_rank)

    assert choose_marked_ranks(report).ranks == ()


def test_outliers_are_named_if_no_bubble_ratio_is_known() -> None:
    """A mark without an explanation would be a riddle."""
    planting = Planting(
        stages=1, replicas=3, microbatches=6, iterations=1, jitter=0.3, inference=True
    )
    report = analyze_planting(planting)
    screen = join_plain_lines(render_first_screen(report, View(), Display()))

    assert report.bubble_ratio is None
    assert MARK in screen
    assert "Outliers: " in screen


def test_the_slow_iteration_that_the_first_advice_names_is_drawn() -> None:
    planting = Planting(stages=4, microbatches=8, iterations=5, slow_iteration=2, slow_factor=1.5)
    report = analyze_planting(planting)
    restored = restore("report.json", summarize(report))

    assert advise(report).marked_ranks == ()
    for each in (report, restored):
        shown = choose_shown_iteration(each)
        assert shown is not None
        assert shown.index == 2
    assert "iteration 2" in " ".join(list_texts(picture(report, View())))
    assert picture(report, View()) == picture(restored, View())


def test_if_a_fault_began_during_the_run_an_iteration_with_the_fault_is_drawn() -> None:
    run = Planting(stages=4, microbatches=8, replicas=2, iterations=8, slow_rank=5)
    report = analyze_planting(replace(run, slow_rank_factor=1.5, slow_rank_from=5))

    (step, *_) = advise(report).first
    assert step.advice is not None
    assert step.advice.since_iteration == 5
    shown = choose_shown_iteration(report)
    assert shown is not None
    assert shown.index >= 5
