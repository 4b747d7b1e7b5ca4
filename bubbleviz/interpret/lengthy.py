"""Lengthy calls: the CUDA calls in which a host thread spent real time, kept while all pass by.

A launch takes some microseconds; a synchronisation, an allocation or a launch into a full queue
takes as long as it takes, and may be what a GPU waited for.
"""

from __future__ import annotations

from bubbleviz.model.columns import joined
from bubbleviz.model.profile import Calls

#: A call is lengthy from here on, as long as there are not too many.
_LENGTHY_NS = 20_000
#: So many are kept at most, give or take a block: 7 MB.
_MOST = 1 << 18


class Lengthy:
    """Collects lengthy calls; where there are too many, only the longer ones."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._shortest_ns = _LENGTHY_NS
        self._kept: list[Calls] = []
        self._count = 0

    def add(self, calls: Calls) -> None:
        """Keep those of some calls that are lengthy."""
        some = calls.take(calls.end_ns - calls.start_ns >= self._shortest_ns)
        if len(some) == 0:
            return
        self._kept.append(some)
        self._count += len(some)
        while self._count > self._most:
            self._shortest_ns *= 2
            kept = joined(self._kept)
            kept = kept.take(kept.end_ns - kept.start_ns >= self._shortest_ns)
            self._kept, self._count = [kept], len(kept)

    def done(self) -> Calls | None:
        """Return what was kept, in the order in which it came; None where there was none."""
        return joined(self._kept) if self._kept else None
