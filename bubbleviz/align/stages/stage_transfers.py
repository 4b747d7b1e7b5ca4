"""Stage transfers: transfers that show that some stages have no profile."""

from __future__ import annotations

import numpy as np

from bubbleviz.align.join import JoinedRecordings
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Ints, scatter
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import TRANSFERS, Phase


def find_transfer_stages(recordings: JoinedRecordings) -> Ints:
    """Return the virtual stage of each operation, including transfers whose names contain no stage.

    Known stages are kept. A transfer with a device span whose microbatch or stage is unknown gets
    the stage of its rank if both of the following conditions are met, and -1 otherwise:

    - The rank has only one stage.
    - The rank has at least as many transfers of this phase, such as RECV_F, as it has forwards (for
      activations) or backwards (for gradients). If there are fewer, the rank may have several
      stages that are hidden because names contain no chunks. For example, some forwards on the
      first rank then receive from the last rank, and others do not.

    Args:
        recordings: The recordings, with virtual stages.
    """
    operations = recordings.operations
    virtual_stage = operations.virtual_stage
    if not mask_phases(operations.phase, TRANSFERS).any():
        return virtual_stage
    n_ranks = len(recordings.ranks)
    only_stage = _find_only_stages(operations, n_ranks)
    stage_of_transfer = virtual_stage.copy()
    # Megatron-Core recordings contain transfers without a span at both ends of the pipeline.
    is_open = (operations.has_span == 1) & ((operations.microbatch < 0) | (virtual_stage < 0))
    for transfers, work in (
        ((Phase.RECV_F, Phase.SEND_F), (Phase.F,)),
        ((Phase.RECV_B, Phase.SEND_B), (Phase.B, Phase.BW)),
    ):
        n_works = np.bincount(
            operations.rank[mask_phases(operations.phase, work)], minlength=n_ranks
        )
        for phase in transfers:
            rows = np.flatnonzero(is_open & (operations.phase == phase))
            owner = operations.rank[rows]
            has_all = np.bincount(owner, minlength=n_ranks) >= n_works
            stage_of_transfer[rows] = np.where(has_all, only_stage, NONE)[owner]
    return stage_of_transfer


def _find_only_stages(operations: Operations, n_ranks: int) -> Ints:
    """Return the virtual stage of each rank, or -1 if the rank has several stages or none.

    Args:
        operations: Operations of all ranks, with their virtual stages.
        n_ranks: Number of ranks.
    """
    is_known = operations.virtual_stage >= 0
    rank, stage = grouping.find_distinct_rows(
        operations.rank, operations.virtual_stage, mask=is_known
    )
    is_only_stage = np.bincount(rank, minlength=1)[rank] == 1
    return scatter(n_ranks, rank[is_only_stage], stage[is_only_stage])


def receives_from_earlier_stage(recordings: JoinedRecordings, virtual_stage: Ints) -> bool:
    """Return whether any rank receives activations on stage 0, so an earlier stage is missing.

    Args:
        recordings: The recordings.
        virtual_stage: Virtual stage of each operation, as returned by
            :func:`find_transfer_stages`.
    """
    operations = recordings.operations
    is_of_first = (operations.has_span == 1) & (virtual_stage == 0)
    return bool((is_of_first & (operations.phase == Phase.RECV_F)).any())


def transfers_with_missing_stages(recordings: JoinedRecordings, virtual_stage: Ints) -> bool:
    """Return whether ranks transfer data to or from stages that no profile contains.

    The result is True in each of the following cases:

    - There is a transfer although only one rank works, or all working ranks are on one stage.
    - The first stage receives activations, or the last stage receives gradients.
    - No stages are known, and all ranks receive activations, or all ranks receive gradients
      (:func:`_do_all_ranks_receive`).
    - A rank transfers data to or from a stage that only this rank runs. No rank needs transfers to
      itself, so there must be missing stages in between.

    Args:
        recordings: The recordings, with the stages of their ranks.
        virtual_stage: Virtual stage of each operation, as returned by :func:`find_transfer_stages`.
    """
    operations, working = recordings.operations, recordings.working
    stages = grouping.find_distinct(recordings.stage_of_rank[working])
    if len(working) == 1 or (len(stages) == 1 and stages[0] >= 0):
        is_transfer = mask_phases(operations.phase, TRANSFERS) & (operations.has_span == 1)
        if (is_transfer & np.isin(operations.rank, working)).any():
            return True
    is_countable = len(working) and not recordings.unmarked
    if is_countable and (stages < 0).all() and _do_all_ranks_receive(operations, working):
        return True
    return _transfers_beyond_ends(recordings, virtual_stage)


def _transfers_beyond_ends(recordings: JoinedRecordings, virtual_stage: Ints) -> bool:
    """Return whether transfers show a stage that no profile contains.

    The result is True if a rank receives from before the first stage or from after the last stage,
    or transfers data to or from a stage that only it runs.

    Args:
        recordings: The recordings, with the stages of their ranks.
        virtual_stage: Virtual stage of each operation, or -1 if unknown.
    """
    operations = recordings.operations
    phases = (Phase.RECV_F, Phase.SEND_B, Phase.RECV_B, Phase.SEND_F)
    is_staged = (operations.has_span == 1) & (virtual_stage >= 0)
    rows = np.flatnonzero(is_staged & mask_phases(operations.phase, phases))
    if len(rows) == 0:
        return False
    phase = operations.phase[rows]
    is_with_next = mask_phases(phase, (Phase.RECV_B, Phase.SEND_F))
    peer = virtual_stage[rows] + np.where(is_with_next, 1, -1)
    last = int(virtual_stage.max())
    is_beyond = (peer < 0) | (peer > last)
    if (is_beyond & mask_phases(phase, (Phase.RECV_F, Phase.RECV_B))).any():
        return True
    only_rank = _find_only_ranks(recordings, virtual_stage, last + 1)
    # The entries before the first stage and after the last one are -1.
    only_rank = np.pad(only_rank, 1, constant_values=NONE)
    return bool((only_rank[peer + 1] == operations.rank[rows]).any())


def _find_only_ranks(recordings: JoinedRecordings, virtual_stage: Ints, n_stages: int) -> Ints:
    """Return, for each stage, the only rank that runs the stage's forwards or backwards.

    The result is -1 for a stage that several ranks run, and for a stage that no rank runs.

    Args:
        recordings: The recordings of all ranks.
        virtual_stage: Virtual stage of each operation, or -1 if unknown.
        n_stages: Number of virtual stages.
    """
    is_staged = recordings.works & (virtual_stage >= 0)
    rank, stage = grouping.find_distinct_rows(
        recordings.operations.rank, virtual_stage, mask=is_staged
    )
    is_only_rank = np.bincount(stage, minlength=1)[stage] == 1
    return scatter(n_stages, stage[is_only_rank], rank[is_only_rank])


def _do_all_ranks_receive(operations: Operations, working: Ints) -> bool:
    """Return whether all ranks receive activations, or all receive gradients.

    In a complete pipeline, the first stage receives no activations, and the last stage receives no
    gradients. A rank receives activations if it has forwards and at least as many RECV_F
    operations. It receives gradients if it has backwards and at least as many RECV_B operations.
    The result is False if the operations have more than one chunk number.

    Args:
        operations: Operations of all ranks.
        working: Ranks that run a forward or a backward, in ascending order. Must not be empty.
    """
    has_run = (operations.has_span == 1) & np.isin(operations.rank, working)
    if len(grouping.find_distinct(operations.chunk[has_run & (operations.chunk >= 0)])) > 1:
        return False

    def count_by_rank(phases: tuple[Phase, ...]) -> Ints:
        ranks = operations.rank[has_run & mask_phases(operations.phase, phases)]
        return np.bincount(ranks, minlength=working[-1] + 1)

    for receive, work in ((Phase.RECV_F, (Phase.F,)), (Phase.RECV_B, (Phase.B, Phase.BW))):
        n_received, n_worked = count_by_rank((receive,)), count_by_rank(work)
        if ((n_received >= n_worked) & (n_worked > 0))[working].all():
            return True
    return False
