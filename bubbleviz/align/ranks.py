"""The order and labels of ranks in the report, and the ranks that are excluded from all ratios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bubbleviz.align.join import JoinedRecordings
from bubbleviz.model import operations as tables
from bubbleviz.model.columns import Bools, Ints, make_mask
from bubbleviz.model.grouping import invert_permutation
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import get_pid
from bubbleviz.model.texts import list_and_count, make_natural_key

#: Maximum number of ranks that a limitation lists.
_MAX_NAMES = 32


class _Exclusion(NamedTuple):
    """Why ranks are excluded from all ratios.

    Attributes:
        title: Title of the limitation.
        explanation: Text before the list of the ranks.
        remedy: Text after the list of the ranks, or "" if there is no remedy.
        kind: Kind of the limitation.
    """

    title: str
    explanation: str
    remedy: str
    kind: LimitationKind


_IDLE_RANKS = _Exclusion(
    "ranks without forward or backward",
    "excluded from every ratio: ",
    "",
    LimitationKind.OTHER,
)
_COMPUTING_RANKS = _IDLE_RANKS._replace(
    remedy=". They computed about as long as other ranks, so mark their forwards and backwards "
    "with ranges, or specify how their ranges are named with --convention",
    kind=LimitationKind.RANKS_WITHOUT_OPERATIONS,
)
_STAGES_WITHOUT_WORK = _Exclusion(
    "stages without GPU work",
    "no kernel belongs to any of their forwards and backwards, so they are excluded from every "
    "ratio: ",
    ". Record kernels and the calls that launch them, starting before the first iteration",
    LimitationKind.STAGES_WITHOUT_GPU_WORK,
)


def order_ranks(recordings: JoinedRecordings) -> Ints:
    """Return the index of each rank in the report.

    Ranks are sorted by pipeline, stage, host, global rank, device and process id, in that order.
    Ranks whose pipeline is unknown come first, and ranks whose stage is unknown come last. Ranks
    without a global rank come after all other ranks with the same pipeline, stage and host. Hosts
    are sorted in natural order (:func:`make_natural_key`).
    """
    big = np.iinfo(np.int64).max
    stages = zip(recordings.stage_of_rank.tolist(), recordings.pipeline.tolist(), strict=True)
    key_of = {host: make_natural_key(host) for host in {rank.host for rank in recordings.ranks}}
    keys = [
        (
            big if first < 0 else pipeline,
            big if first < 0 else first,
            key_of[rank.host],
            big if rank.local.global_rank is None else rank.local.global_rank,
            rank.local.device_id,
            get_pid(rank.local.process),
        )
        for rank, (first, pipeline) in zip(recordings.ranks, stages, strict=True)
    ]
    return invert_permutation(np.array(sorted(range(len(keys)), key=lambda i: keys[i]), np.int64))


def build_ranks(recordings: JoinedRecordings, rank_index: Ints) -> tuple[tables.Rank, ...]:
    """Build the ranks of the report, sorted by their index.

    Unknown stages and pipelines (-1) become None. Bubble ratios are not set here.

    Args:
        recordings: The recordings with their stages.
        rank_index: Index of each rank in the report.
    """
    labels = _make_labels(recordings)
    stages, pipelines = recordings.stage_of_rank.tolist(), recordings.pipeline.tolist()
    ranks = []
    for index, number in enumerate(np.argsort(rank_index).tolist()):
        rank, first, pipeline = recordings.ranks[number], stages[number], pipelines[number]
        device = rank.local.device
        ranks.append(
            tables.Rank(
                index=index,
                label=labels[number],
                host=rank.host,
                profile=rank.profile,
                pid=get_pid(rank.local.process),
                device_id=rank.local.device_id,
                uuid=device.uuid if device else None,
                gpu=device.name if device else None,
                pci=device.pci if device else None,
                stage=first if first >= 0 else None,
                pipeline=pipeline if pipeline >= 0 else None,
                global_rank=rank.local.global_rank,
                bubble_ratio=None,
            )
        )
    return tuple(ranks)


def _make_labels(recordings: JoinedRecordings) -> list[str]:
    """Return a unique label for each rank, usually its host and GPU.

    If several ranks have the same label, the process id is inserted between host and GPU. If there
    are still duplicates, the rank's index is appended.
    """
    labels = [f"{rank.host} {rank.local.device_label}" for rank in recordings.ranks]
    n_uses = Counter(labels)
    for index, rank in enumerate(recordings.ranks):
        if n_uses[labels[index]] > 1:
            pid = get_pid(rank.local.process)
            labels[index] = f"{rank.host} pid {pid} {rank.local.device_label}"
    n_uses = Counter(labels)
    return [label if n_uses[label] == 1 else f"{label} #{i}" for i, label in enumerate(labels)]


def find_excluded_ranks(recordings: JoinedRecordings) -> Iterator[Limitation]:
    """Yield limitations for ranks that are excluded from all ratios.

    At most one limitation is yielded for each of the following cases, in this order:

    - Ranks without forwards and backwards that computed little.
    - Ranks without forwards and backwards that computed at least half as long as the median working
      rank (:func:`_mask_computing`). The names of their operations were probably not recorded or
      not recognized.
    - Ranks whose forwards and backwards have no GPU work, unless this applies to all ranks.
    """
    operations, count = recordings.operations, len(recordings.ranks)
    working = make_mask(count, recordings.working)
    has_gpu_work = recordings.works & (operations.has_span == 1)
    measured = make_mask(count, operations.rank[has_gpu_work])
    computing = ~working & _mask_computing(recordings, working)
    for is_excluded, exclusion in (
        (~working & ~computing, _IDLE_RANKS),
        (computing, _COMPUTING_RANKS),
        (working & ~measured & measured.any(), _STAGES_WITHOUT_WORK),
    ):
        if is_excluded.any():
            labels = _make_labels(recordings)
            excluded_labels = [labels[rank] for rank in np.flatnonzero(is_excluded).tolist()]
            yield Limitation(
                exclusion.title,
                f"{exclusion.explanation}{list_and_count(excluded_labels, _MAX_NAMES)}"
                f"{exclusion.remedy}",
                len(excluded_labels),
                exclusion.kind,
            )


def _mask_computing(recordings: JoinedRecordings, working: Bools) -> Bools:
    """Return a mask of the ranks that compute about as long as others, but outside operations.

    A rank is in the mask if its compute time outside operations is at least 1 ns and at least half
    the median active time of the working ranks. If there are no working ranks, the mask is False
    everywhere.

    Args:
        recordings: The recordings of all ranks.
        working: Mask of the ranks that run a forward or a backward.
    """
    n_ranks = len(recordings.ranks)
    loose, active = recordings.unattributed, recordings.active
    loose_ns = group_sum(loose.rank, n_ranks, loose.end_ns - loose.start_ns)
    active_ns = group_sum(active.rank, n_ranks, active.active_ns)
    usual_ns = float(np.median(active_ns[working])) if working.any() else np.inf
    return np.asarray(loose_ns >= max(usual_ns / 2, 1), bool)
