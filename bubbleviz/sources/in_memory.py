"""Profiles in memory: calls and ranges of files that are decoded as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.conventions.globs import NameShapes, PackedNames
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model import intervals
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, make_constant
from bubbleviz.model.grouping import find_distinct, find_positions, group_rows, sort_rows
from bubbleviz.model.limitations import LEFT_OUT, Limitation
from bubbleviz.model.numbering import Numbering
from bubbleviz.timing import step

#: Calls that are yielded at a time.
_BLOCK_CALLS = 1 << 16


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
        for at in range(0, len(self.calls), _BLOCK_CALLS):
            yield self.calls.take(slice(at, at + _BLOCK_CALLS))

    def at(self, rows: Ints) -> model.Calls:
        """Return the calls of some rows (distinct, ascending)."""
        return self.calls.take(rows)

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the name of each call of some rows (distinct, ascending)."""
        return tuple(self.texts[name] for name in self.name_id[rows].tolist())

    def select_by_prefix(self, rows: Ints, beginnings: tuple[str, ...]) -> Ints:
        """Return those of some rows (distinct, ascending) whose call's name begins in some way."""
        fits = np.array([text.startswith(beginnings) for text in self.texts], bool)
        return np.compress(fits[self.name_id[rows]], rows)

    def named(self, beginnings: tuple[str, ...]) -> Ints:
        """Return the rows of the calls whose names begin in some way, ascending."""
        fits = np.array([text.startswith(beginnings) for text in self.texts], bool)
        return np.flatnonzero(fits[self.name_id]) if fits.any() else np.empty(0, np.int64)

    def find_containing(self, letters: str) -> Ints:
        """Return the rows of the calls whose name contains some letters, ascending."""
        fits = np.array([letters in text for text in self.texts], bool)
        return np.flatnonzero(fits[self.name_id])

    def mask_failed(self, rows: Ints) -> Bools:
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
        return ranges if self.names is None else _with_names(ranges, self.names)


def _with_names(ranges: model.Ranges, names: NameShapes | PackedNames) -> model.Ranges:
    """Return ranges with the names that they have."""
    used = find_distinct(ranges.name_id)
    texts = tuple(names.get_texts(used))
    return replace(ranges, name_id=find_positions(used, ranges.name_id), names=texts)


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
    def _decoded(self) -> Decoded:
        with step("read events") as rows:
            whole = self._load()
            rows.count = len(whole.profile.activities) + len(whole.profile.ranges)
        return whole

    @cached_property
    def _names(self) -> NameShapes | PackedNames:
        return self._decoded.names or NameShapes(self._decoded.profile.ranges.names)

    def _mask_ranges(self, globs: Sequence[str]) -> Bools:
        """Tell which ranges have names that patterns fit."""
        whole = self._decoded

        def fits(wanted: Sequence[str]) -> Bools:
            return self._names.match_globs(wanted)[whole.profile.ranges.name_id]

        if whole.named is None:
            return fits(globs)
        apart = [glob for glob in globs if glob.startswith(whole.apart)]
        return fits(globs) & (whole.named | fits(apart))

    def sample(self, globs: Sequence[str], _rows: int = 0, /) -> Mapping[str, int]:
        """Return how often names of ranges occur."""
        sampled = self._decoded.sampled if "*" in globs else None
        chosen = self._mask_ranges(globs) if sampled is None else sampled
        counts = np.bincount(self._decoded.profile.ranges.name_id[chosen])
        found = Counter[str]()
        used = np.flatnonzero(counts)
        for text, count in zip(self._names.get_texts(used), counts[used].tolist(), strict=True):
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
        whole = self._decoded
        if lacking := whole.lacking or ("" if partial else whole.unlinked):
            raise NothingToAnalyseError(f"{whole.profile.source.path}: {lacking}")
        # Names that none of these has need not be understood.
        ranges = _with_names(whole.profile.ranges.take(self._mask_ranges(globs)), self._names)
        names = Numbering[str]()
        name_id = names.numbers(ranges.names)[ranges.name_id]
        ranges = replace(ranges, name_id=name_id, names=names.values)
        return replace(whole.profile, ranges=ranges)

    def inspect(self, globs: Sequence[str]) -> model.Contents:
        """Return the contents of the file, ranges of these names among them."""
        profile, lacking = self._decoded.profile, self._decoded.lacking or self._decoded.unlinked
        return model.Contents(
            source=profile.source,
            tables=self._decoded.tables,
            processes=tuple(find_distinct(profile.activities.ranks[:, 0]).tolist()),
            devices=profile.devices,
            candidates=dict(sorted(self.sample(globs).items())),
            ranges=len(profile.ranges),
            missing=(lacking,) if lacking else (),
            readable=not lacking,
        )


def make_calls(
    start_ns: Ints, end_ns: Ints, thread: Ints, ids: Ints, name_id: Ints, texts: tuple[str, ...]
) -> InMemoryCalls:
    """Return calls in the order of threads and times; ``ids`` are their correlation ids."""
    order = sort_rows(thread, start_ns)
    calls = model.Calls(
        np.arange(len(order)),
        start_ns[order],
        end_ns[order],
        thread[order],
        model.to_correlation_ids(ids[order]),
    )
    return InMemoryCalls(calls, name_id[order].astype(np.int32), texts)


def make_no_calls() -> InMemoryCalls:
    """Return an empty log of calls."""
    none = np.empty(0, np.int64)
    return make_calls(none, none, none, none, none, ())


def make_ranges(
    start_ns: Ints, end_ns: Ints, thread: Ints, name_id: Ints, names: tuple[str, ...]
) -> model.Ranges:
    """Return ranges that nest and end on their threads."""
    none = np.zeros(len(start_ns), bool)
    end_thread = make_constant(NONE, len(none))
    return model.Ranges(start_ns, end_ns, thread, end_thread, none, none, name_id, names)


def make_no_ranges() -> model.Ranges:
    """Return an empty table of ranges."""
    none = np.empty(0, np.int64)
    return make_ranges(none, none, none, none, ())


def number_threads(pid: Ints, tid: Ints) -> Ints:
    """Return threads as nsys numbers them: (pid << 24) + tid.

    Some formats number a thread with more than 24 bits (the address of a pthread); such threads get
    the numbers that the others of their process leave free, from the top down.

    Args:
        pid: process of each row; at most 24 bits.
        tid: thread of each row, as the format numbers it.
    """
    threads = group_rows(pid, tid)
    processes, number = pid[threads.first], tid[threads.first]
    wide = (number < 0) | (number > model.PID_MASK)
    for process in find_distinct(processes[wide]).tolist():
        rows = np.flatnonzero(wide & (processes == process))
        taken = number[(processes == process) & ~wide]
        free = model.PID_MASK - np.arange(len(rows) + len(taken))
        number[rows] = free[~np.isin(free, taken)][: len(rows)]
    return ((processes << 24) + number)[threads.of_row]


def describe_invalid_times(notes: Iterable[Limitation]) -> str:
    """Return a clause on the kernels that were left out for their times, or "" if none were."""
    counts = ", ".join(f"{note.what}: {note.count}" for note in notes if note.kind in LEFT_OUT)
    return f"no kernel has valid times ({counts})" if counts else ""
