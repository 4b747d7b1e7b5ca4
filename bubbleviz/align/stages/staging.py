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

from bubbleviz.align.arrivals import arrivals
from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.pairing.iteration_pairs import pair_iterations
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
from bubbleviz.model.run_kinds import INFERENCE, run_kind

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
    kind=LimitationKind.EARLIER_STAGES_UNKNOWN,
)


@dataclass(frozen=True)
class _Inputs:
    """The recordings, and properties of their ranks that are known before staging."""

    joined: JoinedRecordings
    machine: Ints
    numbers: pipelines.RankNumbers
    named: VirtualStages | None
    parallel: pipelines.Parallel | None

    @property
    def infers_stages(self) -> bool:
        """Whether neither range names nor tables nor file names give the stages."""
        return self.named is None and virtual_stages.told_stages(self.joined) is None

    @property
    def counts_chunks(self) -> bool:
        """Whether the run only goes forward and its chunks are numbered by their order."""
        operations = self.joined.operations
        forward = run_kind(operations.phase) == INFERENCE
        return forward and self.joined.inferred and counted_by_order(operations)

    @cached_property
    def orders(self) -> rank_orders.Orders:
        """Orders in which the ranks run their operations."""
        return rank_orders.orders_of(self.joined.operations)

    @property
    def world_size(self) -> int:
        """Number of ranks of the run according to its profiles, or 0 if unknown."""
        return max((rank.local.world_size or 0 for rank in self.joined.ranks), default=0)

    @property
    def world(self) -> int:
        """The same number, or a larger one if more ranks were recorded or named."""
        numbers = self.numbers
        named = int(numbers.number.max(initial=0)) + 1 if numbers.named else 0
        return max(self.world_size, named, len(numbers.number))

    @cached_property
    def comparable(self) -> Operations | None:
        """The operations with iterations that are the same on all ranks, or None if unknown.

        Iterations are the same if names number them, or if all ranks ran equally many.
        """
        operations, named = self.joined.operations, self.joined.named_iteration
        work = self.joined.works
        if work.any() and not (work & (named < 0)).any():
            return operations.replace_columns(iteration=named)
        pairs = grouping.find_distinct_rows(operations.rank, operations.iteration, mask=work)
        counts = np.bincount(pairs[0], minlength=1)
        return operations if len(grouping.find_distinct(counts[counts > 0])) == 1 else None


def stage(
    joined: JoinedRecordings, order: Sequence[int] = (), parallel: pipelines.Parallel | None = None
) -> JoinedRecordings:
    """Find the stages and pipelines of ranks, and number their iterations together.

    Args:
        joined: The recordings on the clocks of their sessions.
        order: Ranks in pipeline order, by their numbers; empty to infer it.
        parallel: Sizes of the run, or None to infer the replicas of stages.

    Returns:
        The recordings, with all attributes set. Their operations have virtual stages, and chunks
        numbered in the model's order.

    Raises:
        MismatchError: The ranks cannot be those of a run of these sizes.
    """
    joined = replace(joined, arrivals=arrivals(joined.operations))
    numbers = pipelines.rank_numbers(joined.ranks).reordered(order)
    if parallel is not None:
        pipelines.refuse_misfit(parallel, numbers)
    named = virtual_stages.named_stages(joined)
    inputs = _Inputs(joined, joined.machine_of_rank, numbers, named, parallel)
    if order or (parallel is not None and named is None):
        staged = _stage_as_given(inputs)
        if _contradicts_waits(inputs, staged):
            return _add_limitations(inputs, staged, (_GIVEN_CONTRADICTED,))
    elif named is not None:
        # Names may give a chunk by its stage; tables number the chunks of each rank.
        by_name = any(rank.local.told is None for rank in joined.ranks)
        staged = _apply_stages(inputs, named, by_name=by_name)
    elif (told := virtual_stages.told_stages(joined)) is not None:
        n_stages = int(told.max(initial=0)) + 1
        staged = _apply_stages(inputs, virtual_stages.stages_in_order(joined, told, n_stages))
    else:
        return _stage_by_waits(inputs)
    unknown = _find_unknown_stages(inputs, staged)
    return _add_limitations(inputs, staged, unknown, stages_missing=_lacks_named_stage(inputs))


def _stage_as_given(inputs: _Inputs) -> JoinedRecordings:
    """Return the stages that the user's order of ranks, or the sizes of the run, give."""
    number = inputs.numbers.number
    stage_of_rank, n_stages = np.searchsorted(np.sort(number), number), len(number)
    if inputs.parallel is not None:
        stage_of_rank, n_stages = inputs.parallel.stage(number), inputs.parallel.pp
    return _apply_stages(
        inputs, virtual_stages.stages_in_order(inputs.joined, stage_of_rank, n_stages)
    )


def _lacks_named_stage(inputs: _Inputs) -> bool:
    """Return whether names or tables number the stages and leave out a number."""
    if inputs.named is not None:
        return _has_gap(inputs.named.virtual_stage)
    told = virtual_stages.told_stages(inputs.joined)
    return told is not None and _has_gap(told[inputs.joined.working])


def _has_gap(stage: Ints) -> bool:
    """Return whether a stage number below the largest one is missing."""
    return len(grouping.find_distinct(stage)) <= int(stage.max(initial=NONE))


def _stage_by_waits(inputs: _Inputs) -> JoinedRecordings:
    """Return the stages that waiting times give.

    The ranks get no stages if nothing shows any.
    """
    if inputs.joined.unmarked:
        return _add_limitations(inputs, _apply_stages(inputs, VirtualStages.make_empty()), ())
    inferred, by_number = _infer_stages(inputs)
    staged = _apply_stages(inputs, inferred)
    notes = _find_unknown_stages(inputs, staged)
    known = not notes
    unproven = not _forms_pipeline(inputs, staged, known=known)
    if known and unproven:
        staged = _apply_stages(inputs, VirtualStages.make_empty())
        notes = (_UNPROVEN,)
    elif by_number:
        notes = (*notes, _BY_NUMBER)
    numbered = _number_stages_as_job(inputs, inferred, staged)
    noted = _add_limitations(inputs, numbered, notes, stages_missing=numbered is not staged)
    return replace(noted, pipeline_unproven=unproven)


def _number_stages_as_job(
    inputs: _Inputs, stages: VirtualStages, staged: JoinedRecordings
) -> JoinedRecordings:
    """Return stages with the numbers of the job, if the numbers of the ranks give these.

    Profiles may contain only later stages. Frameworks number the ranks of one stage after those of
    the stage before, so of ``n`` ranks in each stage rank ``i`` is of stage ``i // n``.
    """
    stage, numbers = staged.stage_of_rank, inputs.numbers
    working = np.flatnonzero(stage >= 0)
    sizes = np.bincount(stage[working])
    single = len(stages.rank) == len(working)
    if not (numbers.named and single and len(working)) or len(grouping.find_distinct(sizes)) > 1:
        return staged
    before = grouping.find_distinct(numbers.number[working] // sizes[0] - stage[working])
    if len(before) > 1 or before[0] <= 0:
        return staged
    if not receives_from_earlier_stage(staged, find_transfer_stages(staged)):
        return staged
    return _apply_stages(
        inputs, stages.replace_columns(virtual_stage=stages.virtual_stage + before[0])
    )


def _forms_pipeline(inputs: _Inputs, staged: JoinedRecordings, *, known: bool) -> bool:
    """Return whether anything shows that ranks without named stages are not only replicas.

    A single stage needs no evidence.

    Args:
        inputs: The recordings, and properties of their ranks.
        staged: The recordings with the stages that waiting times give.
        known: Whether these stages are known.
    """
    operations, working = inputs.joined.operations, inputs.joined.working
    stages = grouping.find_distinct(staged.stage_of_rank[working])
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
    if len(grouping.find_distinct(operations.microbatch[work])) < 2:
        return False
    numbered = staged.operations.replace_columns(iteration=comparable.iteration)
    return stage_order.nests(numbered, inputs.joined.arrivals)


def _add_limitations(
    inputs: _Inputs,
    staged: JoinedRecordings,
    notes: tuple[Limitation, ...],
    *,
    stages_missing: bool = False,
) -> JoinedRecordings:
    """Return the recordings with the limitations of their stages."""
    parallel = inputs.parallel
    doubtful = _GIVEN_CONTRADICTED in notes
    notes = (*notes, *staged.limitations)
    transfer_stage = find_transfer_stages(staged)
    if not doubtful and not stages_missing:
        stages_missing = transfers_with_missing_stages(staged, transfer_stage)
    if stages_missing:
        notes = (*notes, _STAGES_MISSING)
    is_inferred = inputs.named is None and not doubtful
    if is_inferred and receives_from_earlier_stage(staged, transfer_stage):
        notes = (*notes, _COUNTED_FROM_HELD)
    absent = find_missing_ranks(inputs.numbers, parallel, inputs.world_size)
    absent = absent or find_incomplete_pipelines(staged.pipeline, staged.stage_of_rank)
    notes = (*notes, *absent)
    if (staged.pipeline[staged.stage_of_rank >= 0] < 0).any():
        notes = (*notes, _REPLICAS)
    is_complete = len(inputs.joined.ranks) == inputs.world_size or parallel is not None
    is_refutable = True
    if inputs.infers_stages and not (stages_missing or doubtful or is_complete):
        gaps, stages_missing, is_refutable = _find_stage_gaps(inputs, staged)
        notes = (*notes, *gaps)
    ends_early = not (stages_missing or absent or doubtful or is_complete)
    ends_early = ends_early and stage_gaps.waits_like_earlier_stage(staged)
    if ends_early:
        notes = (*notes, _STAGES_BEHIND)
    # The sizes of the run may give more stages than the profiles hold.
    held = grouping.find_distinct(staged.stage_of_rank[staged.stage_of_rank >= 0])
    lacks_stages = parallel is not None and len(held) < parallel.pp
    return replace(
        staged,
        stages_missing=stages_missing or lacks_stages,
        ranks_missing=len(absent) > 0,
        ends_early=ends_early,
        order_refutes=is_refutable,
        limitations=notes,
    )


def _find_stage_gaps(
    inputs: _Inputs, staged: JoinedRecordings
) -> tuple[tuple[Limitation, ...], bool, bool]:
    """Find evidence that stages are missing before or between the stages in the profiles.

    Args:
        inputs: The recordings.
        staged: The recordings with stages.

    Returns:
        notes: Limitations.
        is_certain: Whether stages are certainly missing.
        is_refutable: Whether an exact match of the order with a known schedule would show that no
            stages are missing.
    """
    operations, numbers = staged.operations, inputs.numbers
    # Rank numbers in tables are arbitrary.
    is_table = any(rank.local.told is not None for rank in inputs.joined.ranks)
    iteration = staged.common_iteration if staged.paired else None
    gaps = stage_gaps.find_stages_before_gaps(
        operations, inputs.joined.arrivals, inputs.machine, iteration
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
        first = stage_gaps.describe_first_number(numbers.number - origin, staged.stage_of_rank)
    return ((first,), False, False) if first else ((), False, True)


def _apply_stages(
    inputs: _Inputs, stages: VirtualStages, *, by_name: bool = False
) -> JoinedRecordings:
    """Return recordings with virtual stages, and the pipelines and iterations that follow."""
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
            same = operations.replace_columns(iteration=comparable.iteration)
            pipeline = matched(same, inputs.joined.arrivals, first, number, inputs.machine)
        together = pipelines.reducing(first, inputs.machine, inputs.numbers)
    staged = replace(
        joined,
        operations=operations,
        stage_of_rank=first,
        pipeline=pipeline,
        reducing=together,
    )
    return pair_iterations(staged)


def _infer_stages(inputs: _Inputs) -> tuple[VirtualStages, bool]:
    """Infer virtual stages from waiting times.

    Returns:
        stages: The virtual stages, -1 if unknown.
        by_number: Whether the order of hosts, devices and processes decided.
    """
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
    stages = stage_order.order_virtual_stages(operations, inputs.joined.arrivals)
    known = bool((stages.virtual_stage >= 0).all())
    single = len(grouping.find_distinct(stages.virtual_stage)) == len(stages.virtual_stage)
    if known and not single:
        known = stage_order.run_alike(inputs.orders, stages.rank, stages.virtual_stage)
        stages = (
            stages if known else stages.replace_columns(virtual_stage=np.full(len(stages), NONE))
        )
    comparable = inputs.comparable
    if known and single and comparable is not None:
        staged = virtual_stages.set_stages(comparable, stages, by_name=False)
        known = stage_order.nests(staged, inputs.joined.arrivals)
    if known:
        return stages, False
    number = inputs.numbers.number
    if comparable is not None:
        found = split(comparable, inputs.joined.arrivals, number, inputs.machine)
        if found is not None:
            return found[0], found[1] and not inputs.numbers.named
    by_number = _infer_stages_by_number(inputs) if inputs.numbers.named else None
    return by_number or stages, False


def _infer_stages_by_number(inputs: _Inputs) -> VirtualStages | None:
    """Infer virtual stages from the numbers of ranks, or return None if these show no pipelines.

    The number of replicas is right if operations of the resulting pipelines nest like stages, and
    all ranks of a stage run the same order. This holds even if replicas are not equally fast.
    """
    operations = inputs.joined.operations
    if len(grouping.find_distinct(operations.microbatch[inputs.joined.works])) < 2:
        return None  # with one microbatch all ranks run alike
    for place, stage_count, replicas in _list_possible_sizes(inputs):
        stage_of_rank = place // replicas
        stages = virtual_stages.stages_in_order(inputs.joined, stage_of_rank, stage_count)
        staged = virtual_stages.set_stages(operations, stages, by_name=False)
        # Microbatches of different pipelines must not be compared, so each pipeline gets its own
        # iteration numbers.
        replica = place[staged.rank] % replicas
        staged = staged.replace_columns(iteration=staged.iteration * replicas + replica)
        run_alike = stage_order.run_alike(inputs.orders, stages.rank, stage_of_rank[stages.rank])
        if run_alike and stage_order.nests(staged, inputs.joined.arrivals):
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
    sizes = [(grouping.invert_permutation(np.argsort(number)), count)]
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


def _contradicts_waits(inputs: _Inputs, staged: JoinedRecordings) -> bool:
    """Return whether the waiting times give an order other than the user's."""
    inferred, _ = _infer_stages(inputs)
    if (inferred.virtual_stage < 0).any() or not len(inferred.virtual_stage):
        return False
    return bool(
        (virtual_stages.first_stages(inferred, len(inputs.machine)) != staged.stage_of_rank).any()
    )


def _find_unknown_stages(inputs: _Inputs, staged: JoinedRecordings) -> tuple[Limitation, ...]:
    """Return a limitation for ranks that work, but on an unknown stage."""
    unknown = int((staged.stage_of_rank[inputs.joined.working] < 0).sum())
    note = Limitation(
        "stages of ranks",
        "the times of microbatches give no order; set the order with --order, or replicas of a "
        "stage with --parallel",
        unknown,
        LimitationKind.STAGES_UNKNOWN,
    )
    return (note,) if unknown else ()
