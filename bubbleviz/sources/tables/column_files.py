"""Column files: Parquet files and Arrow IPC files or streams, opened by pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from bubbleviz.errors import ProfileError
from bubbleviz.model.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Characters of pyarrow's own words in a refusal.
_LONGEST_REASON = 120


class ColumnFile(Protocol):
    """A file of columns, opened."""

    @property
    def names(self) -> Sequence[str]:
        """Names of its columns."""

    @property
    def rows(self) -> int | None:
        """How many rows it says that it has; None where it does not."""

    def columns(self, names: Sequence[str]) -> Any:
        """Return some columns as a table of pyarrow."""


class _ParquetFile:
    """A Parquet file."""

    def __init__(self, path: str) -> None:
        from pyarrow import parquet

        self._file = parquet.ParquetFile(path)
        self.names: Sequence[str] = list(self._file.schema_arrow.names)
        self.rows: int | None = self._file.metadata.num_rows

    def columns(self, names: Sequence[str]) -> Any:
        return self._file.read(columns=list(names))


class _ArrowFile:
    """A file or a stream of Arrow IPC."""

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        mapped = pa.memory_map(path)
        try:
            reader = pa.ipc.open_file(mapped)
        except pa.ArrowInvalid:
            mapped.seek(0)
            reader = pa.ipc.open_stream(mapped)
        self._reader = reader
        self.names: Sequence[str] = list(reader.schema.names)
        self.rows: int | None = None

    def columns(self, names: Sequence[str]) -> Any:
        return self._reader.read_all().select(list(names))


def check_pyarrow(path: str, what: str, otherwise: str = "write the table as CSV") -> None:
    """Refuse to go on without pyarrow.

    Args:
        path: of what is to be read.
        what: it is.
        otherwise: what can be done instead of installing it.

    Raises:
        ProfileError: it is not installed.
    """
    try:
        import pyarrow  # noqa: F401 - whether it is there is all that is asked
    except ImportError as error:
        raise ProfileError(
            f"{path}: {what} is read by pyarrow, which is not installed; install it with "
            f"pip install 'bubbleviz[parquet]', or {otherwise}"
        ) from error


@contextmanager
def opened_parquet(path: str) -> Iterator[ColumnFile]:
    """Open a Parquet file.

    Raises:
        ProfileError: pyarrow is not installed, or cannot read it.
    """
    with _opened(path, "a Parquet table", _ParquetFile) as file:
        yield file


@contextmanager
def opened_arrow(path: str) -> Iterator[ColumnFile]:
    """Open a file of Arrow IPC.

    Raises:
        ProfileError: pyarrow is not installed, or cannot read it.
    """
    with _opened(path, "an Arrow table", _ArrowFile) as file:
        yield file


@contextmanager
def _opened(path: str, what: str, kind: Callable[[str], ColumnFile]) -> Iterator[ColumnFile]:
    check_pyarrow(path, what)
    import pyarrow as pa

    try:
        yield kind(path)
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        reason = one_line(str(error).split("\n", 1)[0], _LONGEST_REASON)
        raise ProfileError(
            f"{path}: {what} that cannot be read ({reason}); write it again"
        ) from error
