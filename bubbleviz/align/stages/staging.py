"""Staging: which virtual stage each (rank, chunk) holds, and which iterations are the same.

Both depend on each other: dependencies between stages show which iterations pair, and paired
iterations show whether an order of stages can be right. The user's order decides, then names, then
the waiting times on each rank's own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.align.arrivals import Arrivals, arrivals
from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.pairing.iteration_pairs import Pairing, pair_iterations, pairing_limitations
from bubbleviz.align.stages import (
    pipelines,
    rank_orders,
    stage_gaps,
    stage_order,
    virtual_stages,
)
from bubbleviz.align.stages.chunk_numbers import counted_by_order, moved_chunks
from bubbleviz.align.stages.missing_ranks import find_incomplete_pipelines, find_missing_ranks
from bubbleviz.align.stages.replica_splits import split
from bubbleviz.align.stages.replicas import matched
from bubbleviz.align.stages.stage_transfers import (
    find_transfer_stages,
    receives_from_earlier_stage,
    transfers_with_missing_stages,
)
from bubbleviz.align.stages.streams import forward_order
from bubbleviz.align.stages.virtual_stages import VirtualStages
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import INFERENCE, run_kind

#: Maximum number of last ranks that may be missing unnoticed by numbers: the GPUs of a server.
_MAX_LAST_MISSING = 8
_UNPROVEN = Limitation(
    "stages of ranks",
    "the ranks may be stages or replicas: no range names a stage or a transfer, and all run the "
    "same order; set the order of stages with --order, or replicas with --parallel",
)
_BY_NUMBER = Limitation(
    "stages of ranks",
    "ranks that run alike cannot be told apart by waits, so stages follow hosts, devices and "
    "processes in the only framework order that fits; set --parallel tp=,pp=,dp= to be sure",
)
_GIVEN_CONTRADICTED = Limitation(
    "stages of ranks",
    "the order of --order or --parallel contradicts the data; --parallel counts ranks as their "
    "names do, else by host, device and process",
    kind=LimitationKind.STAGES_CONTRADICTED,
)
_REPLICAS = Limitation(
    "pipelines",
    "which replicas form one pipeline is unknown, so clock bounds are wider; set --parallel "
    "tp=,pp=,dp=",
)
_STAGES_MISSING = Limitation(
    "stages without a profile",
    "range names mention virtual stages that no profile holds; ratios are incomplete",
)
_STAGES_BEHIND = Limitation(
    "stages that may be missing",
    "the last stage idles, or runs further forwards, while its first microbatch is away, as if it "
    "waited for later stages; if their profiles are missing, ratios and stages leave them out",
    kind=LimitationKind.STAGES_MAY_BE_MISSING,
)
_STAGES_BEHIND_TURN = Limitation(
    "stages that may be missing",
    "where the pipeline turns, each microbatch is away for longer than one more F and B while its "
    "rank runs further forwards, as if it waited for later stages; if their profiles are missing, "
    "ratios and stages leave them out",
    kind=LimitationKind.STAGES_MAY_BE_MISSING,
)
_COUNTED_FROM_HELD = Limitation(
    "numbers of stages",
    "the first stage with a profile receives activations, so earlier stages, of unknown number, "
    "have none; stages are counted from it",
    kind=LimitationKind.STAGES_COUNTED_FROM_HELD,
)


@dataclass(frozen=True)
class Staging:
    """Stages, pipelines and paired iterations of all ranks.

    Attributes:
        joined: The recordings. Their operations have virtual stages, and chunks numbered in the
            model's order.
        arrivals: Times at which the inputs of operations were available.
        stage_of_rank: Smallest virtual stage of each rank, or -1 if unknown.
        pipeline: Pipeline of each rank, or -1 if the replicas of a stage cannot be distinguished.
        reducing: Number shared by the ranks that reduce gradients together, or -1 if there are
            none.
        pairing: Iterations over all ranks.
        stages_missing: Whether virtual stages are known to be missing.
        ranks_missing: Whether ranks of these or other stages are known to be missing.
        pipeline_unproven: Whether nothing shows that the ranks are stages instead of replicas of
            one stage.
        ends_early: Whether stages may be missing after the last recorded stage.
        order_refutes: Whether an exact match of the order with a known schedule would show that no
            stages are missing.
        limitations: Properties that could not be inferred.
    """

    joined: JoinedRecordings
    arrivals: Arrivals
    stage_of_rank: Ints
    pipeline: Ints
    reducing: Ints
    pairing: Pairing
    stages_missing: bool = False
    ranks_missing: bool = False
    pipeline_unproven: bool = False
    ends_early: bool = False
    order_refutes: bool = True
    limitations: tuple[Limitation, ...] = ()

    @property
    def operations(self) -> Operations:
        """The operations of all ranks, with virtual stages."""
        return self.joined.operations

    def with_operations(self, operations: Operations) -> Staging:
        """Return the staging of changed operations, row by row the same ones."""
        return replace(self, joined=replace(self.joined, operations=operations))


@dataclass(frozen=True)
class _Inputs:
    """The recordings, and properties of their ranks that are known before staging."""

    joined: JoinedRecordings
    machine: Ints
    numbers: pipelines.RankNumbers
    named: VirtualStages | None
    parallel: pipelines.Parallel | None
    arrivals: Arrivals

    @property
    def infers_stages(self) -> bool:
        """Whether the stages are in none of range names, tables and file names."""
        return self.named is None and virtual_stages.told_stages(self.joined) is None

    @property
    def counts_chunks(self) -> bool:
        """Whether the chunks of a run that only goes forward are numbered by their order."""
        operations = self.joined.operations
        forward = run_kind(operations.phase) == INFERENCE
        return forward and self.joined.inferred and counted_by_order(operations)

    @cached_property
    def orders(self) -> rank_orders.Orders:
        """In which orders the ranks run."""
        return rank_orders.orders_of(self.joined.operations)

    @property
    def world_size(self) -> int:
        """How many ranks the run has, as its profiles say; 0 unknown."""
        return max((rank.local.world_size or 0 for rank in self.joined.ranks), default=0)

    @property
    def world(self) -> int:
        """The same, but at least up to the last that is named."""
        numbers = self.numbers
        named = int(numbers.number.max(initial=0)) + 1 if numbers.named else 0
        return max(self.world_size, named, len(numbers.number))

    @cached_property
    def comparable(self) -> Operations | None:
        """The operations with iterations that are the same on all ranks; None unknown.

        They are if they are named, or if all ranks ran as many.
        """
        operations, named = self.joined.operations, self.joined.named_iteration
        work = self.joined.works
        if work.any() and not (work & (named < 0)).any():
            return operations.changed(iteration=named)
        pairs = grouping.distinct_rows(operations.rank, operations.iteration, chosen=work)
        counts = np.bincount(pairs[0], minlength=1)
        return operations if len(grouping.distinct(counts[counts > 0])) == 1 else None


def stage(
    joined: JoinedRecordings, order: Sequence[int] = (), parallel: pipelines.Parallel | None = None
) -> Staging:
    """Return stages, pipelines and paired iterations.

    Args:
        joined: the recordings.
        order: ranks in pipeline order by their numbers; empty to infer it.
        parallel: the sizes of the run; None to infer replicas of stages.

    Raises:
        MismatchError: the ranks cannot be those of a run of these sizes.
    """
    named, numbers = (
        virtual_stages.named_stages(joined),
        pipelines.rank_numbers(joined.ranks).reordered(order),
    )
    if parallel is not None:
        pipelines.refuse_misfit(parallel, numbers)
    inputs = _Inputs(
        joined, joined.machine_of_rank, numbers, named, parallel, arrivals(joined.operations)
    )
    told = virtual_stages.told_stages(joined)
    if order or (parallel is not None and named is None):
        number = numbers.number
        places = np.searchsorted(np.sort(number), number), len(number)
        if parallel is not None:
            places = parallel.stage(number), parallel.pp
        staging = _with(inputs, virtual_stages.stages_in_order(joined, inputs.arrivals, *places))
        if _is_other(inputs, staging):
            return _noted(inputs, staging, (_GIVEN_CONTRADICTED,))
    elif named is not None:
        # Names may give a chunk by its stage; tables number the chunks of each rank.
        by_name = any(rank.local.told is None for rank in joined.ranks)
        staging = _with(inputs, named, by_name=by_name)
    elif told is not None:
        stages = virtual_stages.stages_in_order(
            joined, inputs.arrivals, told, int(told.max(initial=0)) + 1
        )
        staging = _with(inputs, stages)
    else:
        return _inferred(inputs)
    gap = False
    if named is not None:
        gap = _has_gap(named.virtual_stage)
    elif told is not None:
        gap = _has_gap(told[joined.working])
    return _noted(inputs, staging, _stages_unknown(inputs, staging), stages_missing=gap)


def _has_gap(stage: Ints) -> bool:
    """Return whether a stage number below the largest one is missing."""
    return len(grouping.distinct(stage)) <= int(stage.max(initial=NONE))


def _inferred(inputs: _Inputs) -> Staging:
    """Return the staging that waiting times give; without stages where nothing shows any."""
    if inputs.joined.unmarked:
        return _noted(inputs, _with(inputs, VirtualStages.none()), ())
    inferred, by_number = _inferred_stages(inputs)
    staging = _with(inputs, inferred)
    notes = _stages_unknown(inputs, staging)
    known = not notes
    unproven = not _forms_pipeline(inputs, staging, known=known)
    if known and unproven:
        staging = _with(inputs, VirtualStages.none())
        notes = (_UNPROVEN,)
    elif by_number:
        notes = (*notes, _BY_NUMBER)
    numbered = _as_in_job(inputs, inferred, staging)
    noted = _noted(inputs, numbered, notes, stages_missing=numbered is not staging)
    return replace(noted, pipeline_unproven=unproven)


def _as_in_job(inputs: _Inputs, stages: VirtualStages, staging: Staging) -> Staging:
    """Return the staging with stages as the job counts them, where numbers of its ranks tell.

    Profiles may hold later stages alone. Frameworks number the ranks of one stage after those of
    the stage before, so of ``n`` ranks in each stage rank ``i`` is of stage ``i // n``.
    """
    stage, numbers = staging.stage_of_rank, inputs.numbers
    working = np.flatnonzero(stage >= 0)
    sizes = np.bincount(stage[working])
    single = len(stages.rank) == len(working)
    if not (numbers.named and single and len(working)) or len(grouping.distinct(sizes)) > 1:
        return staging
    before = grouping.distinct(numbers.number[working] // sizes[0] - stage[working])
    if len(before) > 1 or before[0] <= 0:
        return staging
    if not receives_from_earlier_stage(staging.joined, find_transfer_stages(staging.joined)):
        return staging
    return _with(inputs, stages.changed(virtual_stage=stages.virtual_stage + before[0]))


def _forms_pipeline(inputs: _Inputs, staging: Staging, *, known: bool) -> bool:
    """Return whether anything shows that ranks which names give no stages are no mere replicas.

    A single stage needs no evidence.

    Args:
        inputs: what is known of the ranks.
        staging: the stages that waiting times give.
        known: whether they are known.
    """
    operations, working = inputs.joined.operations, inputs.joined.working
    stages = grouping.distinct(staging.stage_of_rank[working])
    if len(working) < 2 or (known and len(stages) == 1):
        return True
    if known and run_kind(operations.phase) == INFERENCE:
        return True  # chunks follow each other through the stages
    if stage_order.transfers_or_orders_differ(operations, inputs.orders):
        return True
    comparable = inputs.comparable
    if not known or comparable is None:
        return False
    # Of a single microbatch an iteration nesting says little: one late replica looks the same.
    work = inputs.joined.works & (operations.microbatch >= 0)
    if len(grouping.distinct(operations.microbatch[work])) < 2:
        return False
    numbered = staging.operations.changed(iteration=comparable.iteration)
    return stage_order.nests(numbered, inputs.arrivals)


def _noted(
    inputs: _Inputs,
    staging: Staging,
    notes: tuple[Limitation, ...],
    *,
    stages_missing: bool = False,
) -> Staging:
    """Return the staging with its limitations."""
    parallel = inputs.parallel
    if inputs.joined.unmarked:
        staging = replace(staging, pairing=replace(staging.pairing, known=False))
    doubtful = _GIVEN_CONTRADICTED in notes
    ranks, working = inputs.joined.ranks, inputs.joined.working
    apart = bool((np.minimum(staging.pipeline, staging.stage_of_rank)[working] < 0).any())
    notes = (*notes, *pairing_limitations(staging.pairing, ranks, sizes_tell=apart))
    joined = staging.joined
    transfer_stage = find_transfer_stages(joined)
    if not doubtful and not stages_missing:
        stages_missing = transfers_with_missing_stages(
            joined, staging.stage_of_rank, transfer_stage
        )
    if stages_missing:
        notes = (*notes, _STAGES_MISSING)
    is_inferred = inputs.named is None and not doubtful
    if is_inferred and receives_from_earlier_stage(joined, transfer_stage):
        notes = (*notes, _COUNTED_FROM_HELD)
    absent = find_missing_ranks(inputs.numbers, parallel, inputs.world_size)
    absent = absent or find_incomplete_pipelines(staging.pipeline, staging.stage_of_rank)
    notes = (*notes, *absent)
    if (staging.pipeline[staging.stage_of_rank >= 0] < 0).any():
        notes = (*notes, _REPLICAS)
    is_complete = len(inputs.joined.ranks) == inputs.world_size or parallel is not None
    is_refutable = True
    if inputs.infers_stages and not (stages_missing or doubtful or is_complete):
        gaps, stages_missing, is_refutable = _find_stage_gaps(inputs, staging)
        notes = (*notes, *gaps)
    ends_early = not (stages_missing or absent or doubtful or is_complete)
    ends_early = ends_early and stage_gaps.waits_like_earlier_stage(staging.joined, inputs.arrivals)
    if ends_early:
        notes = (*notes, _STAGES_BEHIND)
    # The sizes of the run may give more stages than the profiles hold.
    held = grouping.distinct(staging.stage_of_rank[staging.stage_of_rank >= 0])
    lacks_stages = parallel is not None and len(held) < parallel.pp
    return replace(
        staging,
        stages_missing=stages_missing or lacks_stages,
        ranks_missing=len(absent) > 0,
        ends_early=ends_early,
        order_refutes=is_refutable,
        limitations=notes,
    )


def _find_stage_gaps(
    inputs: _Inputs, staging: Staging
) -> tuple[tuple[Limitation, ...], bool, bool]:
    """Find evidence that stages are missing before or between the stages in the profiles.

    Args:
        inputs: The recordings.
        staging: Stages of all ranks.

    Returns:
        notes: Limitations.
        is_certain: Whether stages are certainly missing.
        is_refutable: Whether an exact match of the order with a known schedule would show that no
            stages are missing.
    """
    operations, numbers = staging.operations, inputs.numbers
    # Rank numbers in tables are arbitrary.
    is_table = any(rank.local.told is not None for rank in inputs.joined.ranks)
    iteration = staging.pairing.iteration if staging.pairing.known else None
    gaps = stage_gaps.find_stages_before_gaps(
        operations, inputs.arrivals, inputs.machine, iteration
    )
    turns = stage_gaps.find_turns(operations)
    far = tuple(stage for stage in gaps if stage not in turns)
    if far:
        are_adjacent = stage_gaps.are_adjacent_by_order(far, operations)
        numbered: tuple[tuple[int, int], ...] = ()
        if numbers.named:
            numbered = stage_gaps.find_numbered_gaps(far, operations, numbers.number)
        if numbered and not are_adjacent:
            return (stage_gaps.describe_numbered_gaps(numbered),), True, False
        if numbered or not numbers.named or (is_table and not are_adjacent):
            # Ranks with several chunks may wait for their hosts as long as for another chunk.
            has_chunks = bool((operations.chunk > 0).any())
            return (stage_gaps.describe_gaps(far),), False, are_adjacent or has_chunks
    if len(far) < len(gaps):
        return (_STAGES_BEHIND_TURN,), False, True
    first = None
    if numbers.named:
        origin = 1 if is_table and numbers.number.min() == 1 else 0
        first = stage_gaps.describe_first_number(numbers.number - origin, staging.stage_of_rank)
    return ((first,), False, False) if first else ((), False, True)


def _with(inputs: _Inputs, stages: VirtualStages, *, by_name: bool = False) -> Staging:
    """Return the pipelines and paired iterations that follow from virtual stages."""
    joined = inputs.joined
    operations = virtual_stages.set_stages(joined.operations, stages, by_name=by_name)
    first = virtual_stages.first_stages(stages, len(joined.ranks))
    if inputs.counts_chunks:
        operations, _ = moved_chunks(operations, first, inputs.machine)
    number = inputs.numbers.number
    if inputs.parallel is not None:
        pipeline = inputs.parallel.pipeline(number)
        together = inputs.parallel.reducing(number)
    elif (told := pipelines.told_pipelines(joined)) is not None:
        pipeline = told
        together = pipelines.reducing(first, inputs.machine, inputs.numbers)
    else:
        pipeline = pipelines.distinguish_pipelines(first, inputs.numbers, inputs.world)
        unknown = (pipeline[first >= 0] < 0).any()
        if unknown and (comparable := inputs.comparable) is not None:
            same = operations.changed(iteration=comparable.iteration)
            pipeline = matched(same, inputs.arrivals, first, number, inputs.machine)
        together = pipelines.reducing(first, inputs.machine, inputs.numbers)
    staged = replace(joined, operations=operations)
    pairing = pair_iterations(staged, inputs.arrivals, pipeline, first)
    return Staging(staged, inputs.arrivals, first, pipeline, together, pairing)


def _inferred_stages(inputs: _Inputs) -> tuple[VirtualStages, bool]:
    """Return the virtual stages by waiting times, and whether unnamed numbers of ranks decided."""
    operations = inputs.joined.operations
    if run_kind(operations.phase) == INFERENCE:
        comparable = inputs.comparable
        # Whoever wrote a table numbered its ranks as they liked.
        told = any(rank.local.told is not None for rank in inputs.joined.ranks)
        numbers = replace(inputs.numbers, named=inputs.numbers.named and not told)
        if comparable is not None:
            operations = comparable
        counted = inputs.counts_chunks
        return forward_order(operations, inputs.machine, numbers, counted=counted), False
    stages = stage_order.order_virtual_stages(operations, inputs.arrivals)
    known = bool((stages.virtual_stage >= 0).all())
    single = len(grouping.distinct(stages.virtual_stage)) == len(stages.virtual_stage)
    if known and not single:
        known = stage_order.run_alike(inputs.orders, stages.rank, stages.virtual_stage)
        stages = stages if known else stages.changed(virtual_stage=np.full(len(stages), NONE))
    comparable = inputs.comparable
    if known and single and comparable is not None:
        staged = virtual_stages.set_stages(comparable, stages, by_name=False)
        known = stage_order.nests(staged, inputs.arrivals)
    if known:
        return stages, False
    number = inputs.numbers.number
    if comparable is not None:
        found = split(comparable, inputs.arrivals, number, inputs.machine)
        if found is not None:
            return found[0], found[1] and not inputs.numbers.named
    by_number = _stages_by_number(inputs) if inputs.numbers.named else None
    return by_number or stages, False


def _stages_by_number(inputs: _Inputs) -> VirtualStages | None:
    """Return the virtual stages by the ranks' numbers; None where they show no pipelines.

    With some number of replicas the ranks that are so far apart nest as stages of pipelines do, and
    those of one stage run alike. That holds where replicas are not equally fast, too.
    """
    operations = inputs.joined.operations
    if len(grouping.distinct(operations.microbatch[inputs.joined.works])) < 2:
        return None  # with one microbatch all ranks run alike
    for place, stage_count, replicas in _list_possible_sizes(inputs):
        stage_of_rank = place // replicas
        stages = virtual_stages.stages_in_order(
            inputs.joined, inputs.arrivals, stage_of_rank, stage_count
        )
        staged = virtual_stages.set_stages(operations, stages, by_name=False)
        # Microbatches of different pipelines must not be compared, so each pipeline gets its own
        # iteration numbers.
        replica = place[staged.rank] % replicas
        staged = staged.changed(iteration=staged.iteration * replicas + replica)
        run_alike = stage_order.run_alike(inputs.orders, stages.rank, stage_of_rank[stages.rank])
        if run_alike and stage_order.nests(staged, inputs.arrivals):
            return stages
    return None


def _list_possible_sizes(inputs: _Inputs) -> list[tuple[Ints, int, int]]:
    """Return possible sizes of a run: places of ranks, and numbers of stages and replicas.

    All stages have equally many replicas, so the number of replicas divides the number of ranks.
    The profiles may hold all ranks, or lack some of them. If the last ranks are missing, no number
    tells how many ranks the run has. Unless the profiles say it, the run may therefore be larger by
    up to the ranks of a server.
    """
    number, world = inputs.numbers.number, inputs.world
    count = len(number)
    max_added = 0 if inputs.world_size else _MAX_LAST_MISSING
    sizes = [(grouping.places_in(np.argsort(number)), count)]
    if number.max() < world:
        larger = range(max(world, count + 1), world + max_added + 1)
        sizes += [(number, size) for size in larger]
    return [
        (place, size // replicas, replicas)
        for place, size in sizes
        for replicas in range(2, size // 2 + 1)
        # A whole missing stage would leave the number of stages open.
        if size % replicas == 0 and size - world < replicas
    ]


def _is_other(inputs: _Inputs, staging: Staging) -> bool:
    """Return whether the waiting times give an order other than the user's."""
    inferred, _ = _inferred_stages(inputs)
    if (inferred.virtual_stage < 0).any() or not len(inferred.virtual_stage):
        return False
    return bool(
        (virtual_stages.first_stages(inferred, len(inputs.machine)) != staging.stage_of_rank).any()
    )


def _stages_unknown(inputs: _Inputs, staging: Staging) -> tuple[Limitation, ...]:
    """Return a limitation for ranks that work, but on an unknown stage."""
    unknown = int((staging.stage_of_rank[inputs.joined.working] < 0).sum())
    note = Limitation(
        "stages of ranks",
        "the times of microbatches give no order; set the order with --order, or replicas of a "
        "stage with --parallel",
        unknown,
        LimitationKind.STAGES_UNKNOWN,
    )
    return (note,) if unknown else ()
