"""Which interval around a point or a call is the innermost, for any number of them at once.

Innermost is the shortest; of equal ones the one that starts later, then the later row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen
from bubbleviz.native.columns import deepen
from bubbleviz.native.library import library


def disjoint_layers(start_ns: Ints, end_ns: Ints) -> tuple[Ints, ...]:
    """Return row numbers in layers; within a layer no two intervals share even an end point.

    A layer is the first interval, then the first that starts after its end, and so on; the
    rest goes to the next layer. That needs no more layers than intervals are open at once::

        rows       ├─0──────────┤  ├─3─────┤
                     ├─1──┤   ├─2─────┤

        layer 0    ├─0──────────┤  ├─3─────┤
        layer 1      ├─1──┤   ├─2─────┤

    The chain of "first that starts after its end" is followed by doubling the step, so that a
    layer of n intervals costs log(n) passes and no loop over them.
    """
    order = sorted_rows(start_ns)
    layers = []
    while len(order):
        start, end = start_ns[order], end_ns[order]
        count = len(order)
        jump = np.append(np.searchsorted(start, end, side="right"), count)
        # An interval that ends before it starts (clock grain) must not jump backwards.
        jump[:count] = np.maximum(jump[:count], np.arange(1, count + 1))
        chosen: Bools = np.zeros(count + 1, bool)
        chosen[0] = True
        while jump[0] < count:
            chosen[jump[chosen]] = True
            jump = jump[jump]
        chosen = chosen[:count]
        layers.append(order[chosen])
        order = order[~chosen]
    return tuple(layers)


@frozen
class Innermost:
    """Intervals prepared for the question "which is the innermost around this?".

    Attributes:
        start_ns: starts of the intervals, in row order.
        end_ns: ends, inclusive.
        depth: place of each in the order from outermost to innermost.
        layers: rows in disjoint layers.
    """

    start_ns: Ints
    end_ns: Ints
    depth: Ints
    layers: tuple[Ints, ...]

    @staticmethod
    def of(start_ns: Ints, end_ns: Ints) -> Innermost:
        """Prepare intervals; their row order breaks ties."""
        rows = np.arange(len(start_ns))
        outer_first = sorted_rows(start_ns - end_ns, start_ns, rows)
        depth = np.empty(len(rows), np.int64)
        depth[outer_first] = rows
        return Innermost(start_ns, end_ns, depth, disjoint_layers(start_ns, end_ns))

    def all_around(self, start_ns: Ints, end_ns: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield (query, row) pairs: every interval that holds [start, end], layer by layer.

        In one layer only the last interval that starts at or before a query can hold it.
        """
        ascending = bool((start_ns[1:] >= start_ns[:-1]).all())
        for layer in self.layers:
            starts = self.start_ns[layer]
            if ascending and len(starts) < len(start_ns):
                at = _merged(starts, start_ns)
            else:
                at = np.searchsorted(starts, start_ns, side="right") - 1
            row = layer[np.maximum(at, 0)]
            query = np.flatnonzero((at >= 0) & (end_ns <= self.end_ns[row]))
            yield query, row[query]

    def around(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Return the row of the innermost interval that holds each [start, end]; -1 none."""
        best_depth = np.full(len(start_ns), NONE, np.int64)
        best = np.full(len(start_ns), NONE, np.int64)
        if native := library():
            for rows in self.layers:
                layer = self.start_ns[rows], self.end_ns[rows], self.depth[rows], rows
                deepen(native, layer, (start_ns, end_ns), (best_depth, best))
            return best
        for query, row in self.all_around(start_ns, end_ns):
            deeper = self.depth[row] > best_depth[query]
            best[query[deeper]] = row[deeper]
            best_depth[query[deeper]] = self.depth[row[deeper]]
        return best


def _merged(starts: Ints, queries: Ints) -> Ints:
    """Return the last of ``starts`` at or before each query, -1 none; both ascend.

    The few are looked up among the many, which then count how many have gone by.
    """
    first = np.searchsorted(queries, starts, side="left")
    return np.cumsum(np.bincount(first, minlength=len(queries) + 1)[:-1]) - 1
