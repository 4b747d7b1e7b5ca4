"""Memory copies in a profile: their sizes, directions and memory kinds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints, Table, make_constant


class Direction(IntEnum):
    """Direction of a copy, such as from host to device."""

    UNKNOWN = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    PEER_TO_PEER = 4
    HOST_TO_HOST = 5

    @property
    def label(self) -> str:
        """The direction in words."""
        return self.name.lower().replace("_", " ")


class Memory(IntEnum):
    """Memory kind that a copy reads or writes."""

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2
    DEVICE = 3
    ARRAY = 4
    MANAGED = 5

    @property
    def label(self) -> str:
        """The memory kind in words."""
        return self.name.lower()


@dataclass(frozen=True, eq=False, repr=False)
class Copies(Table):
    """Memory copies in a profile, sorted by their row in the activity table.

    Attributes:
        activity: Row of the copy in the activity table.
        size: Number of copied bytes, or -1 if unknown.
        direction: Direction of the copy, as a value of :class:`Direction`.
        source: Kind of memory that is read, as a value of :class:`Memory`.
        target: Kind of memory that is written, as a value of :class:`Memory`.
    """

    activity: Ints
    size: Ints
    direction: Ints
    source: Ints
    target: Ints

    @staticmethod
    def unknown(activity: Ints) -> Copies:
        """Return copies whose sizes, directions and memory kinds are unknown.

        Args:
            activity: Rows of the copies in the activity table, ascending.
        """
        unknown = np.zeros(len(activity), np.int64)
        return Copies(activity, make_constant(NONE, len(activity)), unknown, unknown, unknown)

    def restrict_to(self, is_kept: Bools) -> Copies:
        """Return the copies that are kept activities, with ``activity`` renumbered.

        Args:
            is_kept: Mask of the activities that stay in the activity table.
        """
        rows = np.cumsum(is_kept) - 1
        copies = self.take(is_kept[self.activity])
        return copies.replace_columns(activity=rows[copies.activity])

    def reorder(self, rows: Ints) -> Copies:
        """Return the copies after the activity table was reordered, sorted by ``activity``.

        Args:
            rows: New row of each activity, or -1 if the activity was removed.
        """
        activity = rows[self.activity]
        renumbered = self.replace_columns(activity=activity)
        order = np.argsort(activity, kind="stable")
        return renumbered.take(order[activity[order] != NONE])
