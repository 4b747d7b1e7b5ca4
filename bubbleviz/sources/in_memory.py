"""Profiles in formats that are decoded completely, so all calls and ranges are in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.conventions.globs import NameShapes, PackedNames
from bubbleviz.errors import NothingToAnalyzeError
from bubbleviz.model import intervals
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, make_constant
from bubbleviz.model.grouping import find_distinct, find_positions, group_rows, sort_rows
from bubbleviz.model.limitations import LEFT_OUT, Limitation
from bubbleviz.model.numbering import Numbering
from bubbleviz.timing import time_step

#: Number of calls per block.
_BLOCK_CALLS = 1 << 16


@dataclass(frozen=True)
class InMemoryCalls:
    """A :class:`~bubbleviz.model.profile.CallLog` whose calls are in memory.

    Attributes:
        calls: All calls. The column ``row`` is numbered from 0.
        name_id: For each call, the index of its name in ``texts``.
        texts: Distinct call names.
    """

    calls: model.Calls
    name_id: Codes
    texts: tuple[str, ...]

    def blocks(self) -> Iterator[model.Calls]:
        """Yield all calls in blocks, in order."""
        for start in range(0, len(self.calls), _BLOCK_CALLS):
            yield self.calls.take(slice(start, start + _BLOCK_CALLS))

    def at(self, rows: Ints) -> model.Calls:
        """Return the calls in the given rows (distinct, ascending)."""
        return self.calls.take(rows)

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the names of the calls in the given rows (distinct, ascending)."""
        return tuple(self.texts[name] for name in self.name_id[rows].tolist())

    def select_by_prefix(self, rows: Ints, beginnings: tuple[str, ...]) -> Ints:
        """Return those of the given rows whose call name starts with one of the prefixes.

        The rows must be distinct and ascending.
        """
        has_prefix = np.array([text.startswith(beginnings) for text in self.texts], bool)
        return np.compress(has_prefix[self.name_id[rows]], rows)

    def named(self, beginnings: tuple[str, ...]) -> Ints:
        """Return the rows of all calls whose names start with one of the prefixes, ascending."""
        has_prefix = np.array([text.startswith(beginnings) for text in self.texts], bool)
        if not has_prefix.any():
            return np.empty(0, np.int64)
        return np.flatnonzero(has_prefix[self.name_id])

    def find_containing(self, letters: str) -> Ints:
        """Return the rows of all calls whose names contain the given text, ascending."""
        contains = np.array([letters in text for text in self.texts], bool)
        return np.flatnonzero(contains[self.name_id])

    def mask_failed(self, rows: Ints) -> Bools:
        """Return an all-False mask of failed calls, because these formats record no errors."""
        return np.zeros(len(rows), bool)


@dataclass(frozen=True)
class InMemoryRanges:
    """A :class:`~bubbleviz.model.profile.RangeLog` whose ranges are in memory.

    Attributes:
        ranges: All ranges.
        names: Names that ``ranges.name_id`` indexes. None means that it indexes ``ranges.names``.
    """

    ranges: model.Ranges
    names: PackedNames | None = None

    def lasting(
        self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints, of: Ints | None
    ) -> model.Ranges:
        """Return the ranges on the given threads that are long enough and overlap any interval.

        Args:
            shortest_ns: Minimum duration of a range.
            threads: Threads whose ranges are returned.
            since_ns: Interval start times.
            until_ns: Interval end times.
            of: Thread of each interval. Ignored: every interval applies to all threads.
        """
        del of  # Selecting by thread would save no time for ranges in memory.
        ranges, times = self.ranges, intervals.union(since_ns, until_ns)
        is_long = ranges.end_ns - ranges.start_ns >= shortest_ns
        rows = np.flatnonzero(is_long & np.isin(ranges.thread, threads))
        first_interval = np.searchsorted(times[1], ranges.start_ns[rows], side="right")
        overlaps = first_interval < np.searchsorted(times[0], ranges.end_ns[rows])
        ranges = ranges.take(rows[overlaps])
        return ranges if self.names is None else _with_names(ranges, self.names)


def _with_names(ranges: model.Ranges, names: NameShapes | PackedNames) -> model.Ranges:
    """Return a copy of the ranges in which ``names`` contains only the names in use.

    The column ``name_id`` is renumbered to match.

    Args:
        ranges: Ranges whose ``name_id`` contains indices into the argument ``names``.
        names: All names, including unused names. The names in use keep their order.
    """
    used = find_distinct(ranges.name_id)
    texts = tuple(names.get_texts(used))
    return replace(ranges, name_id=find_positions(used, ranges.name_id), names=texts)


@dataclass(frozen=True)
class Decoded:
    """A completely decoded file.

    Attributes:
        profile: The profile, including all ranges.
        tables: Number of rows in the file, keyed by kind, such as "kernels". The value is None for
            a kind that the format does not have.
        no_work_reason: Reason why the file contains no device work, along with advice. The text is
            "" if the file contains device work.
        no_links_reason: Reason why device work cannot be linked to ranges, along with advice. The
            text is "" if device work can be linked.
        is_named: Mask of the ranges that any pattern may select, or None for all ranges. Other
            ranges can be selected only by patterns that start with ``other_prefix``.
        other_prefix: Prefix of the patterns that can also select ranges outside ``is_named``.
        is_sampled: Mask of the ranges to count for the pattern ``*``, or None to count all ranges.
        names: Range names, or None if ``profile.ranges`` contains the names.
    """

    profile: model.Profile
    tables: Mapping[str, int | None]
    no_work_reason: str
    no_links_reason: str = ""
    is_named: Bools | None = None
    other_prefix: str = ""
    is_sampled: Bools | None = None
    names: PackedNames | None = None


class DecodedFile:
    """An open file that is decoded completely on first use.

    The class implements :class:`~bubbleviz.sources.readers.OpenFile`.

    Args:
        load: Function that decodes the file. The function is called at most once.
    """

    def __init__(self, load: Callable[[], Decoded]) -> None:
        self._load = load

    @cached_property
    def _decoded(self) -> Decoded:
        with time_step("read events") as rows:
            decoded = self._load()
            rows.count = len(decoded.profile.activities) + len(decoded.profile.ranges)
        return decoded

    @cached_property
    def _names(self) -> NameShapes | PackedNames:
        return self._decoded.names or NameShapes(self._decoded.profile.ranges.names)

    def _mask_ranges(self, globs: Sequence[str]) -> Bools:
        """Return a mask of the ranges whose names match at least one of the GLOB patterns.

        If :attr:`Decoded.is_named` is a mask, ranges outside that mask must match a pattern that
        starts with :attr:`Decoded.other_prefix`.
        """
        decoded = self._decoded

        def match(patterns: Sequence[str]) -> Bools:
            return self._names.match_globs(patterns)[decoded.profile.ranges.name_id]

        if decoded.is_named is None:
            return match(globs)
        other_globs = [glob for glob in globs if glob.startswith(decoded.other_prefix)]
        return match(globs) & (decoded.is_named | match(other_globs))

    def sample(self, globs: Sequence[str], _rows: int = 0, /) -> Mapping[str, int]:
        """Count the ranges per name, for the names that match at least one GLOB pattern.

        All matching ranges are counted, not only a sample. If ``*`` is one of the patterns and
        :attr:`Decoded.is_sampled` is a mask, the ranges in that mask are counted instead.

        Returns:
            Number of ranges, keyed by name.
        """
        is_selected = self._decoded.is_sampled if "*" in globs else None
        if is_selected is None:
            is_selected = self._mask_ranges(globs)
        counts = np.bincount(self._decoded.profile.ranges.name_id[is_selected])
        n_ranges = Counter[str]()
        used = np.flatnonzero(counts)
        for text, count in zip(self._names.get_texts(used), counts[used].tolist(), strict=True):
            n_ranges[text] += count
        return n_ranges

    def read(self, globs: Sequence[str], *, partial: bool = False) -> model.Profile:
        """Return the profile, with its ranges limited to those that the GLOB patterns select.

        Args:
            globs: GLOB patterns. Ranges whose names do not match any pattern are left out.
            partial: Whether to read the file even if no work can be linked to ranges.

        Raises:
            ProfileError: The file cannot be read.
            NothingToAnalyzeError: No device work was recorded. Also raised if ``partial`` is False
                and no work can be linked to ranges.
        """
        profile = self._decoded.profile
        reason = self._decoded.no_work_reason
        if not partial:
            reason = reason or self._decoded.no_links_reason
        if reason:
            raise NothingToAnalyzeError(f"{profile.source.path}: {reason}")
        # Only the names of selected ranges are kept, because later stages interpret every name.
        ranges = _with_names(profile.ranges.take(self._mask_ranges(globs)), self._names)
        names = Numbering[str]()
        name_id = names.numbers(ranges.names)[ranges.name_id]
        ranges = replace(ranges, name_id=name_id, names=names.values)
        return replace(profile, ranges=ranges)

    def inspect(self, globs: Sequence[str]) -> model.Contents:
        """Return a summary of the file's contents.

        The file is readable if it contains device work that can be linked to ranges.

        Args:
            globs: GLOB patterns that select the ranges counted in ``candidates``. The field
                ``ranges`` counts all ranges.
        """
        profile = self._decoded.profile
        reason = self._decoded.no_work_reason or self._decoded.no_links_reason
        return model.Contents(
            source=profile.source,
            tables=self._decoded.tables,
            processes=tuple(find_distinct(profile.activities.ranks[:, 0]).tolist()),
            devices=profile.devices,
            candidates=dict(sorted(self.sample(globs).items())),
            ranges=len(profile.ranges),
            missing=(reason,) if reason else (),
            readable=not reason,
        )


def make_calls(
    start_ns: Ints, end_ns: Ints, thread: Ints, ids: Ints, name_id: Ints, texts: tuple[str, ...]
) -> InMemoryCalls:
    """Create a log of calls, sorted by thread, then by start, with rows numbered from 0.

    Args:
        start_ns: Start time of each call.
        end_ns: End time of each call.
        thread: Thread of each call.
        ids: Correlation id of each call.
        name_id: For each call, the index of its name in ``texts``.
        texts: Distinct call names.
    """
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
    """Create a table of push/pop ranges, in the given order.

    None of the ranges are marked as start/end ranges or as cut, and every end thread is -1.
    """
    none = np.zeros(len(start_ns), bool)
    end_thread = make_constant(NONE, len(none))
    return model.Ranges(start_ns, end_ns, thread, end_thread, none, none, name_id, names)


def make_no_ranges() -> model.Ranges:
    """Return an empty table of ranges."""
    none = np.empty(0, np.int64)
    return make_ranges(none, none, none, none, ())


def number_threads(pid: Ints, tid: Ints) -> Ints:
    """Return the thread number ``(pid << 24) + tid`` of each row, as in nsys.

    A thread id may be negative or have more than 24 bits, such as the address of a pthread. Such an
    id is replaced with the largest 24-bit id that is still unused in its process.

    Args:
        pid: Process id of each row, with at most 24 bits.
        tid: Thread id of each row, as stored in the file.
    """
    threads = group_rows(pid, tid)
    processes, number = pid[threads.first], tid[threads.first]
    is_wide = (number < 0) | (number > model.PID_MASK)
    for process in find_distinct(processes[is_wide]).tolist():
        rows = np.flatnonzero(is_wide & (processes == process))
        used = number[(processes == process) & ~is_wide]
        free = model.PID_MASK - np.arange(len(rows) + len(used))
        number[rows] = free[~np.isin(free, used)][: len(rows)]
    return ((processes << 24) + number)[threads.of_row]


def describe_invalid_times(notes: Iterable[Limitation]) -> str:
    """Return a clause saying that no kernel has valid times and how many rows were dropped.

    Only limitations whose kind is in ``LEFT_OUT`` are counted. Without such limitations, the result
    is "".
    """
    counts = ", ".join(f"{note.what}: {note.count}" for note in notes if note.kind in LEFT_OUT)
    return f"no kernel has valid times ({counts})" if counts else ""
