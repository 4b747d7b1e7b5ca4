"""Find the innermost of nested intervals around each of many other intervals.

All searches run at once in numpy or native code, without a Python loop over the intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Ints, make_mask
from bubbleviz.model.grouping import invert_permutation, sort_rows
from bubbleviz.native import functions as native


def split_into_layers(start_ns: Ints, end_ns: Ints) -> tuple[Ints, ...]:
    """Divide intervals into layers, and return the rows of each layer, sorted by start.

    No two intervals of a layer overlap or touch. A layer consists of the first interval, then the
    first interval that starts after its end, and so on; the others go to the next layers. There are
    at most as many layers as intervals are open at once::

        rows       ├─0──────────┤  ├─3─────┤
                     ├─1──┤   ├─2─────┤

        layer 0    ├─0──────────┤  ├─3─────┤
        layer 1      ├─1──┤   ├─2─────┤

    The chain of next intervals is followed by pointer doubling, so a layer of n intervals takes
    log(n) passes and no loop over intervals.
    """
    order = sort_rows(start_ns)
    layers = []
    while len(order):
        start, end = start_ns[order], end_ns[order]
        count = len(order)
        jump = np.append(np.searchsorted(start, end, side="right"), count)
        # An interval that ends before it starts (clock grain) must not jump backwards.
        jump[:count] = np.maximum(jump[:count], np.arange(1, count + 1))
        is_in_layer = make_mask(count + 1, 0)
        while jump[0] < count:
            is_in_layer[jump[is_in_layer]] = True
            jump = jump[jump]
        is_in_layer = is_in_layer[:count]
        layers.append(order[is_in_layer])
        order = order[~is_in_layer]
    return tuple(layers)


@dataclass(frozen=True)
class Innermost:
    """An index of intervals, to find the innermost one around other intervals.

    Attributes:
        begin: Offset of each layer, and the number of intervals.
        start_ns: Starts of the intervals, ascending within a layer.
        end_ns: Ends of the intervals, inclusive.
        depth: Position of each interval in the order from outermost to innermost.
        row: Row of each interval in the columns that the index was built from.
    """

    begin: Ints
    start_ns: Ints
    end_ns: Ints
    depth: Ints
    row: Ints

    @staticmethod
    def of(start_ns: Ints, end_ns: Ints, depth: Ints | None = None) -> Innermost:
        """Build the index.

        Args:
            start_ns: Starts of the intervals.
            end_ns: Their ends, inclusive.
            depth: Position of each interval in the order from outermost to innermost. By default,
                shorter intervals are further inside. Ties are broken by the later start, then by
                the larger row.
        """
        if depth is None:
            rows = np.arange(len(start_ns))
            depth = invert_permutation(sort_rows(start_ns - end_ns, start_ns, rows))
        layers = split_into_layers(start_ns, end_ns)
        row = np.concatenate((np.empty(0, np.int64), *layers))
        layer_start = np.cumsum([0, *map(len, layers)])
        return Innermost(layer_start, start_ns[row], end_ns[row], depth[row], row)

    def _iter_around(self, start_ns: Ints, end_ns: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield, for each layer, the queries inside one of its intervals, and these intervals.

        The queries are indices of ``start_ns`` and ``end_ns``, the intervals are indices of the
        columns of this index. In a layer, only the last interval that starts at or before a query
        can contain it.
        """
        for first, end in zip(self.begin[:-1].tolist(), self.begin[1:].tolist(), strict=True):
            position = first + np.searchsorted(self.start_ns[first:end], start_ns, side="right") - 1
            query = np.flatnonzero(
                (position >= first) & (end_ns <= self.end_ns[np.maximum(position, 0)])
            )
            yield query, position[query]

    def iter_around(self, start_ns: Ints, end_ns: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield, for each layer, the queries inside one of its intervals, and the intervals' rows.

        A query [start, end] is inside an interval if the interval contains both end points.
        """
        for query, position in self._iter_around(start_ns, end_ns):
            yield query, self.row[position]

    def around(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Return the row of the innermost interval that contains each [start, end], or -1."""
        compiled = native.find_innermost(
            begin=self.begin,
            intervals=(self.start_ns, self.end_ns),
            depth=self.depth,
            row=self.row,
            start_ns=start_ns,
            end_ns=end_ns,
        )
        if compiled is not None:
            return compiled
        row = np.full(len(start_ns), NONE, np.int64)
        depth = row.copy()
        for query, position in self._iter_around(start_ns, end_ns):
            deeper = self.depth[position] > depth[query]
            inner = position[deeper]
            row[query[deeper]], depth[query[deeper]] = self.row[inner], self.depth[inner]
        return row
