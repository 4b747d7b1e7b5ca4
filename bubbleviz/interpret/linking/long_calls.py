"""Long calls: the CUDA calls in which a host thread spent real time, kept while all pass by.

A launch takes some microseconds; a synchronisation, an allocation or a launch into a full queue
may take long, and may be what a GPU waited for.
"""

from __future__ import annotations

from bubbleviz.model.columns import joined
from bubbleviz.model.profile import Calls

#: A call is long from here on, as long as there are not too many.
_LONG_NS = 20_000
#: So many are kept at most, give or take a block: 7 MB.
_MOST = 1 << 18


class LongCalls:
    """Collects long calls; where there are too many, only the longer ones."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._shortest_ns = _LONG_NS
        self._blocks: list[Calls] = []
        self._count = 0

    def add(self, calls: Calls) -> None:
        """Keep those of some calls that are long."""
        some = calls.take(calls.end_ns - calls.start_ns >= self._shortest_ns)
        if len(some) == 0:
            return
        self._blocks.append(some)
        self._count += len(some)
        while self._count > self._most:
            self._shortest_ns *= 2
            calls = joined(self._blocks)
            calls = calls.take(calls.end_ns - calls.start_ns >= self._shortest_ns)
            self._blocks, self._count = [calls], len(calls)

    def collected(self) -> Calls | None:
        """Return the long calls in the order in which they came; None where there are none."""
        return joined(self._blocks) if self._blocks else None
