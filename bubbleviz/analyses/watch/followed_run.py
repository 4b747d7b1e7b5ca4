"""Followed run: which iterations of a run all of its ranks have written, and what became of ranks.

A rank that has written nothing for a while is silent, and iterations are whole without it::

    rank 0   ├ 6 ┤├ 7 ┤├ 8 ┤├ 9 ┤
    rank 1   ├ 6 ┤├ 7 ┤├ 8 ┤             8 is the newest whole one, until rank 1 is silent
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.texts import counted
from bubbleviz.sources.recordings.operations import RecordedSession
from bubbleviz.sources.recordings.parts import (
    FollowedFolder,
    Header,
    NewIterations,
    Stretch,
    joined_stretches,
)

# Recorded rank: the newest iterations of one process, as they are written.


class RecordedRank:
    """The newest iterations of one process.

    Args:
        new: its first ones.
        header: of its recording.

    Attributes:
        header: of its recording.
        host: hostname; "" unknown.
        stretch: what is kept of its iterations.
        read_s: when it was last seen to have written, on any clock.
    """

    def __init__(self, new: NewIterations, header: Header) -> None:
        self.header, self.host = header, new.part.host
        self.read_s = 0.0
        self._path, self._device, self._run = new.part.path, new.part.device, new.part.run
        self._last = NONE
        self.stretch = self._numbered(new.stretch)

    def add(self, new: NewIterations) -> None:
        """Keep some iterations more."""
        self.stretch = joined_stretches([self.stretch, self._numbered(new.stretch)])

    def _numbered(self, stretch: Stretch) -> Stretch:
        """Return iterations of which those without a number of their own are counted."""
        own = []
        for number in stretch.iterations.number.tolist():
            # Evaluation may count from 0 again, and numbers are to go up.
            self._last = number if number > self._last else self._last + 1
            own.append(self._last)
        numbers = np.array(own, np.int64)
        return replace(stretch, iterations=replace(stretch.iterations, number=numbers))

    @property
    def numbers(self) -> list[int]:
        """The numbers of the iterations, ascending."""
        return [int(number) for number in self.stretch.iterations.number]

    @property
    def utc_ns(self) -> dict[int, int]:
        """When each iteration was written, by its number."""
        return dict(zip(self.numbers, self.stretch.iterations.utc_ns.tolist(), strict=True))

    def keep_from(self, number: int) -> None:
        """Forget iterations before one."""
        self.stretch = self._taken(self.stretch.iterations.number >= number)

    def _taken(self, chosen: Bools) -> Stretch:
        place, operations = np.cumsum(chosen) - 1, self.stretch.operations
        operations = operations.take(chosen[operations.iteration])
        return Stretch(
            self.stretch.iterations.take(chosen),
            replace(operations, iteration=place[operations.iteration]),
        )

    def session(self, chosen: Sequence[int], names: tuple[str, ...]) -> RecordedSession | None:
        """Return a recording of the chosen iterations alone; None where it has none of them.

        Args:
            chosen: their numbers.
            names: of ranges, by number.
        """
        inside = np.isin(self.stretch.iterations.number, chosen)
        if not inside.any():
            return None
        return RecordedSession(
            path=self._path,
            header=self.header,
            host=self.host,
            device=self._device,
            run=self._run,
            parts=1,
            names=names,
            stretch=self._taken(inside),
            damaged=0,
            tail_bytes=0,
        )


#: Whole iterations that are kept in front of new ones, for clocks and advice.
CONTEXT = 2
#: A rank is silent after so many seconds, and after so many iterations of the others.
SILENT_S, SILENT_ITERATIONS = 10.0, 3
#: What a rank may write before the others do, until it is measured without them.
_MOST_KEPT = 256
#: UTC of a host may move by that against its monotonic clock.
_CLOCK_STEP_NS = 50_000_000


class FollowedRun:
    """The newest run whose recordings are in a folder.

    Memory is that of some iterations, however long the run.

    Args:
        folder: where they are, or will be.

    Attributes:
        ranks: by their number in the run.
        world_size: how many there are to be; -1 unknown.
    """

    def __init__(self, folder: str) -> None:
        self._folder = FollowedFolder(folder)
        self.ranks: dict[int, RecordedRank] = {}
        self.world_size = NONE
        self._silent: set[int] = set()
        self._measured = NONE
        self._events: list[str] = []
        self._complained: set[str] = set()
        self._began_s: float | None = None
        self._restarted_ns: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of ranges, by number."""
        return self._folder.names.values

    @property
    def silent(self) -> tuple[int, ...]:
        """Ranks that have stopped to write, or never began."""
        missing = set(range(max(self.world_size, 0))) - set(self.ranks)
        return tuple(sorted(self._silent | missing))

    def poll(self, now_s: float) -> tuple[int, ...]:
        """Read what is new, and return the numbers of iterations that are now whole.

        Args:
            now_s: seconds on a clock that never goes back.

        Raises:
            InputError: the folder cannot be read.
        """
        if self._began_s is None:
            self._began_s = now_s
        for new in self._folder.new():
            self._add(new, now_s)
        for path, error in self._folder.unreadable.items():
            if path not in self._complained:
                self._complained.add(path)
                self._events.append(str(error))
        self._judge(now_s)
        return self._whole(now_s)

    def measured(self, number: int) -> None:
        """Forget what lies far enough before an iteration that is measured now."""
        self._measured = max(self._measured, number)
        for rank in self.ranks.values():
            before = [n for n in rank.numbers if n <= number]
            if len(before) > CONTEXT:
                rank.keep_from(before[-CONTEXT])

    def events(self) -> tuple[str, ...]:
        """Return what became of ranks since this was asked last, a sentence each."""
        events, self._events = self._events, []
        return tuple(events)

    def _add(self, new: NewIterations, now_s: float) -> None:
        header = new.part.header
        if header is None:
            return
        own = self.ranks.get(header.rank)
        if own is not None and own.header.session != header.session:
            if header.began_utc_ns < own.header.began_utc_ns:
                return  # what an earlier run has left
            self._restart(own, header.began_utc_ns, header.world_size)
            own = None
        elif own is None and self.ranks and header.world_size != self.world_size:
            newest = max(self.ranks.values(), key=lambda rank: rank.header.began_utc_ns)
            if header.began_utc_ns < newest.header.began_utc_ns:
                return
            self._restart(newest, header.began_utc_ns, header.world_size)
        if own is None:
            if self._measured != NONE:
                self._events.append(f"rank {header.rank} writes from now on")
            own = self.ranks[header.rank] = RecordedRank(new, header)
            self.world_size = header.world_size
        else:
            own.add(new)
        own.read_s = now_s
        self._silent.discard(header.rank)
        self._note_clock(own, len(new.stretch.iterations))
        if len(own.numbers) > _MOST_KEPT:
            own.keep_from(own.numbers[-_MOST_KEPT])

    def _restart(self, before: RecordedRank, began_utc_ns: int, world_size: int) -> None:
        """Forget the ranks that began about when one did, now that it began again."""
        old_ns = before.header.began_utc_ns
        middle_ns = old_ns + (began_utc_ns - old_ns) // 2
        gone = [n for n, r in self.ranks.items() if r.header.began_utc_ns <= middle_ns]
        # The others of the run follow one by one.
        if self._restarted_ns is None or self._restarted_ns <= middle_ns:
            ranks = f", with {counted(world_size, 'rank')}" if world_size > 0 else ""
            self._events.append(f"the run began again{ranks}")
        self._restarted_ns = began_utc_ns
        for number in gone:
            del self.ranks[number]
        self._silent.clear()
        self._measured = NONE
        self.world_size = world_size

    def _note_clock(self, rank: RecordedRank, new: int) -> None:
        """Note whether UTC moved against the monotonic clock since before the newest iterations."""
        iterations = rank.stretch.iterations
        clock_ns = (iterations.utc_ns - iterations.monotonic_ns)[-new - 1 :].tolist()
        for before_ns, after_ns in pairwise(clock_ns):
            if abs(after_ns - before_ns) > _CLOCK_STEP_NS:
                host = rank.host or f"rank {rank.header.rank}"
                self._events.append(
                    f"the clock of {host} was put by {(after_ns - before_ns) / 1e9:+.3f} s; "
                    "iterations are timed by another"
                )

    def _judge(self, now_s: float) -> None:
        """Find the ranks that have stopped to write."""
        newest = max((r.numbers[-1] for r in self.ranks.values() if r.numbers), default=NONE)
        for number, rank in sorted(self.ranks.items()):
            behind = newest - (rank.numbers[-1] if rank.numbers else self._measured)
            late = now_s - rank.read_s > SILENT_S and behind >= SILENT_ITERATIONS
            if late and number not in self._silent:
                self._silent.add(number)
                self._events.append(
                    f"rank {number} has written nothing since iteration {newest - behind}"
                )

    def _whole(self, now_s: float) -> tuple[int, ...]:
        """Return the iterations that all ranks which still write have written, ascending."""
        live = [rank for n, rank in self.ranks.items() if n not in self._silent]
        waited_s = now_s - (now_s if self._began_s is None else self._began_s)
        expected = self.world_size if self.world_size > 0 else len(live)
        if not live or (len(self.ranks) < expected and waited_s < SILENT_S):
            return ()
        until = min(rank.numbers[-1] if rank.numbers else self._measured for rank in live)
        found = {n for rank in live for n in rank.numbers if self._measured < n <= until}
        return tuple(sorted(found))
