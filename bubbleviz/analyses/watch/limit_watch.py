"""Limit watch: whether bubble ratios have been above their limits for too many iterations."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.analyses.watch.measurement import WatchedIteration
from bubbleviz.errors import UsageError
from bubbleviz.model.texts import counted, percent
from bubbleviz.report.compare.gate import limits_of


class LimitWatch:
    """Counts iterations that are above a limit, one after another.

    An iteration whose ratio is unknown neither counts nor ends the count.

    Args:
        texts: limits, as ``schedule=20%``.
        most: how many iterations in a row may be above one.

    Raises:
        UsageError: a limit is none, or the number is below 1.
    """

    def __init__(self, texts: Sequence[str], most: int) -> None:
        if most < 1:
            raise UsageError(f"--for {most}: must be 1 or more iterations")
        self._limits = limits_of(texts) if texts else ()
        self._most = most
        self._above = [0] * len(self._limits)

    def exceeded(self, iteration: WatchedIteration) -> str:
        """Return a sentence where an iteration is one too many above a limit; else ""."""
        for place, limit in enumerate(self._limits):
            value = iteration.ratio(limit.ratio)
            if value is None:
                continue
            self._above[place] = self._above[place] + 1 if value > limit.most else 0
            if self._above[place] == self._most:
                return (
                    f"{limit.ratio} is {percent(value)} in iteration {iteration.number}, and above "
                    f"{percent(limit.most)} for {counted(self._most, 'iteration')}"
                )
        return ""
