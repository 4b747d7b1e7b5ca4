"""Places iterations one after another if their clock restarts at the beginning of each iteration.

A file whose times are relative to the beginning of an iteration does not show when the iteration
began. Its reader therefore assigns a time slot of fixed length to each iteration. The slots are the
same for all ranks, but much longer than the iterations. Once all ranks are known, the unused time
at the end of each slot is removed::

    slots    ├ 1 ██████          ├ 2 ████████        ├
    becomes  ├ 1 ██████├ 2 ████████├
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.join import JoinedRecordings, TimeCorrection
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.intervals import group_latest


def close_slots(recordings: JoinedRecordings) -> JoinedRecordings:
    """Remove the unused time at the end of each iteration's time slot.

    An iteration then begins when the last rank has ended the previous iteration. The recordings are
    returned unchanged if no profile declares a clock with time slots.
    """
    slots_ns = [0 if clock is None else clock.slot_ns for clock in recordings.declared_clocks]
    slot_ns = max(slots_ns, default=0)
    operations = recordings.operations
    has_slots = np.array(slots_ns)[[rank.profile for rank in recordings.ranks]] > 0
    is_placed = has_slots[operations.rank] & (operations.has_span == 1)
    if not is_placed.any():
        return recordings
    end_ns = operations.end_ns[is_placed]
    iterations = group_rows(end_ns // slot_ns)
    iteration = (end_ns // slot_ns)[iterations.first]
    length_ns = group_latest(iterations.of_row, len(iterations), end_ns % slot_ns, 0)
    begin_ns = np.cumsum(length_ns) - length_ns
    return _ClosedSlots(slot_ns, has_slots, iteration, begin_ns).apply(recordings)


@dataclass(frozen=True, eq=False, repr=False)
class _ClosedSlots(TimeCorrection):
    """Moves each iteration from its time slot to the end of the previous iteration.

    Attributes:
        slot_ns: Length of each time slot.
        has_slots: Mask of the ranks whose clock has time slots.
        iteration: Numbers of the time slots that contain operations, in ascending order.
        begin_ns: New beginning of each of these time slots.
    """

    slot_ns: int
    has_slots: Bools
    iteration: Ints
    begin_ns: Ints

    def correct(self, rank: Ints, times_ns: Ints) -> Ints:
        """Return moved times. Times of ranks without time slots are unchanged."""
        number, offset_ns = np.divmod(times_ns, self.slot_ns)
        index = np.searchsorted(self.iteration, number).clip(max=len(self.iteration) - 1)
        return np.where(self.has_slots[rank], self.begin_ns[index] + offset_ns, times_ns)
