"""Recognize the schedule of a run from the order in which ranks ran their operations.

First the schedule of every pipeline in every iteration is recognized. The schedule of most averaged
iterations is the schedule of the run. A few operations out of place do not change the schedule;
they are listed as deviations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from bubbleviz.count.iterations import Iteration
from bubbleviz.errors import MismatchError
from bubbleviz.explain.recognition import reasons
from bubbleviz.explain.recognition.deviations import Deviation, find_deviations
from bubbleviz.explain.recognition.order_differences import OrderDifference
from bubbleviz.explain.recognition.orders import read_orders
from bubbleviz.explain.recognition.pipeline_orders import (
    Pipeline,
    PipelineOrders,
    group_pipelines,
)
from bubbleviz.explain.recognition.plan_distances import cache_plans
from bubbleviz.explain.recognition.verdicts import Verdict, classify_by_plan, classify_orders
from bubbleviz.model.grouping import find_distinct_rows
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.run_kinds import INFERENCE, TRAINING
from bubbleviz.model.texts import format_count, format_percent, to_one_line
from bubbleviz.schedules.plan import Plan

#: Maximum number of deviations that are kept. All deviations are counted.
MAX_KEPT = 100_000
#: Text added to the reason if range names contain no microbatch numbers.
_INFERRED = "microbatch numbers were inferred from the order, so one schedule may look like another"


@dataclass(frozen=True)
class IterationOrder:
    """The schedule that one iteration followed.

    Attributes:
        iteration: Index of the iteration.
        name: The schedule of most pipelines in the iteration, or None if the order of most
            pipelines matches no schedule.
        also: Other schedules that have the same order.
        exact: Whether every operation of every pipeline ran as planned.
        distance: Fraction of the planned operations that are not as planned, averaged over the
            pipelines that follow ``name``. None if the order was recognized by its structure, or
            not recognized.
        names: Schedule of each pipeline, or empty if all pipelines have the same schedule.
    """

    iteration: int
    name: str | None
    also: tuple[str, ...]
    exact: bool
    distance: float | None
    names: tuple[str | None, ...] = ()


@dataclass(frozen=True, repr=False)
class Recognition:
    """The schedule that a run followed. It is printed as one line.

    Attributes:
        name: Name of the schedule, or None if no known schedule has this order.
        also: Other schedules that have the same order, and searched schedules that could have it.
        exact: Whether all iterations in ``judged`` followed exactly this schedule.
        distance: Fraction of the planned operations that are not as planned, averaged over the
            iterations in ``judged`` that follow ``name``. None if the order was not compared with a
            plan.
        reason: Reason why there is no name, or how the schedule was recognized. A clause that
            starts in lower case, or "".
        iterations: The schedule of every training iteration.
        judged: Indices of the iterations that determine ``name``. These are the averaged iterations
            if there are any; see :func:`_summarize_run`.
        deviations: The first :data:`MAX_KEPT` deviations, sorted by iteration and pipeline.
        deviation_count: Number of all deviations.
        inferred: Whether microbatches were numbered in the order in which they ran, because range
            names contain no microbatches.
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

    def __str__(self) -> str:
        """Return one line with the recognized schedule and how well the run matches it.

        If no schedule is recognized, the line contains the reason. If some iterations match other
        schedules, those are listed at the end of the line.
        """
        if self.reason == reasons.FORWARD_ONLY:
            return f"none, {reasons.FORWARD_ONLY}"
        if self.name is None:
            return f"not recognized: {self.reason}"
        also = f", here the same as {' and '.join(self.also)}" if self.also else ""
        line = f"{to_one_line(self.name, 60)}{also} ({self._describe_match()})"
        names = {name for i in self.iterations for name in (i.name, *i.names)}
        other_names = sorted({name or "unknown order" for name in names if name != self.name})
        if not other_names:
            return line
        return f"{line}; other iterations: {to_one_line(', '.join(other_names), 120)}"

    def __repr__(self) -> str:
        return f"Recognition({self})"

    def _describe_match(self) -> str:
        """Return a clause on how well the order of the run matches the schedule."""
        exact, agreeing = sum(iteration.exact for iteration in self.agreeing), len(self.agreeing)
        total = format_count(len(self.judged), "iteration")
        matches = f"order matches in {exact} of {total}"
        if exact < len(self.judged) and self.distance is None:
            matches = f"structure matches in {agreeing} of {total}"
        elif exact < len(self.judged):
            matches = f"{format_percent(self.distance)} of operations out of order, {matches}"
        if self.inferred:
            matches += "; microbatches are numbered by order, so another schedule may look the same"
        return matches

    @property
    def agreeing(self) -> tuple[IterationOrder, ...]:
        """The iterations in :attr:`judged` that followed the schedule :attr:`name`."""
        judged = set(self.judged)
        return tuple(i for i in self.iterations if i.iteration in judged and i.name == self.name)


def recognize_schedule(
    ranks: Sequence[Rank],
    operations: Operations,
    iterations: Sequence[Iteration],
    *,
    noted: frozenset[LimitationKind] = frozenset(),
    stages_missing: bool = False,
    pipeline_unproven: bool = False,
    ends_early: bool = False,
    order_refutes: bool = True,
) -> Recognition:
    """Recognize the schedule of a run from the order of its operations.

    The result has no name if stages are missing. If limitations state that stages *may* be missing,
    the result has a name only if the order follows the schedule exactly. Such an order shows that
    no stage is missing. Two cases are exceptions and give no name:

    - GPipe, if ``ends_early``: all of its stages have the same order, so its last stages may still
      be missing.
    - All schedules, if ``order_refutes`` is false. Callers pass this if the first or middle stages
      may be missing, because the remaining stages can look like another schedule.

    Args:
        ranks: Ranks in the report.
        operations: Operations in the report.
        iterations: Iterations in the report.
        noted: Kinds of limitations that apply to the run.
        stages_missing: Whether some virtual stages of the run are missing from all profiles.
        pipeline_unproven: Whether it is unclear if the ranks are stages or replicas.
        ends_early: Whether later stages may exist that are not in the profiles.
        order_refutes: Whether an order that follows a schedule exactly shows that no stage is
            missing.
    """
    inferred = LimitationKind.MICROBATCHES_INFERRED in noted
    may_be_missing = LimitationKind.STAGES_MAY_BE_MISSING in noted
    stages_missing = stages_missing or LimitationKind.STAGES_WITHOUT_GPU_WORK in noted
    trains = any(iteration.kind == TRAINING for iteration in iterations)
    serves = any(iteration.kind == INFERENCE for iteration in iterations)
    if (trains or serves) and _is_single_stage(ranks, operations):
        return Recognition(
            None, reason=reasons.OTHER_STAGES_MISSING if stages_missing else reasons.SINGLE_STAGE
        )
    if (trains or serves) and pipeline_unproven:
        return Recognition(None, reason=reasons.PIPELINE_UNPROVEN)
    if serves or LimitationKind.ITERATIONS_UNMARKED in noted:
        reason = reasons.FORWARD_ONLY if serves else reasons.ITERATIONS_UNMARKED
        return Recognition(None, reason=reason)
    plans = cache_plans()
    result = _recognize_iterations(
        ranks, operations, iterations, lambda ran: classify_orders(ran, plans)
    )
    if stages_missing and result.iterations:
        return Recognition(None, reason=reasons.STAGES_MISSING, inferred=inferred)
    may_lack_last = ends_early and "gpipe" in (result.name, *result.also)
    is_complete = result.exact and order_refutes and not may_lack_last
    if may_be_missing and result.name is not None and not is_complete:
        return Recognition(
            None, reason=f"{reasons.STAGES_MAY_BE_MISSING} {result.name}", inferred=inferred
        )
    if result.name is None:
        reason = result.reason or "no known schedule has this order"
    else:
        reason = "by its structure" if result.distance is None else ""
    reason = "; ".join(filter(None, (reason, _INFERRED if inferred else "")))
    return replace(result, reason=reason, inferred=inferred)


def _is_single_stage(ranks: Sequence[Rank], operations: Operations) -> bool:
    """Return whether all operations ran on a single rank, or on replicas of one known stage."""
    work = mask_phases(operations.phase, COUNTED)
    working = find_distinct_rows(operations.rank, mask=work)[0].tolist()
    stages = {ranks[rank].stage for rank in working}
    return len(working) == 1 or (len(stages) == 1 and None not in stages)


def compare_with_plan(
    ranks: Sequence[Rank], operations: Operations, iterations: Sequence[Iteration], plan: Plan
) -> Recognition:
    """Compare the order of each iteration with a plan.

    If an iteration has the same numbers of stages, chunks and microbatches as the plan, it gets the
    name of the plan. All other iterations get no name.

    Args:
        ranks: Ranks in the report.
        operations: Operations in the report.
        iterations: Iterations in the report.
        plan: The plan that the run should have followed.

    Raises:
        MismatchError: No iteration has the same numbers of stages, chunks and microbatches as the
            plan.
    """
    misfits: list[PipelineOrders] = []

    def classify(ran: PipelineOrders) -> Verdict:
        verdict = classify_by_plan(ran, plan)
        if verdict is None:
            misfits.append(ran)
        return verdict or Verdict()

    result = _recognize_iterations(ranks, operations, iterations, classify)
    if misfits and all(i.name is None for i in result.iterations):
        ran = misfits[0]
        raise MismatchError(
            f"--plan {plan.name}: the plan has {format_count(plan.stages, 'stage')} with "
            f"{format_count(plan.chunks, 'chunk')} each and "
            f"{format_count(plan.microbatches, 'microbatch', 'microbatches')}, but the profiles "
            f"have {format_count(ran.devices, 'stage')} with {format_count(ran.chunks, 'chunk')} "
            f"each and {format_count(ran.microbatches, 'microbatch', 'microbatches')}: pass the "
            "plan that the run followed"
        )
    return result


def _recognize_iterations(
    ranks: Sequence[Rank],
    operations: Operations,
    iterations: Sequence[Iteration],
    classify: Callable[[PipelineOrders], Verdict],
) -> Recognition:
    """Recognize the schedule of every training iteration, and derive the schedule of the run.

    Pipelines that have the same orders are classified only once. All deviations are counted, but
    only the first :data:`MAX_KEPT` are kept. If the run has no training iteration, or if no
    microbatch number is known, the result contains only a reason.

    Args:
        ranks: Ranks in the report.
        operations: Operations in the report.
        iterations: Iterations in the report.
        classify: Function that returns the verdict on the orders of a pipeline.
    """
    training = [i.index for i in iterations if i.kind == TRAINING]
    parts, patterns = read_orders(operations, training) if training else ([], [])
    if not parts:
        return Recognition(None, reason="the capture contains no training iteration")
    if not patterns:
        return Recognition(None, reason="range names contain no microbatch numbers")
    verdicts: dict[tuple[object, ...], Verdict] = {}
    recognized: list[IterationOrder] = []
    deviations: list[Deviation] = []
    count = 0
    for part, pipelines in group_pipelines(ranks, parts, patterns):
        for pipeline in pipelines:
            if pipeline.key not in verdicts:
                verdicts[pipeline.key] = classify(pipeline.orders)
            for cell, difference in _list_differences(pipeline, verdicts[pipeline.key]):
                count += difference.count
                deviations += islice(
                    find_deviations(operations, part, cell, difference),
                    MAX_KEPT - len(deviations),
                )
        recognized.append(
            _summarize_iteration(part.iteration, [verdicts[p.key] for p in pipelines])
        )
    return replace(
        _summarize_run(iterations, tuple(recognized)),
        deviations=tuple(deviations),
        deviation_count=count,
    )


def _list_differences(
    pipeline: Pipeline, verdict: Verdict
) -> Iterator[tuple[int, OrderDifference]]:
    """Yield the ranks of a pipeline that deviate from the schedule, with their differences.

    Args:
        pipeline: Orders of the pipeline in one iteration.
        verdict: Verdict on the orders of the pipeline.

    Yields:
        cell: Index of the rank in the iteration's orders.
        difference: Difference between the order of the rank and the planned order.
    """
    if verdict.deviates:
        for cell, order in zip(pipeline.cells, pipeline.order_of_cell, strict=True):
            if verdict.differences[order].count:
                yield cell, verdict.differences[order]


def _summarize_run(
    iterations: Sequence[Iteration], recognized: tuple[IterationOrder, ...]
) -> Recognition:
    """Combine the schedules of the iterations into the schedule of the run.

    Only averaged iterations are judged. If there are none, complete iterations are judged. If there
    are no complete iterations either, all iterations are judged. The most frequent name among them
    wins. Ties go to the name that occurs first. The run is exact if all judged iterations follow
    this schedule exactly.
    """
    averaged = {i.index for i in iterations if i.averaged}
    complete = {i.index for i in iterations if i.complete}
    for deciding in (averaged, complete, {i.iteration for i in recognized}):
        judged = [i for i in recognized if i.iteration in deciding]
        if judged:
            break
    name = _find_most_frequent([i.name for i in judged])
    agreeing = [i for i in judged if i.name == name]
    distances = [i.distance for i in agreeing if i.distance is not None]
    return Recognition(
        name=name,
        also=agreeing[0].also if name is not None else (),
        exact=name is not None and all(i.exact and i.name == name for i in judged),
        distance=sum(distances) / len(distances) if distances and name is not None else None,
        iterations=recognized,
        judged=tuple(i.iteration for i in judged),
    )


def _summarize_iteration(iteration: int, verdicts: Sequence[Verdict]) -> IterationOrder:
    """Combine the verdicts on the pipelines of an iteration.

    The most frequent name wins. Ties go to the name that occurs first. The iteration is exact if
    all pipelines follow this schedule without any difference.
    """
    names = [v.name for v in verdicts]
    name = _find_most_frequent(names)
    agreeing = [v for v in verdicts if v.name == name]
    distances = [v.distance for v in agreeing if v.distance is not None]
    return IterationOrder(
        iteration,
        name,
        agreeing[0].also,
        exact=name is not None and all(v.name == name and v.distance == 0 for v in verdicts),
        distance=sum(distances) / len(distances) if distances else None,
        names=tuple(names) if len(set(names)) > 1 else (),
    )


def _find_most_frequent(names: Sequence[str | None]) -> str | None:
    """Return the most frequent name. Ties go to the name that occurs first."""
    counts = Counter(names)
    return max(counts, key=lambda name: counts[name])
