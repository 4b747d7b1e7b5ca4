"""Answering: what an export asks of whatever holds its tables, an SQLite file or a directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from bubbleviz.model.columns import Ints
from bubbleviz.native.library import NamedRows
from bubbleviz.sources.sqlite.queries import Binds, Query


class SmallAnswers(Protocol):
    """Answers queries with few rows, in one thread."""

    def rows(self, query: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query.

        Raises:
            ProfileError: the export is damaged.
        """

    def rows_of_each(
        self, query: Query, binds: Sequence[Binds]
    ) -> Iterator[list[tuple[object, ...]]]:
        """Yield the rows of a query for each of some parameters.

        Raises:
            ProfileError: the export is damaged.
        """

    def count(self, table: str) -> int:
        """Return the number of rows of a table.

        Raises:
            ProfileError: the export is damaged.
        """


class BulkAnswers(Protocol):
    """Answers queries with many rows; one thread at a time may use it."""

    @property
    def path(self) -> str:
        """Path of the export, as given."""

    @property
    def most_rows(self) -> int:
        """More rows than any table has."""

    def rows(self, query: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query, which hold texts.

        Raises:
            ProfileError: the export is damaged.
        """

    def columns(self, query: Query, binds: Binds | None = None, rows: int = ...) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Raises:
            ProfileError: the export is damaged, or holds something else than integers.
        """

    def reopened(self) -> AbstractContextManager[BulkAnswers]:
        """Open the same export for another thread."""


class BulkReader(Protocol):
    """Reads the largest tables row by row, faster than queries do; threads may use it at once.

    Each method gives None where it cannot, and the query is run instead.
    """

    def account(self) -> str:
        """Return what reads the export, as far as is known, and why where that is SQLite."""

    def reads(self, query: str) -> bool:
        """Tell whether it reads a query's table, as far as is known."""

    def columns(self, query: str, first: int, last: int) -> Ints | None:
        """Return the int64 columns of a query in some rows, shape (columns, rows)."""

    def named(
        self,
        query: str,
        globs: tuple[str, ...],
        kinds: tuple[int, ...] = ...,
        text_ids: tuple[int, ...] = ...,
        bounds: tuple[int, int] = ...,
    ) -> NamedRows | None:
        """Return rows of a query whose names fit one of the patterns.

        Args:
            query: whose parameters these are.
            globs: SQLite's GLOB patterns.
            kinds: codes of the kinds of ranges.
            text_ids: numbers of registered strings that fit, ascending.
            bounds: the first and the last row.
        """

    def strings(self, globs: tuple[str, ...]) -> Mapping[int, str] | None:
        """Return the registered strings that fit one of the patterns, by id."""

    def lasting(
        self,
        kinds: tuple[int, ...],
        threads: tuple[int, ...],
        shortest_ns: int,
        times_ns: tuple[int, int],
        bounds: tuple[int, int],
    ) -> NamedRows | None:
        """Return rows of ranges/named.sql, whatever their names, that last long.

        Args:
            kinds: codes of the kinds of ranges.
            threads: that opened them, ascending.
            shortest_ns: how long they last at least.
            times_ns: they end after the first and start before the second.
            bounds: the first and the last row.
        """
