"""Staging: find the virtual stage of each (rank, chunk), and pair the iterations of ranks.

Stages and paired iterations depend on each other: dependencies between stages show which iterations
belong together, and paired iterations show whether a stage order is plausible. Stages come from the
first available source:

1. The order of ranks given by the user.
2. Range names.
3. The parallel sizes given by the user.
4. Tables of operations and file names.
5. Waiting times. Each waiting time is measured on a single rank's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.align.arrivals import find_arrivals
from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.pairing.iteration_pairs import pair_iterations
from bubbleviz.align.stages import (
    pipelines,
    rank_orders,
    stage_gaps,
    stage_order,
    virtual_stages,
)
from bubbleviz.align.stages.chunk_numbers import align_chunk_numbers, is_counted_by_order
from bubbleviz.align.stages.missing_ranks import find_incomplete_pipelines, find_missing_ranks
from bubbleviz.align.stages.replica_splits import find_division
from bubbleviz.align.stages.replicas import match_replicas
from bubbleviz.align.stages.stage_transfers import (
    find_transfer_stages,
    receives_from_earlier_stage,
    transfers_with_missing_stages,
)
from bubbleviz.align.stages.streams import order_forward_stages
from bubbleviz.align.stages.virtual_stages import VirtualStages
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations
from bubbleviz.model.run_kinds import INFERENCE, run_kind

#: Maximum number of ranks assumed to be missing after the last recorded rank: the GPUs of one
#: server. Rank numbers do not show whether ranks after the last recorded rank are missing.
_MAX_LAST_MISSING = 8
_UNPROVEN = Limitation(
    "stages of ranks",
    "the ranks may be stages or replicas: no range name contains a stage or a transfer, and all "
    "ranks run their operations in the same order. Set the order of stages with --order, or "
    "replicas with --parallel",
)
_BY_NUMBER = Limitation(
    "stages of ranks",
    "waiting times do not show which stage a rank runs, so stages were assigned by host, device "
    "and process, in the only rank order of known frameworks that fits. To be sure, pass "
    "--parallel tp=,pp=,dp=",
)
_GIVEN_CONTRADICTED = Limitation(
    "stages of ranks",
    "the order set by --order or --parallel contradicts the data. --parallel uses the rank numbers "
    "in names, or if there are none, numbers ranks by host, device and process",
    kind=LimitationKind.STAGES_CONTRADICTED,
)
_REPLICAS = Limitation(
    "pipelines",
    "it is unknown which replicas form one pipeline, so clock bounds are wider. To narrow them, "
    "pass --parallel tp=,pp=,dp=",
)
_STAGES_MISSING = Limitation(
    "stages without a profile",
    "range names mention virtual stages that no profile contains, so ratios are incomplete",
)
_STAGES_OF_TABLE_MISSING = Limitation(
    "stages without a profile",
    "the column stage skips a number, or transfers lead to a stage that no rank runs, so ratios "
    "are incomplete. If the table contains all ranks, correct the column stage",
    kind=LimitationKind.STAGE_COLUMN_INCOMPLETE,
)
_LATER_STAGES_MAY_BE_MISSING = Limitation(
    "stages that may be missing",
    "the last stage idles or runs other forwards between F and B of its first microbatch, as if it "
    "waited for later stages; if profiles are missing, ratios and stages do not include them",
    kind=LimitationKind.STAGES_MAY_BE_MISSING,
)
_STAGES_AFTER_TURN_MAY_BE_MISSING = Limitation(
    "stages that may be missing",
    "where the pipeline turns, each microbatch is away for longer than F and B of another stage "
    "would take, and its rank runs other forwards meanwhile, as if it waited for later stages; if "
    "profiles are missing, ratios and stages do not include them",
    kind=LimitationKind.STAGES_MAY_BE_MISSING,
)
_EARLIER_STAGES_UNKNOWN = Limitation(
    "stage numbers",
    "the first stage with a profile receives activations, so an unknown number of earlier stages "
    "have no profile. Stages are counted from the first stage with a profile",
    kind=LimitationKind.EARLIER_STAGES_UNKNOWN,
)


@dataclass(frozen=True)
class _Inputs:
    """The recordings, and information about their ranks that is known before stages are inferred.

    Attributes:
        recordings: The recordings, with arrival times of inputs. Times are on the clocks of the
            profiling sessions.
        machine: Machine index of each rank.
        numbers: Rank numbers, which follow the user's order of ranks if there is one.
        named_stages: Virtual stages from range names, or None if any forward or backward has no
            stage in its name.
        parallel: Parallel sizes of the run, or None if the user does not specify any.
    """

    recordings: JoinedRecordings
    machine: Ints
    numbers: pipelines.RankNumbers
    named_stages: VirtualStages | None
    parallel: pipelines.Parallel | None

    @property
    def infers_stages(self) -> bool:
        """Whether the stages must be inferred, because names, tables and file names lack them."""
        return (
            self.named_stages is None
            and virtual_stages.get_declared_stages(self.recordings) is None
        )

    @property
    def counts_chunks(self) -> bool:
        """Whether this is an inference run whose chunks are numbered only by their order."""
        operations = self.recordings.operations
        forward = run_kind(operations.phase) == INFERENCE
        return forward and self.recordings.inferred and is_counted_by_order(operations)

    @cached_property
    def orders(self) -> rank_orders.Orders:
        """The orders in which the ranks run their operations."""
        return rank_orders.find_orders(self.recordings.operations)

    @property
    def world_size(self) -> int:
        """Number of ranks in the run according to its profiles, or 0 if unknown."""
        return max((rank.local.world_size or 0 for rank in self.recordings.ranks), default=0)

    @property
    def world(self) -> int:
        """Number of ranks in the run, or a lower bound if the profiles do not state it.

        The result is the maximum of ``world_size``, the number of recorded ranks, and the largest
        rank number in names plus 1.
        """
        numbers = self.numbers
        max_named = int(numbers.number.max(initial=0)) + 1 if numbers.from_names else 0
        return max(self.world_size, max_named, len(numbers.number))

    @cached_property
    def comparable(self) -> Operations | None:
        """The operations, with iteration numbers that mean the same on all ranks, or None.

        If the name of every forward and backward contains an iteration number, those numbers are
        used. Otherwise, if all working ranks ran the same number of iterations, the per-rank
        numbers are used. In all other cases, the result is None.
        """
        operations, iteration_in_name = self.recordings.operations, self.recordings.named_iteration
        work = self.recordings.works
        if work.any() and not (work & (iteration_in_name < 0)).any():
            return operations.replace_columns(iteration=iteration_in_name)
        pairs = grouping.find_distinct_rows(operations.rank, operations.iteration, mask=work)
        counts = np.bincount(pairs[0], minlength=1)
        return operations if len(grouping.find_distinct(counts[counts > 0])) == 1 else None


def find_stages(
    recordings: JoinedRecordings,
    order: Sequence[int] = (),
    parallel: pipelines.Parallel | None = None,
) -> JoinedRecordings:
    """Find the stages and pipelines of all ranks, and pair iterations across ranks.

    Stages come from the first available source, as listed at the top of this module. If the user's
    stages differ from the stages inferred from waiting times, the user's stages are used and a
    limitation reports the contradiction.

    Args:
        recordings: The recordings, with times on the clocks of the profiling sessions.
        order: Indices of the ranks in pipeline order. Empty to infer the order.
        parallel: Parallel sizes of the run, or None to infer which ranks are replicas.

    Returns:
        The recordings, with all attributes set. Operations have virtual stages, and chunks are
        numbered in the model's order.

    Raises:
        MismatchError: The ranks, or the stages in a table, do not match the sizes ``parallel``.
    """
    recordings = replace(recordings, arrivals=find_arrivals(recordings.operations))
    numbers = pipelines.get_rank_numbers(recordings.ranks).reordered(order)
    if parallel is not None:
        pipelines.refuse_misfit(parallel, numbers)
        pipelines.refuse_other_stages(parallel, numbers, recordings)
    named_stages = virtual_stages.get_named_stages(recordings)
    inputs = _Inputs(recordings, recordings.machine_of_rank, numbers, named_stages, parallel)
    if order or (parallel is not None and named_stages is None):
        staged = _use_given_order(inputs)
        if _contradicts_waits(inputs, staged):
            return _add_limitations(inputs, staged, (_GIVEN_CONTRADICTED,))
    elif named_stages is not None:
        # Range names may number a chunk by its stage. Tables number the chunks of each rank.
        by_name = any(rank.local.declared is None for rank in recordings.ranks)
        staged = _apply_stages(inputs, named_stages, by_name=by_name)
    elif (declared := virtual_stages.get_declared_stages(recordings)) is not None:
        n_stages = int(declared.max(initial=0)) + 1
        staged = _apply_stages(
            inputs, virtual_stages.assign_in_order(recordings, declared, n_stages)
        )
    else:
        return _use_waits(inputs)
    unknown = _find_unknown_stages(inputs, staged)
    return _add_limitations(inputs, staged, unknown, stages_missing=_lacks_named_stage(inputs))


def _use_given_order(inputs: _Inputs) -> JoinedRecordings:
    """Set the stages using the user's parallel sizes, or else the user's order of ranks.

    If the user provides only an order, every rank is on a separate stage.
    """
    number = inputs.numbers.number
    stage_of_rank, n_stages = np.searchsorted(np.sort(number), number), len(number)
    if inputs.parallel is not None:
        stage_of_rank, n_stages = inputs.parallel.stage(number), inputs.parallel.pp
    return _apply_stages(
        inputs, virtual_stages.assign_in_order(inputs.recordings, stage_of_rank, n_stages)
    )


def _lacks_named_stage(inputs: _Inputs) -> bool:
    """Return whether a number is missing from the stage numbers in names, tables or file names.

    The result is False unless the stages come from names, tables or file names.
    """
    if inputs.named_stages is not None:
        return _has_gap(inputs.named_stages.virtual_stage)
    declared = virtual_stages.get_declared_stages(inputs.recordings)
    return declared is not None and _has_gap(declared[inputs.recordings.working])


def _has_gap(stage: Ints) -> bool:
    """Return whether any number from 0 to the largest stage number is missing."""
    return len(grouping.find_distinct(stage)) <= int(stage.max(initial=NONE))


def _use_waits(inputs: _Inputs) -> JoinedRecordings:
    """Infer the stages from waiting times, and set them along with the limitations that apply.

    All stages stay unknown in each of the following cases:

    - The range names of any recording do not show where iterations begin.
    - There is no evidence that the ranks are stages rather than replicas (:func:`_forms_pipeline`).
    """
    if inputs.recordings.unmarked:
        return _add_limitations(inputs, _apply_stages(inputs, VirtualStages.make_empty()), ())
    inferred, by_number = _infer_stages(inputs)
    staged = _apply_stages(inputs, inferred)
    notes = _find_unknown_stages(inputs, staged)
    is_known = not notes
    is_unproven = not _forms_pipeline(inputs, staged, is_known=is_known)
    if is_known and is_unproven:
        staged = _apply_stages(inputs, VirtualStages.make_empty())
        notes = (_UNPROVEN,)
    elif by_number:
        notes = (*notes, _BY_NUMBER)
    renumbered = _number_stages_as_job(inputs, inferred, staged)
    noted = _add_limitations(inputs, renumbered, notes, stages_missing=renumbered is not staged)
    return replace(noted, pipeline_unproven=is_unproven)


def _number_stages_as_job(
    inputs: _Inputs, stages: VirtualStages, staged: JoinedRecordings
) -> JoinedRecordings:
    """Renumber the stages as in the whole job if rank numbers reveal how many stages precede them.

    The profiles may contain only later stages of the job. Frameworks number ranks stage by stage,
    so with ``n`` ranks per stage, rank ``i`` is on stage ``i // n``. The stages are renumbered only
    if all of the following conditions hold:

    - The rank numbers come from names.
    - Every working rank has a single chunk.
    - All stages have the same number of ranks.
    - All ranks imply the same number of earlier stages, and this number is positive.
    - The first recorded stage receives activations.

    Otherwise, ``staged`` itself is returned.

    Args:
        inputs: The recordings and the properties of their ranks.
        stages: The inferred virtual stages.
        staged: The recordings with the inferred stages.
    """
    stage, numbers = staged.stage_of_rank, inputs.numbers
    working = np.flatnonzero(stage >= 0)
    sizes = np.bincount(stage[working])
    has_one_chunk = len(stages.rank) == len(working)
    if (
        not (numbers.from_names and has_one_chunk and len(working))
        or len(grouping.find_distinct(sizes)) > 1
    ):
        return staged
    n_earlier_stages = grouping.find_distinct(numbers.number[working] // sizes[0] - stage[working])
    if len(n_earlier_stages) > 1 or n_earlier_stages[0] <= 0:
        return staged
    if not receives_from_earlier_stage(staged, find_transfer_stages(staged)):
        return staged
    return _apply_stages(
        inputs, stages.replace_columns(virtual_stage=stages.virtual_stage + n_earlier_stages[0])
    )


def _forms_pipeline(inputs: _Inputs, staged: JoinedRecordings, *, is_known: bool) -> bool:
    """Return whether there is evidence that the ranks form a pipeline and are not just replicas.

    Each of the following is evidence:

    - Ranges name transfers.
    - Ranks run different orders of operations.
    - There are at least two microbatches, and their waits nest: each wait contains the wait on the
      next stage (:func:`can_nest`). Nesting is checked only if the stages are known and iteration
      numbers mean the same on all ranks.

    No evidence is needed, and the result is True, in each of the following cases:

    - Fewer than two ranks work.
    - All stages are known, and there is only one.
    - All stages are known, and the run is an inference run.

    Args:
        inputs: The recordings and the properties of their ranks.
        staged: The recordings, with the stages inferred from waiting times.
        is_known: Whether the stages of all working ranks are known.
    """
    operations, working = inputs.recordings.operations, inputs.recordings.working
    stages = grouping.find_distinct(staged.stage_of_rank[working])
    if len(working) < 2 or (is_known and len(stages) == 1):
        return True
    if is_known and run_kind(operations.phase) == INFERENCE:
        return True  # chunks follow each other through the stages
    if stage_order.transfers_or_orders_differ(operations, inputs.orders):
        return True
    comparable = inputs.comparable
    if not is_known or comparable is None:
        return False
    # With a single microbatch, nesting is weak evidence, because a late replica looks the same.
    work = inputs.recordings.works & (operations.microbatch >= 0)
    if len(grouping.find_distinct(operations.microbatch[work])) < 2:
        return False
    operations_by_iteration = staged.operations.replace_columns(iteration=comparable.iteration)
    return stage_order.can_nest(operations_by_iteration, inputs.recordings.arrivals)


def _add_limitations(
    inputs: _Inputs,
    staged: JoinedRecordings,
    notes: tuple[Limitation, ...],
    *,
    stages_missing: bool = False,
) -> JoinedRecordings:
    """Check whether stages or ranks are missing, and set the limitations of the stages.

    Two searches are made, but only in certain cases:

    - Stages before or between the recorded stages: if the stages do not come from names, tables or
      file names, and stages are not already known to be missing.
    - Stages at the end: if no stages or ranks are known to be missing.

    Both searches are skipped if the profiles contain all ranks, if the user provides parallel
    sizes, or if the user's order contradicts the data.

    Args:
        inputs: The recordings and the properties of their ranks.
        staged: The recordings with stages, pipelines and paired iterations.
        notes: Limitations that were found before.
        stages_missing: Whether stages are already known to be missing.
    """
    parallel = inputs.parallel
    is_contradicted = _GIVEN_CONTRADICTED in notes
    notes = (*notes, *staged.limitations)
    transfer_stage = find_transfer_stages(staged)
    if not is_contradicted and not stages_missing:
        stages_missing = transfers_with_missing_stages(staged, transfer_stage)
    has_column = virtual_stages.get_declared_stages(inputs.recordings) is not None
    # If files state the size of the run as well as stages, the missing ranks are listed below.
    if stages_missing and not (has_column and inputs.world_size):
        notes = (*notes, _STAGES_OF_TABLE_MISSING if has_column else _STAGES_MISSING)
    is_inferred = inputs.named_stages is None and not is_contradicted
    if is_inferred and receives_from_earlier_stage(staged, transfer_stage):
        notes = (*notes, _EARLIER_STAGES_UNKNOWN)
    absent = find_missing_ranks(inputs.numbers, parallel, inputs.world_size)
    absent = absent or find_incomplete_pipelines(staged.pipeline, staged.stage_of_rank)
    notes = (*notes, *absent)
    if (staged.pipeline[staged.stage_of_rank >= 0] < 0).any():
        notes = (*notes, _REPLICAS)
    is_complete = len(inputs.recordings.ranks) == inputs.world_size or parallel is not None
    is_refutable = True
    if inputs.infers_stages and not (stages_missing or is_contradicted or is_complete):
        gaps, stages_missing, is_refutable = _find_stage_gaps(inputs, staged)
        notes = (*notes, *gaps)
    ends_early = not (stages_missing or absent or is_contradicted or is_complete)
    ends_early = ends_early and stage_gaps.waits_like_earlier_stage(staged)
    if ends_early:
        notes = (*notes, _LATER_STAGES_MAY_BE_MISSING)
    return replace(
        staged,
        stages_missing=stages_missing or _has_fewer_stages(staged.stage_of_rank, parallel),
        ranks_missing=len(absent) > 0,
        ends_early=ends_early,
        order_refutes=is_refutable,
        limitations=notes,
    )


def _has_fewer_stages(stage_of_rank: Ints, parallel: pipelines.Parallel | None) -> bool:
    """Return whether the profiles have fewer stages than the user's pipeline size ``pp``.

    Args:
        stage_of_rank: Smallest virtual stage of each rank, or -1 if unknown.
        parallel: Parallel sizes of the run. If None, the result is False.
    """
    stages = grouping.find_distinct(stage_of_rank[stage_of_rank >= 0])
    return parallel is not None and len(stages) < parallel.pp


def _find_stage_gaps(
    inputs: _Inputs, staged: JoinedRecordings
) -> tuple[tuple[Limitation, ...], bool, bool]:
    """Find evidence that stages are missing before or between the stages in the profiles.

    The first kind of evidence found is returned:

    1. Times and rank numbers in names both show missing stages between ranks, and the order of
       operations does not contradict them. Stages are then certainly missing.
    2. Times show missing stages between ranks. If names number the ranks, rank numbers must also
       show them. Tables number ranks arbitrarily, so for tables it is enough that the order of
       operations does not contradict the times.
    3. Times show missing stages between two stages of the same rank, where the pipeline turns.
    4. The rank numbers in names leave room for stages before stage 0.

    Args:
        inputs: The recordings and the properties of their ranks.
        staged: The recordings with stages, pipelines and paired iterations.

    Returns:
        notes: The limitation that describes the evidence, or an empty tuple if there is none.
        is_certain: Whether stages are certainly missing.
        is_refutable: Whether the evidence is refuted if the order of operations exactly matches a
            known schedule. True if there is no evidence.
    """
    operations, numbers = staged.operations, inputs.numbers
    # Tables of operations number ranks arbitrarily.
    is_table = any(rank.local.declared is not None for rank in inputs.recordings.ranks)
    iteration = staged.common_iteration if staged.paired else None
    gaps = stage_gaps.find_stages_before_gaps(
        operations, inputs.recordings.arrivals, inputs.machine, staged.pipeline, iteration
    )
    turns = stage_gaps.find_turns(operations)
    gaps_between_ranks = tuple(stage for stage in gaps if stage not in turns)
    if gaps_between_ranks:
        are_adjacent = stage_gaps.are_adjacent_by_order(gaps_between_ranks, operations)
        numbered_gaps: tuple[tuple[int, int], ...] = ()
        if numbers.from_names:
            numbered_gaps = stage_gaps.find_numbered_gaps(
                gaps_between_ranks, operations, numbers.number
            )
        if numbered_gaps and not are_adjacent:
            return (stage_gaps.describe_numbered_gaps(numbered_gaps),), True, False
        if numbered_gaps or not numbers.from_names or (is_table and not are_adjacent):
            # Waits on ranks with several chunks may also be caused by late hosts.
            has_chunks = bool((operations.chunk > 0).any())
            return (
                (stage_gaps.describe_gaps(gaps_between_ranks),),
                False,
                are_adjacent or has_chunks,
            )
    if len(gaps_between_ranks) < len(gaps):
        return (_STAGES_AFTER_TURN_MAY_BE_MISSING,), False, True
    first = None
    if numbers.from_names:
        origin = 1 if is_table and numbers.number.min() == 1 else 0
        first = stage_gaps.describe_first_number(numbers.number - origin, staged.stage_of_rank)
    return ((first,), False, False) if first else ((), False, True)


def _apply_stages(
    inputs: _Inputs, stages: VirtualStages, *, by_name: bool = False
) -> JoinedRecordings:
    """Set the virtual stages, find the pipelines, and pair the iterations of the ranks.

    Each rank's pipeline comes from the first source that applies:

    1. The user's parallel sizes.
    2. Tables of operations and file names.
    3. Rank numbers.
    4. If rank numbers do not distinguish a stage's replicas: microbatch times
       (:func:`match_replicas`), provided that iteration numbers mean the same on all ranks.

    Args:
        inputs: The recordings and the properties of their ranks.
        stages: Virtual stage of each (rank, chunk), or -1 if unknown.
        by_name: Whether names number chunks by their stage (see :func:`set_stages`).

    Returns:
        The recordings with virtual stages, pipelines, groups that reduce gradients together, and
        paired iterations.
    """
    recordings = inputs.recordings
    operations = virtual_stages.set_stages(recordings.operations, stages, by_name=by_name)
    first = virtual_stages.find_first_stages(stages, len(recordings.ranks))
    if inputs.counts_chunks:
        operations, _ = align_chunk_numbers(operations, first, inputs.machine)
    number = inputs.numbers.number
    if inputs.parallel is not None:
        pipeline = inputs.parallel.pipeline(number)
        reducing_group = inputs.parallel.reducing(number)
    elif (declared := pipelines.get_declared_pipelines(recordings)) is not None:
        pipeline = declared
        reducing_group = pipelines.find_reducing_groups(first, inputs.machine, inputs.numbers)
    else:
        pipeline = pipelines.find_pipelines(first, inputs.numbers, inputs.world)
        unknown = (pipeline[first >= 0] < 0).any()
        if unknown and (comparable := inputs.comparable) is not None:
            common = operations.replace_columns(iteration=comparable.iteration)
            pipeline = match_replicas(
                common, inputs.recordings.arrivals, first, number, inputs.machine
            )
        reducing_group = pipelines.find_reducing_groups(first, inputs.machine, inputs.numbers)
    staged = replace(
        recordings,
        operations=operations,
        stage_of_rank=first,
        pipeline=pipeline,
        reducing=reducing_group,
    )
    return pair_iterations(staged)


def _infer_stages(inputs: _Inputs) -> tuple[VirtualStages, bool]:
    """Infer virtual stages from waiting times.

    The ranks of an inference run are ordered by :func:`order_forward_stages`. For other runs, the
    stages come from the first method that succeeds:

    1. :func:`order_virtual_stages` sorts every (rank, chunk) by its waits and groups similar waits
       into stages. This method fails if it leaves stages unknown, or if a check fails: ranks that
       share a stage must run equal orders of operations. If no stage is shared, each wait must
       contain the wait on the next stage (:func:`can_nest`). Waits are not checked if
       ``inputs.comparable`` is None.
    2. :func:`find_division` divides the ranks into stages and replicas. This method is skipped if
       ``inputs.comparable`` is None.
    3. :func:`_infer_stages_by_number` uses rank numbers. This method is skipped if the rank numbers
       do not come from names.

    Returns:
        stages: The virtual stages. If all three methods fail but the only failed check of method 1
            was nesting, the stages of method 1 are returned. If another check failed, all stages
            are -1.
        by_number: Whether the stages depend on rank numbers that do not come from names but from
            the order of hosts, devices and processes. Only possible with method 2.
    """
    operations = inputs.recordings.operations
    if run_kind(operations.phase) == INFERENCE:
        comparable = inputs.comparable
        # Tables of operations number ranks arbitrarily.
        is_declared = any(rank.local.declared is not None for rank in inputs.recordings.ranks)
        numbers = replace(inputs.numbers, from_names=inputs.numbers.from_names and not is_declared)
        if comparable is not None:
            operations = comparable
        is_counted = inputs.counts_chunks
        return order_forward_stages(
            operations, inputs.machine, numbers, is_counted=is_counted
        ), False
    stages = stage_order.order_virtual_stages(operations, inputs.recordings.arrivals)
    is_known = bool((stages.virtual_stage >= 0).all())
    is_one_rank_per_stage = len(grouping.find_distinct(stages.virtual_stage)) == len(
        stages.virtual_stage
    )
    if is_known and not is_one_rank_per_stage:
        is_known = stage_order.have_equal_orders(inputs.orders, stages.rank, stages.virtual_stage)
        stages = (
            stages if is_known else stages.replace_columns(virtual_stage=np.full(len(stages), NONE))
        )
    comparable = inputs.comparable
    if is_known and is_one_rank_per_stage and comparable is not None:
        staged = virtual_stages.set_stages(comparable, stages, by_name=False)
        is_known = stage_order.can_nest(staged, inputs.recordings.arrivals)
    if is_known:
        return stages, False
    number = inputs.numbers.number
    if comparable is not None:
        division = find_division(comparable, inputs.recordings.arrivals, number, inputs.machine)
        if division is not None:
            return division[0], division[1] and not inputs.numbers.from_names
    by_number = _infer_stages_by_number(inputs) if inputs.numbers.from_names else None
    return by_number or stages, False


def _infer_stages_by_number(inputs: _Inputs) -> VirtualStages | None:
    """Infer virtual stages from rank numbers, or return None if no pipeline size fits.

    The sizes from :func:`_list_possible_sizes` are tried in turn, and the first sizes that fit are
    used. Sizes fit if all ranks on a stage run their operations in the same order, and if each wait
    in a pipeline contains the wait on the next stage (:func:`can_nest`). This method is reliable
    even if replicas are not equally fast. The result is also None if the run has fewer than two
    microbatches.
    """
    operations = inputs.recordings.operations
    if len(grouping.find_distinct(operations.microbatch[inputs.recordings.works])) < 2:
        return None  # with one microbatch, all ranks run the same order
    for position, stage_count, replicas in _list_possible_sizes(inputs):
        stage_of_rank = position // replicas
        stages = virtual_stages.assign_in_order(inputs.recordings, stage_of_rank, stage_count)
        staged = virtual_stages.set_stages(operations, stages, by_name=False)
        # Every pipeline gets different iteration numbers so that pipelines are not compared.
        replica = position[staged.rank] % replicas
        staged = staged.replace_columns(iteration=staged.iteration * replicas + replica)
        run_alike = stage_order.have_equal_orders(
            inputs.orders, stages.rank, stage_of_rank[stages.rank]
        )
        if run_alike and stage_order.can_nest(staged, inputs.recordings.arrivals):
            return stages
    return None


def _list_possible_sizes(inputs: _Inputs) -> list[tuple[Ints, int, int]]:
    """Return the plausible run sizes as tuples (rank positions, stages, replicas per stage).

    There are at least two stages, each with the same number of replicas, which is at least two.
    Several numbers of ranks are tried, in ascending order:

    - If no rank is missing, the position of a rank is the index of its number in sorted order.
    - If ranks are missing, the position of a rank is its number. The number of ranks is then at
      least ``inputs.world``. Unless the profiles record the size of the run, it may be larger by up
      to ``_MAX_LAST_MISSING``, because rank numbers do not show missing ranks at the end.

    For each number of ranks, the possible numbers of replicas are listed in ascending order. Sizes
    for which at least one whole stage after the last rank would be missing are left out.
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
        # If a whole stage were missing, the number of stages would be ambiguous.
        if size % replicas == 0 and size - world < replicas
    ]


def _contradicts_waits(inputs: _Inputs, staged: JoinedRecordings) -> bool:
    """Return whether the stages inferred from waiting times differ from the user's stages.

    The result is False unless all stages can be inferred.

    Args:
        inputs: The recordings and the properties of their ranks.
        staged: The recordings, with the stages given by the user.
    """
    inferred, _ = _infer_stages(inputs)
    if (inferred.virtual_stage < 0).any() or not len(inferred.virtual_stage):
        return False
    return bool(
        (
            virtual_stages.find_first_stages(inferred, len(inputs.machine)) != staged.stage_of_rank
        ).any()
    )


def _find_unknown_stages(inputs: _Inputs, staged: JoinedRecordings) -> tuple[Limitation, ...]:
    """Return the limitation for working ranks with unknown stages, or () if there are none."""
    unknown = int((staged.stage_of_rank[inputs.recordings.working] < 0).sum())
    note = Limitation(
        "stages of ranks",
        "the times of microbatches do not show the order of stages. Set the order with --order, or "
        "if ranks are replicas of one stage, set the replicas with --parallel",
        unknown,
        LimitationKind.STAGES_UNKNOWN,
    )
    return (note,) if unknown else ()
