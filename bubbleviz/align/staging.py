"""Staging: which virtual stage each (rank, chunk) holds, and which iterations are the same.

Both depend on each other: dependencies between stages show which iterations pair, and paired
iterations show whether an order of stages can be right. The user's order decides, then names, then
the waiting times on each rank's own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.iteration_pairs import Pairing, Places, pair_iterations, pairing_limitations
from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.align.pipelines import (
    Parallel,
    RankNumbers,
    distinguish_pipelines,
    rank_numbers,
    reducing,
    refuse_misfit,
    told_pipelines,
)
from bubbleviz.align.rank_chains import counted_by_order, moved_chunks
from bubbleviz.align.splits import (
    matched,
    microbatches_nest,
    nests,
    split,
    transfers_or_orders_differ,
)
from bubbleviz.align.stage_order import (
    VirtualStages,
    first_stages,
    forward_order,
    named_stages,
    order_by_number,
    order_virtual_stages,
    stages_in_order,
    told_stages,
    with_model_chunks,
)
from bubbleviz.align.staging_limitations import (
    BY_NUMBER,
    CONTRADICTED,
    GIVEN_CONTRADICTED,
    REPLICAS,
    STAGES_MISSING,
    UNPROVEN,
    contradicted,
    ranks_missing,
    reaches_beyond,
    stages_far_apart,
    stages_lacking,
    stages_unknown,
    transfers_alone,
    transfers_to_itself,
    world_size,
)
from bubbleviz.align.waits import Arrivals, KnownArrivals
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct, distinct_rows, sorted_rows
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import INFERENCE, among, run_kind
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.values import frozen


@frozen
class Staging:
    """Stages, pipelines and paired iterations of all ranks.

    Attributes:
        operations: with chunks counted in the model's order.
        arrivals: when inputs of operations were there.
        virtual_stage: of each operation; -1 unknown.
        stage_of_rank: smallest virtual stage of each rank; -1 unknown.
        pipeline: of each rank; -1 where replicas of a stage cannot be distinguished.
        reducing: a number for the ranks that reduce gradients together; -1 none.
        pairing: the iterations over all ranks.
        stages_missing: whether virtual stages are known to be missing.
        ranks_missing: whether ranks are known to be missing, of these stages or others.
        pipeline_unproven: whether nothing shows that the ranks are stages, and not replicas of one.
        limitations: what could not be inferred.
    """

    operations: RankOperations
    arrivals: KnownArrivals
    virtual_stage: Ints
    stage_of_rank: Ints
    pipeline: Ints
    reducing: Ints
    pairing: Pairing
    stages_missing: bool = False
    ranks_missing: bool = False
    pipeline_unproven: bool = False
    limitations: tuple[Limitation, ...] = ()


@frozen
class _Inputs:
    """The recordings, and what is known of their ranks before staging."""

    joined: JoinedRecordings
    machine: Ints
    numbers: RankNumbers
    named: VirtualStages | None
    parallel: Parallel | None
    arrivals: KnownArrivals

    @property
    def own_arrivals(self) -> Arrivals:
        """When inputs of the operations were there, with chunks as they are named."""
        return self.arrivals.of(self.joined.operations)


def stage(
    joined: JoinedRecordings, order: Sequence[int] = (), parallel: Parallel | None = None
) -> Staging:
    """Return stages, pipelines and paired iterations.

    Args:
        joined: the recordings.
        order: ranks in pipeline order by their numbers; empty to infer it.
        parallel: the sizes of the run; None to infer replicas of stages.

    Raises:
        MismatchError: the ranks cannot be those of a run of these sizes.
    """
    named = named_stages(joined)
    numbers = rank_numbers(joined.ranks)
    inputs = _Inputs(
        joined, joined.machine_of_rank, numbers.reordered(order), named, parallel, KnownArrivals()
    )
    if parallel is not None:
        refuse_misfit(parallel, inputs.numbers)
    if order or (parallel is not None and named is None):
        staging = _with(
            inputs, stages_in_order(joined, inputs.own_arrivals, *_places_in_pipeline(inputs))
        )
        if _is_contradicted(inputs, staging) or _is_other(inputs, staging):
            return _noted(inputs, staging, (GIVEN_CONTRADICTED,))
    elif named is not None:
        # Names may give a chunk by its stage; tables number the chunks of each rank.
        by_name = any(rank.local.told is None for rank in joined.ranks)
        staging = _with(inputs, named, by_name=by_name)
    elif (told := told_stages(joined)) is not None:
        staging = _with(
            inputs, stages_in_order(joined, inputs.own_arrivals, told, int(told.max(initial=0)) + 1)
        )
    else:
        return _inferred(inputs)
    gap = named is not None and len(distinct(named.virtual_stage)) <= named.virtual_stage.max()
    return _noted(
        inputs,
        staging,
        stages_unknown(joined.operations, staging.stage_of_rank),
        stages_missing=bool(gap),
    )


def _inferred(inputs: _Inputs) -> Staging:
    """Return the staging that waiting times give; without stages where these cannot be true."""
    inferred, by_number = _inferred_stages(inputs)
    staging = _with(inputs, inferred)
    notes = stages_unknown(inputs.joined.operations, staging.stage_of_rank)
    refuted = not notes and _is_contradicted(inputs, staging)
    known = not notes and not refuted
    unproven = not _forms_pipeline(inputs, staging, known=known)
    if refuted or (known and unproven):
        none = np.empty(0, np.int64)
        staging = _with(inputs, VirtualStages(none, none, none))
        notes = (CONTRADICTED if refuted else UNPROVEN,)
    elif by_number:
        notes = (*notes, BY_NUMBER)
    return replace(_noted(inputs, staging, notes), pipeline_unproven=unproven)


def _forms_pipeline(inputs: _Inputs, staging: Staging, *, known: bool) -> bool:
    """Return whether anything shows that ranks which names give no stages are no mere replicas.

    A single stage needs no evidence.

    Args:
        inputs: what is known of the ranks.
        staging: the stages that waiting times give.
        known: whether they are known, and nothing contradicts them.
    """
    operations = inputs.joined.operations
    working = distinct(operations.rank[among(operations.phase, COUNTED)])
    stages = distinct(staging.stage_of_rank[working])
    if len(working) < 2 or (known and len(stages) == 1):
        return True
    if known and run_kind(operations.phase) == INFERENCE:
        return True  # chunks follow each other through the stages
    if transfers_or_orders_differ(operations):
        return True
    comparable = _comparable(inputs)
    if not known or comparable is None:
        return False
    numbered = staging.operations.changed(iteration=comparable.iteration)
    return microbatches_nest(
        numbered, inputs.arrivals.of(staging.operations), staging.virtual_stage
    )


def _noted(
    inputs: _Inputs,
    staging: Staging,
    notes: tuple[Limitation, ...],
    *,
    stages_missing: bool = False,
) -> Staging:
    """Return the staging with its limitations."""
    operations, virtual_stage = staging.operations, staging.virtual_stage
    doubtful = GIVEN_CONTRADICTED in notes
    notes = (*notes, *pairing_limitations(staging.pairing, inputs.joined.ranks))
    stages_missing = stages_missing or (
        not doubtful
        and (
            reaches_beyond(operations, virtual_stage)
            or transfers_alone(operations, staging.stage_of_rank)
            or transfers_to_itself(operations, virtual_stage)
        )
    )
    if stages_missing:
        notes = (*notes, STAGES_MISSING)
    absent = ranks_missing(inputs.numbers, inputs.parallel, world_size(inputs.joined.ranks))
    absent = absent or stages_lacking(staging.pipeline, staging.stage_of_rank)
    notes = (*notes, *absent)
    if (staging.pipeline[staging.stage_of_rank >= 0] < 0).any():
        notes = (*notes, REPLICAS)
    numbered = inputs.named is not None or inputs.numbers.named or inputs.parallel is not None
    if not stages_missing and not numbered and not doubtful:
        notes = (
            *notes,
            *stages_far_apart(operations, inputs.arrivals.of(operations), virtual_stage),
        )
    return replace(
        staging,
        stages_missing=stages_missing or _lacks_given_stages(inputs, staging),
        ranks_missing=len(absent) > 0,
        limitations=notes,
    )


def _lacks_given_stages(inputs: _Inputs, staging: Staging) -> bool:
    """Return whether the sizes of the run give more stages than the profiles hold."""
    held = distinct(staging.stage_of_rank[staging.stage_of_rank >= 0])
    return inputs.parallel is not None and len(held) < inputs.parallel.pp


def _with(inputs: _Inputs, stages: VirtualStages, *, by_name: bool = False) -> Staging:
    """Return the pipelines and paired iterations that follow from virtual stages."""
    joined = inputs.joined
    operations, virtual_stage = with_model_chunks(joined.operations, stages, by_name)
    first = first_stages(stages, len(joined.ranks))
    if _counts_chunks(inputs):
        operations, _ = moved_chunks(operations, first, inputs.machine)
    number = inputs.numbers.number
    if inputs.parallel is not None:
        pipeline = inputs.parallel.pipeline(number)
        together = inputs.parallel.reducing(number)
    elif (told := told_pipelines(joined.ranks)) is not None:
        pipeline = told
        together = reducing(first, inputs.machine, inputs.numbers)
    else:
        pipeline = distinguish_pipelines(first, inputs.numbers, _world(inputs))
        unknown = (pipeline[first >= 0] < 0).any()
        if unknown and (comparable := _comparable(inputs)) is not None:
            same = operations.changed(iteration=comparable.iteration)
            pipeline = matched(
                same, inputs.arrivals.of(same), virtual_stage, first, number, inputs.machine
            )
        together = reducing(first, inputs.machine, inputs.numbers)
    known = np.where(first < 0, np.iinfo(np.int64).max, first)
    # Whole pipelines come first, and the others are compared with them.
    lacking = -np.bincount(pipeline[first >= 0] + 1, minlength=int(pipeline.max(initial=0)) + 2)
    order = sorted_rows(lacking[pipeline + 1], pipeline, known)
    pairing = pair_iterations(
        operations,
        inputs.arrivals,
        joined.named_iteration,
        virtual_stage,
        Places(
            order,
            pipeline,
            first,
            inputs.machine,
            joined.timed,
            (joined.recorded_start_ns, joined.recorded_end_ns),
        ),
    )
    return Staging(
        operations,
        inputs.arrivals,
        virtual_stage,
        first,
        pipeline,
        together,
        pairing,
    )


def _counts_chunks(inputs: _Inputs) -> bool:
    """Return whether the chunks of a run that only goes forward are numbered by their order."""
    operations = inputs.joined.operations
    forward = run_kind(operations.phase) == INFERENCE
    return forward and inputs.joined.inferred and counted_by_order(operations)


def _places_in_pipeline(inputs: _Inputs) -> tuple[Ints, int]:
    """Return each rank's place in its pipeline, as the user gives it, and how many places."""
    number = inputs.numbers.number
    if inputs.parallel is not None:
        return inputs.parallel.stage(number), inputs.parallel.pp
    return np.searchsorted(np.sort(number), number), len(number)


def _inferred_stages(inputs: _Inputs) -> tuple[VirtualStages, bool]:
    """Return the virtual stages by waiting times, and whether unnamed numbers of ranks decided."""
    operations = inputs.joined.operations
    if run_kind(operations.phase) == INFERENCE:
        comparable = _comparable(inputs)
        # Whoever wrote a table numbered its ranks as they liked.
        told = any(rank.local.told is not None for rank in inputs.joined.ranks)
        return forward_order(
            operations if comparable is None else comparable,
            inputs.machine,
            replace(inputs.numbers, named=inputs.numbers.named and not told),
            counted=_counts_chunks(inputs),
        ), False
    stages = order_virtual_stages(operations, inputs.own_arrivals)
    known = bool((stages.virtual_stage >= 0).all())
    single = len(distinct(stages.virtual_stage)) == len(stages.virtual_stage)
    if known and not (single and _does_not_nest(inputs, stages)):
        return stages, False
    comparable = _comparable(inputs)
    if comparable is not None:
        found = split(comparable, inputs.own_arrivals, inputs.numbers.number, inputs.machine)
        if found is not None:
            return found.stages, found.by_number and not inputs.numbers.named
    if inputs.numbers.named:
        world = _world(inputs)
        by_number = order_by_number(operations, inputs.own_arrivals, inputs.numbers.number, world)
        if by_number is not None:
            return by_number, False
    return stages, False


def _does_not_nest(inputs: _Inputs, stages: VirtualStages) -> bool:
    """Return whether an order of stages is refuted, as far as iterations can be compared."""
    numbered = _comparable(inputs)
    if numbered is None:
        return False
    operations, virtual_stage = with_model_chunks(numbered, stages, by_name=False)
    return not nests(operations, inputs.arrivals.of(operations), virtual_stage)


def _world(inputs: _Inputs) -> int:
    """Return how many ranks the run has: as profiles say, else up to the last that is named."""
    numbers = inputs.numbers
    named = int(numbers.number.max(initial=0)) + 1 if numbers.named else 0
    return max(world_size(inputs.joined.ranks), named, len(numbers.number))


def _comparable(inputs: _Inputs) -> RankOperations | None:
    """Return the operations with iterations that are the same on all ranks; None unknown.

    They are if they are named, or if all ranks ran as many.
    """
    operations, named = inputs.joined.operations, inputs.joined.named_iteration
    work = among(operations.phase, COUNTED)
    if work.any() and (named[work] >= 0).all():
        return operations.changed(iteration=named)
    pairs = distinct_rows(operations.rank[work], operations.iteration[work])
    counts = np.bincount(pairs[0], minlength=1)
    return operations if len(distinct(counts[counts > 0])) == 1 else None


def _is_other(inputs: _Inputs, staging: Staging) -> bool:
    """Return whether the waiting times give an order other than the user's."""
    inferred, _ = _inferred_stages(inputs)
    if (inferred.virtual_stage < 0).any() or not len(inferred.virtual_stage):
        return False
    return bool((first_stages(inferred, len(inputs.machine)) != staging.stage_of_rank).any())


def _is_contradicted(inputs: _Inputs, staging: Staging) -> bool:
    neighbours = contradicted(
        staging.operations,
        staging.virtual_stage,
        staging.pairing.iteration,
        inputs.machine,
        staging.pipeline,
    )
    return neighbours > 0
