"""Forward-only runs: their kind, windows and headline ratio, and evaluations in training runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.model.phases import Phase
from bubbleviz.model.run_kinds import run_kind
from bubbleviz.render import json_document
from bubbleviz.report.bubble_parts import compute_bubble_parts
from bubbleviz.report.view import View
from tests.planting import Planting, plant
from tests.support.notes import find_limitation
from tests.support.planted_runs import BASE, analyze_planting

FORWARD = replace(BASE, inference=True, optimizer_ns=-1)


@pytest.mark.parametrize(
    ("phases", "kind"),
    [
        ((), "training"),
        ((Phase.F,), "inference"),
        ((Phase.F, Phase.SEND_F, Phase.RECV_F, Phase.COLLECTIVE), "inference"),
        ((Phase.F, Phase.OPTIMIZER), "training"),
        ((Phase.F, Phase.RECV_B), "training"),
        ((Phase.SEND_F,), "training"),
    ],
)
def test_the_phases_of_a_run_show_whether_it_trains(phases: tuple[Phase, ...], kind: str) -> None:
    import numpy as np

    assert run_kind(np.array(phases, np.int64)) == kind


def test_several_batches_are_iterations_and_the_time_between_them_counts() -> None:
    report = analyze_planting(replace(FORWARD, iterations=4))

    assert (report.kind, report.headline) == ("inference", "period")
    assert [(i.kind, i.averaged, i.microbatches) for i in report.iterations] == [
        ("inference", True, 8)
    ] * 4
    assert [rank.stage for rank in report.ranks] == [0, 1, 2, 3]
    document = json.loads(json_document.render(report, View()))
    assert document["kind"] == "inference"
    assert {i["kind"] for i in document["iterations"]} == {"inference"}


def test_batches_of_different_sizes_are_also_averaged(tmp_path: Path) -> None:
    path = tmp_path / "operations.csv"
    rows = ["rank,phase,iteration,microbatch,stage,start_ns,end_ns"]
    time_ns = 0
    for iteration, count in enumerate((2, 3, 4)):
        for number in range(count):
            rows += [
                f"{s},F,{iteration},{number},{s},{time_ns + s * 10},{time_ns + 10 + s * 10}"
                for s in (0, 1)
            ]
            time_ns += 10
        time_ns += 10
    path.write_text("\n".join(rows) + "\n")
    report = bubbleviz.analyze(path)

    assert [i.averaged for i in report.iterations] == [True] * 3
    ratio = report.summary.bubble_ratio
    assert ratio["schedule"].mean == pytest.approx((1 / 3 + 1 / 4 + 1 / 5) / 3)
    assert ratio["period"].mean == pytest.approx((1 / 3 + 1 / 4) / 2)


def test_one_batch_is_one_window() -> None:
    report = analyze_planting(replace(FORWARD, iterations=1, jitter=0.0, transfer_ns=0))

    assert report.headline == "schedule"
    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(3 / 11)
    assert report.summary.bubble_ratio["stage"].mean == pytest.approx(0)
    assert report.summary.bubble_ratio["period"].mean is None


def test_evaluations_inside_training_are_counted_and_left_out() -> None:
    report = analyze_planting(replace(BASE, evaluation_at=1, iterations=4))

    assert report.kind == "training"
    assert [i.kind for i in report.iterations] == ["training", "evaluation", "training", "training"]
    assert [i.averaged for i in report.iterations] == [True, False, True, True]
    note = find_limitation(report, "evaluation iterations")
    assert note.count == 1


def test_an_evaluation_that_overlaps_training_makes_the_period_the_ratio_to_quote(
    tmp_path: Path,
) -> None:
    """The evaluation fills the pipeline. On the last stage, the next iteration waits 3 of 33 ms."""
    truth = plant(Planting(barrier=True, iterations=4, evaluation_at=2), tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert report.headline == "period"
    assert report.headline_reason.startswith(
        "consecutive iterations overlap (up to 9.1 % of a rank's window, in iteration 3)"
    )
    assert [i.averaged for i in report.iterations] == [True, True, False, True]
    expected = [true.bubble_ratio["period"] for true in truth.iterations]
    assert [i.bubble_ratio for i in report.iterations] == pytest.approx(expected)
    assert report.summary.bubble_ratio["period"].mean == pytest.approx(expected[0])
    assert {part.name for part in compute_bubble_parts(report)} == {"dependency", "warmup"}
