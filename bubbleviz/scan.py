"""Scan: large tables read in stretches of rows, in this process and in others beside it.

What is read is the same, and in the same order, however many processes read it. The stretches of a
process that has died are read here.

::

    stretches       | 0 | 1 | 2 | 3 | 4 | 5 |     yielded in this order
    another reads     0   1       3
    this one                  2       4   5       what no other has begun, instead of waiting
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from bubbleviz.columns import Ints
from bubbleviz.crew import Broken, Crew, Handed, crew
from bubbleviz.exports import Binds, Tables, tables_of
from bubbleviz.progress import Watch
from bubbleviz.queries import query

Result = TypeVar("Result")

#: Rows of a stretch: some 10 ms of reading, and columns that stay in the cache.
ROWS = 1 << 15
#: A smaller file is read before another process has started.
_WORTHWHILE_BYTES = 48 << 20
#: How many stretches each other process is handed: the one it reads, and the next.
_AHEAD = 2
#: How many stretches may be read, for each process, before the first of them is used.
_WINDOW = 4


@dataclass(frozen=True)
class Stretch:
    """Rows ``first`` to ``last`` of the table that a query of ``sql/`` reads.

    ``binds`` are the values of the query's other parameters.
    """

    query: str
    first: int
    last: int
    binds: tuple[tuple[str, int | str | None], ...] = ()

    def columns(self, tables: Tables) -> Ints:
        """Return what the query reads, as int64 columns; shape (columns, rows)."""
        known = self.length if self.length <= tables.most_rows else -1
        return tables.columns(query(self.query), self._binds(), known)

    def rows(self, tables: Tables) -> list[tuple[object, ...]]:
        """Return what the query reads, where that is little."""
        return tables.rows(query(self.query), self._binds())

    @property
    def length(self) -> int:
        """Return how many rows there are, if none is missing."""
        return self.last - self.first + 1

    def _binds(self) -> Binds:
        return {**dict(self.binds), "first": self.first, "last": self.last}


@dataclass(frozen=True)
class Scan:
    """Reads stretches of a file.

    Attributes:
        tables: of the file, open in this process.
        jobs: how many processes read, this one among them.
        others: them without this one; None where this one reads alone.
        told: takes how many rows more have been read.
    """

    tables: Tables
    jobs: int
    others: Crew | None
    told: Callable[[int], None]

    def stretches(
        self, name: str, first: int, last: int, most: int = 0, binds: Binds | None = None
    ) -> tuple[Stretch, ...]:
        """Return the stretches of ``most`` rows that make up rows ``first`` to ``last``.

        A table with so few rows for its numbers that most stretches would be empty is one stretch.
        """
        given = tuple((binds or {}).items())
        length = most or ROWS
        if last - first >= self.tables.most_rows:
            length = last - first + 1
        return tuple(
            Stretch(name, at, min(at + length - 1, last), given)
            for at in range(first, last + 1, length)
        )

    def columns(self, asked: Sequence[Stretch]) -> Iterator[Ints]:
        """Yield the columns of each stretch, in order.

        Raises:
            ProfileError: the file is damaged.
        """
        return self._each(asked, _columns_there, lambda stretch: stretch.columns(self.tables))

    def rows(self, asked: Sequence[Stretch]) -> Iterator[list[tuple[object, ...]]]:
        """Yield the rows of each stretch, in order; see :meth:`columns`."""
        return self._each(asked, _rows_there, lambda stretch: stretch.rows(self.tables))

    def _each(
        self,
        asked: Sequence[Stretch],
        there: Callable[[Stretch], Result],
        here: Callable[[Stretch], Result],
    ) -> Iterator[Result]:
        if self.others is None:
            for stretch in asked:
                result = here(stretch)
                self.told(stretch.length)
                yield result
            return
        handed: dict[int, Handed[Result]] = {}
        read: dict[int, Result] = {}
        begun = 0
        for at, stretch in enumerate(asked):
            end = min(at + _WINDOW * self.jobs, len(asked))
            while at not in read:
                idle = _AHEAD * (self.jobs - 1) - sum(not f.done() for f in handed.values())
                for number in range(begun, min(begun + idle, end)):
                    future = _handed(self.others, there, asked[number])
                    if future is None:
                        break
                    handed[number] = future
                    begun += 1
                waits = at in handed and not handed[at].done()
                if at in handed and (not waits or begun == end):
                    read[at] = _result(handed.pop(at), here, stretch)
                else:
                    # Instead of waiting, this process reads what no other has begun.
                    read[begun] = here(asked[begun])
                    begun += 1
            self.told(stretch.length)
            yield read.pop(at)


def _handed(
    others: Crew, there: Callable[[Stretch], Result], stretch: Stretch
) -> Handed[Result] | None:
    """Return what will be the result of another process; None where there is none any more."""
    try:
        return others.hand(there, stretch)
    except (Broken, OSError):
        return None


def _result(future: Handed[Result], here: Callable[[Stretch], Result], stretch: Stretch) -> Result:
    try:
        return future.result()
    except (Broken, OSError):
        # It has died, or found no place for what it read.
        return here(stretch)


@contextmanager
def scan_of(tables: Tables, jobs: int, rows: int, watch: Watch) -> Iterator[Scan]:
    """Have an open file read by so many processes; a small one is read by this one alone.

    Args:
        tables: the open file.
        jobs: how many processes read.
        rows: how many rows there are to read.
        watch: takes what share of them has been read.
    """
    read = 0

    def told(more: int) -> None:
        nonlocal read
        read += more
        watch(min(read / rows, 1.0) if rows else 1.0)

    with ExitStack() as stack:
        others = None
        if jobs > 1 and tables.size >= _WORTHWHILE_BYTES:
            # Where no process can be started, this one reads alone.
            with suppress(OSError):
                others = stack.enter_context(crew(jobs - 1, _open_there, tables.path))
        yield Scan(tables, jobs if others else 1, others, told)


#: The file that this process reads for another one.
_there = ExitStack()
_tables: list[Tables] = []


def _open_there(path: str) -> None:
    _tables.append(_there.enter_context(tables_of(path)))


def _columns_there(stretch: Stretch) -> Ints:
    return stretch.columns(_tables[-1])


def _rows_there(stretch: Stretch) -> list[tuple[object, ...]]:
    return stretch.rows(_tables[-1])
