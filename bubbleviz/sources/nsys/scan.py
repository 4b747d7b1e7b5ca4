"""Scan: large tables read in stretches of rows, by threads beside the one that uses them.

While a stretch is read no Python runs for it, so that threads read at the same time, and another
one works on earlier results. These are the same, in the same order, however many threads read.

::

    stretches        | 0 | 1 | 2 | 3 | 4 | 5 |     yielded in this order
    a thread reads     0       2   3
    another one          1           4   5
    this one waits   ──┤ 0 | 1 | 2 | 3 | ...       and works on them
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen
from bubbleviz.native.library import NamedRows
from bubbleviz.progress import Watch
from bubbleviz.sources.nsys.export import Export, Selection
from bubbleviz.sources.nsys.queries import query

Result = TypeVar("Result")

#: Rows of a stretch: some 10 ms of reading, and columns that stay in the cache.
ROWS = 1 << 15
#: Rows that are read sooner than a thread is woken, and has opened the file for itself.
_SHORT = 1 << 13
#: How many stretches more than threads may be read before the first of them is used.
_AHEAD = 4


@frozen
class Scan:
    """Reads the large tables of an open export; a stretch is a range of row numbers.

    Attributes:
        export: the open export.
        jobs: how many threads read.
        count: takes how many rows more have been read.
    """

    export: Export
    jobs: int
    count: Callable[[int], None]
    _pool: ThreadPoolExecutor
    _begun: dict[tuple[str, range], Future[Ints]]

    def stretches(self, bounds: str, most: int = 0) -> list[range]:
        """Return the stretches of ``most`` rows between the bounds that a query gives.

        A table with so few rows for its numbers that most stretches would be empty is one stretch.
        """
        first, last = self.export.bounds(bounds)
        sparse = last - first >= self.export.origin.most_rows
        length = last - first + 1 if sparse else most or ROWS
        return [
            range(at, min(at + length, last + 1)) for at in range(first, last + 1, max(length, 1))
        ]

    def begin(self, name: str, stretches: Sequence[range]) -> None:
        """Begin with the first of some stretches, whose columns are read later."""
        for stretch in stretches[: self.jobs + _AHEAD]:
            if (name, stretch) not in self._begun:
                self._begun[name, stretch] = self._handed(self._columns, name, stretch)

    def columns(self, name: str, stretches: Sequence[range]) -> Iterator[Ints]:
        """Yield the int64 columns of a query in each stretch, in order.

        Raises:
            ProfileError: the file is damaged.
        """

        def handed(stretch: range) -> Future[Ints]:
            begun = self._begun.pop((name, stretch), None)
            return begun or self._handed(self._columns, name, stretch)

        return self._each(stretches, handed, self.jobs + _AHEAD)

    def named(
        self, name: str, stretches: Sequence[range], selection: Selection
    ) -> Iterator[NamedRows]:
        """Yield the selected rows of each stretch, in order; see :meth:`columns`."""

        def read(name: str, stretch: range) -> NamedRows:
            return self.export.origin.named(query(name), selection, stretch[0], stretch[-1])

        # Texts take more room than columns, and a stretch of them is longer.
        return self._each(stretches, lambda s: self._handed(read, name, s), self.jobs + 1)

    def _columns(self, name: str, stretch: range) -> Ints:
        binds = {"first": stretch[0], "last": stretch[-1]}
        return self.export.origin.columns(query(name), binds, min(len(stretch), ROWS))

    def _each(
        self, stretches: Sequence[range], handed: Callable[[range], Future[Result]], window: int
    ) -> Iterator[Result]:
        ahead: deque[Future[Result]] = deque()
        try:
            for at, stretch in enumerate(stretches):
                ahead.extend(map(handed, stretches[at + len(ahead) : at + window]))
                result = ahead.popleft().result()
                self.count(len(stretch))
                yield result
        finally:
            for future in ahead:
                future.cancel()

    def _handed(
        self, read: Callable[[str, range], Result], name: str, stretch: range
    ) -> Future[Result]:
        """Hand a stretch to a thread; where it is short, or none can be started, read it here."""
        if len(stretch) > _SHORT:
            with suppress(RuntimeError):
                return self._pool.submit(read, name, stretch)
        done: Future[Result] = Future()
        try:
            done.set_result(read(name, stretch))
        except Exception as error:  # whoever takes the result gets it
            done.set_exception(error)
        return done


@contextmanager
def scan_of(export: Export, jobs: int, rows: int, watch: Watch) -> Iterator[Scan]:
    """Have an open export read by so many threads.

    Args:
        export: the open export.
        jobs: how many threads read.
        rows: how many rows there are to read.
        watch: takes what share of them has been read.
    """
    read = 0

    def count(more: int) -> None:
        nonlocal read
        read += more
        watch(min(read / rows, 1.0) if rows else 1.0)

    with ThreadPoolExecutor(jobs, "bubbleviz-read") as pool:
        try:
            yield Scan(export, jobs, count, pool, {})
        finally:
            pool.shutdown(cancel_futures=True)
