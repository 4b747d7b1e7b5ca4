"""Reader: the largest tables of a columnar export, stretch by stretch.

What it gives is what the queries of the same names give on the SQLite export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from bubbleviz.conventions.globs import fitting, loose_regex
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.native.library import NamedRows
from bubbleviz.sources.nsys.columnar.cells import kept, may_match, present, texts_of
from bubbleviz.sources.nsys.columnar.plain_queries import PLAIN
from bubbleviz.sources.nsys.columnar.tables import Block, Cursor, Tables
from bubbleviz.sources.nsys.direct_reader import ABSENT
from bubbleviz.sources.nsys.queries import query
from bubbleviz.sources.nsys.ranges import null_among_ranges
from bubbleviz.sources.sqlite.database import damage
from bubbleviz.sources.sqlite.queries import Query

_ResultT = TypeVar("_ResultT")

_RANGES = "NVTX_EVENTS"
_STRETCHES = ("gpu_work/kernels", "gpu_work/kernel_streams", "calls/all")
_NUMBERS = ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId")
#: What files of these endings are, in words.
_KINDS = {".parquet": "Parquet", ".arrow": "Arrow", ".arrows": "Arrow"}


def with_damage(path: str, name: str, read: Callable[[], _ResultT]) -> _ResultT:
    """Return what a function reads for a query; what is wrong becomes an error of that query.

    Raises:
        ProfileError: there is something else than whole numbers.
    """
    try:
        return read()
    except ValueError as error:
        raise damage(path, query(name), str(error)) from error


class ColumnarReader:
    """Reads stretches of kernels, calls and ranges; see :class:`BulkReader`."""

    def __init__(self, tables: Tables, views: Mapping[str, Query]) -> None:
        """Take the open tables, and the variant of each view that queries read."""
        self._tables, self._views = tables, views
        self._cursors: dict[str, Cursor] = {}
        self._lock = Lock()
        # What the variant of a view leaves out is none, even where the table has it.
        view = views["ranges"].requires[_RANGES] if "ranges" in views else ()
        self._text = "text" if "text" in view else ""
        self._numbers = [name if name in view else "" for name in _NUMBERS]

    def account(self) -> str:
        """Return what reads the export."""
        kinds = dict.fromkeys(_KINDS[suffix] for suffix in sorted(self._tables.suffixes()))
        return f"pyarrow ({' and '.join(kinds)}, a file for each table)"

    def reads(self, query: str) -> bool:
        """Tell whether it reads the table of a query."""
        return query in (*_STRETCHES, "ranges/named", "strings/matching")

    def _between(
        self, name: str, columns: Sequence[str], bounds: tuple[int, int]
    ) -> Iterable[Block]:
        """Return some rows of the table that a query reads."""
        with self._lock:
            if name not in self._cursors:
                table = PLAIN[name].table if name in PLAIN else _RANGES
                self._cursors[name] = Cursor(self._tables, table, columns)
            cursor = self._cursors[name]
        return cursor.between(*bounds)

    def columns(self, query: str, first: int, last: int) -> Ints | None:
        """Return the int64 columns of a query in some rows, shape (columns, rows)."""
        if query not in _STRETCHES:
            return None
        plain = PLAIN[query]
        blocks = self._between(query, plain.names(self._views), (first, last))
        return with_damage(self._tables.path, query, lambda: plain.joined(blocks))

    def named(
        self,
        query: str,
        globs: tuple[str, ...],
        kinds: tuple[int, ...] = (0, 0, 0, 0),
        text_ids: tuple[int, ...] = (),
        bounds: tuple[int, int] = (-(1 << 63), (1 << 63) - 1),
    ) -> NamedRows | None:
        """Return rows of ranges/named.sql; see :class:`BulkReader`."""
        if query != "ranges/named":
            return None
        wanted = np.array(text_ids, np.int64)
        regex = loose_regex(globs)

        def chosen(block: Block) -> Bools:
            number = self._number(block, "textId")
            registered: Bools = number.mask() & np.isin(number.values, wanted)
            texts = block.column(self._text)
            if texts is not None:
                named, likely = present(texts), may_match(texts, regex)
                registered = (named if likely is None else likely) | (registered & ~named)
            return registered

        def fit(texts: Sequence[str | None]) -> list[bool]:
            fits = fitting(globs, ("" if text is None else str(text) for text in texts))
            return [text is None or known for text, known in zip(texts, fits, strict=True)]

        blocks = self._between(query, self._read(), bounds)
        return self._rows(query, blocks, kinds, chosen, fit)

    def strings(self, globs: tuple[str, ...]) -> Mapping[int, str] | None:
        """Return the registered strings that fit one of the patterns, by id."""
        regex = loose_regex(globs)

        def found() -> Mapping[int, str]:
            strings: dict[int, str] = {}
            for ids, column in self._tables.strings():
                likely = may_match(column, regex)
                rows = present(column) if likely is None else likely
                texts = [str(text) for text in texts_of(kept(column, rows))]
                named = zip(ids[rows].tolist(), texts, fitting(globs, texts), strict=True)
                strings.update((number, text) for number, text, fits in named if fits)
            return dict(sorted(strings.items()))

        return with_damage(self._tables.path, "strings/matching", found)

    def lasting(
        self,
        kinds: tuple[int, ...],
        threads: tuple[int, ...],
        shortest_ns: int,
        times_ns: tuple[int, int],
        bounds: tuple[int, int],
    ) -> NamedRows | None:
        """Return rows of ranges/named.sql that last long; see :class:`BulkReader`."""
        opened_by = np.array(threads, np.int64)
        since, until = times_ns

        def chosen(block: Block) -> Bools:
            start, end = self._number(block, "start"), self._number(block, "end")
            thread = self._number(block, "globalTid")
            # Differences of times that are damaged may go beyond 64 bits, which SQLite's may not.
            long = end.values.astype(np.float64) - start.values >= shortest_ns
            near = (end.values > since) & (start.values < until)
            of_thread = thread.mask() & np.isin(thread.values, opened_by)
            fits: Bools = long & near & of_thread & start.mask() & end.mask()
            return fits

        blocks = self._between("ranges/lasting", self._read(), bounds)
        return self._rows("ranges/named", blocks, kinds, chosen)

    def samples(
        self, kinds: tuple[int, ...], pieces: Sequence[tuple[int, int]]
    ) -> list[list[tuple[str | None, int]]]:
        """Return the rows of ranges/sample.sql, in which numbers stand for registered names.

        Args:
            kinds: codes of the kinds of ranges.
            pieces: the first and the last row of each, one behind another.
        """
        columns = [name for name in ("eventType", "textId", self._text) if name]
        cursor = Cursor(self._tables, _RANGES, columns)
        return [
            [row for block in cursor.between(*piece) for row in self._names(block, kinds)]
            for piece in pieces
        ]

    def _names(self, block: Block, kinds: tuple[int, ...]) -> Iterator[tuple[str | None, int]]:
        """Return the texts of some kinds of ranges, and the numbers of registered ones."""
        kind = block.numbers("eventType")
        part = block.take(kind.mask() & np.isin(kind.values, kinds))
        ids = self._number(part, "textId").filled(ABSENT).tolist()
        return zip(part.texts(self._text), ids, strict=True)

    def _read(self) -> list[str]:
        """Return the columns of ranges that are read."""
        return [name for name in (*self._numbers, self._text) if name]

    def _number(self, block: Block, name: str) -> Any:
        """Return a column of ranges, without any number where the view has none."""
        return block.numbers(name if name in self._numbers else "")

    def _rows(
        self,
        name: str,
        blocks: Iterable[Block],
        kinds: tuple[int, ...],
        chosen: Callable[[Block], Bools],
        kept: Callable[[Sequence[str | None]], list[bool]] | None = None,
    ) -> NamedRows:
        """Return the rows of some kinds of ranges.

        Args:
            name: of the query.
            blocks: of ranges.
            kinds: codes of the kinds.
            chosen: tells which rows of a block may be among them.
            kept: tells of the texts of these which are.
        """

        def read() -> NamedRows:
            values, texts = [np.empty((len(_NUMBERS), 0), np.int64)], list[str | None]()
            for block in blocks:
                kind = block.numbers("eventType")
                part = block.take(kind.mask() & np.isin(kind.values, kinds) & chosen(block))
                named = part.texts(self._text)
                if kept is not None and not all(keep := kept(named)):
                    part = part.take(np.array(keep, bool))
                    named = [text for text, known in zip(named, keep, strict=True) if known]
                if len(part):
                    values.append(self._values(part))
                    texts.extend(named)
            return NamedRows(np.concatenate(values, axis=1), tuple(texts))

        return with_damage(self._tables.path, name, read)

    def _values(self, block: Block) -> Ints:
        """Return the numbers of ranges/named.sql, in which ABSENT stands for NULL."""
        start = self._number(block, "start")
        if not start.mask().all():
            raise null_among_ranges(self._tables.path)
        return np.stack(
            [
                start.values,
                self._number(block, "end").filled(ABSENT),
                self._number(block, "eventType").every(),
                self._number(block, "globalTid").filled(NONE),
                self._number(block, "endGlobalTid").filled(NONE),
                self._number(block, "textId").filled(ABSENT),
            ]
        )
