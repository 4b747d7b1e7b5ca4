"""Effects: each factor that was planted is found, and no other; hosts of slow ranks are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from bubbleviz.explain.diagnosis.effects import effects_of, jumps
from bubbleviz.explain.diagnosis.faults import Evidence, slow_ranks, slow_stages
from bubbleviz.explain.slowdown.replay import Kind, Role, Work
from bubbleviz.model.columns import Ints

KINDS = (Kind("F", Role.FORWARD, "F"), Kind("BW", Role.BACKWARD, "BW"))
STAGES, REPLICAS, ITERATIONS, MICROBATCHES = 4, 3, 5, 6


class Place(NamedTuple):
    """Where operations run."""

    stage: Ints
    replica: Ints
    iteration: Ints
    microbatch: Ints
    kind: Ints


#: How many times longer operations take.
Factor = Callable[[Place], object]


def work_of(factor: Factor, replicas: int = REPLICAS) -> Work:
    """Return the computes of a run that take 1 ms (F) and 2 ms (BW) times a factor."""
    shape = (STAGES, replicas, ITERATIONS, MICROBATCHES, len(KINDS))
    stage, replica, iteration, microbatch, kind = (
        column.ravel().astype(np.int64) for column in np.indices(shape)
    )
    place = Place(stage, replica, iteration, microbatch, kind)
    times = np.asarray(factor(place), np.float64)
    length_ns = np.rint(1e6 * (1 + kind) * times).astype(np.int64)
    none = np.full(len(stage), -1, np.int64)
    return Work(
        rank=stage + STAGES * replica,
        stage=stage,
        replica=replica,
        iteration=iteration,
        kind=kind,
        microbatch=microbatch,
        chunk=np.zeros(len(stage), np.int64),
        virtual_stage=stage.copy(),
        start_ns=np.zeros(len(stage), np.int64),
        end_ns=length_ns,
        meeting=none,
        kinds=KINDS,
    )


def seen(work: Work, host_of_rank: Ints) -> Evidence:
    """Return the evidence of computes alone."""
    never = np.zeros(len(work), np.int64)
    return Evidence(work, work.own_ns, effects_of(work), host_of_rank, never, never)


@pytest.mark.parametrize(
    ("stages", "hosts", "names"),
    [
        (STAGES, np.repeat(np.arange(REPLICAS), STAGES), ["host-1"]),
        (2, np.repeat(np.arange(REPLICAS), STAGES), ["rank-4", "rank-5"]),
        (STAGES, np.zeros(STAGES * REPLICAS, np.int64), ["replica-1"]),
    ],
)
def test_a_host_is_named_where_all_of_its_ranks_are_slow(
    stages: int, hosts: Ints, names: list[str]
) -> None:
    work = work_of(lambda at: np.where((at.replica == 1) & (at.stage < stages), 1.4, 1.0))
    faults = list(slow_ranks(seen(work, hosts)))
    assert [fault.name for fault in faults] == names
    assert [rank for fault in faults for rank in fault.ranks] == list(
        range(STAGES, STAGES + stages)
    )
    assert {dict(fault.phases)["F"] for fault in faults} == {1.4}


def test_all_stages_of_a_host_are_its() -> None:
    work = work_of(lambda at: np.where(at.stage >= 2, 1.4, 1.0), replicas=1)
    (only,) = slow_stages(seen(work, np.array([0, 0, 1, 1])))
    assert (only.kind, only.ranks) == ("host", (2, 3))


def test_chance_jumps_in_few_of_many_series() -> None:
    generator = np.random.default_rng(7)
    group, x = np.repeat(np.arange(20_000), 10), np.tile(np.arange(10.0), 20_000)

    assert jumps(group, x, generator.normal(0.0, 0.05, len(group)))[3].mean() < 0.001
