"""Watcher: what a running job shows each time it is looked at, and since when it has done so."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from bubbleviz.analyses.watch.followed_run import FollowedRun
from bubbleviz.analyses.watch.measurement import SlowRank, WatchedIteration, measured
from bubbleviz.analyses.watch.recorded_rank import RecordedRank
from bubbleviz.model.values import frozen

#: Iterations whose ratios make the trend.
TREND = 120
#: A rank that computes longer than others by this fraction is slow.
SLOW = 0.1


@frozen
class Sight:
    """A look at a running job.

    Attributes:
        iterations: that are new, ascending.
        trend: the newest iterations, these included.
        silent: ranks that write nothing.
        advice: what to do first; "" where that is unknown.
        events: what became of ranks and files since the look before, a sentence each.
        total: how many iterations were measured so far.
    """

    iterations: tuple[WatchedIteration, ...]
    trend: tuple[WatchedIteration, ...]
    silent: tuple[int, ...]
    advice: str
    events: tuple[str, ...]
    total: int


class Watcher:
    """Looks at a running job again and again.

    Args:
        folder: where its ranks record.
    """

    def __init__(self, folder: str) -> None:
        self._run = FollowedRun(folder)
        self._trend: deque[WatchedIteration] = deque(maxlen=TREND)
        self._slow: dict[int, SlowRank] = {}
        self._advice = self._complaint = ""
        self._total = 0

    @property
    def ranks(self) -> tuple[RecordedRank, ...]:
        """The ranks that have written, with what is kept of them."""
        return tuple(self._run.ranks.values())

    def look(self, now_s: float) -> Sight:
        """Return what is new.

        Args:
            now_s: seconds on a clock that never goes back.

        Raises:
            InputError: the folder cannot be read.
        """
        new = self._run.poll(now_s)
        events = list(self._run.events())
        iterations: tuple[WatchedIteration, ...] = ()
        if new:
            found = measured(self._run, new)
            self._run.measured(new[-1])
            iterations = tuple(map(self._taken, found.iterations))
            if found.complaint and found.complaint != self._complaint:
                events.append(found.complaint)
            self._complaint = found.complaint
            self._advice = found.advice or self._advice
        return Sight(
            iterations=iterations,
            trend=tuple(self._trend),
            silent=self._run.silent,
            advice=self._advice,
            events=tuple(events),
            total=self._total,
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
                before = self._slow.get(pace.rank)
                since = (iteration.number, iteration.utc_ns)
                if before is not None:
                    since = (before.since, before.since_utc_ns)
                slow[pace.rank] = SlowRank(pace, *since)
        self._slow = slow
        seen = replace(iteration, slow=tuple(slow.values()))
        self._trend.append(seen)
        return seen
