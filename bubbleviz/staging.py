"""Staging: which virtual stage each (rank, chunk) holds, and which iterations are the same.

Both hang together: dependencies between stages tell which iterations pair, and paired iterations
tell whether an order of stages can be right. Names decide where they say it, then the user, then
the waiting times of each rank's own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.columns import NONE, Ints
from bubbleviz.grouping import distinct_rows
from bubbleviz.joining import Joined
from bubbleviz.model import Limitation, Operations
from bubbleviz.pairing import Pairing, pair_iterations
from bubbleviz.phases import COUNTED
from bubbleviz.stages import VirtualStages, contradicted, order_virtual_stages, waiting_times

_UNPAIRED = Limitation(
    "which iterations of the ranks belong together",
    "neither names nor counts and dependencies tell; ratios over ranks are left out",
)
_CONTRADICTED = Limitation(
    "stages of ranks",
    "the order that the waiting times give contradicts the data dependencies, as copies of one "
    "stage (data or tensor parallel) do; say the order with --order",
)
_ORDER_CONTRADICTED = Limitation(
    "stages of ranks",
    "the order given with --order contradicts the data dependencies: forwards run downstream "
    "before they end upstream",
)


@dataclass(frozen=True)
class Staging:
    """The outcome.

    Attributes:
        operations: with chunks counted in the model's order.
        virtual_stage: of each operation; -1 unknown.
        stage_of_rank: smallest virtual stage of each rank; -1 unknown.
        pairing: the iterations over all ranks.
        stages_missing: whether names tell of virtual stages that no profile holds.
        limitations: what could not be told.
    """

    operations: Operations
    virtual_stage: Ints
    stage_of_rank: Ints
    pairing: Pairing
    stages_missing: bool
    limitations: tuple[Limitation, ...]


def stage(joined: Joined, order: Sequence[int] = ()) -> Staging:
    """Return stages and paired iterations.

    Args:
        joined: the recordings.
        order: ranks in pipeline order by their numbers; empty to tell it from the data.
    """
    said = _said_stages(joined)
    if order:
        staging = _with(joined, _ordered_stages(joined, order))
        if _is_contradicted(joined, staging):
            return _noted(staging, (_ORDER_CONTRADICTED,))
    elif said is not None:
        staging = _with(joined, said, by_name=True)
    else:
        staging = _with(joined, order_virtual_stages(joined.operations))
        if _is_contradicted(joined, staging):
            none = np.empty(0, np.int64)
            unknown = _with(joined, VirtualStages(none, none, none))
            return _noted(unknown, (_CONTRADICTED,))
    gap = said is not None and len(np.unique(said.virtual_stage)) <= said.virtual_stage.max()
    return _noted(staging, _unknown_stages(joined, staging), stages_missing=bool(gap))


def _noted(
    staging: Staging, notes: tuple[Limitation, ...], *, stages_missing: bool = False
) -> Staging:
    if not staging.pairing.known:
        notes = (*notes, _UNPAIRED)
    if stages_missing:
        because = "range names tell of virtual stages that no profile holds; ratios are incomplete"
        notes = (*notes, Limitation("stages without a profile", because))
    return replace(staging, stages_missing=stages_missing, limitations=notes)


def _with(joined: Joined, stages: VirtualStages, *, by_name: bool = False) -> Staging:
    """Return what follows from these virtual stages."""
    operations, virtual_stage = _renamed_chunks(joined.operations, stages, by_name)
    first = _first_stages(stages, len(joined.ranks))
    known = np.where(first < 0, np.iinfo(np.int64).max, first)
    ranked = np.argsort(known, kind="stable")
    pairing = pair_iterations(operations, joined.said_iteration, virtual_stage, ranked)
    return Staging(operations, virtual_stage, first, pairing, stages_missing=False, limitations=())


def _unknown_stages(joined: Joined, staging: Staging) -> tuple[Limitation, ...]:
    working = np.unique(joined.operations.rank[np.isin(joined.operations.phase, COUNTED)])
    unknown = int((staging.stage_of_rank[working] < 0).sum())
    note = Limitation(
        "stages of ranks",
        "they ran no microbatch both forward and backward that the others ran too; "
        "say the order with --order",
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


def _ordered_stages(joined: Joined, order: Sequence[int]) -> VirtualStages:
    """Return the virtual stages of ranks in a given order.

    Further chunks run the same way or, in a V, back: there their waiting times shrink the other
    way than the order.
    """
    count = len(joined.ranks)
    place = np.empty(count, np.int64)
    place[np.array(order)] = np.arange(count)
    work = np.isin(joined.operations.phase, COUNTED)
    pairs = distinct_rows(joined.operations.rank[work], joined.operations.chunk[work])
    rank, chunk, _, waited = waiting_times(joined.operations)
    stages = np.empty(pairs.shape[1], np.int64)
    for index, name in enumerate(np.unique(pairs[1]).tolist()):
        rows = pairs[1] == name
        own = chunk == name
        at, wait = place[rank[own]], waited[own]
        rising = len(at) > 1 and float(((at - at.mean()) * (wait - wait.mean())).sum()) > 0
        back = index > 0 and rising
        along = place[pairs[0, rows]]
        stages[rows] = index * count + (count - 1 - along if back else along)
    return VirtualStages(pairs[0], pairs[1], stages)


def _first_stages(stages: VirtualStages, count: int) -> Ints:
    """Return the smallest virtual stage of each rank; -1 unknown."""
    big = np.iinfo(np.int64).max
    first = np.full(count, big)
    told = stages.virtual_stage >= 0
    np.minimum.at(first, stages.rank[told], stages.virtual_stage[told])
    return np.where(first == big, NONE, first)


def _renamed_chunks(
    operations: Operations, stages: VirtualStages, by_name: bool
) -> tuple[Operations, Ints]:
    """Return the operations with chunks counted in the model's order, and virtual stages.

    Where names give stages (``by_name``), the chunk columns may hold these.
    """
    virtual_stage = np.full(len(operations), NONE, np.int64)
    chunk, second_chunk = operations.chunk.copy(), operations.second_chunk.copy()
    for rank in np.unique(stages.rank).tolist():
        own = np.flatnonzero(stages.rank == rank)
        own = own[np.argsort(stages.virtual_stage[own], kind="stable")]
        own = own[stages.virtual_stage[own] >= 0]
        rows = operations.rank == rank
        # Names that count the chunks in the model's order are kept, gaps and all.
        in_order = not by_name and bool((np.diff(stages.chunk[own]) > 0).all())
        for index, at in enumerate(own.tolist()):
            same = rows & (operations.chunk == stages.chunk[at])
            virtual_stage[same] = stages.virtual_stage[at]
            renamed = stages.chunk[at] if in_order else index
            chunk[same] = renamed
            second_chunk[rows & (operations.second_chunk == stages.chunk[at])] = renamed
    return operations.changed(chunk=chunk, second_chunk=second_chunk), virtual_stage


def _is_contradicted(joined: Joined, staging: Staging) -> bool:
    numbers = {machine: i for i, machine in enumerate({r.machine: None for r in joined.ranks})}
    machine = np.array([numbers[rank.machine] for rank in joined.ranks], np.int64)
    found = contradicted(
        staging.operations, staging.virtual_stage, staging.pairing.iteration, machine
    )
    return found > 0
