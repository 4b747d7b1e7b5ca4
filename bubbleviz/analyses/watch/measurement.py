"""Measures a running job's complete iterations, and keeps the few that are needed later.

An iteration is complete once every rank has written it. A rank that has not written anything for a
while is silent. Silent ranks are not waited for::

    rank 0   ├ 6 ┤├ 7 ┤├ 8 ┤├ 9 ┤
    rank 1   ├ 6 ┤├ 7 ┤├ 8 ┤             8 is the newest complete iteration until rank 1 is silent
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import quantiles

from bubbleviz.analyses.watch.recorded_rank import RecordedRank
from bubbleviz.analyses.watch.watched_iterations import (
    RankPace,
    WatchedIteration,
    measure_late_ranks,
    measure_paces,
)
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
from bubbleviz.sources.operations.jsonl.recording import make_table

#: Number of measured iterations to keep. Clock alignment and advice also use these iterations.
CONTEXT = 2
#: A rank is silent after this many seconds without new data, if it has also missed this many
#: iterations.
SILENT_S, SILENT_ITERATIONS = 10.0, 3
#: Maximum number of iterations per rank to keep while waiting for other ranks to write them.
_MAX_KEPT = 256
#: Largest jump in a host's UTC clock, relative to its monotonic clock, that is ignored.
_CLOCK_STEP_NS = 50_000_000

#: Number of recent iterations used for advice. A fault appears in the advice two iterations after
#: it began.
_ADVISED = 3
#: Name of the ratio that is unknown until the next iteration has begun.
_PERIOD = "period"

#: Maximum number of iterations in the trend.
TREND = 120
#: A rank is slow if it computes longer than its peers by more than this fraction.
SLOW = 0.1
#: Multiple of the usual pause above which a pause can be long. To be long, a pause must also exceed
#: the usual pause by more than this fraction of the iteration.
_PAUSE_TIMES, _PAUSE_SHARE = 2.0, 0.02


@dataclass(frozen=True)
class Observation:
    """New iterations and events of a running job, and its current state.

    Attributes:
        iterations: Iterations measured since the previous look, sorted by number.
        trend: The most recent measured iterations, oldest first, at most ``TREND``.
        silent: Numbers of the ranks that have stopped writing or have never written anything.
        advice: Advice on what to do first, or "" if there is none yet.
        events: Events since the previous look, such as a restart or a rank falling silent, one
            sentence each.
        total: Number of iterations measured so far.
        hosts: Distinct hostnames on which the ranks run.
        unreadable: Reasons why files in the folder cannot be read, one sentence each.
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
    """Follows the most recent run recorded in a folder.

    Memory use is bounded, because only the last few iterations are kept.

    Args:
        folder: Folder that the ranks write to; it may still be empty.

    Attributes:
        ranks: Ranks of the run that have written something, keyed by rank number.
        world_size: Expected number of ranks, or -1 if unknown.
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

    def look(self, now_s: float) -> Observation:
        """Read the data that ranks have written since the last call, and measure new iterations.

        Returns the new iterations, the events since the last call, and the run's current state.

        Args:
            now_s: Current time of a monotonic clock, in seconds.

        Raises:
            InputError: The folder cannot be read.
        """
        if self._began_s is None:
            self._began_s = now_s
        for part, stretch in self._folder.new():
            self._add_stretch(part, stretch, now_s)
        unreadable = tuple(self._list_unreadable())
        for reason in unreadable:
            self._report_once(reason)
        for part in self._folder.parts:
            if part.n_damaged:
                problem = f"contains damaged lines ({part.damage}), whose iterations are ignored"
                self._report_once(f"{part.path}: {problem}")
        self._find_silent(now_s)
        iterations = tuple(map(self._add_to_trend, self._measure_new(now_s)))
        missing = set(range(max(self.world_size, 0))) - set(self.ranks)
        events, self._events = self._events, []
        return Observation(
            iterations=iterations,
            trend=tuple(self._trend),
            silent=tuple(sorted(self._silent | missing)),
            advice=self._advice,
            events=tuple(events),
            total=self._total,
            hosts=tuple(dict.fromkeys(rank.host for rank in self.ranks.values())),
            unreadable=unreadable,
        )

    def list_empty_recordings(self) -> tuple[str, ...]:
        """Return the paths of all recordings if all are readable but empty, otherwise ()."""
        parts = self._folder.parts
        have_bytes = any(part.header is not None or part.cut_bytes for part in parts)
        if have_bytes or self._folder.unreadable:
            return ()
        return tuple(part.path for part in parts)

    def _list_unreadable(self) -> Iterator[str]:
        """Yield a sentence for each unreadable file and for each recording with only damaged lines.

        A recording that ends in damaged lines is included if no iteration has been read from it.
        """
        yield from map(str, self._folder.unreadable.values())
        for part in self._folder.parts:
            if part.n_tail_damaged and part.is_without_iterations:
                yield f"{part.path}: every line of the recording is damaged ({part.damage})"

    def _report_once(self, reason: str) -> None:
        """Add an event for a problem, unless it was reported before."""
        if reason not in self._complained:
            self._complained.add(reason)
            self._events.append(reason)

    def _add_stretch(
        self, part: recorded.PartReader, stretch: recorded.Stretch, now_s: float
    ) -> None:
        """Add new iterations to their rank, and detect whether the run has restarted.

        The run was restarted if a rank began a new session, or if a new rank reports a different
        number of ranks. Iterations of earlier runs are ignored. At most ``_MAX_KEPT`` iterations
        are kept per rank.

        Args:
            part: Reader for the file that contains the iterations.
            stretch: The new iterations.
            now_s: Current time of a monotonic clock, in seconds.
        """
        header = part.header
        if header is None:
            return
        recorded_rank = self.ranks.get(header.rank)
        # The rank as it was in the previous run, if the run has restarted.
        previous_rank = (
            recorded_rank
            if recorded_rank is not None and recorded_rank.header.session != header.session
            else None
        )
        if recorded_rank is None and self.ranks and header.world_size != self.world_size:
            previous_rank = max(self.ranks.values(), key=lambda rank: rank.header.began_utc_ns)
        if previous_rank is not None:
            if header.began_utc_ns < previous_rank.header.began_utc_ns:
                return  # the file is from an earlier run
            self._restart(previous_rank.header.began_utc_ns, header)
            recorded_rank = None
        if recorded_rank is None:
            if self._measured != NONE:
                self._events.append(f"rank {header.rank} has started writing")
            recorded_rank = self.ranks[header.rank] = RecordedRank(part, header)
            self.world_size = header.world_size
        recorded_rank.add(stretch)
        recorded_rank.read_s = now_s
        self._silent.discard(header.rank)
        self._check_clock(recorded_rank, len(stretch.iterations))
        if len(recorded_rank.numbers) > _MAX_KEPT:
            recorded_rank.drop_before(recorded_rank.numbers[-_MAX_KEPT])

    def _restart(self, previous_start_ns: int, header: Header) -> None:
        """Drop the ranks of the previous run, and start measuring from the beginning.

        A rank belongs to the new run if its start is closer to the new start than to the previous
        start. An event is added only for the first rank of the new run.

        Args:
            previous_start_ns: UTC time at which a rank of the previous run had started.
            header: Header of a recording from the new run.
        """
        middle_ns = previous_start_ns + (header.began_utc_ns - previous_start_ns) // 2
        # The other ranks restart one by one, but only the first rank's restart is an event.
        if self._restarted_ns is None or self._restarted_ns <= middle_ns:
            size = header.world_size
            ranks = f" with {format_count(size, 'rank')}" if size > 0 else ""
            self._events.append(f"the run restarted{ranks}")
        self._restarted_ns = header.began_utc_ns
        self.ranks = {n: r for n, r in self.ranks.items() if r.header.began_utc_ns > middle_ns}
        self._silent.clear()
        self._measured = NONE

    def _check_clock(self, rank: RecordedRank, n_new: int) -> None:
        """Add an event for each change of the UTC clock on the rank's host.

        The clock was changed if the difference between UTC and the monotonic clock differs by more
        than ``_CLOCK_STEP_NS`` from one iteration to the next.

        Args:
            rank: The rank whose clocks are compared.
            n_new: Number of the rank's most recent iterations to check.
        """
        clock_ns = (rank.iterations.utc_ns - rank.iterations.monotonic_ns)[-n_new - 1 :].tolist()
        for before_ns, after_ns in pairwise(clock_ns):
            if abs(after_ns - before_ns) > _CLOCK_STEP_NS:
                host = rank.host or f"rank {rank.header.rank}"
                self._events.append(
                    f"the UTC clock of {host} jumped by {(after_ns - before_ns) / 1e9:+.3f} s; "
                    "iteration times are unaffected, because they use another clock"
                )

    def _find_silent(self, now_s: float) -> None:
        """Mark ranks that have stopped writing as silent, and add an event for each of them.

        A rank is silent if both conditions are met:

        - It has written nothing for more than ``SILENT_S`` seconds.
        - Its last iteration is at least ``SILENT_ITERATIONS`` before the latest iteration of any
          rank.
        """
        newest = max((r.numbers[-1] for r in self.ranks.values() if r.numbers), default=NONE)
        for number, rank in sorted(self.ranks.items()):
            n_missing = newest - (rank.numbers[-1] if rank.numbers else self._measured)
            is_silent = now_s - rank.read_s > SILENT_S and n_missing >= SILENT_ITERATIONS
            if is_silent and number not in self._silent:
                self._silent.add(number)
                self._events.append(
                    f"rank {number} has written nothing since iteration {newest - n_missing}"
                )

    def _measure_new(self, now_s: float) -> tuple[WatchedIteration, ...]:
        """Measure the new iterations that every rank has written, not counting silent ranks.

        As long as some ranks of the run have not written anything, no iteration is measured in the
        first ``SILENT_S`` seconds after the first look. Iterations that cannot be analyzed are left
        out, and the reason is reported once.

        Also updates the advice, and keeps only the last ``CONTEXT`` measured iterations of each
        rank.
        """
        live = [rank for n, rank in self.ranks.items() if n not in self._silent]
        waited_s = now_s - (now_s if self._began_s is None else self._began_s)
        if not live or (len(self.ranks) < self.world_size and waited_s < SILENT_S):
            return ()
        newest = min(rank.numbers[-1] if rank.numbers else self._measured for rank in live)
        new = sorted({n for rank in live for n in rank.numbers if self._measured < n <= newest})
        if not new:
            return ()
        iterations: tuple[WatchedIteration, ...] = ()
        recorded_numbers = sorted(
            {n for rank in self.ranks.values() for n in rank.numbers if n <= newest}
        )
        try:
            report = self._make_report(recorded_numbers)
            advised = (
                report
                if len(recorded_numbers) <= _ADVISED
                else self._make_report(recorded_numbers[-_ADVISED:])
            )
        except BubblevizError as error:
            self._report_once(to_one_line(str(error), 300))
        else:
            rows = {iteration.name: iteration for iteration in report.iterations}
            iterations = tuple(
                self._summarize(report, rows.get(str(n - 1)), rows[str(n)], n)
                for n in new
                if str(n) in rows
            )
            self._advice = describe_first_steps(advised) or self._advice
        # Older iterations are no longer needed.
        self._measured = newest
        for rank in self.ranks.values():
            measured_numbers = [n for n in rank.numbers if n <= newest]
            if len(measured_numbers) > CONTEXT:
                rank.drop_before(measured_numbers[-CONTEXT])
        return iterations

    def _make_report(self, numbers: Sequence[int]) -> Report:
        """Create a report on the iterations with the given numbers.

        Raises:
            BubblevizError: The iterations cannot be analyzed.
        """
        names = self._folder.names.values
        sessions = [rank.make_session(numbers, names) for rank in self.ranks.values()]
        return make_report(
            recording.join_recordings(
                [tables.build_recording(make_table(own)) for own in sessions if own is not None]
            )
        )

    def _summarize(
        self, report: Report, previous: Iteration | None, iteration: Iteration, number: int
    ) -> WatchedIteration:
        """Return a summary of an iteration.

        The ratio ``period`` is taken from the previous iteration, because it is unknown until the
        next iteration begins.

        Args:
            report: Report that covers this iteration and earlier ones.
            previous: The iteration before this one, or None if the report does not contain it.
            iteration: The iteration to summarize.
            number: Number of the iteration.
        """
        iterations_of_ranks = [
            rank.iterations for rank in self.ranks.values() if number in rank.numbers
        ]
        ratios = {name: ratio.value for name, ratio in iteration.ratios.items()}
        if _PERIOD in ratios:
            ratios[_PERIOD] = None if previous is None else previous.ratios[_PERIOD].value
        explained = previous if report.explanation.listed_ratio == _PERIOD else iteration
        return WatchedIteration(
            number=number,
            utc_ns=max(int(own.utc_ns[own.number == number].max()) for own in iterations_of_ranks),
            length_ns=iteration.end_ns - iteration.start_ns,
            pause_ns=NONE if previous is None else max(iteration.start_ns - previous.end_ns, 0),
            ranks=len(iteration.ranks),
            world_size=self.world_size,
            headline=report.headline,
            ratios=ratios,
            parts=() if explained is None else list_parts(report, [explained]),
            paces=measure_paces(report, iteration),
            late=measure_late_ranks(report, iteration),
        )

    def _add_to_trend(self, iteration: WatchedIteration) -> WatchedIteration:
        """Add an iteration to the trend, and return it with slow ranks and usual pause filled in.

        A rank is slow if it computes longer than its peers by more than the fraction ``SLOW``. If
        the iteration number is not higher than the previous one, the run was restarted, and the
        trend and the slow ranks are cleared first.
        """
        self._total += 1
        if self._trend and iteration.number <= self._trend[-1].number:
            self._trend.clear()
            self._slow.clear()
        slow = {}
        for pace in iteration.paces:
            if pace.excess > SLOW:
                first = self._slow.get(pace.rank)
                slow_since = (
                    (first.slow_since, first.since_utc_ns)
                    if first
                    else (iteration.number, iteration.utc_ns)
                )
                slow[pace.rank] = replace(
                    pace, slow_since=slow_since[0], since_utc_ns=slow_since[1]
                )
        self._slow = slow
        watched = replace(
            iteration, slow=tuple(slow.values()), usual_pause_ns=self._find_usual_pause(iteration)
        )
        self._trend.append(watched)
        return watched

    def _find_usual_pause(self, iteration: WatchedIteration) -> int:
        """Return the usual pause in ns if the pause before an iteration is long, otherwise -1.

        The usual pause is the lower quartile of the known pauses in the trend. A pause is long if
        both conditions are met:

        - It is more than ``_PAUSE_TIMES`` times the usual pause.
        - It exceeds the usual pause by more than ``_PAUSE_SHARE`` of the iteration's length.
        """
        pauses_ns = [own.pause_ns for own in self._trend if own.pause_ns != NONE]
        if iteration.pause_ns == NONE or not pauses_ns:
            return NONE
        # If every second pause is long, the median would itself be long.
        usual_ns = quantiles(pauses_ns, n=4)[0] if len(pauses_ns) > 1 else pauses_ns[0]
        is_long = iteration.pause_ns > _PAUSE_TIMES * usual_ns
        is_long = is_long and iteration.pause_ns - usual_ns > _PAUSE_SHARE * iteration.length_ns
        return max(0, round(usual_ns)) if is_long else NONE
