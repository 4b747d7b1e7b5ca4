"""The critical path through transfers, collectives and replicas to the optimizer."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.explain.path import CriticalPath
from bubbleviz.model.phases import Phase
from bubbleviz.render.json_document import make_document
from bubbleviz.report.report import Report
from tests.planting.options import Planting
from tests.support.planted_runs import RUNS, analyze_planting
from tests.support.report_texts import text_of

US = 1_000
#: Two replicas that reduce after the last backward and wait for each other in the gradient norm.
COPIES = Planting(
    stages=2,
    replicas=2,
    microbatches=4,
    iterations=1,
    jitter=0.05,
    transfer_ns=20 * US,
    reduce_ns=300 * US,
    barrier=True,
    norm_ns=50 * US,
)


def report_of(planting: Planting) -> Report:
    return analyze_planting(planting, parallel=Parallel(1, planting.stages, planting.replicas))


def path_of(report: Report) -> CriticalPath:
    """Return the critical path of a report. The path must exist."""
    path = report.explanation.path
    assert path is not None
    return path


@pytest.mark.parametrize(
    "name", ["plain", "interleaved", "slow stage", "zb-v", "no optimizer", "barrier", "one stage"]
)
def test_the_path_has_no_slack_and_ends_with_the_optimizer(name: str) -> None:
    report = report_of(RUNS[name])
    path = path_of(report)
    iteration = report.iteration(path.iteration)

    assert (path.slack_ns[np.isin(path.replayed, path.operations)] == 0).all()
    assert np.isin(path.operations, path.replayed).all()
    assert (report.operations.iteration[path.replayed] == path.iteration).all()
    assert path.length_ns == iteration.ratios["step"].window_ns
    assert sum(part.time_ns for part in path.parts) == path.length_ns
    optimizers = (report.operations.phase[path.operations] == Phase.OPTIMIZER).sum()
    assert optimizers == (name != "no optimizer")


@pytest.mark.parametrize("slow_rank", [0, 1, 2, 3])
def test_the_path_runs_from_the_slow_replica_through_the_collectives(slow_rank: int) -> None:
    """Devices 0 and 1 form the first replica. The optimizer of each rank waits for all ranks."""
    report = report_of(replace(COPIES, slow_rank=slow_rank))
    path = path_of(report)
    slow_replica = slow_rank // COPIES.stages
    work_rows = path.operations[report.operations.phase[path.operations] != Phase.OPTIMIZER]
    replicas = {report.ranks[rank].pipeline for rank in report.operations.rank[work_rows].tolist()}
    scatter, norm = path.collectives

    assert replicas == {slow_replica}
    assert (scatter.what, norm.what) == ("ReduceScatter", "AllReduce")
    assert report.ranks[scatter.last_rank].pipeline == slow_replica
    assert scatter.end_ns - scatter.start_ns == COPIES.reduce_ns
    assert norm.end_ns - norm.start_ns == COPIES.norm_ns
    time_of_part = {part.what: part.time_ns for part in path.parts}
    assert time_of_part["ReduceScatter"] == COPIES.reduce_ns
    assert time_of_part["AllReduce"] == COPIES.norm_ns


def test_work_before_a_late_collective_has_the_delay_as_slack() -> None:
    """A host launches the reduce-scatter late, so all earlier work of its rank has slack."""
    late_planting = replace(COPIES, late_reducer=0, late_reduce_ns=900 * US)
    report, punctual_report = report_of(late_planting), report_of(COPIES)
    path = path_of(report)
    longer_ns = path.length_ns - path_of(punctual_report).length_ns

    assert longer_ns > 500 * US
    parts = {(part.rank, part.what): part.time_ns for part in path.parts}
    assert parts[path.collectives[0].last_rank, "host"] == 900 * US
    is_work = report.operations.phase != Phase.OPTIMIZER
    is_work &= report.operations.rank != path.collectives[0].last_rank
    is_work &= np.isin(report.operations.phase, (Phase.F, Phase.BW))
    assert path.slack_ns[is_work[path.replayed]].max() >= longer_ns


def test_the_text_and_the_json_name_the_collectives() -> None:
    report = report_of(replace(COPIES, slow_rank=2))
    path = path_of(report)
    document = json.loads(json.dumps(make_document(report)))["critical_path"]

    assert [collective["what"] for collective in document["collectives"]] == [
        "ReduceScatter",
        "AllReduce",
    ]
    assert document["collectives"][0]["last_rank"] == path.collectives[0].last_rank
    assert (
        "the path passes through ReduceScatter (node0 GPU 1 (pipeline order 2) entered last"
        in text_of(report, 200)
    )
