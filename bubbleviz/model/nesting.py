"""Find the innermost interval that contains each query interval.

All queries are answered at once in numpy or native code, without a Python loop over the queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Ints, make_mask
from bubbleviz.model.grouping import invert_permutation, sort_rows
from bubbleviz.native import functions as native


def split_into_layers(start_ns: Ints, end_ns: Ints) -> tuple[Ints, ...]:
    """Divide intervals into layers of disjoint intervals, and return the rows of each layer.

    A layer starts with the earliest remaining interval. The next interval of a layer is the first
    one that starts after the end of the previous interval. Intervals that are left over go to the
    next layers. Intervals of one layer neither overlap nor touch, and their rows are sorted by
    start. If at most k intervals are open at the same time, there are at most k layers::

        rows       ├─0──────────┤  ├─3─────┤
                     ├─1──┤   ├─2─────┤

        layer 0    ├─0──────────┤  ├─3─────┤
        layer 1      ├─1──┤   ├─2─────┤

    Pointer doubling follows the chain of next intervals, so a layer of n intervals takes log(n)
    passes instead of a loop over the intervals.
    """
    order = sort_rows(start_ns)
    layers = []
    while len(order):
        start, end = start_ns[order], end_ns[order]
        count = len(order)
        jump = np.append(np.searchsorted(start, end, side="right"), count)
        # With a coarse clock, an interval can end before it starts, but the search must not jump
        # backwards.
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
    """Search index that finds the innermost interval around a query interval.

    The intervals are stored layer by layer, as divided by :func:`split_into_layers`.

    Attributes:
        begin: Position of the first interval of each layer, and the number of intervals, shape
            (layers + 1,).
        start_ns: Starts of the intervals, ascending within a layer.
        end_ns: Ends of the intervals, inclusive.
        depth: Nesting order. If two intervals contain a query, the larger depth is the inner one.
        row: Row of each interval in the columns that the index was built from.
    """

    begin: Ints
    start_ns: Ints
    end_ns: Ints
    depth: Ints
    row: Ints

    @staticmethod
    def of(start_ns: Ints, end_ns: Ints, depth: Ints | None = None) -> Innermost:
        """Build an index of the given intervals.

        Args:
            start_ns: Starts of the intervals.
            end_ns: Ends of the intervals, inclusive.
            depth: Distinct integers. If two intervals contain a query, the interval with the larger
                number is the inner one. By default, the shorter interval is the inner one. If the
                lengths are equal, the interval that starts later is the inner one, or else the one
                with the larger row.
        """
        if depth is None:
            rows = np.arange(len(start_ns))
            depth = invert_permutation(sort_rows(start_ns - end_ns, start_ns, rows))
        layers = split_into_layers(start_ns, end_ns)
        row = np.concatenate((np.empty(0, np.int64), *layers))
        layer_start = np.cumsum([0, *map(len, layers)])
        return Innermost(layer_start, start_ns[row], end_ns[row], depth[row], row)

    def _iter_around(self, start_ns: Ints, end_ns: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Find the intervals that contain each query, one layer at a time.

        In a layer, only the last interval that starts at or before a query can contain the query.

        Yields:
            query: Positions in ``start_ns`` of the queries contained in an interval of the layer.
            position: For each of these queries, the position of its interval in the index's
                columns.
        """
        for first, end in zip(self.begin[:-1].tolist(), self.begin[1:].tolist(), strict=True):
            position = first + np.searchsorted(self.start_ns[first:end], start_ns, side="right") - 1
            query = np.flatnonzero(
                (position >= first) & (end_ns <= self.end_ns[np.maximum(position, 0)])
            )
            yield query, position[query]

    def iter_around(self, start_ns: Ints, end_ns: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Find all intervals that contain each query, one layer at a time.

        An interval contains a query [start, end] if it contains both end points. All bounds are
        inclusive.

        Args:
            start_ns: Starts of the queries.
            end_ns: Ends of the queries.

        Yields:
            query: Positions in ``start_ns`` of the queries contained in an interval of the layer.
            row: For each of these queries, the row of the interval that contains it.
        """
        for query, position in self._iter_around(start_ns, end_ns):
            yield query, self.row[position]

    def around(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Return, for each query, the row of the innermost interval that contains the query.

        The row is -1 if no interval contains both end points of the query.

        Args:
            start_ns: Starts of the queries.
            end_ns: Ends of the queries.
        """
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
