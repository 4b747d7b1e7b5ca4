"""Work: what ranks did in iterations, independent of how it was recorded.

Each row is an operation or a communication. Rows of one *meeting* are one communication: a send and
its receive, or the members of a collective. No member moves data before the last one has started::

    rank 0   ├▒▒▒▒ waits ▒▒▒▒│▓ transfer ▓┤
    rank 1           ├▒ waits │▓ transfer ▓┤
    rank 2                   ├▓ transfer ▓┤        latest start
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table
from bubbleviz.model.grouping import group_rows, sort_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.phase_masks import make_code_mask

#: A member that ended this long before another one started had buffered the data, so its transfer
#: is 0 (``get_transfer_time`` of the published ``analyzer/wia.py``). Clock errors are smaller.
_BUFFERED_NS = 10_000_000


class Role(IntEnum):
    """The role of a kind of work in an iteration, which determines its dependencies.

    Roles from ``SEND_F`` on are communication: in an ideal iteration they take the median transfer
    time of their kind. The other roles take the mean duration.
    """

    FORWARD = 0
    BACKWARD = 1
    COMPUTE = 2
    OPTIMIZER = 3
    SEND_F = 4
    RECV_F = 5
    SEND_B = 6
    RECV_B = 7
    COLLECTIVE = 8


#: Work that a rank computes one after the other.
COMPUTING = (Role.FORWARD, Role.BACKWARD, Role.COMPUTE)
#: Receives from another rank.
RECEIVES = (Role.RECV_F, Role.RECV_B)
#: Sends to another rank.
SENDS = (Role.SEND_F, Role.SEND_B)
#: Communication between two ranks.
POINT_TO_POINT = (Role.SEND_F, Role.RECV_F, Role.SEND_B, Role.RECV_B)


def has_role(role: Ints, roles: Sequence[Role]) -> Bools:
    """Return a mask of the rows that have one of ``roles``; false for role -1 (unknown)."""
    return make_code_mask(len(Role), tuple(roles))[role]


@dataclass(frozen=True)
class Kind:
    """A kind of work; all rows of one kind take equally long in an ideal iteration.

    Attributes:
        name: Name of the kind, for example ``F``, ``SEND_F``, or a collective and its number.
        role: Role in the iteration.
        phase: Name in reports, which several kinds can share.
    """

    name: str
    role: Role
    phase: str


@dataclass(frozen=True, eq=False, repr=False)
class Work(Table):
    """Operations and communication of iterations. A value of -1 means unknown or none.

    Rows of the same rank and kind that start at the same time are in the order in which they ran.

    Attributes:
        rank: Rank that did the work.
        stage: Stage of the rank.
        replica: Replica of the pipeline (data-parallel rank).
        iteration: Index of the iteration.
        kind: Index in ``kinds``.
        microbatch: Number of the microbatch.
        chunk: Index of the model chunk on the rank.
        virtual_stage: Position of the chunk in the model.
        start_ns: Start of the work; within an iteration, all ranks share a clock.
        end_ns: End of the work.
        meeting: Number shared by the rows of one communication.
        kinds: Kinds of work.
    """

    rank: Ints
    stage: Ints
    replica: Ints
    iteration: Ints
    kind: Ints
    microbatch: Ints
    chunk: Ints
    virtual_stage: Ints
    start_ns: Ints
    end_ns: Ints
    meeting: Ints
    kinds: tuple[Kind, ...] = field(metadata={"shared": True})

    @cached_property
    def role(self) -> Ints:
        """The role of each row."""
        return np.array([NONE, *(kind.role for kind in self.kinds)], np.int64)[self.kind + 1]

    @property
    def communicates(self) -> Bools:
        """Mask of the rows that are communication."""
        return np.asarray(self.role >= Role.SEND_F, bool)

    @property
    def own_ns(self) -> Ints:
        """Duration of each row without waiting; for communication, its transfer time.

        The transfer time is the end minus the latest start of the members of the meeting, as in
        ``get_transfer_time`` of the published ``analyzer/wia.py``. It is 0 for a member that had
        buffered the data, because it ended at least 10 ms before another one started.
        """
        met = np.flatnonzero(self.meeting != NONE)
        meetings = group_rows(self.meeting[met])
        start_ns = self.start_ns[met]
        latest_ns = group_extents(meetings.of_row, len(meetings), start_ns, start_ns)[1]
        own_ns = self.end_ns - self.start_ns
        transfer_ns = self.end_ns[met] - latest_ns[meetings.of_row]
        own_ns[met] = np.where(transfer_ns <= -_BUFFERED_NS, 0, transfer_ns)
        return own_ns

    @cached_property
    def rank_iteration(self) -> Ints:
        """Number of the (rank, iteration) pair of each row."""
        return group_rows(self.iteration, self.rank).of_row

    @cached_property
    def link(self) -> tuple[Ints, Ints]:
        """Source and destination stage of each row.

        Both are -1 if the row is not a transfer, or if its send or receive is missing.
        """
        paired = np.flatnonzero(has_role(self.role, POINT_TO_POINT) & (self.meeting != NONE))
        is_send = has_role(self.role[paired], (Role.SEND_F, Role.SEND_B))
        pairs = group_rows(self.meeting[paired])
        pair_stages = np.full((2, len(pairs)), NONE, np.int64)
        for end, is_end in enumerate((is_send, ~is_send)):
            pair_stages[end, pairs.of_row[is_end]] = self.stage[paired[is_end]]
        # A send or receive whose other end is missing is no transfer between two stages.
        pair_stages[:, (pair_stages == NONE).any(axis=0)] = NONE
        stages = np.full((2, len(self)), NONE, np.int64)
        stages[:, paired] = pair_stages[:, pairs.of_row]
        return stages[0], stages[1]


def find_median_rows(group: Ints, n_groups: int, values: Ints | Floats) -> Ints:
    """Return the row of the lower median of each group, or -1 if a group has no rows.

    Args:
        group: Group of each value, from 0 to below ``n_groups``.
        n_groups: Number of groups.
        values: Values whose medians are located.
    """
    order = sort_rows(group, values)
    size = np.bincount(group, minlength=n_groups)
    first = np.cumsum(size) - size
    has_rows = size > 0
    rows = np.full(n_groups, NONE, np.int64)
    rows[has_rows] = order[(first + (size - 1) // 2)[has_rows]]
    return rows
