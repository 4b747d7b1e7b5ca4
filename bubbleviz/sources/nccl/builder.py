"""The operations of an event file, put into columns while its events are read."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import Numbering, groups_of
from bubbleviz.model.intervals import Packing, difference, measure_within, union
from bubbleviz.model.values import frozen
from bubbleviz.sources.nccl.events import (
    LONGEST_NS,
    STATES,
    UNKNOWN,
    Bridges,
    EventFile,
    NcclEvents,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


# Clocks of GPUs in event files: times that contradict all others of their GPU are left out.
#
# The host sees each kernel begin a little later than its GPU does, always by about as much, for the
# two clocks run alike::
#
#     host    ···├─kernel────┤······├─kernel──┤···
#     GPU      ├─kernel────┤······├─kernel──┤··············├─kernel──┤
#                                                           damaged


#: The thread that sees kernels begin sleeps for milliseconds, and clocks drift by as much in hours.
_APART_NS = 1_000_000_000
#: Of fewer instants on both clocks nobody knows which is damaged.
_FEWEST = 3
_OF_HOST = (
    *("host_start_ns", "host_end_ns", "kernel_start_ns", "kernel_end_ns"),
    *("proxy_start_ns", "proxy_end_ns"),
)


@frozen
class StrangeClocks:
    """Which operations have times of a GPU that cannot be: starts, and ends alone."""

    starts: Bools
    ends: Bools

    def left_out_of(self, events: NcclEvents) -> NcclEvents:
        """Return the events without these times."""
        if not (self.starts | self.ends).any():
            return events
        return replace(
            events,
            gpu_start_ns=np.where(self.starts, UNKNOWN, events.gpu_start_ns),
            gpu_end_ns=np.where(self.starts | self.ends, UNKNOWN, events.gpu_end_ns),
        )


def strange_clocks(events: NcclEvents, bridges: Bridges) -> StrangeClocks:
    """Return which operations have times of their GPU that its other times contradict.

    Args:
        events: of a file.
        bridges: instants on the clocks of GPUs and the host.
    """
    starts = np.zeros(len(events), bool)
    gpu = groups_of(events.pid, events.communicator, events.rank)
    if len(bridges):
        late_ns = bridges.host_ns - bridges.gpu_ns
        usual_ns, count = _medians(gpu.of_row[bridges.row], late_ns, len(gpu))
        of_bridge = gpu.of_row[bridges.row]
        apart = np.abs(late_ns - usual_ns[of_bridge]) > _APART_NS
        starts[bridges.row[apart & (count[of_bridge] >= _FEWEST)]] = True
    both = (events.gpu_start_ns != UNKNOWN) & (events.gpu_end_ns != UNKNOWN)
    length_ns = np.where(both, events.gpu_end_ns - np.where(both, events.gpu_start_ns, 0), 0)
    ends = both & (length_ns > _recorded_ns(events) + _APART_NS)
    return StrangeClocks(starts, np.asarray(ends & ~starts, bool))


def _medians(group: Ints, values: Ints, groups: int) -> tuple[Ints, Ints]:
    """Return the lower median of each group's values, 0 for none, and how many these are."""
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    at = np.minimum(first + np.maximum(count - 1, 0) // 2, len(values) - 1)
    return np.where(count > 0, values[order][at], 0), count


def _recorded_ns(events: NcclEvents) -> int:
    """Return how long the host recorded; no kernel can last longer."""
    times = np.concatenate([getattr(events, name) for name in _OF_HOST])
    known = times[times != UNKNOWN]
    return int(known.max() - known.min()) if len(known) else 0


#: The greatest number that a column holds, and the greatest time: differences of times must fit.
_MOST, _MOST_NS = (1 << 63) - 1, 1 << 62
#: States in which data moves; states that wait for the peer.
_MOVES = np.array([name in {"SendWait", "RecvFlushWait"} for name in STATES])
_PEER = np.array([name in {"SendPeerWait", "RecvWait"} for name in STATES])

#: Columns of identifiers and counts, and of times.
_NUMBERS = (
    *("kind", "pid", "name", "communicator", "rank", "peer", "root", "sequence", "count"),
    *("datatype", "algorithm", "protocol", "channels", "payload"),
)
_TIMES = (
    *("host_start_ns", "host_end_ns", "kernel_start_ns", "gpu_start_ns", "proxy_start_ns"),
    *("kernel_end_ns", "gpu_end_ns", "proxy_end_ns"),
)


def time_of(microseconds: float | None) -> int:
    """Return a time in nanoseconds; 0 is none, as NCCL writes it."""
    if microseconds is None or not 0 < microseconds < LONGEST_NS / 1000:
        return UNKNOWN
    return round(microseconds * 1000)


def number_of(value: int | None) -> int:
    """Return a count or rank that a column can hold; -1 for anything else."""
    return value if value is not None and 0 <= value <= _MOST else NONE


def clock_of(value: int | None) -> int:
    """Return a time of a GPU's clock; 0 is none."""
    return value if value is not None and 0 < value <= _MOST_NS else UNKNOWN


class NcclEventBuilder:
    """Operations row by row, which become columns.

    Attributes:
        seen: how many events each category has.
        strange: how many events are of unknown categories.
        unbegun: how many ended and did not begin.
        unfinished: how many began and did not end.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.strange = self.unbegun = self.unfinished = 0
        self._names: Numbering[str] = Numbering()
        self._communicators: Numbering[int] = Numbering()
        self._columns: dict[str, list[int]] = {name: [] for name in (*_NUMBERS, *_TIMES)}
        self._steps: list[int] = []
        # Arrays, since there are many.
        self._states = tuple(array("q") for _ in range(4))
        self._bridges = tuple(array("q") for _ in range(3))

    def __len__(self) -> int:
        return len(self._steps)

    def name(self, text: str | None) -> int:
        """Return the number of a name; -1 for none."""
        return self._names.number(text) if text else NONE

    def communicator(self, value: int | None) -> int:
        """Return the number of a communicator; -1 for none."""
        if value is None:
            return NONE
        # It has 64 bits; older versions print it signed.
        return self._communicators.number(value & ((1 << 64) - 1))

    def add(self, **values: int) -> int:
        """Add an operation and return its row; columns that are not given are none."""
        for name in _NUMBERS:
            self._columns[name].append(values.get(name, NONE))
        for name in _TIMES:
            self._columns[name].append(values.get(name, UNKNOWN))
        self._steps.append(0)
        return len(self._steps) - 1

    def set(self, row: int, name: str, value: int) -> None:
        """Set a column of a row."""
        self._columns[name][row] = value

    def add_step(self, row: int) -> None:
        """Count a step of a transfer over the network."""
        self._steps[row] += 1

    def widen(self, row: int, what: str, start_ns: int, end_ns: int) -> None:
        """Widen a row's kernel, GPU or proxy times to a start and an end; either may be unknown."""
        first, last = self._columns[f"{what}_start_ns"], self._columns[f"{what}_end_ns"]
        if start_ns != UNKNOWN and (first[row] == UNKNOWN or start_ns < first[row]):
            first[row] = start_ns
        last[row] = max(last[row], end_ns)

    def add_state(self, row: int, state: int, start_ns: int, end_ns: int) -> None:
        """Add a step's time in one of ``STATES``."""
        if UNKNOWN != start_ns <= end_ns:
            for column, value in zip(self._states, (row, state, start_ns, end_ns), strict=True):
                column.append(value)

    def add_bridge(self, row: int, gpu_ns: int, host_ns: int) -> None:
        """Add one instant on two clocks."""
        if UNKNOWN not in (gpu_ns, host_ns):
            for column, value in zip(self._bridges, (row, gpu_ns, host_ns), strict=True):
                column.append(value)

    def event_file(self, path: str, format_name: str, unreadable: int) -> EventFile:
        """Return the contents of a file, once all of it has been read."""
        rows = len(self)
        states = _arrays(self._states)
        wait_ns, transfer_ns = _wait_and_transfer(rows, states)
        state_ns = np.zeros((rows, len(STATES)), np.int64)
        np.add.at(state_ns, (states[0], states[1]), states[3] - states[2])
        events = NcclEvents(
            **{name: np.array(column, np.int64) for name, column in self._columns.items()},
            steps=np.array(self._steps, np.int64),
            state_ns=state_ns,
            peer_wait_ns=wait_ns,
            transfer_ns=transfer_ns,
            names=self._names.values,
            communicators=self._communicators.values,
        )
        bridges = Bridges(*_arrays(self._bridges))
        strange = strange_clocks(events, bridges)
        events = strange.left_out_of(events)
        keep = _first_of_each(events)
        new_row = np.cumsum(keep) - 1
        bridges = bridges.take(keep[bridges.row] & ~strange.starts[bridges.row])
        return EventFile(
            path=path,
            format=format_name,
            events=events.take(keep),
            bridges=replace(bridges, row=new_row[bridges.row]),
            seen=tuple(sorted(self.seen.items())),
            unreadable=unreadable,
            unfinished=self.unfinished,
            unbegun=self.unbegun,
            repeated=int((~keep).sum()),
            strange=self.strange,
            strange_clocks=int((keep & (strange.starts | strange.ends)).sum()),
        )


def _arrays(columns: Sequence[array[int]]) -> list[Ints]:
    return [np.array(column, np.int64) for column in columns]


def _wait_and_transfer(rows: int, states: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Return of each row how long some step only waits for the peer, and how long one moves data.

    ::

        step 0      ├── peer ──┤├ moves ┤
        step 1           ├── peer ──┤├ moves ┤
        waits       ├──────────┤
        transfers               ├────────────┤
    """
    row, state, start_ns, end_ns = states
    zero = np.zeros(rows, np.int64)
    if len(row) == 0:
        return zero, zero.copy()
    used, group = np.unique(row, return_inverse=True)
    low_ns = np.full(len(used), np.iinfo(np.int64).max)
    high_ns = np.full(len(used), UNKNOWN)
    np.minimum.at(low_ns, group, start_ns)
    np.maximum.at(high_ns, group, end_ns)
    packing = Packing.of(low_ns, high_ns)
    start, end = packing.place(group, start_ns), packing.place(group, end_ns)
    moving = union(start[_MOVES[state]], end[_MOVES[state]])
    waiting = difference(union(start[_PEER[state]], end[_PEER[state]]), moving)
    windows = packing.offset_ns[:-1], packing.offset_ns[1:] - 1
    wait_ns, transfer_ns = zero, zero.copy()
    wait_ns[used] = measure_within(waiting, *windows)
    transfer_ns[used] = measure_within(moving, *windows)
    return wait_ns, transfer_ns


def _first_of_each(events: NcclEvents) -> Bools:
    """Tell which rows are new: at each communicator's end NCCL prints all that is left, again."""
    keep = np.ones(len(events), bool)
    timed = np.flatnonzero(events.host_start_ns != UNKNOWN)
    if len(timed):
        columns = [getattr(events, name)[timed] for name in (*_NUMBERS, *_TIMES)]
        _, first = np.unique(np.stack(columns), axis=1, return_index=True)
        keep[timed] = False
        keep[timed[first]] = True
    return keep
