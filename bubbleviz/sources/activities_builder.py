"""Activities builder: work of devices, merged from blocks of columns in few bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Codes, Ints, widened
from bubbleviz.model.grouping import BlockNumbering, groups_of, places_in
from bubbleviz.model.profile import KERNELS, Activities, correlations, possible, process_of

#: A process (40 bits) and a device make one integer.
_DEVICE_BITS = 22


class ActivitiesBuilder:
    """Merges blocks of kernels, then of copies, in as few bytes as they need.

    Args:
        room: how many there are at most; memory is used by those that come.
    """

    def __init__(self, room: int) -> None:
        self._start_ns, self._end_ns = np.empty(room, np.int64), np.empty(room, np.int64)
        self._rank: Codes = np.empty(room, np.int16)
        self._name_id: Codes = np.empty(room, np.int16)
        self._correlation_id = np.empty(room, np.uint32)
        self._places, self._names = BlockNumbering(), BlockNumbering()
        self._count = self._kernels = 0
        self.impossible = {KERNELS: 0, "copies": 0}
        self.untimed = {KERNELS: 0, "copies": 0}

    def add_kernels(self, block: Ints) -> None:
        """Add kernels: start_ns, end_ns, device, globalPid, correlation id, number of the name.

        Raises:
            ValueError: a device has a number that none can have.
        """
        self._add(block, "kernels")
        self._kernels = self._count

    def add_copies(self, block: Ints) -> None:
        """Add copies or memsets, after all kernels: columns as of these, few with a name."""
        self._add(block, "copies")

    def _add(self, block: Ints, what: str) -> None:
        block = self._with_times(block, what)
        start_ns, end_ns, device_id, global_id, correlation_id, *name = block
        process = process_of(global_id)
        if len(device_id) and not 0 <= device_id.min() <= device_id.max() < 1 << _DEVICE_BITS:
            raise ValueError("a number of a device is below 0 or above 4,194,303")
        at, self._count = self._count, self._count + len(start_ns)
        if self._count > len(self._start_ns):
            raise ValueError("a table has more rows than numbers of rows")
        rows = slice(at, self._count)
        self._start_ns[rows], self._end_ns[rows] = start_ns, end_ns
        place = self._places.numbers(process << _DEVICE_BITS | device_id)
        name_id = self._numbers_of_names(name[0], what) if name else np.full(len(place), NONE)
        self._rank, self._name_id = widened(self._rank, place), widened(self._name_id, name_id)
        self._rank[rows], self._name_id[rows] = place, name_id
        self._correlation_id[rows] = correlations(correlation_id)

    def _numbers_of_names(self, name: Ints, what: str) -> Ints:
        """Return the number of each name; -1 for copies without one."""
        numbers = np.full(len(name), NONE, np.int64)
        named = np.flatnonzero((name != NONE) | (what == KERNELS))
        numbers[named] = self._names.numbers(name[named])
        return numbers

    def _with_times(self, block: Ints, what: str) -> Ints:
        """Return the columns of a block whose times can be."""
        if not block[1].all():
            timed = (block[0] != 0) | (block[1] != 0)
            self.untimed[what] += int((~timed).sum())
            block = block[:, timed]
        keep = possible(block[0], block[1])
        if keep is not None:
            self.impossible[what] += int((~keep).sum())
            block = block[:, keep]
        return block

    def activities(
        self, names: Callable[[Ints], tuple[str, ...]], processes: Sequence[int] = ()
    ) -> Activities:
        """Return the activities.

        Args:
            names: texts of the numbers of names.
            processes: if there is just one, it is that of kernels without one.
        """
        process = self._places.values >> _DEVICE_BITS
        if len(processes) == 1:
            process = np.where(process == NONE, processes[0], process)
        device_id = self._places.values & ((1 << _DEVICE_BITS) - 1)
        groups = groups_of(process, device_id)
        rows = slice(0, self._count)
        rank, name_id = self._rank[rows], self._name_id[rows]
        _translate(rank, groups.of_row)
        order = np.argsort(self._names.values)
        # The last place is that of no name (-1).
        _translate(name_id, np.append(places_in(order), NONE))
        return Activities(
            self._start_ns[rows],
            self._end_ns[rows],
            rank,
            self._correlation_id[rows],
            name_id,
            self._kernels,
            names(self._names.values[order]),
            np.stack((process, device_id), axis=1)[groups.first],
        )

    def without_process(self) -> int:
        """Return the number of activities without a process."""
        lacking = np.flatnonzero(self._places.values >> _DEVICE_BITS == NONE)
        return int(np.isin(self._rank[: self._count], lacking).sum()) if len(lacking) else 0


def _translate(codes: Codes, to: Ints) -> None:
    """Replace codes in place; piece by piece, as memory is short."""
    for at in range(0, len(codes), 1 << 16):
        piece = slice(at, at + (1 << 16))
        codes[piece] = to[codes[piece]]
