"""Profiles in memory: work of all formats; calls and ranges of those that are decoded whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.conventions.globs import NameShapes, PackedNames
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model import intervals
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, constant, widened
from bubbleviz.model.grouping import (
    BlockNumbering,
    Numbering,
    distinct,
    found_in,
    groups_of,
    in_groups,
    places_in,
    sorted_rows,
)
from bubbleviz.model.limitations import LEFT_OUT, Limitation
from bubbleviz.timing import step

#: Calls that are yielded at a time.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class InMemoryCalls:
    """A :class:`~bubbleviz.model.profile.CallLog` of calls in memory.

    Attributes:
        calls: all of them; ``row`` counts from 0.
        name_id: row of ``texts`` of each call.
        texts: distinct names.
    """

    calls: model.Calls
    name_id: Codes
    texts: tuple[str, ...]

    def blocks(self) -> Iterator[model.Calls]:
        """Yield all calls, in order."""
        for at in range(0, len(self.calls), _BLOCK):
            yield self.calls.take(slice(at, at + _BLOCK))

    def at(self, rows: Ints) -> model.Calls:
        """Return the calls of some rows (distinct, ascending)."""
        return self.calls.take(rows)

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the name of each call of some rows (distinct, ascending)."""
        return tuple(self.texts[name] for name in self.name_id[rows].tolist())

    def beginning(self, rows: Ints, beginnings: tuple[str, ...]) -> Ints:
        """Return those of some rows (distinct, ascending) whose call's name begins in some way."""
        fits = np.array([text.startswith(beginnings) for text in self.texts], bool)
        return np.compress(fits[self.name_id[rows]], rows)

    def named(self, beginnings: tuple[str, ...]) -> Ints:
        """Return the rows of the calls whose names begin in some way, ascending."""
        fits = np.array([text.startswith(beginnings) for text in self.texts], bool)
        return np.flatnonzero(fits[self.name_id]) if fits.any() else np.empty(0, np.int64)

    def containing(self, letters: str) -> Ints:
        """Return the rows of the calls whose name contains some letters, ascending."""
        fits = np.array([letters in text for text in self.texts], bool)
        return np.flatnonzero(fits[self.name_id])

    def failed(self, rows: Ints) -> Bools:
        """Tell which calls of some rows returned an error, which these formats do not record."""
        return np.zeros(len(rows), bool)


@dataclass(frozen=True)
class InMemoryRanges:
    """A :class:`~bubbleviz.model.profile.RangeLog` of ranges in memory, with their names or not."""

    ranges: model.Ranges
    names: PackedNames | None = None

    def lasting(
        self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints, of: Ints | None
    ) -> model.Ranges:
        """Return the ranges of some threads that last so long, and touch any of some times."""
        del of  # What is in memory is left out no faster.
        ranges, times = self.ranges, intervals.union(since_ns, until_ns)
        keep = (ranges.end_ns - ranges.start_ns >= shortest_ns) & np.isin(ranges.thread, threads)
        rows = np.flatnonzero(keep)
        before = np.searchsorted(times[1], ranges.start_ns[rows], side="right")
        touching = before < np.searchsorted(times[0], ranges.end_ns[rows])
        ranges = ranges.take(rows[touching])
        return ranges if self.names is None else _named(ranges, self.names)


def _named(ranges: model.Ranges, names: NameShapes | PackedNames) -> model.Ranges:
    """Return ranges with the names that they have."""
    used = distinct(ranges.name_id)
    texts = tuple(names.texts(used))
    return replace(ranges, name_id=found_in(used, ranges.name_id), names=texts)


@dataclass(frozen=True)
class Decoded:
    """A whole profile, and what a look at it tells.

    Attributes:
        profile: with every range, whatever its name.
        tables: how many rows of each kind the file holds; None where it lacks them.
        lacking: why there is nothing to analyse, and what to do; "" where there is something.
        unlinked: why its work cannot be linked to ranges; "" where it can.
        named: which of the ranges are meant by names; None for all.
        apart: how the names begin of other ranges that are given where a pattern begins so.
        sampled: which ranges stand for those of any name; None for all.
        names: of the ranges, where these have none themselves.
    """

    profile: model.Profile
    tables: Mapping[str, int | None]
    lacking: str
    unlinked: str = ""
    named: Bools | None = None
    apart: str = ""
    sampled: Bools | None = None
    names: PackedNames | None = None


class DecodedFile:
    """An open file; see :class:`~bubbleviz.sources.readers.OpenFile`. It is decoded once.

    Args:
        load: decodes it.
    """

    def __init__(self, load: Callable[[], Decoded]) -> None:
        self._load = load

    @cached_property
    def _whole(self) -> Decoded:
        with step("read events") as rows:
            whole = self._load()
            rows.count = len(whole.profile.activities) + len(whole.profile.ranges)
        return whole

    @cached_property
    def _names(self) -> NameShapes | PackedNames:
        return self._whole.names or NameShapes(self._whole.profile.ranges.names)

    def _chosen(self, globs: Sequence[str]) -> Bools:
        """Tell which ranges have names that patterns fit."""
        whole = self._whole

        def fits(wanted: Sequence[str]) -> Bools:
            return self._names.fitting(wanted)[whole.profile.ranges.name_id]

        if whole.named is None:
            return fits(globs)
        apart = [glob for glob in globs if glob.startswith(whole.apart)]
        return fits(globs) & (whole.named | fits(apart))

    def sample(self, globs: Sequence[str], _rows: int = 0, /) -> Mapping[str, int]:
        """Return how often names of ranges occur."""
        sampled = self._whole.sampled if "*" in globs else None
        chosen = self._chosen(globs) if sampled is None else sampled
        counts = np.bincount(self._whole.profile.ranges.name_id[chosen])
        found = Counter[str]()
        used = np.flatnonzero(counts)
        for text, count in zip(self._names.texts(used), counts[used].tolist(), strict=True):
            found[text] += count
        return found

    def read(self, globs: Sequence[str], *, partial: bool = False) -> model.Profile:
        """Return the profile.

        Args:
            globs: prefilters of the ranges that are wanted by name.
            partial: read it even if nothing can be linked.

        Raises:
            ProfileError: it cannot be read.
            NothingToAnalyseError: nothing ran on a device; or calls or ranges were not recorded.
        """
        whole = self._whole
        if lacking := whole.lacking or ("" if partial else whole.unlinked):
            raise NothingToAnalyseError(f"{whole.profile.source.path}: {lacking}")
        # Names that none of these has need not be understood.
        ranges = _named(whole.profile.ranges.take(self._chosen(globs)), self._names)
        names = Numbering[str]()
        name_id = names.numbers(ranges.names)[ranges.name_id]
        ranges = replace(ranges, name_id=name_id, names=names.values)
        return replace(whole.profile, ranges=ranges)

    def inspect(self, globs: Sequence[str]) -> model.Contents:
        """Return the contents of the file, ranges of these names among them."""
        profile, lacking = self._whole.profile, self._whole.lacking or self._whole.unlinked
        return model.Contents(
            source=profile.source,
            tables=self._whole.tables,
            processes=tuple(distinct(profile.activities.ranks[:, 0]).tolist()),
            devices=profile.devices,
            candidates=dict(sorted(self.sample(globs).items())),
            ranges=len(profile.ranges),
            missing=(lacking,) if lacking else (),
            readable=not lacking,
        )


def calls_of(
    start_ns: Ints, end_ns: Ints, thread: Ints, ids: Ints, name_id: Ints, texts: tuple[str, ...]
) -> InMemoryCalls:
    """Return calls in the order of threads and times; ``ids`` are their correlation ids."""
    order = sorted_rows(thread, start_ns)
    calls = model.Calls(
        np.arange(len(order)),
        start_ns[order],
        end_ns[order],
        thread[order],
        model.correlations(ids[order]),
    )
    return InMemoryCalls(calls, name_id[order].astype(np.int32), texts)


def no_calls() -> InMemoryCalls:
    """Return an empty log of calls."""
    none = np.empty(0, np.int64)
    return calls_of(none, none, none, none, none, ())


def plain_ranges(
    start_ns: Ints, end_ns: Ints, thread: Ints, name_id: Ints, names: tuple[str, ...]
) -> model.Ranges:
    """Return ranges that nest and end on their threads."""
    none = np.zeros(len(start_ns), bool)
    end_thread = constant(NONE, len(none))
    return model.Ranges(start_ns, end_ns, thread, end_thread, none, none, name_id, names)


def no_ranges() -> model.Ranges:
    """Return an empty table of ranges."""
    none = np.empty(0, np.int64)
    return plain_ranges(none, none, none, none, ())


def thread_numbers(pid: Ints, tid: Ints) -> Ints:
    """Return threads as nsys numbers them: (pid << 24) + tid.

    Some formats number a thread with more than 24 bits (the address of a pthread); such threads get
    the numbers that the others of their process leave free, from the top down.

    Args:
        pid: process of each row; at most 24 bits.
        tid: thread of each row, as the format numbers it.
    """
    threads = groups_of(pid, tid)
    processes, number = pid[threads.first], tid[threads.first]
    wide = (number < 0) | (number > model.PID_MASK)
    for process in distinct(processes[wide]).tolist():
        rows = np.flatnonzero(wide & (processes == process))
        taken = number[(processes == process) & ~wide]
        free = model.PID_MASK - np.arange(len(rows) + len(taken))
        number[rows] = free[~np.isin(free, taken)][: len(rows)]
    return ((processes << 24) + number)[threads.of_row]


def without_valid_times(notes: Iterable[Limitation]) -> str:
    """Return the clause on kernels that were left out for their times; "" where none was."""
    left_out = [note for note in notes if note.kind in LEFT_OUT]
    told = ", ".join(f"{note.count} {note.what}" for note in left_out)
    return f"no kernel has valid times ({told})" if told else ""


# Work of devices, merged from blocks of columns in few bytes.


def has_times(start_ns: Ints, end_ns: Ints) -> Bools:
    """Return which rows of work become activities: those with a start and an end that can be."""
    timed: Bools = (start_ns != 0) | (end_ns != 0)
    is_possible = model.possible(start_ns[timed], end_ns[timed])
    if is_possible is not None:
        timed[timed] = is_possible
    return timed


#: A process (40 bits) and a device make one integer.
_DEVICE_BITS = 22


class ActivitiesBuilder:
    """Merges blocks of kernels, then of copies, in as few bytes as they need.

    Args:
        room: how many there are at most; memory is used by those that come.

    Attributes:
        group: by which they were put in order, shape (rows,), as they came; None as long as they
            are as they came.
        streams: Stream of each activity, or -1 if unknown. Empty until the activities are built.
    """

    def __init__(self, room: int) -> None:
        self._start_ns, self._end_ns = np.empty(room, np.int64), np.empty(room, np.int64)
        self._rank: Codes = np.empty(room, np.int16)
        self._name_id: Codes = np.empty(room, np.int16)
        self._correlation_id = np.empty(room, np.uint32)
        # The compiled part cannot order columns of single bytes by group.
        self._stream: Codes = np.empty(room, np.int16)
        self._places, self._names = BlockNumbering(), BlockNumbering()
        self._count = self._kernels = 0
        self.group: Codes | None = None
        self.streams: Codes = self._stream[:0]
        self.impossible = {model.KERNELS: 0, "copies": 0}
        self.untimed = {model.KERNELS: 0, "copies": 0}

    def add_kernels(self, block: Ints) -> None:
        """Add kernels.

        Args:
            block: Columns start_ns, end_ns, device, globalPid, correlation id, number of the name,
                and the stream if streams are recorded, shape (columns, kernels).

        Raises:
            ValueError: a device has a number that none can have.
        """
        self._add(block, "kernels")
        self._kernels = self._count

    def add_copies(self, block: Ints) -> None:
        """Add copies or memsets, after all kernels.

        Args:
            block: The columns of kernels. The number of the name is -1 if a copy has no name, and
                the column is left out if no copy has a name.
        """
        self._add(block, "copies")

    def _add(self, block: Ints, what: str) -> None:
        block = self._with_times(block, what)
        start_ns, end_ns, device_id, global_id, correlation_id, *optional = block
        unknown = constant(NONE, len(start_ns))
        name, stream, *_ = (*optional, unknown, unknown)
        process = model.process_of(global_id)
        if len(device_id) and not 0 <= device_id.min() <= device_id.max() < 1 << _DEVICE_BITS:
            raise ValueError("a number of a device is below 0 or above 4,194,303")
        at, self._count = self._count, self._count + len(start_ns)
        if self._count > len(self._start_ns):
            raise ValueError("a table has more rows than numbers of rows")
        rows = slice(at, self._count)
        self._start_ns[rows], self._end_ns[rows] = start_ns, end_ns
        place = self._places.numbers(process << _DEVICE_BITS | device_id)
        name_id = self._numbers_of_names(name, what)
        self._rank = widened(self._rank, len(self._places) - 1)
        self._name_id = widened(self._name_id, len(self._names) - 1)
        self._stream = widened(self._stream, int(stream.max(initial=NONE)))
        self._rank[rows], self._name_id[rows], self._stream[rows] = place, name_id, stream
        self._correlation_id[rows] = model.correlations(correlation_id)

    def _numbers_of_names(self, name: Ints, what: str) -> Ints:
        """Return the number of each name; -1 for copies without one."""
        if what == model.KERNELS:
            return self._names.numbers(name)
        numbers = np.full(len(name), NONE, np.int64)
        named = np.flatnonzero(name != NONE)
        numbers[named] = self._names.numbers(name[named])
        return numbers

    def _with_times(self, block: Ints, what: str) -> Ints:
        """Return the columns of a block whose times can be."""
        if not block[1].all():
            timed = (block[0] != 0) | (block[1] != 0)
            self.untimed[what] += int((~timed).sum())
            block = block[:, timed]
        keep = model.possible(block[0], block[1])
        if keep is not None:
            self.impossible[what] += int((~keep).sum())
            block = block[:, keep]
        return block

    def activities(
        self, names: Callable[[Ints], tuple[str, ...]], processes: Sequence[int] = ()
    ) -> model.Activities:
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
        columns: list[npt.NDArray[Any]] = [
            *(self._start_ns[rows], self._end_ns[rows]),
            *(rank, self._correlation_id[rows], name_id, self._stream[rows]),
        ]
        if len(groups) > 1:
            # What comes after all kernels stays there.
            narrow = 2 * len(groups) < 1 << 15
            self.group = rank.astype(np.int16) if narrow else rank.astype(np.int32)
            self.group[self._kernels :] += len(groups)
            columns = list(in_groups(self.group, columns))
        start_ns, end_ns, of_rank, correlation_id, of_name, self.streams = columns
        return model.Activities(
            start_ns,
            end_ns,
            of_rank,
            correlation_id,
            of_name,
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
    own = to[:-1] if len(to) and to[-1] == NONE else to
    if np.array_equal(own, np.arange(len(own))):
        return
    for at in range(0, len(codes), 1 << 16):
        piece = slice(at, at + (1 << 16))
        codes[piece] = to[codes[piece]]
