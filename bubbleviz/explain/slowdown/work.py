"""Work: what ranks did in iterations, independent of how it was recorded.

Each row is an operation of a rank, or the part of a rank in a communication. A *meeting* is the set
of rows of one communication: a send and its receive, or the members of a collective. Data moves
only after the last row of a meeting has started::

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

#: A send or receive that ended at least this many ns before its peer started had buffered the data.
#: Its transfer time is 0, as in ``get_transfer_time`` in the published ``analyzer/wia.py``. Clock
#: errors are smaller than this.
_BUFFERED_NS = 10_000_000


class Role(IntEnum):
    """The role of a kind of work in an iteration, which determines its dependencies.

    Roles from ``SEND_F`` on are communication. In an ideal iteration, communication takes the
    median transfer time of its kind, and all other work takes the mean duration of its kind.
    """

    FORWARD = 0
    BACKWARD = 1
    COMPUTE = 2
    OPTIMIZER = 3
    #: Time that a host takes to launch an operation; see :mod:`.launch_steps`.
    LAUNCH = 4
    SEND_F = 5
    RECV_F = 6
    SEND_B = 7
    RECV_B = 8
    COLLECTIVE = 9


#: Roles of compute work. A rank runs this work sequentially.
COMPUTING = (Role.FORWARD, Role.BACKWARD, Role.COMPUTE)
#: Roles of receives from another rank.
RECEIVES = (Role.RECV_F, Role.RECV_B)
#: Roles of sends to another rank.
SENDS = (Role.SEND_F, Role.SEND_B)
#: Roles of communication between two ranks.
POINT_TO_POINT = (Role.SEND_F, Role.RECV_F, Role.SEND_B, Role.RECV_B)


def has_role(role: Ints, roles: Sequence[Role]) -> Bools:
    """Return a mask of the rows whose role is one of ``roles``. False for the role -1 (unknown)."""
    return make_code_mask(len(Role), tuple(roles))[role]


@dataclass(frozen=True)
class Kind:
    """A kind of work; all rows of one kind take equally long in an ideal iteration.

    Attributes:
        name: Unique name of the kind, for example ``F``, ``SEND_F`` or ``AllReduce 2``.
        role: Role of the work in its iteration.
        phase: Name of the work in reports. Several kinds can share it, for example ``SEND_F`` and
            ``RECV_F`` share ``forward transfers``.
    """

    name: str
    role: Role
    phase: str


@dataclass(frozen=True, eq=False, repr=False)
class Work(Table):
    """Operations and communication of iterations. A value of -1 means unknown or none.

    Rows of the same rank and kind that start at the same time are in the order in which they ran.

    Attributes:
        rank: Index of the rank that did the work.
        stage: Stage of the rank.
        replica: Pipeline replica that the rank belongs to (its data-parallel rank).
        iteration: Index of the iteration.
        kind: Index of the kind in ``kinds``.
        microbatch: Number of the microbatch.
        chunk: Index of the model chunk on the rank.
        virtual_stage: Position of the chunk in the model.
        start_ns: Start of the work. Times of an iteration are on a clock that all ranks share.
        end_ns: End of the work.
        meeting: Number shared by the rows of one communication.
        kinds: All kinds of work; ``kind`` contains indices in this tuple.
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
        """Duration of each row in ns without waiting.

        For a row with a meeting, this is its transfer time: its end minus the latest start of any
        row of the meeting. This is ``get_transfer_time`` in the published ``analyzer/wia.py``. The
        transfer time can be negative. If the difference is -10 ms or less, the data was buffered
        and the transfer time is 0.
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
        """Zero-based number of each row's (iteration, rank) pair, with pairs in ascending order."""
        return group_rows(self.iteration, self.rank).of_row

    @cached_property
    def link(self) -> tuple[Ints, Ints]:
        """Source and destination stage of each send and receive.

        The stages are -1 for all other rows, and if the matching receive or send is missing.
        """
        paired = np.flatnonzero(has_role(self.role, POINT_TO_POINT) & (self.meeting != NONE))
        is_send = has_role(self.role[paired], (Role.SEND_F, Role.SEND_B))
        pairs = group_rows(self.meeting[paired])
        pair_stages = np.full((2, len(pairs)), NONE, np.int64)
        for end, is_end in enumerate((is_send, ~is_send)):
            pair_stages[end, pairs.of_row[is_end]] = self.stage[paired[is_end]]
        # A send or receive whose other end is missing is not a transfer between two stages.
        pair_stages[:, (pair_stages == NONE).any(axis=0)] = NONE
        stages = np.full((2, len(self)), NONE, np.int64)
        stages[:, paired] = pair_stages[:, pairs.of_row]
        return stages[0], stages[1]


def find_median_rows(group: Ints, n_groups: int, values: Ints | Floats) -> Ints:
    """For each group, return the row of its lower median, or -1 if it has no rows.

    Args:
        group: Group of each value, in ``[0, n_groups)``.
        n_groups: Number of groups.
        values: One value per row.
    """
    order = sort_rows(group, values)
    size = np.bincount(group, minlength=n_groups)
    first = np.cumsum(size) - size
    has_rows = size > 0
    rows = np.full(n_groups, NONE, np.int64)
    rows[has_rows] = order[(first + (size - 1) // 2)[has_rows]]
    return rows


def group_medians(group: Ints, n_groups: int, values: Floats) -> Floats:
    """Return the lower median of each group, or NaN for a group without values.

    Args:
        group: Zero-based group number of each value.
        n_groups: Number of groups.
        values: One value per row.
    """
    rows = find_median_rows(group, n_groups, values)
    return np.append(values, np.nan)[rows]
