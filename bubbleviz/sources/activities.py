"""Collect kernels and copies from blocks of columns into one table that is sorted by rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, make_constant, widen
from bubbleviz.model.grouping import group_rows, invert_permutation, sort_columns_by_group
from bubbleviz.model.numbering import BlockNumbering


def has_times(start_ns: Ints, end_ns: Ints) -> Bools:
    """Return a mask of the rows whose times were recorded and are plausible.

    If start and end are both 0, the times were not recorded. The function
    :func:`~bubbleviz.model.profile.mask_possible` decides which times are plausible.
    """
    timed: Bools = (start_ns != 0) | (end_ns != 0)
    is_possible = model.mask_possible(start_ns[timed], end_ns[timed])
    if is_possible is not None:
        timed[timed] = is_possible
    return timed


#: Number of bits in a device number. A 64-bit integer contains the device number and a 40-bit
#: process number.
_DEVICE_BITS = 22


class ActivitiesBuilder:
    """Collects blocks of kernels, then blocks of copies, and builds the table of activities.

    The columns have the smallest integer types that can represent their values.

    Args:
        room: Maximum number of activities. Memory is used only for rows that are actually added.

    Attributes:
        group: Sort key that :meth:`build` used for each row, in the order in which the rows were
            added. The value is None until :meth:`build` is called, and if there is at most one
            rank.
        streams: Stream of each activity in the table, or -1 if unknown. Empty until :meth:`build`
            is called.
        impossible: Number of rows left out because of invalid times, keyed by "kernels" or
            "copies".
        untimed: Number of rows left out because they have no times, keyed by "kernels" or "copies".
    """

    def __init__(self, room: int) -> None:
        self._start_ns, self._end_ns = np.empty(room, np.int64), np.empty(room, np.int64)
        self._rank: Codes = np.empty(room, np.int16)
        self._name_id: Codes = np.empty(room, np.int16)
        self._correlation_id = np.empty(room, np.uint32)
        # The compiled function that sorts by group does not support columns of single bytes.
        self._stream: Codes = np.empty(room, np.int16)
        self._places, self._names = BlockNumbering(), BlockNumbering()
        self._count = self._kernels = 0
        self.group: Codes | None = None
        self.streams: Codes = self._stream[:0]
        self.impossible = {model.KERNELS: 0, "copies": 0}
        self.untimed = {model.KERNELS: 0, "copies": 0}

    def add_kernels(self, block: Ints) -> None:
        """Add a block of kernels.

        Args:
            block: The columns start_ns, end_ns, device number, globalPid, correlation id and name
                id, then the stream if streams are recorded, shape (columns, kernels).

        Raises:
            ValueError: A device number is out of range, or there would be more than ``room`` rows.
        """
        self._add(block, "kernels")
        self._kernels = self._count

    def add_copies(self, block: Ints) -> None:
        """Add a block of copies or memsets. All kernels must have been added before.

        Args:
            block: The same columns as for kernels, shape (columns, copies). The name id is -1 for a
                copy without a name. The last two columns may be missing.

        Raises:
            ValueError: A device number is out of range, or there would be more than ``room`` rows.
        """
        self._add(block, "copies")

    def _add(self, block: Ints, kind: str) -> None:
        """Append the rows in a block that have valid times.

        Devices and name ids are replaced with consecutive numbers, in order of first occurrence.

        Args:
            block: Columns of kernels or copies, as for :meth:`add_kernels`. The last two columns
                may be missing.
            kind: "kernels" or "copies".

        Raises:
            ValueError: A device number is out of range, or there would be more than ``room`` rows.
        """
        block = self._drop_invalid_times(block, kind)
        _, _, device_id, global_id, correlation_id, *optional = block
        unknown = make_constant(NONE, block.shape[1])
        name, stream, *_ = (*optional, unknown, unknown)
        device_code = self._number_devices(global_id, device_id)
        rows = self._reserve_rows(block.shape[1])
        self._start_ns[rows], self._end_ns[rows] = block[:2]
        name_id = self._number_names(name, kind)
        self._rank = widen(self._rank, len(self._places) - 1)
        self._name_id = widen(self._name_id, len(self._names) - 1)
        self._stream = widen(self._stream, int(stream.max(initial=NONE)))
        self._rank[rows], self._name_id[rows], self._stream[rows] = device_code, name_id, stream
        self._correlation_id[rows] = model.to_correlation_ids(correlation_id)

    def _number_devices(self, global_id: Ints, device_id: Ints) -> Ints:
        """Replace each row's device with a number that is unique across all processes.

        Two rows are on the same device if they have the same process and the same device number.
        Devices are numbered from 0, in the order of the blocks in which they first occur.

        Args:
            global_id: The globalPid of each row, which identifies its process.
            device_id: Device number of each row within its process.

        Raises:
            ValueError: A device number is out of range.
        """
        if len(device_id) and not 0 <= device_id.min() <= device_id.max() < 1 << _DEVICE_BITS:
            raise ValueError("a device number is not between 0 and 4,194,303")
        return self._places.numbers(model.process_of(global_id) << _DEVICE_BITS | device_id)

    def _reserve_rows(self, count: int) -> slice:
        """Reserve the next ``count`` free rows, and return them as a slice.

        Raises:
            ValueError: There would be more rows than ``room``.
        """
        start, self._count = self._count, self._count + count
        if self._count > len(self._start_ns):
            raise ValueError("a table contains more rows than its row numbers allow")
        return slice(start, self._count)

    def _number_names(self, name: Ints, kind: str) -> Ints:
        """Replace each name id with a consecutive number, or with -1 for copies without a name.

        Names are numbered from 0, in the order of the blocks in which they first occur.

        Args:
            name: Name id of each row. For copies, -1 means that there is no name.
            kind: "kernels" or "copies".
        """
        if kind == model.KERNELS:
            return self._names.numbers(name)
        numbers = np.full(len(name), NONE, np.int64)
        named_rows = np.flatnonzero(name != NONE)
        numbers[named_rows] = self._names.numbers(name[named_rows])
        return numbers

    def _drop_invalid_times(self, block: Ints, kind: str) -> Ints:
        """Count the activities whose times are missing or impossible, and remove them from a block.

        - Missing times: the start and the end are both 0. Counted in ``untimed[kind]``.
        - Impossible times: :func:`~bubbleviz.model.profile.mask_possible` rejects them. Counted in
          ``impossible[kind]``.

        Args:
            block: Fields of the activities, shape (fields, activities). The first field is the
                start, and the second field is the end.
            kind: "kernels" or "copies".
        """
        if not block[1].all():
            timed = (block[0] != 0) | (block[1] != 0)
            self.untimed[kind] += int((~timed).sum())
            block = block[:, timed]
        keep = model.mask_possible(block[0], block[1])
        if keep is not None:
            self.impossible[kind] += int((~keep).sum())
            block = block[:, keep]
        return block

    def build(
        self, names: Callable[[Ints], tuple[str, ...]], processes: Sequence[int] = ()
    ) -> model.Activities:
        """Build the activity table: kernels sorted by rank, followed by copies sorted by rank.

        Rows of the same rank and kind keep the order in which they were added. Ranks are numbered
        by ascending (process, device number). The attribute ``streams`` is set, and also ``group``
        if there are several ranks.

        Args:
            names: Function that returns the names for the given name ids.
            processes: Processes that made calls. If there is exactly one process, activities whose
                process is unknown (-1) are assigned to it.
        """
        devices = self._list_devices(processes)
        groups = group_rows(*devices.T)
        rows = slice(0, self._count)
        rank, name_id = self._rank[rows], self._name_id[rows]
        _translate_codes(rank, groups.of_row)
        order = np.argsort(self._names.values)
        # The last entry is for activities without a name (-1).
        _translate_codes(name_id, np.append(invert_permutation(order), NONE))
        columns: list[npt.NDArray[Any]] = [
            *(self._start_ns[rows], self._end_ns[rows]),
            *(rank, self._correlation_id[rows], name_id, self._stream[rows]),
        ]
        if len(groups) > 1:
            self.group = self._group_by_rank(rank, len(groups))
            columns = list(sort_columns_by_group(self.group, columns))
        start_ns, end_ns, of_rank, correlation_id, of_name, self.streams = columns
        return model.Activities(
            start_ns,
            end_ns,
            of_rank,
            correlation_id,
            of_name,
            self._kernels,
            names(self._names.values[order]),
            devices[groups.first],
        )

    def _list_devices(self, processes: Sequence[int]) -> Ints:
        """Return the process and the device number of each device, shape (devices, 2).

        Args:
            processes: Processes that made calls. If there is exactly one process, this process
                replaces unknown processes (-1).
        """
        process = self._places.values >> _DEVICE_BITS
        if len(processes) == 1:
            process = np.where(process == NONE, processes[0], process)
        device_id = self._places.values & ((1 << _DEVICE_BITS) - 1)
        return np.stack((process, device_id), axis=1)

    def _group_by_rank(self, rank: Codes, n_ranks: int) -> Codes:
        """Return a sort key for each row that puts the copies of all ranks after all kernels.

        The key of a kernel is its rank. The key of a copy is its rank plus ``n_ranks``.
        """
        is_narrow = 2 * n_ranks < 1 << 15
        group: Codes = rank.astype(np.int16) if is_narrow else rank.astype(np.int32)
        group[self._kernels :] += n_ranks
        return group

    def count_without_process(self) -> int:
        """Return the number of activities whose process is unknown (-1)."""
        unknown = np.flatnonzero(self._places.values >> _DEVICE_BITS == NONE)
        return int(np.isin(self._rank[: self._count], unknown).sum()) if len(unknown) else 0


def _translate_codes(codes: Codes, to: Ints) -> None:
    """Replace each code with ``to[code]``, in place. Code -1 therefore selects the last entry.

    The codes are translated in blocks to save memory.
    """
    codes_to = to[:-1] if len(to) and to[-1] == NONE else to
    if np.array_equal(codes_to, np.arange(len(codes_to))):
        return
    for start in range(0, len(codes), 1 << 16):
        piece = slice(start, start + (1 << 16))
        codes[piece] = to[codes[piece]]
