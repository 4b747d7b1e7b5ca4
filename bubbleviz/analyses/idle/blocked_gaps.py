"""Blocked gaps: how long the stream of the work after each gap waited for an event."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from bubbleviz.analyses.idle.gaps import Gaps
from bubbleviz.analyses.idle.held_work import HeldWork
from bubbleviz.conventions.host_activities import (
    BLOCKED_BY_COMMUNICATION,
    BLOCKED_BY_COMPUTE,
    BLOCKED_BY_COPIES,
)
from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import found_in
from bubbleviz.model.profile import Activities
from bubbleviz.model.values import frozen


class Kind(IntEnum):
    """What work is that others wait for."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


#: The activity that idle time is attributed to, by what it waited for.
BLOCKED = {
    Kind.COMPUTE: BLOCKED_BY_COMPUTE,
    Kind.COMMUNICATION: BLOCKED_BY_COMMUNICATION,
    Kind.COPY: BLOCKED_BY_COPIES,
}
#: What tables call it.
KIND_NAMES = {Kind.COMPUTE: "compute", Kind.COMMUNICATION: "communication", Kind.COPY: "copy"}


@frozen
class BlockedGaps:
    """How long the stream of the work after each gap waited; shape (gaps,).

    Attributes:
        held: row of the held work: that work; -1 where none is proved to have waited.
        until_ns: until when; before everything where none.
        kind: code of :class:`Kind`: what it waited for; means nothing where none.
    """

    held: Ints
    until_ns: Ints
    kind: Ints


def blocked_gaps_of(gaps: Gaps, held: HeldWork, kind: Ints) -> BlockedGaps:
    """Return how long the stream of the work after each gap waited.

    Args:
        gaps: of a device.
        held: work that waited for an event.
        kind: code of :class:`Kind` of what each of these waited for.
    """
    at = found_in(held.work, gaps.after)
    until_ns = np.append(held.end_ns, np.iinfo(np.int64).min)[at]
    return BlockedGaps(at, until_ns, np.append(kind, Kind.COMPUTE)[at])


def kinds_of(activities: Activities, rows: Ints, kinds: Kinds) -> Ints:
    """Return the code of :class:`Kind` of some activities; ``kinds`` names communication."""
    communication = np.append(matching(activities.names, kinds.communication), False)
    communicates = communication[activities.name_id[rows]]
    copies = rows >= activities.kernels
    return np.select((copies, communicates), (Kind.COPY, Kind.COMMUNICATION), Kind.COMPUTE).astype(
        np.int64
    )
