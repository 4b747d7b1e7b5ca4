"""Ranks of a run: their places in the report, their names, and those that take no part in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.align.staging import Staging
from bubbleviz.interpret.recording import LocalRank
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct, places_in, without
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.natural_order import natural_key
from bubbleviz.model.operations import Rank
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.profile import pid_of
from bubbleviz.model.texts import some_of

#: Ranks that a limitation names; it counts all.
_NAMED = 32


def places_of(joined: JoinedRecordings, staging: Staging) -> Ints:
    """Return each rank's place: by pipeline, stage, host, rank number, process and device."""
    big = np.iinfo(np.int64).max
    keys = [
        (
            pipeline if first >= 0 else big,
            big if first < 0 else first,
            natural_key(rank.host),
            big if rank.local.global_rank is None else rank.local.global_rank,
            rank.local.device_id,
            pid_of(rank.local.process),
            number,
        )
        for number, (rank, first, pipeline) in enumerate(
            zip(
                joined.ranks,
                staging.stage_of_rank.tolist(),
                staging.pipeline.tolist(),
                strict=True,
            )
        )
    ]
    return places_in(np.array(sorted(range(len(keys)), key=lambda i: keys[i]), np.int64))


def ranks_of(joined: JoinedRecordings, place: Ints, staging: Staging) -> tuple[Rank, ...]:
    """Return the ranks in pipeline order."""
    labels = _labels([(rank.host, rank.local) for rank in joined.ranks])
    placed = []
    for number in np.argsort(place).tolist():
        rank, first = joined.ranks[number], int(staging.stage_of_rank[number])
        pipeline = int(staging.pipeline[number])
        placed.append(
            Rank(
                index=int(place[number]),
                label=labels[number],
                host=rank.host,
                profile=rank.profile,
                pid=pid_of(rank.local.process),
                device_id=rank.local.device_id,
                uuid=rank.local.device.uuid if rank.local.device else None,
                gpu=rank.local.device.name if rank.local.device else None,
                pci=rank.local.device.pci if rank.local.device else None,
                stage=first if first >= 0 else None,
                pipeline=pipeline if pipeline >= 0 else None,
                global_rank=rank.local.global_rank,
            )
        )
    return tuple(placed)


def _labels(ranks: Sequence[tuple[str, LocalRank]]) -> list[str]:
    """Return short unique names: host and GPU, with the pid where these are not enough."""
    short = [f"{host} {rank.place}" for host, rank in ranks]
    often = Counter(short)
    longer = [
        label if often[label] == 1 else f"{host} pid {pid_of(rank.process)} {rank.place}"
        for label, (host, rank) in zip(short, ranks, strict=True)
    ]
    often = Counter(longer)
    return [label if often[label] == 1 else f"{label} #{i}" for i, label in enumerate(longer)]


def idle_ranks(joined: JoinedRecordings) -> Iterator[Limitation]:
    """Yield limitations for ranks that ran kernels but no forward or backward.

    Those that computed as long as others are what names were not recorded of, or not known.
    """
    working = np.zeros(len(joined.ranks), bool)
    working[joined.operations.rank[among(joined.operations.phase, COUNTED)]] = True
    loose, active = joined.unattributed, joined.active
    loose_ns = group_sum(loose.rank, len(working), loose.end_ns - loose.start_ns)
    active_ns = group_sum(active.rank, len(working), active.active_ns)
    usual_ns = float(np.median(active_ns[working])) if working.any() else np.inf
    computing = ~working & (loose_ns >= max(usual_ns / 2, 1))
    for which, more, kind in (
        (~working & ~computing, "", LimitationKind.OTHER),
        (
            computing,
            "; they computed as long as others, so name their forwards and backwards in ranges, or "
            "with --convention",
            LimitationKind.RANKS_WITHOUT_OPERATIONS,
        ),
    ):
        if which.any():
            labels = _labels([(rank.host, rank.local) for rank in joined.ranks])
            found = [labels[rank] for rank in np.flatnonzero(which).tolist()]
            reason = f"they take no part in any ratio: {some_of(found, _NAMED)}{more}"
            yield Limitation("ranks without forward or backward", reason, len(found), kind)


def unspanned_ranks(joined: JoinedRecordings) -> tuple[Limitation, ...]:
    """Return a limitation for ranks none of whose forwards and backwards has any GPU work."""
    operations = joined.operations
    counted = among(operations.phase, COUNTED)
    measured = distinct(operations.rank[counted & (operations.has_span == 1)])
    lost = set(without(distinct(operations.rank[counted]), measured).tolist())
    if not lost or len(measured) == 0:
        return ()
    labels = _labels([(rank.host, rank.local) for rank in joined.ranks])
    reason = (
        "no kernel belongs to any of their forwards and backwards, so they take no part in any "
        "ratio: "
        + some_of([label for number, label in enumerate(labels) if number in lost], _NAMED)
        + "; record the calls that launch kernels, and the kernels, from the first iteration on"
    )
    kind = LimitationKind.STAGES_WITHOUT_GPU_WORK
    return (Limitation("stages without GPU work", reason, len(lost), kind),)
