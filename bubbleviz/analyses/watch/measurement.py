"""Measurement: which iterations of a running job are whole, what they show, and what is kept of it.

A rank that has written nothing for a while is silent, and iterations are whole without it::

    rank 0   ├ 6 ┤├ 7 ┤├ 8 ┤├ 9 ┤
    rank 1   ├ 6 ┤├ 7 ┤├ 8 ┤             8 is the newest whole one, until rank 1 is silent
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import quantiles

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.ratios import ratio_definitions
from bubbleviz.errors import BubblevizError, UsageError
from bubbleviz.explain.slowness import excess_over_peers, peer_groups
from bubbleviz.interpret import recording, tables
from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.texts import counted, one_line, percent, suggestion
from bubbleviz.report import gate
from bubbleviz.report.bubble_parts import BubblePart, parts_of
from bubbleviz.report.report import Report, report_on
from bubbleviz.report.sentences import describe_first_steps
from bubbleviz.sources.operations.jsonl import parts as recorded
from bubbleviz.sources.operations.jsonl.lines import Header
from bubbleviz.sources.operations.jsonl.recording import table_of
from bubbleviz.sources.operations.jsonl.sessions import RecordedSession

# Recorded rank: the newest iterations of one process, as they are written.


class RecordedRank:
    """The newest iterations of one process.

    Args:
        part: of its recording.
        header: of its recording.

    Attributes:
        header: of its recording.
        host: hostname; "" unknown.
        stretch: what is kept of its iterations, ascending numbers.
        read_s: when it was last seen to have written, on any clock.
    """

    def __init__(self, part: recorded.PartReader, header: Header) -> None:
        self.header, self.host, self._path = header, header.host, part.path
        self.read_s, self._last = 0.0, NONE
        self.stretch: recorded.Stretch | None = None

    def add(self, stretch: recorded.Stretch) -> None:
        """Keep some iterations more; those without a number of their own are counted."""
        own = []
        for number in stretch.iterations.number.tolist():
            # Evaluation may count from 0 again, and numbers are to go up.
            self._last = number if number > self._last else self._last + 1
            own.append(self._last)
        iterations = replace(stretch.iterations, number=np.array(own, np.int64))
        new = replace(stretch, iterations=iterations)
        self.stretch = recorded.joined_stretches([self.stretch, new] if self.stretch else [new])

    @property
    def iterations(self) -> recorded.RecordedIterations:
        """The iterations that are kept."""
        return self.stretch.iterations if self.stretch else recorded.RecordedIterations.none()

    @property
    def numbers(self) -> list[int]:
        """The numbers of the iterations, ascending."""
        return [int(number) for number in self.iterations.number]

    def keep_from(self, number: int) -> None:
        """Forget iterations before one."""
        self.stretch = self._taken(self.iterations.number >= number)

    def _taken(self, chosen: Bools) -> recorded.Stretch:
        assert self.stretch is not None
        place, operations = np.cumsum(chosen) - 1, self.stretch.operations
        operations = operations.take(chosen[operations.iteration])
        return recorded.Stretch(
            self.stretch.iterations.take(chosen),
            replace(operations, iteration=place[operations.iteration]),
        )

    def session(self, chosen: Sequence[int], names: tuple[str, ...]) -> RecordedSession | None:
        """Return a recording of the chosen iterations alone; None where it has none of them.

        Args:
            chosen: their numbers.
            names: of ranges, by number.
        """
        inside = np.isin(self.iterations.number, chosen)
        if not inside.any():
            return None
        return RecordedSession(
            path=self._path,
            header=self.header,
            names=names,
            stretch=self._taken(inside),
        )


#: Whole iterations that are kept in front of new ones, for clocks and advice.
CONTEXT = 2
#: A rank is silent after so many seconds, and after so many iterations of the others.
SILENT_S, SILENT_ITERATIONS = 10.0, 3
#: What a rank may write before the others do, until it is measured without them.
_MOST_KEPT = 256
#: UTC of a host may move by that against its monotonic clock.
_CLOCK_STEP_NS = 50_000_000


# Measurement: what whole iterations show.


#: The newest iterations that advice rests on: what began two iterations ago shows in them.
_ADVISED = 3
#: The ratio that is known when the next iteration has begun.
_PERIOD = "period"


@dataclass(frozen=True)
class RankPace:
    """How long a rank computed in one iteration.

    Attributes:
        rank: its number in the run.
        host: hostname; "" unknown.
        stage: None unknown.
        compute_ns: of its forwards and backwards.
        excess: how much longer that is than the median of the ranks of its stage, or of all ranks
            where its stage has no other, as a fraction.
        since: of a slow rank, number of the iteration from which on it has been slow; else -1.
        since_utc_ns: when that was written.
    """

    rank: int
    host: str
    stage: int | None
    compute_ns: int
    excess: float
    since: int = NONE
    since_utc_ns: int = NONE


@dataclass(frozen=True)
class WatchedIteration:
    """One iteration of a running job.

    Attributes:
        number: of the iteration.
        utc_ns: when the last rank had written it.
        length_ns: from its first start to its last end on any rank.
        pause_ns: from the last end of the iteration before to its first start; -1 unknown.
        ranks: how many have it.
        world_size: how many there are to be; -1 unknown.
        headline: name of the primary ratio.
        ratios: by name, None unknown; ``period`` is that of the iteration before, which this one
            ends.
        parts: of its bubble, the largest first; their shares add up to the headline.
        paces: of its ranks, the slowest first.
        slow: those that are slow, the slowest first.
        usual_pause_ns: how long a pause before an iteration usually is, where this one's is long;
            -1 where it is not.
    """

    number: int
    utc_ns: int
    length_ns: int
    pause_ns: int
    ranks: int
    world_size: int
    headline: str
    ratios: Mapping[str, float | None]
    parts: tuple[BubblePart, ...]
    paces: tuple[RankPace, ...]
    slow: tuple[RankPace, ...] = ()
    usual_pause_ns: int = NONE


def _paces(report: Report, iteration: Iteration) -> tuple[RankPace, ...]:
    """Return the pace of each rank that computed in an iteration, the slowest first."""
    rows = [row for row in iteration.ranks if row.compute_ns]
    ranks = [report.ranks[row.rank] for row in rows]
    compute_ns = np.array([row.compute_ns for row in rows], np.float64)
    excesses = excess_over_peers(peer_groups([rank.stage for rank in ranks]), compute_ns)
    paces = []
    for row, rank, excess in zip(rows, ranks, excesses.tolist(), strict=True):
        number = row.rank if rank.global_rank is None else rank.global_rank
        paces.append(RankPace(number, rank.host, rank.stage, row.compute_ns, excess))
    return tuple(sorted(paces, key=lambda pace: (-pace.excess, pace.rank)))


# Watcher: what a running job shows each time it is looked at, and since when it has done so.


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
        iterations: that are new, ascending.
        trend: the newest iterations, these included.
        silent: ranks that write nothing.
        advice: what to do first; "" where that is unknown.
        events: what became of ranks and files since the look before, a sentence each.
        total: how many iterations were measured so far.
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
            ranks = f", with {counted(size, 'rank')}" if size > 0 else ""
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
            self._complain(one_line(str(error), 300))
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
        return report_on(
            recording.gathered(
                [tables.recording_of(table_of(own)) for own in sessions if own is not None]
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
            parts=() if shown is None else parts_of(report, [shown]),
            paces=_paces(report, iteration),
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


def limit_watch(texts: Sequence[str], most: int) -> Callable[[WatchedIteration], str]:
    """Return what says in a sentence that an iteration is one too many above a limit; else "".

    An iteration whose ratio is unknown neither counts nor ends the count.

    Args:
        texts: limits, as ``schedule=20%``.
        most: how many iterations in a row may be above one.

    Raises:
        UsageError: a limit is none, or of no ratio, or the number is below 1.
    """
    if most < 1:
        raise UsageError(f"--for {most}: must be 1 or more iterations")
    limits = gate.parse_limits(texts) if texts else ()
    if any(limit.unit == "ms" for limit in limits):
        raise UsageError("--max-bubble: watch takes a share, such as 20% or schedule=0.2")
    known = [definition.name for definition in ratio_definitions()]
    for limit in limits:
        if limit.ratio and limit.ratio not in known:
            raise UsageError(
                f"--max-bubble {limit.ratio[:60]}: no ratio; the ratios are {', '.join(known)}"
                f"{suggestion(limit.ratio, known)}"
            )
    above = [0] * len(limits)

    def exceeded(iteration: WatchedIteration) -> str:
        for place, limit in enumerate(limits):
            name = limit.ratio or iteration.headline
            value = iteration.ratios.get(name)
            if value is None:
                continue
            above[place] = above[place] + 1 if value > limit.most else 0
            if above[place] == most:
                return (
                    f"{name} is {percent(value)} in iteration {iteration.number}, and above "
                    f"{percent(limit.most)} for {counted(most, 'iteration')}"
                )
        return ""

    return exceeded
