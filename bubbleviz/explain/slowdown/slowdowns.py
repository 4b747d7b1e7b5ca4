"""Slowdowns: how many times longer iterations take than ideal ones, and what makes them so.

S is the mean length of the replayed iterations over that of ideal ones. S of a group of work is
that of the ideal with the group's own times put back; S of a worker is the smaller of that of its
stage and that of its replica (``AnalyzerResult`` in the published ``analyzer/metatypes.py``,
``analyzer/compute_mw.py`` and ``analyzer/compute_ms.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bubbleviz.explain.causes.forward_waits import TokenWaits
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.receives import Receives
from bubbleviz.explain.slowdown.messages import link_of, messages_of
from bubbleviz.explain.slowdown.replay import Order, Work
from bubbleviz.explain.slowdown.run_work import (
    computing_rows,
    delays_of,
    early_starts,
    measured_ns,
    outside_operations,
    run_order,
    run_work,
)
from bubbleviz.explain.slowdown.scenarios import Scenarios, scenarios_of
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.values import frozen

#: One worker in so many is among the slowest ones, at least one (3 %).
_SLOWEST_PERCENT = 3
#: There are as many of these as ranks and stages allow, and they meet in collectives alone.
_APART = "replica"
#: Fewer of them are replayed like any other groups.
_FEW = 8


@frozen
class ReplayError:
    """How far replayed iterations are off the measured ones, as shares of their lengths.

    Attributes:
        mean: of the absolute differences, without launch delays.
        maximum: of these.
        mean_with_delays: with each launch delay put back.
        maximum_with_delays: of these.
    """

    mean: float
    maximum: float
    mean_with_delays: float
    maximum_with_delays: float


@frozen
class Slowdowns:
    """How many times longer iterations take than ideal ones; 1 is no slowdown.

    Attributes:
        total: S of all work.
        by_phase: of each phase, transfers of a direction or collective.
        by_stage: of each stage.
        by_replica: of each replica of the pipeline.
        by_rank: of each rank: the smaller of its stage's and its replica's.
        by_microbatch: of each microbatch.
        by_link: of the transfers between two stages, both directions apart.
        by_iteration: length of each iteration over that of an ideal one.
        worker_share: M_W, the share of the slowdown that goes where the slowest 3 % of the workers
            (at least one) take ideal times; None without any slowdown.
        last_stage_share: M_S, likewise of the last stage.
        original_ns: mean length of the replayed iterations, without launch delays.
        ideal_ns: mean length of ideal ones.
        replay_error: how far the replay is off.
    """

    total: float
    by_phase: Mapping[str, float]
    by_stage: Mapping[int, float]
    by_replica: Mapping[int, float]
    by_rank: Mapping[int, float]
    by_microbatch: Mapping[int, float]
    by_link: Mapping[tuple[int, int], float]
    by_iteration: Mapping[int, float]
    worker_share: float | None
    last_stage_share: float | None
    original_ns: float
    ideal_ns: float
    replay_error: ReplayError


def slowdowns_of(scenarios: Scenarios, order: Order) -> Slowdowns | None:
    """Return the slowdowns of work; None where it takes no time.

    Args:
        scenarios: its replay.
        order: what each of its rows follows.
    """
    if not scenarios.ideal:
        return None
    work = scenarios.work
    names = [kind.phase for kind in work.kinds]
    phases = sorted(set(names))
    phase = np.array([phases.index(name) for name in names], np.int64)[work.kind]
    links = link_of(work)
    pairs = groups_of(*links)
    linked = np.where(links[0] == NONE, NONE, pairs.of_row)
    labels = {
        "phase": phase,
        "stage": work.stage,
        "replica": work.replica,
        "microbatch": work.microbatch,
        "link": linked,
    }
    by = _put_back(scenarios, labels)
    by_rank = _by_rank(work, by["stage"], by["replica"])
    slowest = _slowest(by_rank)
    worker_share, last_stage_share = scenarios.removal(
        (np.isin(work.rank, slowest), work.stage == work.stage.max())
    )
    ends = [column[pairs.first].tolist() for column in links]
    ratios = scenarios.lengths_ns / np.maximum(scenarios.ideal_lengths_ns, 1)
    return Slowdowns(
        total=scenarios.original / scenarios.ideal,
        by_phase={phases[number]: s for number, s in by["phase"].items()},
        by_stage=by["stage"],
        by_replica=by["replica"],
        by_rank=by_rank,
        by_microbatch=by["microbatch"],
        by_link={(ends[0][n], ends[1][n]): s for n, s in by["link"].items()},
        by_iteration=dict(zip(scenarios.replay.iterations.tolist(), ratios.tolist(), strict=True)),
        worker_share=worker_share,
        last_stage_share=last_stage_share,
        original_ns=scenarios.original,
        ideal_ns=scenarios.ideal,
        replay_error=_replay_error(scenarios, order),
    )


def _put_back(scenarios: Scenarios, labels: Mapping[str, Ints]) -> dict[str, dict[int, float]]:
    """Return S of each group by its label; -1 is in none."""
    values = {name: distinct(label[label != NONE]) for name, label in labels.items()}
    apart = [name for name in (_APART,) if len(values[name]) > _FEW]
    groups = [
        (name, value)
        for name, of_label in values.items()
        if name not in apart
        for value in of_label.tolist()
    ]
    means = scenarios.put_back([(labels[name], value) for name, value in groups]).tolist()
    by: dict[str, dict[int, float]] = {name: {} for name in labels}
    for (name, value), mean in zip(groups, means, strict=True):
        by[name][value] = mean / scenarios.ideal
    for name in apart:
        means = scenarios.put_back_apart(labels[name], values[name]).tolist()
        own = zip(values[name].tolist(), means, strict=True)
        by[name] = {value: mean / scenarios.ideal for value, mean in own}
    return by


def _by_rank(
    work: Work, by_stage: Mapping[int, float], by_replica: Mapping[int, float]
) -> dict[int, float]:
    """Return the slowdown of each worker; one without known stage or replica has the other's."""
    first = groups_of(work.rank).first
    workers = (column[first].tolist() for column in (work.rank, work.stage, work.replica))
    none = float("inf")
    worker = {
        rank: min(by_stage.get(stage, none), by_replica.get(replica, none))
        for rank, stage, replica in zip(*workers, strict=True)
    }
    return {rank: s for rank, s in worker.items() if s < none}


def _slowest(by_rank: Mapping[int, float]) -> Ints:
    """Return the slowest 3 % of the workers, of equal ones the first; at least one."""
    count = -(-len(by_rank) * _SLOWEST_PERCENT // 100)
    ranks: Iterable[int] = sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))
    return np.array(list(ranks)[:count], np.int64)


def _replay_error(scenarios: Scenarios, order: Order) -> ReplayError:
    work, iterations = scenarios.work, scenarios.replay.iterations
    whole_ns = np.maximum(measured_ns(work, iterations), 1)
    delayed = scenarios.replay.lengths_ns(scenarios.own_ns[:, None], delays_of(work, order))[:, 0]
    missed = np.abs(scenarios.lengths_ns - whole_ns) / whole_ns
    delayed_missed = np.abs(delayed - whole_ns) / whole_ns
    return ReplayError(*(float(f()) for m in (missed, delayed_missed) for f in (m.mean, m.max)))


# Slowdowns of a run: worked out when they are first asked for, since they take seconds.


def work_of_run(
    operations: Operations,
    ranks: Sequence[Rank],
    dependencies: Dependencies,
    receives: Receives,
    collectives: CollectiveIntervals,
    included: Bools,
    tokens: TokenWaits,
) -> tuple[Work, Order, Ints]:
    """Return what ranks did in some iterations, what each row follows, and late collectives.

    The last is by how much hosts launched each row late that is a collective; 0 elsewhere.

    Args:
        operations: of all ranks.
        ranks: by number.
        dependencies: between operations.
        receives: of these.
        collectives: of all ranks.
        included: of each iteration, whether it is wanted.
        tokens: which operations waited for the token of which.
    """
    rows = computing_rows(operations, included)
    messages = messages_of(operations, dependencies, receives, rows)
    beside = outside_operations(collectives, operations, included)
    work = run_work(operations, ranks, rows, messages, beside)
    late_ns = np.zeros(len(work), np.int64)
    late_ns[len(work) - len(beside) :] = beside.late_ns
    return work, run_order(work, rows, messages, operations, tokens), late_ns


def scenarios_of_run(work: Work, order: Order) -> Scenarios | None:
    """Return the replay of a run's work; None where none of it can be replayed.

    Args:
        work: of all ranks.
        order: what each of its rows follows.
    """
    return scenarios_of(work, order, early_starts(work, order))
