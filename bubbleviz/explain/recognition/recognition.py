"""Recognition: which schedule ran, told by the order in which ranks ran their operations.

It is told for each pipeline and iteration, then for the run: the name that most of the averaged
iterations have. A few operations elsewhere leave the name, and are listed as deviations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.errors import MismatchError
from bubbleviz.explain.recognition.candidates import Plans, Verdict
from bubbleviz.explain.recognition.missing_microbatches import verdict, verdict_of_plan
from bubbleviz.explain.recognition.order_diff import Difference, joined_codes
from bubbleviz.explain.recognition.orders import (
    BACKWARD,
    WEIGHTS,
    Orders,
    chunk_of,
    kind_of,
    microbatch_of,
    orders_of,
)
from bubbleviz.explain.recognition.pipeline_orders import Crowd, key_of, pipelines_of
from bubbleviz.model.columns import Ints
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan

#: Deviations that are listed; all are counted.
LISTED = 1000
#: What is added to why a name is told where names of ranges do not tell microbatches.
_INFERRED = "microbatches are counted by order, which may make one schedule look like another"
_PHASES = (Phase.F, Phase.BW, Phase.W)


@dataclass(frozen=True)
class Deviation:
    """An operation that is not where the schedule has it.

    Attributes:
        rank: index of the rank.
        iteration: index of the iteration.
        phase: F, B, W or BW.
        microbatch: as the report numbers it.
        chunk: likewise; -1 where the names tell none.
        what: ``late``, ``early``, ``missing``, ``extra`` or ``repeated``.
        places: by how many operations it is late or early, else 0.
    """

    rank: int
    iteration: int
    phase: Phase
    microbatch: int
    chunk: int
    what: str
    places: int


@dataclass(frozen=True)
class IterationOrder:
    """Which schedule an iteration ran; pipelines that differ are told apart by ``names``.

    Attributes:
        iteration: index of the iteration.
        name: what most of its pipelines ran; None for an order of its own.
        also: other schedules with the same order.
        exact: whether every operation of every pipeline is where the schedule has it.
        distance: share of the operations that are not; None where the order was recognised by
            its structure, or not at all.
        names: of its pipelines, where these differ.
    """

    iteration: int
    name: str | None
    also: tuple[str, ...]
    exact: bool
    distance: float | None
    names: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Recognition:
    """Which schedule a run ran.

    Attributes:
        name: of the schedule; None for an order of its own, or none at all.
        also: other schedules with the same order, and searches that could have found it.
        exact: whether all averaged iterations ran exactly this.
        distance: mean share of their operations that are elsewhere; None without a plan.
        reason: why there is no name, or what tells it; a sentence's part.
        iterations: every training iteration.
        judged: indices of those that decided: the averaged ones, if there are any.
        deviations: the first of them, by iteration and rank.
        deviation_count: how many there are.
        inferred: whether microbatches are counted by order, for names do not tell them.
    """

    name: str | None
    also: tuple[str, ...] = ()
    exact: bool = False
    distance: float | None = None
    reason: str = ""
    iterations: tuple[IterationOrder, ...] = ()
    judged: tuple[int, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    deviation_count: int = 0
    inferred: bool = False

    @property
    def agreeing(self) -> tuple[IterationOrder, ...]:
        """Those of the iterations that decided which have the name."""
        judged = set(self.judged)
        return tuple(i for i in self.iterations if i.iteration in judged and i.name == self.name)


def schedule_of(
    ranks: Sequence[Rank],
    operations: Operations,
    iterations: Sequence[Iteration],
    *,
    inferred: bool = False,
) -> Recognition:
    """Return which schedule a run ran.

    Args:
        ranks: of the report.
        operations: of these.
        iterations: of the report.
        inferred: whether their microbatches are counted by order, for names do not tell them.
    """
    plans = Plans()
    found = _judge(ranks, operations, iterations, lambda crowd: verdict(crowd, plans))
    if found.name is None:
        reason = found.reason or "no schedule that is known has this order"
    else:
        reason = "by its structure" if found.distance is None else ""
    told = (reason, _INFERRED if inferred else "")
    return replace(found, reason="; ".join(filter(None, told)), inferred=inferred)


def compared(
    ranks: Sequence[Rank], operations: Operations, iterations: Sequence[Iteration], plan: Plan
) -> Recognition:
    """Return how a run differs from a plan; ``name`` is the plan's where any iteration fits.

    Raises:
        MismatchError: the run has other stages, chunks or microbatches than the plan.
    """
    sizes: list[tuple[int, int, int]] = []

    def judged(crowd: Crowd) -> Verdict:
        found = verdict_of_plan(crowd, plan)
        if found is None:
            sizes.append((crowd.devices, crowd.chunks, crowd.microbatches))
        return found or Verdict()

    result = _judge(ranks, operations, iterations, judged)
    if sizes and all(i.name is None for i in result.iterations):
        devices, chunks, microbatches = sizes[0]
        raise MismatchError(
            f"--plan {plan.name}: {plan.stages} stages of {plan.chunks} chunks with "
            f"{plan.microbatches} microbatches, where the profiles hold {devices} of {chunks} "
            f"with {microbatches}; give the plan that the run followed"
        )
    return result


def _judge(
    ranks: Sequence[Rank],
    operations: Operations,
    iterations: Sequence[Iteration],
    judge: Callable[[Crowd], Verdict],
) -> Recognition:
    """Return what was judged of every training iteration, and of the run."""
    training = [i.index for i in iterations if i.kind == "training"]
    if not training:
        return Recognition(None, reason="no training iteration is in the capture")
    orders = orders_of(operations, training)
    if not len(orders.pattern):
        return Recognition(None, reason="no training iteration is in the capture")
    if (orders.pattern < 0).all():
        return Recognition(None, reason="the names of ranges tell no microbatches")
    known: dict[tuple[object, ...], Verdict] = {}
    found: list[IterationOrder] = []
    deviations: list[Deviation] = []
    total = 0
    for iteration, pipelines in pipelines_of(ranks, orders):
        verdicts = []
        for pipeline in pipelines:
            key = key_of(pipeline, orders)
            if key not in known:
                known[key] = judge(pipeline.crowd)
            verdicts.append(known[key])
            for cell, member in zip(pipeline.cells, pipeline.member, strict=True):
                off = known[key].differences[member] if known[key].differences else None
                if off is not None and off.count:
                    total += off.count
                    room = LISTED - len(deviations)
                    deviations += _deviations(orders, cell, off)[:room] if room > 0 else []
        found.append(_of_iteration(iteration, verdicts))
    return _overall(iterations, tuple(found), tuple(deviations), total)


def _overall(
    known: Sequence[Iteration],
    iterations: tuple[IterationOrder, ...],
    deviations: tuple[Deviation, ...],
    total: int,
) -> Recognition:
    averaged = {i.index for i in known if i.averaged}
    complete = {i.index for i in known if i.complete}
    for chosen in (averaged, complete, {i.iteration for i in iterations}):
        judged = [i for i in iterations if i.iteration in chosen]
        if judged:
            break
    name = _most([i.name for i in judged])
    named = [i for i in judged if i.name == name]
    distances = [i.distance for i in named if i.distance is not None]
    return Recognition(
        name=name,
        also=named[0].also if name is not None else (),
        exact=name is not None and all(i.exact and i.name == name for i in judged),
        distance=sum(distances) / len(distances) if distances and name is not None else None,
        iterations=iterations,
        judged=tuple(i.iteration for i in judged),
        deviations=deviations,
        deviation_count=total,
    )


def _of_iteration(iteration: int, verdicts: Sequence[Verdict]) -> IterationOrder:
    """Return what most pipelines of an iteration ran."""
    names = [found.name for found in verdicts]
    name = _most(names)
    same = [found for found in verdicts if found.name == name]
    distances = [found.distance for found in same if found.distance is not None]
    return IterationOrder(
        iteration,
        name,
        same[0].also,
        exact=name is not None and all(v.name == name and v.distance == 0 for v in verdicts),
        distance=sum(distances) / len(distances) if distances else None,
        names=tuple(names) if len(set(names)) > 1 else (),
    )


def _most(names: Sequence[str | None]) -> str | None:
    """Return the most frequent name; of several the one that comes first."""
    counted = Counter(names)
    return max(counted, key=lambda name: counted[name])


def _deviations(orders: Orders, cell: int, off: Difference) -> list[Deviation]:
    """Return the deviations of one rank in one iteration, in the report's own numbers."""
    ran = orders.ran.take(orders.rows(cell))
    splits = bool((kind_of(ran.code) == WEIGHTS).any())
    return [
        Deviation(
            int(orders.rank[cell]),
            int(orders.iteration[cell]),
            *_own(ran.code, ran.phase, ran.microbatch, ran.chunk, code, splits=splits),
            what,
            places,
        )
        for what, code, places in joined_codes(off)
    ]


def _own(
    codes: Ints, phase: Ints, microbatch: Ints, chunk: Ints, code: int, *, splits: bool
) -> tuple[Phase, int, int]:
    """Return phase, microbatch and chunk of a code as the report has them.

    What is missing is told by another operation of its microbatch and chunk.
    """
    wanted = np.array([code])
    row = np.flatnonzero(codes == code)
    if len(row):
        return Phase(int(phase[row[0]])), int(microbatch[row[0]]), int(chunk[row[0]])
    kind = int(kind_of(wanted)[0])
    named = Phase.B if kind == BACKWARD and splits else _PHASES[kind]
    same = chunk_of(codes) == chunk_of(wanted)
    other = np.flatnonzero(same & (microbatch_of(codes) == microbatch_of(wanted)))
    if len(other):
        return named, int(microbatch[other[0]]), int(chunk[other[0]])
    number = int(microbatch_of(wanted)[0])
    beside = np.flatnonzero(same & (microbatch >= 0))
    if not len(beside):
        return named, number, int(chunk_of(wanted)[0])
    # Where all others are as much ahead of the code's numbers, it is so too.
    ahead = microbatch[beside] - microbatch_of(codes[beside])
    number += int(ahead[0]) if (ahead == ahead[0]).all() else 0
    return named, number, int(chunk[beside[0]])
