"""The methods sentence, also with unknown values."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

import bubbleviz
from bubbleviz.count.iterations import make_iteration_records
from bubbleviz.count.ratios import list_ratios
from bubbleviz.count.statistics import Spread
from bubbleviz.render import json_document as json_renderer
from bubbleviz.render.text.report import render_text as render
from bubbleviz.report.methods import write_methods
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.planting.options import Planting
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import make_report
from tests.support.places import FIXTURES
from tests.support.planted_runs import analyze_planting


@pytest.fixture(scope="module")
def report() -> Report:
    return bubbleviz.analyze([FIXTURES / "1f1b"])


def test_the_sentence_says_if_nothing_was_measured() -> None:
    assert write_methods(make_report([])) == (
        "No bubble ratio could be measured with bubbleviz 0 from 1 Nsight Systems profile on 0 "
        "ranks (0 hosts): Iterations do not overlap, so each is looked at as if alone."
    )


@pytest.mark.parametrize("schedule", ["dualpipe", "chimera", "zb-v"])
def test_microbatches_of_both_directions_are_counted(schedule: str) -> None:
    report = analyze_planting(
        Planting(schedule=schedule, microbatches=8, iterations=2, iteration_ranges=True)
    )

    assert report.schedule is not None
    assert report.schedule.name == schedule
    assert "with 8 microbatches" in write_methods(report)


def test_the_sentence_names_definition_iterations_ranks_result_and_version(report: Report) -> None:
    assert write_methods(report) == (
        f"Pipeline bubbles were measured with bubbleviz {bubbleviz.__version__} from 1 Nsight "
        "Systems profile: the bubble ratio 'schedule', that is 1 - sum of the ranks' compute / "
        "(ranks x (last end - first start over all ranks)), over 3 training iterations with 8 "
        "microbatches of the schedule 1f1b on 4 ranks (4 pipeline stages, 1 host) is 27.27 % on "
        "average (standard deviation 0.00 percentage points; 95 % confidence interval of the mean "
        "+/- 0.00, Student's t)."
    )


@pytest.mark.parametrize("name", [s.name for s in list_ratios()])
def test_every_ratio_can_be_the_headline(report: Report, name: str) -> None:
    sentence = write_methods(replace(report, headline=name))

    assert f"'{name}', that is 1 - sum of " in sentence
    # Three iterations have two periods.
    two = report.summary.bubble_ratio[name].pair is not None
    assert sentence.count("; ") == (0 if two else 1), "of the confidence interval alone"
    assert ("in two iterations)" in sentence) == two


def test_unknown_values_are_left_out(report: Report) -> None:
    bare = replace(
        report,
        ranks=tuple(replace(rank, stage=None) for rank in report.ranks),
        profiles=tuple(replace(p, format="trace") for p in report.profiles),
        schedule=None,
        iterations=make_iteration_records(replace(i, microbatches=None) for i in report.iterations),
    )

    assert "from 1 profile: " in write_methods(bare)
    assert "over 3 training iterations on 4 ranks (1 host) is" in write_methods(bare)


def test_one_iteration_has_no_spread(report: Report) -> None:
    single = {**report.summary.bubble_ratio, "schedule": Spread(0.25, None, 0.25, 0.25, None, 1)}
    summary = replace(report.summary, bubble_ratio=single)

    sentence = write_methods(replace(report, summary=summary))

    assert sentence.endswith(
        "over 1 training iteration with 8 microbatches of the schedule 1f1b on 4 ranks (4 pipeline "
        "stages, 1 host) is 25.00 %."
    )


def test_the_sentence_names_what_makes_the_number_uncertain(report: Report) -> None:
    summary = report.summary
    low = {**summary.bubble_low, "schedule": Spread(0.2, None, 0.2, 0.2, None, 1)}
    between = {**summary.bubble_interval, "schedule": (0.25, 0.3)}
    iterations = tuple(
        replace(i, ratios={n: replace(r, contradicted=True) for n, r in i.ratios.items()})
        for i in report.iterations
    )
    doubted = replace(
        report,
        summary=replace(summary, bubble_low=low, bubble_interval=between),
        iterations=make_iteration_records(iterations),
    )

    assert write_methods(doubted).endswith(
        "; clock uncertainty leaves it between 25.00 and 30.00 %; it relies on clocks that "
        "contradict each other; if compute outside all operations counts as work, it is 20.00 %."
    )


def test_table_and_json_contain_the_methods_sentence(report: Report, cli: CommandLine) -> None:
    text = render(report, View())
    _, _, end = text.partition("\nMethods, ready to paste\n")

    assert " ".join(end.split()) == write_methods(report)
    assert json.loads(json_renderer.render(report, View()))["methods"] == write_methods(report)
    assert cli.json("analyze", str(FIXTURES / "1f1b"), "--json", "-")["methods"] == write_methods(
        report
    )


def test_hostile_names_stay_inert_and_nothing_measured_is_nothing_to_paste(report: Report) -> None:
    nothing = dict.fromkeys(report.summary.bubble_ratio, Spread(None, None, None, None, None, 0))
    summary = replace(report.summary, bubble_ratio=nothing, bubble_low=nothing)
    hostile = replace(report, headline_reason="<b>\n\x1b[2J\x00", summary=summary)

    assert not re.search("\x1b|Methods", render(hostile, View()))
    assert write_methods(hostile).endswith("<b>\n\x1b[2J\0.")
