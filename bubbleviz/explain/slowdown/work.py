"""Work: what ranks did in iterations, independent of how it was recorded.

One row an operation or a communication. Rows of one *meeting* are one communication: a send and
its receive, or the members of a collective. None of them moves data before the last has come::

    rank 0   ├▒▒▒▒ waits ▒▒▒▒│▓ transfer ▓┤
    rank 1           ├▒ waits │▓ transfer ▓┤
    rank 2                   ├▓ transfer ▓┤        latest start
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

#: A member that ended this long before another began had the data buffered: its transfer is 0.
#: (``get_transfer_time`` of the published ``analyzer/wia.py``; clocks are not off by more.)
_BUFFERED_NS = 10_000_000


class Role(IntEnum):
    """What a kind of work is in an iteration; all that its dependencies rest on.

    From ``SEND_F`` on these are communication, of which an ideal iteration takes the median
    transfer; of the others it takes the mean duration.
    """

    FORWARD = 0
    BACKWARD = 1
    COMPUTE = 2
    AFTER_COMPUTE = 3
    OPTIMIZER = 4
    SEND_F = 5
    RECV_F = 6
    SEND_B = 7
    RECV_B = 8
    PARAMETERS = 9
    GRADIENTS = 10
    LAYER_NORM = 11
    EMBEDDING = 12
    SEPARATE_GRADIENTS = 13
    GRADIENT_NORM = 14
    COLLECTIVE = 15


#: What ranks compute one after the other.
COMPUTING = (Role.FORWARD, Role.BACKWARD, Role.COMPUTE)
#: Communication between two ranks.
POINT_TO_POINT = (Role.SEND_F, Role.RECV_F, Role.SEND_B, Role.RECV_B)


@frozen
class Kind:
    """A kind of work: of one kind all takes equally long in an ideal iteration.

    Attributes:
        name: as it was recorded.
        role: what it is.
        phase: the name that it is reported under, with other kinds or alone.
    """

    name: str
    role: Role
    phase: str


@frozen(shown=False)
class Work(Table):
    """Operations and communication of iterations; ``-1`` is "none".

    Rows of a rank and kind that start at once stand in their order.

    Attributes:
        rank: that did it.
        stage: of the rank.
        replica: of the pipeline (data-parallel rank).
        iteration: index of the iteration.
        kind: row of ``kinds``.
        microbatch: number of the microbatch.
        chunk: model chunk of the rank.
        virtual_stage: place of the chunk in the model's order.
        start_ns: start; within an iteration all ranks share a clock.
        end_ns: end.
        meeting: number that the rows of one communication share.
        kinds: of work.
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

    @property
    def role(self) -> Ints:
        """The role of each row."""
        return np.array([NONE, *(kind.role for kind in self.kinds)], np.int64)[self.kind + 1]

    @property
    def communicates(self) -> Bools:
        """Which rows are communication."""
        return np.asarray(self.role >= Role.SEND_F, bool)

    @property
    def own_ns(self) -> Ints:
        """How long each took itself: its duration, of communication its transfer, without waiting.

        A transfer is the end less the latest start among the members of its meeting, as in
        ``get_transfer_time`` of the published ``analyzer/wia.py``.
        """
        met = np.flatnonzero(self.meeting != NONE)
        meetings = groups_of(self.meeting[met])
        start_ns = self.start_ns[met]
        latest_ns = group_extents(meetings.of_row, len(meetings), start_ns, start_ns)[1]
        own_ns = self.end_ns - self.start_ns
        transfer_ns = self.end_ns[met] - latest_ns[meetings.of_row]
        own_ns[met] = np.where(transfer_ns <= -_BUFFERED_NS, 0, transfer_ns)
        return own_ns

    @property
    def rank_iteration(self) -> Ints:
        """A number for each rank and iteration that has rows."""
        return groups_of(self.iteration, self.rank).of_row


def numbered(group: Ints, *by: Ints) -> Ints:
    """Return the place of each row in its group, from 0: by some columns, then as they stand.

    Args:
        group: of each row.
        by: columns to order by, the first counting most.
    """
    order = sorted_rows(group, *by)
    ordered = group[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    count = np.diff(np.append(first, len(ordered)))
    number = np.empty(len(group), np.int64)
    number[order] = np.arange(len(ordered)) - np.repeat(first, count)
    return number
