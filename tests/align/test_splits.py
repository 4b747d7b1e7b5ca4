"""Stages and pipelines of runs whose replicas are unequally fast, against planted truth."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import bubbleviz
from bubbleviz.align.replicas import follows, forced, pipelines_of, timetable
from bubbleviz.align.stage_order import lack_many
from bubbleviz.align.staging import stages_lacking
from bubbleviz.align.waits import Waits
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.report.advice import first_thing
from bubbleviz.report.report import Report
from tests.planting import Planting, Truth, plant

PIPELINES = Planting(
    stages=4, microbatches=8, replicas=3, iterations=3, barrier=True, jitter=0.03, transfer_ns=20000
)
SCHEDULES = ("1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v")
SLOW_RANK: dict[str, Any] = {"slow_rank": 5, "slow_rank_factor": 1.5}
PAUSE: dict[str, Any] = {"pause_device": 7, "pause_every": 2, "pause_ns": 8_000_000}


def _is_right(report: Report, truth: Truth) -> bool:
    """Return whether stages are the planted ones, and each pipeline's ranks belong together."""
    true = {(rank.host, rank.pid): (rank.stage, rank.pipeline) for rank in truth.ranks}
    planted = [true[rank.host, rank.pid] for rank in report.ranks]
    pairs = {(rank.pipeline, of[1]) for rank, of in zip(report.ranks, planted, strict=True)}
    return [rank.stage for rank in report.ranks] == [stage for stage, _ in planted] and (
        len(pairs) == len({pipeline for _, pipeline in planted})
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("trouble", [SLOW_RANK, PAUSE, {"slow_pipeline": 1}], ids=str)
@pytest.mark.parametrize("servers", [1, 4])
def test_a_slow_rank_leaves_stages_and_pipelines_known(
    tmp_path: Path, schedule: str, trouble: dict[str, Any], servers: int
) -> None:
    planting = replace(PIPELINES, schedule=schedule, servers=servers, **trouble)
    if schedule == "gpipe" and "slow_pipeline" in trouble:
        planting = replace(planting, microbatches=12)
    truth = plant(planting, tmp_path)

    report = bubbleviz.analyze(tmp_path)

    assert _is_right(report, truth)
    assert report.schedule is not None
    assert report.schedule.name == schedule


def test_the_slow_rank_of_two_pipelines_is_what_to_look_at_first(tmp_path: Path) -> None:
    truth = plant(
        Planting(
            stages=8,
            microbatches=16,
            replicas=2,
            iterations=3,
            barrier=True,
            jitter=0.03,
            slow_rank=10,
            slow_rank_factor=1.15,
        ),
        tmp_path,
    )

    report = bubbleviz.analyze(tmp_path)

    assert _is_right(report, truth)
    # Simulated device 10 is stage 2 of the second of two pipelines.
    assert (first_thing(report) or "").startswith("Find out why rank 10 (node0 GPU 5) is slow")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_replicas_of_one_stage_are_no_pipeline_however_slow_one_is(
    tmp_path: Path, schedule: str
) -> None:
    plant(
        replace(PIPELINES, schedule=schedule, stages=1, slow_rank=1, slow_rank_factor=2.4), tmp_path
    )

    report = bubbleviz.analyze(tmp_path)

    assert {rank.stage for rank in report.ranks} <= {None, 0}


def test_forwards_before_backwards_on_all_ranks_without_transfers_give_no_split(
    tmp_path: Path,
) -> None:
    silent = replace(PIPELINES, schedule="gpipe", communication=False)
    plant(replace(silent, slow_rank=5, slow_rank_factor=1.5), tmp_path)

    report = bubbleviz.analyze(tmp_path)

    assert {rank.stage for rank in report.ranks} == {None}


def test_many_replicas_are_distinguished(tmp_path: Path) -> None:
    many = replace(PIPELINES, stages=2, replicas=70, iterations=2, servers=10)
    truth = plant(many, tmp_path)

    report = bubbleviz.analyze(tmp_path)

    assert _is_right(report, truth)
    assert len({rank.pipeline for rank in report.ranks}) == 70


# --- neighbours


def _waits(*rows: tuple[int, int, int, int]) -> Waits:
    """Return waits of (rank, microbatch, end of F, start of B); both take 10 ms."""
    rank, microbatch, left, returned = (np.array(c, np.int64) for c in zip(*rows, strict=True))
    zero = np.zeros(len(rank), np.int64)
    work = zero + 10_000_000
    times = left * 1_000_000, (returned - left) * 1_000_000
    return Waits(rank, zero, microbatch, zero - 1, zero, *times, work, 2 * work)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(0, 60), st.integers(-10, 120)),
        min_size=1,
        max_size=200,
        unique_by=lambda row: row[:2],
    ),
    st.lists(st.integers(0, 1), min_size=6, max_size=6),
)
def test_few_microbatches_first_change_nothing(
    rows: list[tuple[int, int, int, int]], machines: list[int]
) -> None:
    table = timetable(_waits(*rows), np.array(machines, np.int64))
    ranks = np.arange(6)

    can, cannot = follows(table, ranks, ranks, (0, 0))

    for upper in range(6):
        for lower in range(6):
            expected = _fits_by_rows(
                rows, upper, lower, one_clock=machines[upper] == machines[lower]
            )
            assert (bool(can[upper, lower]), bool(cannot[upper, lower])) == expected


def _fits_by_rows(
    rows: list[tuple[int, int, int, int]], upper: int, lower: int, *, one_clock: bool
) -> tuple[bool, bool]:
    """Return whether an offset suits two ranks, and whether none does, in units of 1 ms."""
    passed = {row[:2]: row[2:] for row in rows}
    least, most = [], []
    for (rank, microbatch), (left, returned) in passed.items():
        if rank == upper and (lower, microbatch) in passed:
            entered = passed[lower, microbatch][0] - 10
            done = passed[lower, microbatch][1] + 10
            least.append(left - entered)
            most.append(returned - done)
    if not least:
        return False, False
    fits = max(least) <= min(most) and not (one_clock and (max(least) > 0 or min(most) < 0))
    return fits, not fits


@given(st.integers(0, 5).flatmap(lambda n: arrays(bool, (n, n))))
def test_the_only_matching_is_the_one_of_all_orders(fits: Bools) -> None:
    size = len(fits)
    orders = [
        order
        for order in permutations(range(size))
        if all(fits[row, column] for row, column in enumerate(order))
    ]

    found = _columns_forced(fits)

    assert (None if found is None else tuple(found)) == (orders[0] if len(orders) == 1 else None)


def _columns_forced(fits: Bools) -> list[int] | None:
    """Return the column of each row where just one perfect matching fits, else None."""
    row = forced(fits, rows_have_one=True, columns_have_one=True)
    return None if (row < 0).any() else np.argsort(row).tolist()


# --- chains of ranks of which some are missing

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


CROSSED, NEAR = {(0, 3), (1, 2)}, {(0, 2), (2, 4)}


@pytest.mark.parametrize(
    ("stages", "follow", "expected"),
    [
        ([[0, 1]], set(), [0, 1]),
        ([[0, 1], [2, 3]], CROSSED, [0, 1, 1, 0]),
        ([[0, 1], [2, 3]], CROSSED | {(0, 2), (1, 3)}, None),
        ([[0, 1], [2, 3]], {(0, 2)}, None),
        # Rank 1 is followed by none of stage 1, of which a rank is missing: what is left is taken
        # in order, and else begins anew.
        ([[0, 1], [2], [3, 4]], NEAR | {(1, 3)}, [0, 1, 0, 1, 0]),
        ([[0, 1], [2], [3, 4]], NEAR, [0, 1, 0, 2, 0]),
        # Two stages lack one each, of different pipelines.
        ([[0, 1, 2], [3, 4], [5, 6]], {(0, 3), (1, 4), (3, 5)}, [0, 1, 2, 0, 1, 0, 3]),
        # The first stage lacks one: chains begin at the second one.
        ([[0], [1, 2], [3, 4]], {(0, 2), (1, 3), (2, 4)}, [1, 0, 1, 0, 1]),
    ],
)
def test_chains_by_hand(
    stages: list[list[int]], follow: set[tuple[int, int]], expected: list[int] | None
) -> None:
    def fits(ranks: Ints, others: Ints) -> Bools:
        pairs = [[tuple(sorted((a, b))) in follow for b in others] for a in ranks.tolist()]
        return np.array(pairs, bool).reshape(len(ranks), len(others))

    found = pipelines_of([np.array(s, np.int64) for s in stages], fits, sum(map(len, stages)))

    assert (None if found is None else found.tolist()) == expected
