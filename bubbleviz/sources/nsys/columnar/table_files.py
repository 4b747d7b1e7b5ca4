"""Table files: one table of an export as Parquet or Arrow IPC, read batch by batch by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.texts import one_line

#: Rows of a batch: enough that its parts cost little, few enough to stay in the cache.
BATCH_ROWS = 1 << 15
#: Bytes of a column's pages that are read at a time, where one part of a file has all rows.
_BUFFER = 1 << 18
#: Characters of pyarrow's own words in a refusal.
_LONGEST_REASON = 120


class TableFile(Protocol):
    """A file that holds a table.

    Attributes:
        names: of its columns.
        rows: how many it has.
    """

    names: Sequence[str]
    rows: int

    def type_of(self, name: str) -> Any:
        """Return the type of a column."""

    def batches(self, names: Sequence[str], first: int = 0) -> Iterator[tuple[int, Any]]:
        """Yield some columns in batches, each with the place of its first row.

        Args:
            names: of the columns.
            first: rows before this, counted from 0, need not be among them.
        """


class _ParquetTable:
    def __init__(self, path: Path, *, threads: bool) -> None:
        from pyarrow import parquet

        self._path, self._threads = path, threads
        with parquet.ParquetFile(path) as file:
            self._metadata = file.metadata
            self._schema = file.schema_arrow
        self.names: Sequence[str] = list(self._schema.names)
        self.rows: int = self._metadata.num_rows

    def type_of(self, name: str) -> Any:
        return self._schema.field(name).type

    def batches(self, names: Sequence[str], first: int = 0) -> Iterator[tuple[int, Any]]:
        from pyarrow import parquet

        groups = [
            self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)
        ]
        begin, at = 0, 0
        while begin < len(groups) and at + groups[begin] <= first:
            at += groups[begin]
            begin += 1
        # Buffered, a column of millions of rows is never in memory as a whole.
        options = {"pre_buffer": False, "buffer_size": _BUFFER, "page_checksum_verification": True}
        with parquet.ParquetFile(self._path, metadata=self._metadata, **options) as file:
            parts = list(range(begin, len(groups)))
            for batch in file.iter_batches(
                BATCH_ROWS, row_groups=parts, columns=list(names), use_threads=self._threads
            ):
                yield at, batch
                at += batch.num_rows


class _ArrowTable:
    """A file or a stream of Arrow IPC."""

    def __init__(self, path: Path, *, threads: bool) -> None:
        self._path, self._threads = path, threads
        with self._opened(None) as reader:
            self._schema = reader.schema
        self.names: Sequence[str] = list(self._schema.names)
        self.rows: int = sum(b.num_rows for _, b in self._parts([0] if self.names else []))

    def type_of(self, name: str) -> Any:
        return self._schema.field(name).type

    @contextmanager
    def _opened(self, fields: Sequence[int] | None) -> Iterator[Any]:
        import pyarrow as pa

        options = pa.ipc.IpcReadOptions(
            use_threads=self._threads, included_fields=list(fields or ()) or None
        )
        with pa.OSFile(str(self._path)) as file:
            try:
                reader = pa.ipc.open_file(file, options=options)
            except pa.ArrowInvalid:
                file.seek(0)
                reader = pa.ipc.open_stream(file, options=options)
            yield reader

    def _parts(self, fields: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the file's own batches, each with the place of its first row."""
        at = 0
        with self._opened(fields) as reader:
            numbered = getattr(reader, "num_record_batches", None)
            batches = reader if numbered is None else map(reader.get_batch, range(numbered))
            for batch in batches:
                # Nothing of a batch is checked before it is used, offsets into texts included.
                batch.validate(full=True)
                yield at, batch
                at += batch.num_rows

    def batches(self, names: Sequence[str], first: int = 0) -> Iterator[tuple[int, Any]]:
        fields = [self._schema.get_field_index(name) for name in names]
        for at, part in self._parts(fields):
            if at + part.num_rows <= first:
                continue
            for begin in range(0, part.num_rows, BATCH_ROWS):
                yield at + begin, part.slice(begin, BATCH_ROWS)


@contextmanager
def plain_memory() -> Iterator[None]:
    """Have pyarrow take memory from the system, which gets back what a batch no longer needs."""
    import pyarrow as pa

    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def give_back() -> None:
    """Give memory that no batch needs any more back to the system."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


@contextmanager
def damage_reported(path: str, file: str) -> Iterator[None]:
    """Turn what pyarrow raises into an error that names the damaged file.

    Raises:
        ProfileError: it raised something else than that memory ran out.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError):
            raise
        reason = one_line((str(error).splitlines() or [type(error).__name__])[0], _LONGEST_REASON)
        raise ProfileError(
            f"{path}: {file} cannot be read ({reason}); the file is damaged or was cut short: "
            f"{EXPORT_AGAIN}"
        ) from error


def opened_table(path: str, file: Path, *, threads: bool) -> TableFile:
    """Open a table.

    Args:
        path: of the export, for messages.
        file: that holds the table.
        threads: whether several columns are decoded at once.

    Raises:
        ProfileError: it cannot be read.
    """
    with damage_reported(path, file.name):
        opened = _ParquetTable if file.suffix == ".parquet" else _ArrowTable
        table: TableFile = opened(file, threads=threads)
    if len(set(table.names)) < len(table.names):
        raise ProfileError(
            f"{path}: {file.name} has two columns of one name, which no export of nsys has; "
            f"{EXPORT_AGAIN}"
        )
    return table
