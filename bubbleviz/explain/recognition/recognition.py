"""Recognition: which schedule ran, by the order in which ranks ran their operations.

Every pipeline of every iteration is recognised, then the run: by the name of most of its averaged
iterations. A few operations elsewhere do not change the name, and are listed as deviations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from bubbleviz.count.iterations import Iteration
from bubbleviz.errors import MismatchError
from bubbleviz.explain.recognition.candidates import (
    Verdict,
    completed_verdict,
    completed_verdict_of_plan,
)
from bubbleviz.explain.recognition.orders import PipelineOrders, orders_of, pipelines_of
from bubbleviz.explain.recognition.plan_distance import Deviation, deviations_of, plans_once
from bubbleviz.explain.recognition.reasons import (
    FORWARD_ONLY,
    OTHER_STAGES_MISSING,
    PIPELINE_UNPROVEN,
    SINGLE_STAGE,
    STAGES_MAY_BE_MISSING,
    STAGES_MISSING,
)
from bubbleviz.model.grouping import distinct
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phase_masks import INFERENCE, TRAINING, among
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.texts import counted
from bubbleviz.model.values import frozen
from bubbleviz.schedules.plan import Plan

#: Deviations that are listed; all are counted.
LISTED = 1000
#: Added to the reason where range names hold no microbatches.
_INFERRED = "microbatches are counted by order, which may make one schedule look like another"


@frozen
class IterationOrder:
    """Which schedule an iteration ran.

    Attributes:
        iteration: index of the iteration.
        name: that of most of its pipelines; None for an order of its own.
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


@frozen
class Recognition:
    """Which schedule a run ran.

    Attributes:
        name: of the schedule; None for an order of its own, or none at all.
        also: other schedules with the same order, and searches that could have found it.
        exact: whether all averaged iterations ran exactly this.
        distance: mean share of their operations that are elsewhere; None without a plan.
        reason: why there is no name, or how it was recognised; part of a sentence.
        iterations: every training iteration.
        judged: indices of those that decided: the averaged ones, if there are any.
        deviations: the first of them, by iteration and rank.
        deviation_count: how many there are.
        inferred: whether microbatches are counted by order, since names do not hold them.
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
    noted: frozenset[LimitationKind] = frozenset(),
    stages_missing: bool = False,
    pipeline_unproven: bool = False,
) -> Recognition:
    """Return which schedule a run ran; none is named where stages are or may be missing.

    A run that kept a schedule exactly, from its first to its last stage, refutes that they may be.

    Args:
        ranks: of the report.
        operations: of these.
        iterations: of the report.
        noted: kinds of the run's limitations.
        stages_missing: whether no profile holds some virtual stages of the run.
        pipeline_unproven: whether nothing shows that the ranks are stages, and not replicas of one.
    """
    inferred = LimitationKind.MICROBATCHES_INFERRED in noted
    may_be_missing = LimitationKind.STAGES_MAY_BE_MISSING in noted
    stages_missing = stages_missing or LimitationKind.STAGES_WITHOUT_GPU_WORK in noted
    trains = any(iteration.kind == TRAINING for iteration in iterations)
    serves = any(iteration.kind == INFERENCE for iteration in iterations)
    if (trains or serves) and _is_single_stage(ranks, operations):
        return Recognition(None, reason=OTHER_STAGES_MISSING if stages_missing else SINGLE_STAGE)
    if (trains or serves) and pipeline_unproven:
        return Recognition(None, reason=PIPELINE_UNPROVEN)
    if serves:
        return Recognition(None, reason=FORWARD_ONLY)
    plans = plans_once()
    result = _recognise(ranks, operations, iterations, lambda ran: completed_verdict(ran, plans))
    if stages_missing and result.iterations:
        return Recognition(None, reason=STAGES_MISSING, inferred=inferred)
    if may_be_missing and result.name is not None and not result.exact:
        return Recognition(None, reason=f"{STAGES_MAY_BE_MISSING} {result.name}", inferred=inferred)
    if result.name is None:
        reason = result.reason or "no known schedule has this order"
    else:
        reason = "by its structure" if result.distance is None else ""
    reasons = (reason, _INFERRED if inferred else "")
    return replace(result, reason="; ".join(filter(None, reasons)), inferred=inferred)


def _is_single_stage(ranks: Sequence[Rank], operations: Operations) -> bool:
    """Tell whether the ranks that work are one, or replicas of one stage."""
    working = distinct(operations.rank[among(operations.phase, COUNTED)]).tolist()
    stages = {ranks[rank].stage for rank in working}
    return len(working) == 1 or (len(stages) == 1 and None not in stages)


def compared(
    ranks: Sequence[Rank], operations: Operations, iterations: Sequence[Iteration], plan: Plan
) -> Recognition:
    """Return how a run differs from a plan; ``name`` is the plan's where any iteration fits.

    Raises:
        MismatchError: the run has other stages, chunks or microbatches than the plan.
    """
    misfits: list[PipelineOrders] = []

    def judge(ran: PipelineOrders) -> Verdict:
        of_plan = completed_verdict_of_plan(ran, plan)
        if of_plan is None:
            misfits.append(ran)
        return of_plan or Verdict()

    result = _recognise(ranks, operations, iterations, judge)
    if misfits and all(i.name is None for i in result.iterations):
        ran = misfits[0]
        raise MismatchError(
            f"--plan {plan.name}: the plan has {counted(plan.stages, 'stage')} of "
            f"{counted(plan.chunks, 'chunk')} with "
            f"{counted(plan.microbatches, 'microbatch', 'microbatches')}, the profiles "
            f"{ran.devices} of {ran.chunks} with {ran.microbatches}; "
            "give the plan that the run followed"
        )
    return result


def _recognise(
    ranks: Sequence[Rank],
    operations: Operations,
    iterations: Sequence[Iteration],
    judge: Callable[[PipelineOrders], Verdict],
) -> Recognition:
    """Return the verdicts on every training iteration, and on the run."""
    training = [i.index for i in iterations if i.kind == TRAINING]
    orders = orders_of(operations, training) if training else None
    if orders is None or not len(orders.pattern):
        return Recognition(None, reason="no training iteration is in the capture")
    if (orders.pattern < 0).all():
        return Recognition(None, reason="range names hold no microbatches")
    verdicts: dict[tuple[object, ...], Verdict] = {}
    recognised: list[IterationOrder] = []
    deviations: list[Deviation] = []
    count = 0
    for iteration, pipelines in pipelines_of(ranks, orders):
        for key, ran, cells, members in pipelines:
            if key not in verdicts:
                verdicts[key] = judge(ran)
            found = verdicts[key]
            # Most pipelines run as planned.
            for cell, member in zip(cells, members, strict=True) if found.deviates else ():
                diff = found.differences[member]
                room = LISTED - len(deviations)
                if diff.count and room > 0:
                    deviations += islice(deviations_of(orders, cell, diff), room)
                count += diff.count
        of_pipelines = [verdicts[key] for key, *_ in pipelines]
        recognised.append(_of_iteration(iteration, of_pipelines))
    return replace(
        _of_run(iterations, tuple(recognised)),
        deviations=tuple(deviations),
        deviation_count=count,
    )


def _of_run(iterations: Sequence[Iteration], recognised: tuple[IterationOrder, ...]) -> Recognition:
    """Return the recognition of the run, by its averaged iterations if there are any."""
    averaged = {i.index for i in iterations if i.averaged}
    complete = {i.index for i in iterations if i.complete}
    for chosen in (averaged, complete, {i.iteration for i in recognised}):
        judged = [i for i in recognised if i.iteration in chosen]
        if judged:
            break
    name = _most_frequent([i.name for i in judged])
    named = [i for i in judged if i.name == name]
    distances = [i.distance for i in named if i.distance is not None]
    return Recognition(
        name=name,
        also=named[0].also if name is not None else (),
        exact=name is not None and all(i.exact and i.name == name for i in judged),
        distance=sum(distances) / len(distances) if distances and name is not None else None,
        iterations=recognised,
        judged=tuple(i.iteration for i in judged),
    )


def _of_iteration(iteration: int, verdicts: Sequence[Verdict]) -> IterationOrder:
    """Return which schedule most pipelines of an iteration ran."""
    names = [v.name for v in verdicts]
    name = _most_frequent(names)
    same = [v for v in verdicts if v.name == name]
    distances = [v.distance for v in same if v.distance is not None]
    return IterationOrder(
        iteration,
        name,
        same[0].also,
        exact=name is not None and all(v.name == name and v.distance == 0 for v in verdicts),
        distance=sum(distances) / len(distances) if distances else None,
        names=tuple(names) if len(set(names)) > 1 else (),
    )


def _most_frequent(names: Sequence[str | None]) -> str | None:
    """Return the most frequent name; of several the one that comes first."""
    counts = Counter(names)
    return max(counts, key=lambda name: counts[name])
