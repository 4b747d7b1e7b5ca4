"""Measurement: which iterations of a running job are whole, what they show, and what is kept of it.

A rank that has written nothing for a while is silent, and iterations are whole without it::

    rank 0   ├ 6 ┤├ 7 ┤├ 8 ┤├ 9 ┤
    rank 1   ├ 6 ┤├ 7 ┤├ 8 ┤             8 is the newest whole one, until rank 1 is silent
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import quantiles

from bubbleviz.analyses.watch.recorded_rank import RecordedRank
from bubbleviz.analyses.watch.watched_iterations import RankPace, WatchedIteration, measure_paces
from bubbleviz.count.iterations import Iteration
from bubbleviz.errors import BubblevizError
from bubbleviz.interpret import recording, tables
from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import format_count, to_one_line
from bubbleviz.report.bubble_parts import list_parts
from bubbleviz.report.report import Report, make_report
from bubbleviz.report.sentences import describe_first_steps
from bubbleviz.sources.operations.jsonl import parts as recorded
from bubbleviz.sources.operations.jsonl.lines import Header
from bubbleviz.sources.operations.jsonl.recording import table_of

#: Number of complete iterations that are kept before the new ones, for clocks and advice.
CONTEXT = 2
#: Seconds without new lines, and iterations of other ranks, after which a rank is silent.
SILENT_S, SILENT_ITERATIONS = 10.0, 3
#: Maximum number of iterations that are kept for a rank while other ranks have not written them.
_MOST_KEPT = 256
#: Maximum change of UTC against the monotonic clock of a host that is not reported.
_CLOCK_STEP_NS = 50_000_000

#: The newest iterations that advice rests on: what began two iterations ago shows in them.
_ADVISED = 3
#: The ratio that is known when the next iteration has begun.
_PERIOD = "period"

#: Iterations whose ratios make the trend.
TREND = 120
#: A rank that computes longer than others by this fraction is slow.
SLOW = 0.1
#: A pause is long that takes so many times as long as usual, and this share of the iteration.
_PAUSE_TIMES, _PAUSE_SHARE = 2.0, 0.02


@dataclass(frozen=True)
class Sight:
    """A look at a running job.

    Attributes:
        iterations: New iterations, in ascending order.
        trend: The newest iterations, including the new ones.
        silent: Ranks that write nothing.
        advice: What to do first, or "" if unknown.
        events: Changes of ranks and files since the previous look, one sentence each.
        total: Number of iterations measured so far.
        hosts: Names of the ranks' hosts.
        unreadable: Why files of the folder cannot be read, a sentence each.
    """

    iterations: tuple[WatchedIteration, ...]
    trend: tuple[WatchedIteration, ...]
    silent: tuple[int, ...]
    advice: str
    events: tuple[str, ...]
    total: int
    hosts: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


class Watcher:
    """Looks again and again at the newest run whose recordings are in a folder.

    Memory is that of some iterations, however long the run.

    Args:
        folder: where its ranks record, or will.

    Attributes:
        ranks: by their number in the run.
        world_size: how many there are to be; -1 unknown.
    """

    def __init__(self, folder: str) -> None:
        self._folder = recorded.FollowedFolder(folder)
        self.ranks: dict[int, RecordedRank] = {}
        self.world_size = NONE
        self._silent: set[int] = set()
        self._measured = NONE
        self._events: list[str] = []
        self._complained = {""}
        self._began_s: float | None = None
        self._restarted_ns: int | None = None
        self._trend: deque[WatchedIteration] = deque(maxlen=TREND)
        self._slow: dict[int, RankPace] = {}
        self._advice = ""
        self._total = 0

    def look(self, now_s: float) -> Sight:
        """Return what is new.

        Args:
            now_s: seconds on a clock that never goes back.

        Raises:
            InputError: the folder cannot be read.
        """
        if self._began_s is None:
            self._began_s = now_s
        for part, stretch in self._folder.new():
            self._add(part, stretch, now_s)
        unreadable = tuple(self._unreadable())
        for reason in unreadable:
            self._complain(reason)
        for part in self._folder.parts:
            if part.n_damaged:
                what = f"damaged lines ({part.damage}); their iterations are left out"
                self._complain(f"{part.path}: {what}")
        self._judge(now_s)
        iterations = tuple(map(self._taken, self._new(now_s)))
        missing = set(range(max(self.world_size, 0))) - set(self.ranks)
        events, self._events = self._events, []
        return Sight(
            iterations=iterations,
            trend=tuple(self._trend),
            silent=tuple(sorted(self._silent | missing)),
            advice=self._advice,
            events=tuple(events),
            total=self._total,
            hosts=tuple(dict.fromkeys(rank.host for rank in self.ranks.values())),
            unreadable=unreadable,
        )

    def empty_recordings(self) -> tuple[str, ...]:
        """Return the paths of the recordings, if all of them are still empty."""
        parts = self._folder.parts
        have_bytes = any(part.header is not None or part.cut_bytes for part in parts)
        if have_bytes or self._folder.unreadable:
            return ()
        return tuple(part.path for part in parts)

    def _unreadable(self) -> Iterator[str]:
        """Yield why files cannot be read, or cannot yet: their lines may still be written."""
        yield from map(str, self._folder.unreadable.values())
        for part in self._folder.parts:
            if part.n_tail_damaged and part.is_without_iterations:
                yield f"{part.path}: a recording of which every line is damaged ({part.damage})"

    def _complain(self, reason: str) -> None:
        """Say once what cannot be read or measured."""
        if reason not in self._complained:
            self._complained.add(reason)
            self._events.append(reason)

    def _add(self, part: recorded.PartReader, stretch: recorded.Stretch, now_s: float) -> None:
        header = part.header
        if header is None:
            return
        own = self.ranks.get(header.rank)
        # A rank that began again, or the first of a run of another size.
        other = own if own is not None and own.header.session != header.session else None
        if own is None and self.ranks and header.world_size != self.world_size:
            other = max(self.ranks.values(), key=lambda rank: rank.header.began_utc_ns)
        if other is not None:
            if header.began_utc_ns < other.header.began_utc_ns:
                return  # what an earlier run has left
            self._restart(other.header.began_utc_ns, header)
            own = None
        if own is None:
            if self._measured != NONE:
                self._events.append(f"rank {header.rank} writes from now on")
            own = self.ranks[header.rank] = RecordedRank(part, header)
            self.world_size = header.world_size
        own.add(stretch)
        own.read_s = now_s
        self._silent.discard(header.rank)
        self._note_clock(own, len(stretch.iterations))
        if len(own.numbers) > _MOST_KEPT:
            own.keep_from(own.numbers[-_MOST_KEPT])

    def _restart(self, old_ns: int, header: Header) -> None:
        """Forget the ranks that began about when one did, now that it began again."""
        middle_ns = old_ns + (header.began_utc_ns - old_ns) // 2
        # The others of the run follow one by one.
        if self._restarted_ns is None or self._restarted_ns <= middle_ns:
            size = header.world_size
            ranks = f", with {format_count(size, 'rank')}" if size > 0 else ""
            self._events.append(f"the run began again{ranks}")
        self._restarted_ns = header.began_utc_ns
        self.ranks = {n: r for n, r in self.ranks.items() if r.header.began_utc_ns > middle_ns}
        self._silent.clear()
        self._measured = NONE

    def _note_clock(self, rank: RecordedRank, new: int) -> None:
        """Note whether UTC moved against the monotonic clock since before the newest iterations."""
        clock_ns = (rank.iterations.utc_ns - rank.iterations.monotonic_ns)[-new - 1 :].tolist()
        for before_ns, after_ns in pairwise(clock_ns):
            if abs(after_ns - before_ns) > _CLOCK_STEP_NS:
                host = rank.host or f"rank {rank.header.rank}"
                self._events.append(
                    f"the clock of {host} was put by {(after_ns - before_ns) / 1e9:+.3f} s; "
                    "iterations are timed by another clock"
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

    def _new(self, now_s: float) -> tuple[WatchedIteration, ...]:
        """Return what the iterations show that all ranks which still write have now written."""
        live = [rank for n, rank in self.ranks.items() if n not in self._silent]
        waited_s = now_s - (now_s if self._began_s is None else self._began_s)
        if not live or (len(self.ranks) < self.world_size and waited_s < SILENT_S):
            return ()
        until = min(rank.numbers[-1] if rank.numbers else self._measured for rank in live)
        new = sorted({n for rank in live for n in rank.numbers if self._measured < n <= until})
        if not new:
            return ()
        iterations: tuple[WatchedIteration, ...] = ()
        known = sorted({n for rank in self.ranks.values() for n in rank.numbers if n <= until})
        try:
            report = self._report(known)
            advised = report if len(known) <= _ADVISED else self._report(known[-_ADVISED:])
        except BubblevizError as error:
            self._complain(to_one_line(str(error), 300))
        else:
            rows = {iteration.name: iteration for iteration in report.iterations}
            iterations = tuple(
                self._watched(report, rows.get(str(n - 1)), rows[str(n)], n)
                for n in new
                if str(n) in rows
            )
            self._advice = describe_first_steps(advised) or self._advice
        # What lies far enough before is needed no more.
        self._measured = until
        for rank in self.ranks.values():
            before = [n for n in rank.numbers if n <= until]
            if len(before) > CONTEXT:
                rank.keep_from(before[-CONTEXT])
        return iterations

    def _report(self, chosen: Sequence[int]) -> Report:
        """Return the report on some iterations.

        Raises:
            BubblevizError: they cannot be analysed.
        """
        names = self._folder.names.values
        sessions = [rank.session(chosen, names) for rank in self.ranks.values()]
        return make_report(
            recording.join_recordings(
                [tables.build_recording(table_of(own)) for own in sessions if own is not None]
            )
        )

    def _watched(
        self, report: Report, before: Iteration | None, iteration: Iteration, number: int
    ) -> WatchedIteration:
        """Return what an iteration shows.

        Args:
            report: on it and those before.
            before: the iteration before, if it is known.
            iteration: this one.
            number: of this one.
        """
        written = [rank.iterations for rank in self.ranks.values() if number in rank.numbers]
        ratios = {name: ratio.value for name, ratio in iteration.ratios.items()}
        if _PERIOD in ratios:
            ratios[_PERIOD] = None if before is None else before.ratios[_PERIOD].value
        shown = before if report.explanation.listed_ratio == _PERIOD else iteration
        return WatchedIteration(
            number=number,
            utc_ns=max(int(own.utc_ns[own.number == number].max()) for own in written),
            length_ns=iteration.end_ns - iteration.start_ns,
            pause_ns=NONE if before is None else max(iteration.start_ns - before.end_ns, 0),
            ranks=len(iteration.ranks),
            world_size=self.world_size,
            headline=report.headline,
            ratios=ratios,
            parts=() if shown is None else list_parts(report, [shown]),
            paces=measure_paces(report, iteration),
        )

    def _taken(self, iteration: WatchedIteration) -> WatchedIteration:
        """Return an iteration with the ranks that are slow in it, and add it to the trend."""
        self._total += 1
        if self._trend and iteration.number <= self._trend[-1].number:
            self._trend.clear()
            self._slow.clear()
        slow = {}
        for pace in iteration.paces:
            if pace.excess > SLOW:
                first = self._slow.get(pace.rank)
                since = (
                    (first.since, first.since_utc_ns)
                    if first
                    else (iteration.number, iteration.utc_ns)
                )
                slow[pace.rank] = replace(pace, since=since[0], since_utc_ns=since[1])
        self._slow = slow
        seen = replace(
            iteration, slow=tuple(slow.values()), usual_pause_ns=self._long_pause(iteration)
        )
        self._trend.append(seen)
        return seen

    def _long_pause(self, iteration: WatchedIteration) -> int:
        """Return how long a pause usually is, if that before an iteration is long; else -1."""
        known = [own.pause_ns for own in self._trend if own.pause_ns != NONE]
        if iteration.pause_ns == NONE or not known:
            return NONE
        # Where every second one is long, the median is.
        usual_ns = quantiles(known, n=4)[0] if len(known) > 1 else known[0]
        long = iteration.pause_ns > _PAUSE_TIMES * usual_ns
        long = long and iteration.pause_ns - usual_ns > _PAUSE_SHARE * iteration.length_ns
        return max(0, round(usual_ns)) if long else NONE
