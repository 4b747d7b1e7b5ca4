"""Stretches: the explanation does not depend on the number of pipelines per stretch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.count import rank_slices
from bubbleviz.explain import replayed_ranks, stretch
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
    """Return the JSON and the table of bubbles of a report."""
    return json.render(report, View()), render_bubbles(report, View())


def in_stretches(path: Path, max_bytes: int, *, replayed: int | None = None) -> Report:
    """Return the report on a run that is explained in stretches of limited size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretch, "MAX_OPERATIONS", max_bytes)
        patch.setattr(rank_slices, "TARGET_OPERATIONS", max_bytes)
        if replayed is not None:
            patch.setattr(replayed_ranks, "MAX_REPLAYED_OPERATIONS", replayed)
            patch.setattr(replayed_ranks, "_MIN_PIPELINES", 1)
        report = bubbleviz.analyze(path)
        shown(report)
    return report


@pytest.mark.parametrize("replayed", [None, 1])
@pytest.mark.parametrize("name", RUNS)
def test_explaining_one_pipeline_at_a_time_gives_the_same(
    name: str, replayed: int | None, tmp_path: Path
) -> None:
    plant(RUNS[name], tmp_path)
    all_at_once = in_stretches(tmp_path, 1 << 40, replayed=replayed)
    one_by_one = in_stretches(tmp_path, 1, replayed=replayed)

    assert shown(one_by_one) == shown(all_at_once)
    assert one_by_one.explanation.receives.operation.tolist() == (
        all_at_once.explanation.receives.operation.tolist()
    )
