"""Hosts, replicas and ranks that are slow are distinguished even if they hide one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.sentences import write_all_advice
from bubbleviz.report.summary import AdviceEntry
from tests.support.pipeline_jobs import Job, simulate_job

STAGES, REPLICAS = 4, 4
JOB = Job(stages=STAGES, replicas=REPLICAS, microbatches=8, iterations=6, noise=0.002)
#: A function from (stage, replica) to the host.
#: A host has two stages of two replicas each.
Host = Callable[[int, int], int]


def find_quarter(stage: int, replica: int) -> int:
    return 2 * (stage // 2) + replica // 2


def find_replica(_: int, replica: int) -> int:
    return replica


def list_ranks(is_member: Callable[[int, int], bool]) -> list[int]:
    return [
        replica * STAGES + stage
        for replica in range(REPLICAS)
        for stage in range(STAGES)
        if is_member(stage, replica)
    ]


HOST_0 = list_ranks(lambda stage, replica: find_quarter(stage, replica) == 0)
REPLICA_3 = list_ranks(lambda _, replica: replica == 3)


def measure(
    factors: dict[int, float], host: Host, folder: Path
) -> tuple[tuple[AdviceEntry, ...], float]:
    """Return the advice for a job with slow ranks, and the saving if no rank were slow."""
    slow, fixed = simulate_job(replace(JOB, rank=factors)), simulate_job(JOB)
    for row in slow.rows:
        row["host"] = f"node{host(int(row['stage']), int(row['pipeline']))}"
    report = bubbleviz.analyze(slow.written(folder / "operations.csv"))
    return write_all_advice(report), 1 - fixed.length_ns / slow.length_ns


def multiply(*groups: tuple[list[int], float]) -> dict[int, float]:
    """Return the factor of each rank: the product over the groups that contain it."""
    factors: dict[int, float] = {}
    for ranks, factor in groups:
        for rank in ranks:
            factors[rank] = factors.get(rank, 1.0) * factor
    return factors


@pytest.mark.parametrize(
    ("groups", "host", "names"),
    [
        pytest.param([(HOST_0, 1.5)], find_quarter, {"host-0"}, id="host"),
        pytest.param([(REPLICA_3, 1.5)], find_quarter, {"replica-3"}, id="replica"),
        pytest.param([(REPLICA_3, 1.5)], find_replica, {"host-3"}, id="replica on one host"),
        pytest.param(
            [(HOST_0, 1.5), (REPLICA_3, 1.3)],
            find_quarter,
            {"host-0", "replica-3"},
            id="host, replica",
        ),
        pytest.param(
            [(HOST_0, 1.3), (REPLICA_3, 1.6)],
            find_quarter,
            {"host-0", "replica-3"},
            id="host, slower replica",
        ),
        pytest.param([([6, 10], 1.5)], find_quarter, {"rank-6", "rank-10"}, id="half of a stage"),
    ],
)
def test_the_fewest_groups_of_slow_ranks_are_named_with_their_saving(
    groups: list[tuple[list[int], float]], host: Host, names: set[str], tmp_path: Path
) -> None:
    advice, saved = measure(multiply(*groups), host, tmp_path)

    assert set(advice[0].place.split("+")) == names
    assert advice[0].saving_ratio == pytest.approx(saved, abs=0.01)


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("stage", [0, 3])
def test_a_slow_replica_is_named_next_to_an_even_slower_copy_of_one_of_its_ranks(
    replicas: int, stage: int, tmp_path: Path
) -> None:
    job = Job(stages=6, microbatches=12, replicas=replicas)
    slow = dict.fromkeys(range(6), 1.35) | {6 + stage: 1.5}
    faulty_job = simulate_job(replace(job, rank=slow), 3)
    saved = 1 - simulate_job(job, 3).length_ns / faulty_job.length_ns

    report = bubbleviz.analyze(faulty_job.written(tmp_path / "operations.csv"))
    first = write_all_advice(report)[0]

    assert set(first.place.split("+")) == {"replica-0", f"rank-{6 + stage}"}
    assert first.saving_ratio == pytest.approx(saved, abs=0.01)


def test_slow_hosts_among_many_are_named(tmp_path: Path) -> None:
    slow = [*range(4 * 25, 4 * 26), *range(4 * 29, 4 * 30)]
    job = replace(JOB, replicas=32, iterations=2, messages=False, of_host=4)
    simulated = simulate_job(replace(job, rank=dict.fromkeys(slow, 1.3)))
    report = bubbleviz.analyze(simulated.written(tmp_path / "operations.csv"))
    first = write_all_advice(report)[0]

    assert first.kind == "host+host"
    assert sorted(first.ranks) == slow


def test_a_slow_stage_and_slow_ranks_that_hide_each_other_are_named_together(
    tmp_path: Path,
) -> None:
    """Neither saves time alone, because the other one remains as slow."""
    stage_0 = list_ranks(lambda stage, _: stage == 0)
    advice, _ = measure(multiply((stage_0, 1.3), ([6, 10], 1.25)), find_replica, tmp_path)

    assert set(advice[0].place.split("+")) == {"stage-0", "rank-6", "rank-10"}


def test_a_rank_that_is_slower_than_its_slow_host_is_named_as_well(tmp_path: Path) -> None:
    advice, _ = measure(multiply((HOST_0, 1.5), (HOST_0[:1], 1.3)), find_quarter, tmp_path)
    phases = {entry.place: dict(entry.measure) for entry in advice}

    assert phases["host-0"]["F"] == pytest.approx(1.5, abs=0.01)
    assert phases["rank-0"]["F"] == pytest.approx(1.3, abs=0.01)


def test_ranks_of_a_host_that_are_slow_for_different_reasons_do_not_make_the_host_slow(
    tmp_path: Path,
) -> None:
    """A single factor explains too little of the slowness of the two ranks of host 1."""
    advice, _ = measure(
        multiply(([2], 1.8), ([3], 1.04)), lambda stage, replica: 2 * replica + stage // 2, tmp_path
    )

    assert advice[0].place == "rank-2"
    assert not [entry for entry in advice if entry.kind == "host"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_rank_that_drifts_does_not_pause(replicas: int, tmp_path: Path) -> None:
    job = simulate_job(replace(JOB, replicas=replicas, iterations=10, drift={2: 0.6}))
    advice = write_all_advice(bubbleviz.analyze(job.written(tmp_path / "operations.csv")))

    assert advice[0].kind == "drift"
    assert not [entry for entry in advice if entry.kind == "iteration"]


def test_a_single_host_is_not_compared_with_other_hosts(tmp_path: Path) -> None:
    """Kinds of work are compared separately, so every stage is slow in one kind of work."""
    job = simulate_job(Job(stages=3, replicas=1, microbatches=4, iterations=3, noise=0.0))
    for row in job.rows:
        # Some backwards begin late, because the forward before them ends late.
        if row["phase"] == "F":
            row["end_ns"] = int(row["end_ns"]) + 3_000_000
    advice = write_all_advice(bubbleviz.analyze(job.written(tmp_path / "operations.csv")))

    assert not [entry for entry in advice if "host" in entry.kind]
