"""Staging: which virtual stage each (rank, chunk) holds, and which iterations are the same.

Both hang together: dependencies between stages tell which iterations pair, and paired iterations
tell whether an order of stages can be right. The user decides where he says it, then names, then
the waiting times of each rank's own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.iteration_pairs import Pairing, Places, pair_iterations
from bubbleviz.align.merge import Joined
from bubbleviz.align.pipelines import (
    Parallel,
    RankNumbers,
    rank_numbers,
    reducing,
    refuse_misfit,
    told_apart,
)
from bubbleviz.align.replicas import matched, nests
from bubbleviz.align.stage_order import (
    VirtualStages,
    contradicted,
    order_by_number,
    order_virtual_stages,
    slacks,
    usual_waits,
)
from bubbleviz.interpret.iterations import occurrences
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct_rows, looked_up
from bubbleviz.model.operations import Limitation, RankOperations
from bubbleviz.model.phases import COUNTED, Phase

#: What a limitation is about that a schedule which is known to be whole contradicts.
MAYBE_MISSING = "stages that may be missing"
#: Ranks that a limitation lists.
_LISTED = 8
_UNPAIRED = Limitation(
    "which iterations of the ranks belong together",
    "neither names nor counts and dependencies tell; ratios over ranks are left out, and nothing "
    "bounds the clocks of several hosts; ranges that name iterations, or captures that begin with "
    "the same one, would tell",
)
_BY_COUNT = Limitation(
    "which iterations of the hosts belong together",
    "they are shorter than clocks may be off (0.1 s), and paired in order because all ranks hold "
    "as many; ranges that name iterations would tell",
)
_CONTRADICTED = Limitation(
    "stages of ranks",
    "the order that the waiting times give contradicts the data dependencies, as copies of one "
    "stage (data or tensor parallel) do; say the order with --order, or the copies with "
    "--parallel",
)
_GIVEN_CONTRADICTED = Limitation(
    "stages of ranks",
    "the order given with --order or --parallel contradicts the data dependencies, or how long "
    "microbatches are away from the ranks; --parallel counts ranks as names do, else by host, "
    "device and process",
)
_COPIES = Limitation(
    "pipelines",
    "copies of each stage run the same microbatches, and neither names nor times tell which ranks "
    "form one pipeline, so clocks are bounded less; say it with --parallel tp=,pp=,dp=",
)


@dataclass(frozen=True)
class Staging:
    """The outcome.

    Attributes:
        operations: with chunks counted in the model's order.
        virtual_stage: of each operation; -1 unknown.
        stage_of_rank: smallest virtual stage of each rank; -1 unknown.
        pipeline: of each rank; -1 where copies of a stage cannot be told apart.
        reducing: a number for the ranks that reduce gradients together; -1 none.
        pairing: the iterations over all ranks.
        stages_missing: whether ranks or virtual stages are known to be missing.
        limitations: what could not be told.
    """

    operations: RankOperations
    virtual_stage: Ints
    stage_of_rank: Ints
    pipeline: Ints
    reducing: Ints
    pairing: Pairing
    stages_missing: bool
    limitations: tuple[Limitation, ...]


@dataclass(frozen=True)
class _Given:
    """What staging works on: the recordings, and what is known of their ranks beforehand."""

    joined: Joined
    machine: Ints
    numbers: RankNumbers
    said: VirtualStages | None
    parallel: Parallel | None


def stage(joined: Joined, order: Sequence[int] = (), parallel: Parallel | None = None) -> Staging:
    """Return stages, pipelines and paired iterations.

    Args:
        joined: the recordings.
        order: ranks in pipeline order by their numbers; empty to tell it from the data.
        parallel: the sizes of the run; None to tell copies of stages from the data.

    Raises:
        MismatchError: the ranks cannot be those of a run of these sizes.
    """
    said = _said_stages(joined)
    numbers = rank_numbers(joined.ranks)
    given = _Given(joined, joined.machine_of_rank, numbers.reordered(order), said, parallel)
    if parallel is not None:
        refuse_misfit(parallel, given.numbers)
    if order or (parallel is not None and said is None):
        staging = _with(given, _virtual(joined, *_places_in_pipeline(given)))
        if _is_contradicted(given, staging) or _is_other(given, staging):
            return _noted(given, staging, (_GIVEN_CONTRADICTED,))
    elif said is not None:
        staging = _with(given, said, by_name=True)
    else:
        staging = _with(given, _told_stages(given))
        if _is_contradicted(given, staging):
            none = np.empty(0, np.int64)
            unknown = _with(given, VirtualStages(none, none, none))
            return _noted(given, unknown, (_CONTRADICTED,))
    gap = said is not None and len(np.unique(said.virtual_stage)) <= said.virtual_stage.max()
    return _noted(given, staging, _unknown_stages(joined, staging), stages_missing=bool(gap))


def _noted(
    given: _Given, staging: Staging, notes: tuple[Limitation, ...], *, stages_missing: bool = False
) -> Staging:
    if not staging.pairing.known:
        notes = (*notes, _UNPAIRED)
    doubtful = _GIVEN_CONTRADICTED in notes
    if staging.pairing.by_count:
        notes = (*notes, _BY_COUNT)
    stages_missing = stages_missing or (_reaches_beyond(staging) and not doubtful)
    if stages_missing:
        reason = (
            "range names tell of virtual stages that no profile holds, or of receives from them; "
            "ratios are incomplete"
        )
        notes = (*notes, Limitation("stages without a profile", reason))
    absent = _absent_ranks(given)
    if len(absent):
        listed = ", ".join(map(str, absent[:_LISTED].tolist()))
        listed += ", …" if len(absent) > _LISTED else ""
        reason = f"no profile holds ranks {listed}; ratios are incomplete"
        notes = (*notes, Limitation("ranks without a profile", reason, len(absent)))
    if (staging.pipeline[staging.stage_of_rank >= 0] < 0).any():
        notes = (*notes, _COPIES)
    numbered = given.said is not None or given.numbers.named or given.parallel is not None
    if not stages_missing and not numbered and not doubtful:
        notes = (*notes, *_far_apart(staging))
    missing = stages_missing or len(absent) > 0
    return replace(staging, stages_missing=missing, limitations=notes)


def _reaches_beyond(staging: Staging) -> bool:
    """Tell whether the first virtual stage receives activations, or the last one gradients."""
    operations, stage = staging.operations, staging.virtual_stage
    first = (operations.phase == Phase.RECV_F) & (stage == 0)
    last = (operations.phase == Phase.RECV_B) & (stage == stage.max(initial=NONE))
    ran = (operations.has_span == 1) & (operations.microbatch >= 0) & (stage >= 0)
    return bool((ran & (first | last)).any())


def _far_apart(staging: Staging) -> tuple[Limitation, ...]:
    """Return where every microbatch is away for so long that a stage seems to lie between."""
    far = [
        f"{upper} and {upper + 1}"
        for upper, slack_ns, worked_ns in slacks(staging.operations, staging.virtual_stage)
        if slack_ns > worked_ns
    ]
    reason = (
        f"between virtual stages {', '.join(far)} every microbatch is away for longer than an F "
        "and a B take; if a server has no profile here, ratios and stages leave it out"
    )
    return (Limitation(MAYBE_MISSING, reason, len(far)),) if far else ()


def _absent_ranks(given: _Given) -> Ints:
    """Return the ranks of the run that are known to be in no profile.

    Without the sizes of the run these are gaps in the ranks that names give. Ranks that follow in
    equal steps are taken for one of several pipelines.
    """
    number = np.sort(given.numbers.number)
    if given.parallel is not None:
        return np.setdiff1d(np.arange(given.parallel.ranks), number)
    if not given.numbers.named or len(np.unique(np.diff(number))) <= 1:
        return np.empty(0, np.int64)
    step = np.diff(number).min()
    return np.setdiff1d(np.arange(number[0], number[-1], step), number)


def _with(given: _Given, stages: VirtualStages, *, by_name: bool = False) -> Staging:
    """Return what follows from these virtual stages."""
    joined = given.joined
    operations, virtual_stage = _renamed_chunks(joined.operations, stages, by_name)
    first = _first_stages(stages, len(joined.ranks))
    number = given.numbers.number
    if given.parallel is not None:
        pipeline = given.parallel.pipeline(number)
        together = given.parallel.reducing(number)
    else:
        pipeline = told_apart(first, given.numbers)
        unknown = (pipeline[first >= 0] < 0).any()
        if unknown and (comparable := _comparable(given)) is not None:
            same = operations.changed(iteration=comparable.iteration)
            pipeline = matched(same, virtual_stage, first, number)
        together = reducing(first, given.machine, given.numbers)
    known = np.where(first < 0, np.iinfo(np.int64).max, first)
    order = np.lexsort((known, pipeline))
    pairing = pair_iterations(
        operations,
        joined.said_iteration,
        virtual_stage,
        Places(order, pipeline, first, given.machine, joined.timed),
    )
    return Staging(
        operations,
        virtual_stage,
        first,
        pipeline,
        together,
        pairing,
        stages_missing=False,
        limitations=(),
    )


def _unknown_stages(joined: Joined, staging: Staging) -> tuple[Limitation, ...]:
    working = np.unique(joined.operations.rank[np.isin(joined.operations.phase, COUNTED)])
    unknown = int((staging.stage_of_rank[working] < 0).sum())
    note = Limitation(
        "stages of ranks",
        "how long microbatches are away from them tells no order; say the order with --order, or "
        "copies of a stage with --parallel",
        unknown,
    )
    return (note,) if unknown else ()


def _said_stages(joined: Joined) -> VirtualStages | None:
    """Return the virtual stages that names give, if they give them for all work."""
    operations, said = joined.operations, joined.said_stage
    work = np.isin(operations.phase, COUNTED)
    if not work.any() or (said[work] < 0).any():
        return None
    rows = distinct_rows(operations.rank[work], operations.chunk[work], said[work])
    return VirtualStages(rows[0], rows[1], rows[2])


def _places_in_pipeline(given: _Given) -> tuple[Ints, int]:
    """Return each rank's place in its pipeline, as the user gives it, and how many places."""
    number = given.numbers.number
    if given.parallel is not None:
        return given.parallel.stage(number), given.parallel.pp
    return np.searchsorted(np.sort(number), number), len(number)


def _told_stages(given: _Given) -> VirtualStages:
    """Return the virtual stages that waiting times tell, with the ranks' numbers where need be."""
    operations = given.joined.operations
    stages = order_virtual_stages(operations)
    known = bool((stages.virtual_stage >= 0).all())
    single = len(np.unique(stages.virtual_stage)) == len(stages.virtual_stage)
    if known and not (single and _does_not_nest(given, stages)):
        return stages
    if given.numbers.named:
        by_number = order_by_number(operations, given.numbers.number)
        if by_number is not None:
            return by_number
    return stages


def _does_not_nest(given: _Given, stages: VirtualStages) -> bool:
    """Tell whether an order of stages is none, as far as iterations can be compared."""
    numbered = _comparable(given)
    if numbered is None:
        return False
    operations, virtual_stage = _renamed_chunks(numbered, stages, by_name=False)
    return not nests(operations, virtual_stage)


def _comparable(given: _Given) -> RankOperations | None:
    """Return the operations with iterations that are the same on all ranks; None unknown.

    They are if they are named, or if all ranks ran as many.
    """
    operations, said = given.joined.operations, given.joined.said_iteration
    work = np.isin(operations.phase, COUNTED)
    if work.any() and (said[work] >= 0).all():
        return operations.changed(iteration=said)
    pairs = distinct_rows(operations.rank[work], operations.iteration[work])
    counts = np.bincount(pairs[0], minlength=1)
    return operations if len(np.unique(counts[counts > 0])) == 1 else None


def _virtual(joined: Joined, place: Ints, devices: int) -> VirtualStages:
    """Return the virtual stages of ranks whose places in the pipeline are given.

    Further chunks run the same way or, in a V, back: there their waiting times shrink the other
    way than the order.
    """
    work = np.isin(joined.operations.phase, COUNTED)
    pairs = distinct_rows(joined.operations.rank[work], joined.operations.chunk[work])
    waits = usual_waits(joined.operations)
    stages = np.empty(pairs.shape[1], np.int64)
    for index, name in enumerate(np.unique(pairs[1]).tolist()):
        rows = pairs[1] == name
        own = waits.chunk == name
        at, wait = place[waits.rank[own]], waits.waited_ns[own]
        rising = len(at) > 1 and float(((at - at.mean()) * (wait - wait.mean())).sum()) > 0
        back = index > 0 and rising
        along = place[pairs[0, rows]]
        stages[rows] = index * devices + (devices - 1 - along if back else along)
    return VirtualStages(pairs[0], pairs[1], stages)


def _first_stages(stages: VirtualStages, count: int) -> Ints:
    """Return the smallest virtual stage of each rank; -1 unknown."""
    big = np.iinfo(np.int64).max
    first = np.full(count, big)
    told = stages.virtual_stage >= 0
    np.minimum.at(first, stages.rank[told], stages.virtual_stage[told])
    return np.where(first == big, NONE, first)


def _renamed_chunks(
    operations: RankOperations, stages: VirtualStages, by_name: bool
) -> tuple[RankOperations, Ints]:
    """Return the operations with chunks counted in the model's order, and virtual stages.

    Where names give stages (``by_name``), the chunk columns may hold these.
    """
    known = np.flatnonzero(stages.virtual_stage >= 0)
    known = known[np.lexsort((stages.virtual_stage[known], stages.rank[known]))]
    rank, name = stages.rank[known], stages.chunk[known]
    index = occurrences((rank,))
    # Names that count a rank's chunks in the model's order are kept, gaps and all.
    falling = (rank[1:] == rank[:-1]) & (name[1:] <= name[:-1])
    counted = np.isin(rank, rank[1:][falling]) | by_name
    renamed = np.where(counted, index, name)
    pairs = rank, name
    chunk = looked_up(pairs, renamed, (operations.rank, operations.chunk))
    second_chunk = looked_up(pairs, renamed, (operations.rank, operations.second_chunk))
    return (
        operations.changed(
            chunk=np.where(chunk >= 0, chunk, operations.chunk),
            second_chunk=np.where(second_chunk >= 0, second_chunk, operations.second_chunk),
        ),
        looked_up(pairs, stages.virtual_stage[known], (operations.rank, operations.chunk)),
    )


def _is_other(given: _Given, staging: Staging) -> bool:
    """Tell whether the waiting times give an order, and another one than the user."""
    told = _told_stages(given)
    if (told.virtual_stage < 0).any() or not len(told.virtual_stage):
        return False
    return bool((_first_stages(told, len(given.machine)) != staging.stage_of_rank).any())


def _is_contradicted(given: _Given, staging: Staging) -> bool:
    found = contradicted(
        staging.operations,
        staging.virtual_stage,
        staging.pairing.iteration,
        given.machine,
        staging.pipeline,
    )
    return found > 0
