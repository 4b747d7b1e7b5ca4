"""Chains of ranks of which some are missing, against planted truth and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.align.replicas import pipelines_of
from bubbleviz.align.stage_order import lack_many
from bubbleviz.align.staging import stages_lacking
from bubbleviz.model.columns import Bools, Ints
from tests.planting import Planting, plant

#: Ranks number stage after stage, as Megatron's do; each host has two replicas of a stage.
RUN = Planting(
    stages=4, microbatches=8, replicas=12, iterations=3, jitter=0.03, transfer_ns=20000, servers=24
)


@pytest.mark.parametrize("absent", [(0,), (7,), (23,), (7, 14), (8, 14)], ids=str)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v"])
def test_pipelines_that_lack_ranks_cost_the_others_nothing(
    schedule: str, absent: tuple[int, ...], tmp_path: Path
) -> None:
    truth = plant(replace(RUN, schedule=schedule, absent=absent), tmp_path)
    true = {(rank.host, rank.pid): rank for rank in truth.ranks}

    report = bubbleviz.analyze(tmp_path)

    planted = [true[rank.host, rank.pid] for rank in report.ranks]
    assert [rank.stage for rank in report.ranks] == [rank.stage for rank in planted]
    found = {rank.pipeline for rank in report.ranks}
    pairs = {(r.pipeline, own.pipeline) for r, own in zip(report.ranks, planted, strict=True)}
    # Zero-bubble schedules hide what waits, and may leave several choices.
    assert len(pairs) == 12 or (found == {None} and schedule != "1f1b")
    assert found == {None} or report.iterations[1].ratios["stage"].value is not None
    (note,) = [n for n in report.limitations if n.what == "ranks without a profile"]
    assert note.count == 2 * len(absent)


@pytest.mark.parametrize(
    ("sizes", "many"),
    [
        ([], True),
        ([0], False),
        ([1], False),
        ([8, 8, 8, 8], False),
        ([8, 6, 8, 8], False),
        ([8, 5, 8, 8], False),
        ([8, 4, 8, 8], True),  # times may have divided a stage
        ([8, 7, 7, 8], False),
        ([8, 9, 7, 8], True),
        ([8, 7], True),
        ([8, 8, 7], False),
        ([512, 488, 496, 472, 504], False),  # of large stages most lack some
        ([512, 488, 496, 440, 504], True),
        ([56, 48, 49, 50, 51], True),
    ],
)
def test_few_may_lack(sizes: list[int], many: bool) -> None:
    assert lack_many(sizes) is many


def test_every_pipeline_may_lack_a_rank() -> None:
    pipeline, stage = np.array([0, 0, 1, 1, 2, 2]), np.array([1, 2, 0, 2, 0, 1])

    (note,) = stages_lacking(pipeline, stage)

    assert note.count == 3
    assert note.reason.startswith("3 pipelines of 3 lack ranks of stages that the others have")
    assert stages_lacking(pipeline[:0], stage[:0]) == ()
    assert stages_lacking(pipeline // 3, np.array([0, 1, 2, 0, 1, 2])) == ()


def _chains(stages: list[list[int]], follow: set[tuple[int, int]]) -> list[int] | None:
    def fits(ranks: Ints, others: Ints) -> Bools:
        pairs = [[tuple(sorted((a, b))) in follow for b in others] for a in ranks.tolist()]
        return np.array(pairs, bool).reshape(len(ranks), len(others))

    found = pipelines_of([np.array(s, np.int64) for s in stages], fits, 7)
    return None if found is None else found.tolist()


def test_chains_by_hand() -> None:
    assert _chains([[0, 1]], set()) == [0, 1, -1, -1, -1, -1, -1]
    crossed = {(0, 3), (1, 2)}
    assert _chains([[0, 1], [2, 3]], crossed) == [0, 1, 1, 0, -1, -1, -1]
    every = crossed | {(0, 2), (1, 3)}
    assert _chains([[0, 1], [2, 3]], every) is None
    assert _chains([[0, 1], [2, 3]], {(0, 2)}) is None


def test_what_is_left_is_taken_in_order_and_else_begins_anew() -> None:
    # Rank 1 is followed by none of stage 1, of which a rank is missing.
    near = {(0, 2), (2, 4)}
    assert _chains([[0, 1], [2], [3, 4]], near | {(1, 3)}) == [0, 1, 0, 1, 0, -1, -1]
    assert _chains([[0, 1], [2], [3, 4]], near) == [0, 1, 0, 2, 0, -1, -1]
    # Two stages lack one each, of different pipelines.
    near = {(0, 3), (1, 4), (3, 5)}
    assert _chains([[0, 1, 2], [3, 4], [5, 6]], near) == [0, 1, 2, 0, 1, 0, 3]
    # The first stage lacks one: chains begin at the second one.
    assert _chains([[0], [1, 2], [3, 4]], {(0, 2), (1, 3), (2, 4)}) == [1, 0, 1, 0, 1, -1, -1]
