"""Watcher: what a running job shows each time it is looked at, and since when it has done so."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from statistics import quantiles

from bubbleviz.analyses.watch.followed_run import FollowedRun
from bubbleviz.analyses.watch.measurement import SlowRank, WatchedIteration, measured
from bubbleviz.analyses.watch.recorded_rank import RecordedRank
from bubbleviz.model.columns import NONE
from bubbleviz.model.values import frozen

#: Iterations whose ratios make the trend.
TREND = 120
#: A rank that computes longer than others by this fraction is slow.
SLOW = 0.1
#: A pause is long that takes so many times as long as usual, and this share of the iteration.
_PAUSE_TIMES, _PAUSE_SHARE = 2.0, 0.02


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
