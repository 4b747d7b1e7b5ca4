"""Hosts: where all ranks of one are slow, it is the host that is named."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.diagnosis.fault import FaultKind, effects_of
from bubbleviz.explain.diagnosis.rank_paces import Evidence
from bubbleviz.explain.diagnosis.shapes import rank, stage
from bubbleviz.explain.slowdown.replay import Work
from bubbleviz.model.columns import Ints
from tests.explain.diagnosis.test_effects import REPLICAS, STAGES, work_of


def seen(work: Work, host_of_rank: Ints) -> Evidence:
    """Return the evidence of computes alone."""
    never = np.zeros(len(work), np.int64)
    return Evidence(work, work.own_ns, effects_of(work), host_of_rank, never, never, never)


def test_all_ranks_of_a_host_are_its() -> None:
    hosts = np.repeat(np.arange(REPLICAS), STAGES)
    work = work_of(lambda at: np.where(at.replica == 1, 1.4, 1.0))
    (only,) = rank.faults(seen(work, hosts))
    assert (only.kind, only.name) == (FaultKind.HOST, "host-1")
    assert only.ranks == tuple(range(STAGES, 2 * STAGES))
    assert dict(only.phases)["F"] == 1.4


def test_some_ranks_of_a_host_are_ranks() -> None:
    hosts = np.repeat(np.arange(REPLICAS), STAGES)
    work = work_of(lambda at: np.where((at.replica == 1) & (at.stage < 2), 1.4, 1.0))
    assert [fault.kind for fault in rank.faults(seen(work, hosts))] == [FaultKind.RANK] * 2


def test_all_stages_of_a_host_are_its() -> None:
    hosts = np.array([0, 0, 1, 1])
    work = work_of(lambda at: np.where(at.stage >= 2, 1.4, 1.0), replicas=1)
    work = work.take(work.replica == 0)
    (only,) = stage.faults(seen(work, hosts))
    assert (only.kind, only.ranks) == (FaultKind.HOST, (2, 3))


def test_hosts_that_are_unknown_are_not_named() -> None:
    work = work_of(lambda at: np.where(at.replica == 1, 1.4, 1.0))
    kinds = {fault.kind for fault in rank.faults(seen(work, np.zeros(0, np.int64)))}
    assert kinds == {FaultKind.RANK}
