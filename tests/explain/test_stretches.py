"""Stretches: a run is explained the same however many pipelines are explained at a time."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.count import rank_iterations
from bubbleviz.explain import explanation, stretch
from bubbleviz.explain.explanation import explain_stretch
from bubbleviz.explain.phase_times import times_median_of
from bubbleviz.render import json_document as json
from bubbleviz.render.formats.csv import render_bubbles
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.planting import Planting, plant

US = 1_000
#: Twelve ranks, as four pipelines of three stages.
REPLICAS = Planting(stages=3, replicas=4, microbatches=4, iterations=3, kernels=1, jitter=0.2)
RUNS = {
    "replicas": REPLICAS,
    "transfers": replace(REPLICAS, transfer_ns=80 * US, communication=True),
    "receives inside operations": replace(
        REPLICAS, transfer_ns=80 * US, nested_receive_ns=20 * US, kernels=3
    ),
    "collectives": replace(
        REPLICAS,
        reduce_ns=300 * US,
        reduce_pieces=3,
        late_reducer=2,
        late_reduce_ns=400 * US,
        barrier=True,
        norm_ns=50 * US,
        optimizer_ns=500 * US,
        overhead=True,
        stray="busy",
        late_stage=1,
        late_ns=90 * US,
        servers=2,
    ),
    "evaluation": replace(REPLICAS, evaluation_at=1),
    "forward only": replace(REPLICAS, inference=True),
    "missing ranks": replace(REPLICAS, absent=(4,), transfer_ns=50 * US),
    "chunks": replace(REPLICAS, schedule="zb-v", transfer_ns=50 * US),
}


def shown(report: Report) -> tuple[str, str]:
    """Return what a report shows that explaining it found."""
    return json.render(report, View()), render_bubbles(report, View())


def in_stretches(path: Path, most: int, *, replayed: int | None = None) -> Report:
    """Return the report on a run, about so many operations of which are looked at at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretch, "MOST", most)
        patch.setattr(rank_iterations, "MOST", most)
        if replayed is not None:
            patch.setattr(stretch, "MOST_REPLAYED_RANKS", replayed)
            patch.setattr(stretch, "_LEAST", 1)
        report = bubbleviz.analyze(path)
        shown(report)
    return report


@pytest.mark.parametrize("replayed", [None, 1])
@pytest.mark.parametrize("name", RUNS)
def test_one_pipeline_at_a_time_is_all_at_once(
    name: str, replayed: int | None, tmp_path: Path
) -> None:
    plant(RUNS[name], tmp_path)
    whole = in_stretches(tmp_path, 1 << 40, replayed=replayed)
    alone = in_stretches(tmp_path, 1, replayed=replayed)

    assert shown(alone) == shown(whole)
    assert alone.explanation.receives.operation.tolist() == (
        whole.explanation.receives.operation.tolist()
    )


def test_stretches_and_their_explanations_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(RUNS["collectives"], tmp_path)
    whole = shown(bubbleviz.analyze(tmp_path))

    def elsewhere(part: stretch.Stretch) -> object:
        return pickle.loads(pickle.dumps(explain_stretch(pickle.loads(pickle.dumps(part)))))

    monkeypatch.setattr(stretch, "MOST", 1)
    monkeypatch.setattr(explanation, "explain_stretch", elsewhere)
    assert shown(bubbleviz.analyze(tmp_path)) == whole


def test_times_are_those_of_the_median_of_a_kind(tmp_path: Path) -> None:
    plant(replace(REPLICAS, slow_microbatch=2, slow_microbatch_factor=2.0), tmp_path)
    report = bubbleviz.analyze(tmp_path)
    stage = np.array([rank.stage for rank in report.ranks], np.int64)
    averaged = np.array([iteration.averaged for iteration in report.iterations], bool)
    times = times_median_of(
        report.operations, stage, averaged, report.explanation.phase_times.kinds
    )
    worst = report.explanation.phase_times.stragglers
    assert [times[own.operation] for own in worst] == [own.times for own in worst]
    assert times.max() == worst[0].times
