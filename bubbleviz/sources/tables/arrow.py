"""Arrow: the columns of Parquet files and Arrow IPC files (Feather) or streams."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from bubbleviz.errors import NothingToAnalyseError, ProfileError
from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operation_table import OperationTable
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import Contents, NameCount, Profile, Source, TableCount, ToldClock
from bubbleviz.model.texts import shell_word
from bubbleviz.progress import Watch
from bubbleviz.sources.gzip_files import unpacked
from bubbleviz.sources.tables.cells import Cells, NumberColumn, Numbers, refused, shown, stripped
from bubbleviz.sources.tables.column_files import ColumnFile, opened_arrow, opened_parquet
from bubbleviz.sources.tables.operations import operation_table
from bubbleviz.sources.tables.schema import IS_NUMBER, columns_read, refuse_lacking


def read_parquet(path: str, watch: Watch) -> Cells:
    """Return the columns of a Parquet file; see :func:`_columns`."""
    watch(0.0)
    return _columns(path, opened_parquet)


def read_arrow(path: str, watch: Watch) -> Cells:
    """Return the columns of a file of Arrow IPC; see :func:`_columns`."""
    watch(0.0)
    return _columns(path, opened_arrow)


def _columns(path: str, opened: Callable[[str], AbstractContextManager[ColumnFile]]) -> Cells:
    """Return the columns of a file that mean something.

    Raises:
        ProfileError: it cannot be read, its columns are not those of operations, or a cell is no
            number where one is needed.
    """
    with opened(path) as file:
        refuse_lacking(path, file.names)
        names = columns_read(path, list(file.names))
        table = file.columns(names)
        # Of a file of IPC nothing is checked before it is used, offsets into its texts included.
        table.validate(full=True)
        numbers, texts = {}, {}
        for name in names:
            column = _plain(table.column(name))
            if IS_NUMBER[name]:
                numbers[name] = _numbers(path, name, column)
            else:
                texts[name] = _texts(path, name, column)
        return Cells(path, table.num_rows, numbers, texts)


def _plain(column: Any) -> Any:
    """Return a column whose texts are of the type that every version of pyarrow computes with."""
    import pyarrow as pa

    return column.cast(pa.string()) if str(column.type) == "string_view" else column


def _numbers(path: str, name: str, column: Any) -> NumberColumn:
    """Return a column of numbers; dates and durations become nanoseconds.

    Raises:
        ProfileError: it holds something else.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, in_ns = column.type, False
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = _parsed(path, name, column)
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        whole = pa.timestamp("ns", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("ns")
        column, in_ns = column.cast(whole).cast(pa.int64()), True
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_null(kind):
        column = column.cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ProfileError(f"{path}: the column {name} holds no numbers, but {kind}")
    known = None
    if column.null_count:
        known = np.asarray(pc.is_valid(column).to_numpy(), bool)
        column = column.fill_null(0)
    whole_numbers = pa.types.is_integer(column.type)
    values = column.cast(pa.int64() if whole_numbers else pa.float64()).to_numpy()
    if not whole_numbers and (endless := np.isinf(values)).any():
        row = int(endless.argmax())
        raise refused(path, row, f"{name} is {shown(values[row])}, which is no number")
    return NumberColumn(np.array(values), known, in_ns)


def _parsed(path: str, name: str, column: Any) -> Any:
    """Return a column of texts as numbers, blank ones as null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bare = pc.utf8_trim_whitespace(column)
    bare = pc.if_else(pc.equal(bare, ""), pa.scalar(None, bare.type), bare)
    for kind in (pa.int64(), pa.float64()):
        try:
            return bare.cast(kind)
        except pa.ArrowInvalid:
            continue
    for row, text in enumerate(bare.to_pylist()):
        try:
            float(text or 0)
        except ValueError:
            raise refused(path, row, f"{name} is {shown(text)}, which is no number") from None
    raise ProfileError(f"{path}: the column {name} holds texts; write numbers")


def _texts(path: str, name: str, column: Any) -> CodedTexts:
    """Return a column of texts, or of whole numbers as texts.

    Raises:
        ProfileError: it holds something else.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_floating(kind):
        column = column.cast(pa.int64(), safe=False) if _whole(column) else column
    if pa.types.is_null(kind):
        column = column.cast(pa.string())
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_temporal(kind):
        raise ProfileError(f"{path}: the column {name} holds no texts, but {kind}")
    if not pa.types.is_dictionary(kind):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    labels = ["" if text is None else str(text) for text in column.dictionary.to_pylist()]
    code = column.indices.cast(pa.int64()).fill_null(NONE).to_numpy()
    return stripped(code, labels)


def _whole(column: Any) -> bool:
    """Tell whether all floats of a column are whole numbers, as a column with gaps often has."""
    import pyarrow.compute as pc

    return bool(pc.all(pc.equal(pc.floor(column), column), skip_nulls=True).as_py() is not False)


# An open table of operations.


#: Tables share one clock, whatever hosts they name, unless their column ``clock`` says otherwise.
_ONE_CLOCK = ToldClock("tables")


#: What stands for the host of ranks that a table names none for: any number of tables is one run.
_UNKNOWN_HOST = "table"
#: Columns of which most tables should have some, and what to say without them.
_UNTOLD = (
    (
        "iteration",
        "no column iteration: iterations are told apart by repeated microbatches and steps",
    ),
    ("stage", "no column stage: stages are worked out by waiting times"),
    ("microbatch", "no column microbatch: microbatches are counted by order"),
    ("launched_ns", "no column launched_ns: nothing shows when the host launched late"),
)


@dataclass
class OpenTable:
    """A file of operations; see :class:`~bubbleviz.sources.readers.OpenOperations`.

    Attributes:
        path: of the file.
        read_table: reads it.
        untold: columns of which most should have some, and what to say without them.
        facts: returns what else there is to say of the file, as words and what they are of.
    """

    path: str
    read_table: Callable[[], OperationTable]
    untold: Sequence[tuple[str, str]] = _UNTOLD
    facts: Callable[[], Sequence[tuple[str, str]]] = tuple

    @cached_property
    def _table(self) -> OperationTable:
        return self.read_table()

    def operations(self) -> OperationTable:
        """Return the table.

        Raises:
            ProfileError: it cannot be read, or holds no operations.
        """
        return self._table

    def sample(self, globs: Sequence[str], _rows: int = 0, /) -> Mapping[str, int]:
        """Return no names: a table says what its operations are."""
        del globs
        return {}

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Refuse: a table holds no kernels.

        Raises:
            ProfileError: always; it says what is wrong with a table that is none of operations.
        """
        del globs, partial
        table = self.operations()
        raise NothingToAnalyseError(
            f"{self.path}: a {table.noun}, which holds no kernels, calls or ranges; "
            f"bubbleviz analyze {shell_word(self.path)} gives its bubbles"
        )

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return how many operations of each phase the table holds."""
        del globs
        table = self._table
        operations = table.operations
        counts = np.bincount(operations.phase, minlength=len(Phase)).tolist()
        return Contents(
            source=table.source,
            tables=(
                TableCount("operations", "rows", len(operations)),
                TableCount("ranks", "rank", len(table.places)),
                TableCount("iterations", "iteration", len(table.iterations) or None),
            ),
            processes=tuple(place.number for place in table.places),
            devices=(),
            candidates=tuple(
                NameCount(phase.label, counts[phase]) for phase in Phase if counts[phase]
            ),
            ranges=len(operations),
            missing=tuple(sentence for name, sentence in self.untold if name not in table.told),
            readable=True,
            facts=tuple(self.facts()),
            noun=table.noun,
        )


@contextmanager
def open_table(
    path: str, kind: str, watch: Watch, read_cells: Callable[[str, Watch], Cells]
) -> Iterator[OpenTable]:
    """Open a table; it is read when it is first asked for anything."""
    source = Source(
        path=path,
        host=_UNKNOWN_HOST,
        host_known=False,
        format=kind,
        nsys_version=None,
        schema_version=None,
        session_utc_ns=None,
        session_clock_ns=0,
        device="rank",
        clock=_ONE_CLOCK,
    )
    yield OpenTable(path, lambda: operation_table(read_cells(path, watch), source))


# Delimited text: CSV with commas, semicolons or tabs, also gzipped, by the standard library.
#
# It is read in blocks of rows, of which only the columns that mean something are kept, as numbers
# and
# codes of texts; that takes a few seconds for a million rows.


_DELIMITERS = (",", ";", "\t")
#: Rows that are converted together.
_BLOCK = 1 << 15
#: Bytes that are decoded at a time.
_PIECE = 1 << 20
#: A cell that is longer is no cell of such a table, but a quotation mark that nobody closed.
_LONGEST_CELL = 1 << 26


def delimiter_of(header: str) -> str:
    """Return the delimiter that a header holds most often; a comma where it holds none."""
    return max(_DELIMITERS, key=header.count)


def header_of(line: str) -> list[str]:
    """Return the names of columns in the first line of a file."""
    cells = next(csv.reader([line], delimiter=delimiter_of(line)), [])
    return [cell.strip() for cell in cells]


def header_in(head: bytes) -> list[str]:
    """Return the names of columns that a file begins with; none where that is no text."""
    line = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].rstrip(b"\r")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return []
    if not text.isprintable() and not text.replace("\t", "").isprintable():
        return []
    try:
        return header_of(text)
    except csv.Error:
        return []


def read_delimited(path: str, watch: Watch) -> Cells:
    """Return the columns of a file.

    Raises:
        ProfileError: it is no text in UTF-8, its columns are not those of operations, or a cell is
            no number where one is needed.
    """
    with unpacked(path, watch, _PIECE) as file, _long_cells():
        lines = _lines(path, file)
        first = next(lines, "")
        names = header_of(first)
        refuse_lacking(path, names)
        reader = _Reader(path, names)
        try:
            reader.read(csv.reader(lines, delimiter=delimiter_of(first)))
        except csv.Error as error:
            raise refused(path, reader.rows, f"it cannot be read as CSV ({error})") from error
        if file.damaged or file.cut:
            raise ProfileError(f"{path}: its gzip data ends early or is damaged; copy it again")
        return reader.cells()


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let cells be long; Python's own limit is that of the whole process."""
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _lines(path: str, pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a file, whatever they end with.

    Raises:
        ProfileError: it is no UTF-8.
    """
    buffered = io.BufferedReader(_Bytes(pieces), _PIECE)
    decoded = io.TextIOWrapper(buffered, encoding="utf-8-sig", newline="")
    try:
        yield from decoded
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not in UTF-8; save the table in UTF-8") from error


class _Bytes(io.RawIOBase):
    """Pieces of bytes as a file that can be read once."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), memoryview(b"")

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: Buffer, of Python 3.12
        """Fill a buffer, as far as the next piece goes."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class _Reader:
    """Collects the columns of a file, block by block."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        self.rows = 0
        self._path, self._width = path, len(names)
        place = {name: names.index(name) for name in columns_read(path, names)}
        self._numbers = {name: at for name, at in place.items() if IS_NUMBER[name]}
        self._texts = {name: at for name, at in place.items() if not IS_NUMBER[name]}
        self._values: dict[str, list[tuple[Numbers, Bools | None]]] = {n: [] for n in self._numbers}
        self._codes: dict[str, list[Ints]] = {name: [] for name in self._texts}
        self._known: dict[str, dict[str, int]] = {name: {} for name in self._texts}

    def read(self, rows: Iterator[list[str]]) -> None:
        """Take all rows; empty lines count for nothing."""
        while block := list(islice(rows, _BLOCK)):
            whole = [row for row in block if row]
            self._refuse_ragged(whole)
            self._take(list(zip(*whole, strict=True)), len(whole))

    def _refuse_ragged(self, rows: Sequence[Sequence[str]]) -> None:
        for at, row in enumerate(rows):
            if len(row) != self._width:
                raise refused(
                    self._path,
                    self.rows + at,
                    f"it has {len(row)} cells, and the header {self._width}; quote cells that "
                    "hold the delimiter",
                )

    def _take(self, columns: Sequence[tuple[str, ...]], count: int) -> None:
        if count == 0:
            return
        for name, at in self._numbers.items():
            self._values[name].append(self._converted(name, columns[at]))
        for name, at in self._texts.items():
            known = self._known[name]
            codes = [known.setdefault(cell, len(known)) for cell in columns[at]]
            self._codes[name].append(np.array(codes, np.int64))
        self.rows += count

    def _converted(self, name: str, cells: Sequence[str]) -> tuple[Numbers, Bools | None]:
        """Return cells as numbers, and which of them hold one; None for all.

        Raises:
            ProfileError: one is no number.
        """
        try:
            return np.array(list(map(int, cells)), np.int64), None
        except (ValueError, OverflowError):
            pass
        known = np.array([cell.strip() != "" for cell in cells], bool)
        filled = [cell if cell.strip() else "0" for cell in cells]
        try:
            return np.array(list(map(int, filled)), np.int64), known
        except (ValueError, OverflowError):
            pass
        return np.array(list(self._floats(name, filled)), np.float64), known

    def _floats(self, name: str, cells: Sequence[str]) -> Iterator[float]:
        for at, cell in enumerate(cells):
            try:
                number = float(cell)
            except ValueError:
                number = math.inf
            if math.isinf(number):
                row = self.rows + at
                raise refused(self._path, row, f"{name} is {shown(cell)}, which is no number")
            yield number

    def cells(self) -> Cells:
        """Return all columns."""
        numbers = {name: _joined(parts) for name, parts in self._values.items()}
        texts = {}
        for name, parts in self._codes.items():
            code = np.concatenate(parts) if parts else np.empty(0, np.int64)
            texts[name] = stripped(code, list(self._known[name]))
        return Cells(self._path, self.rows, numbers, texts)


def _joined(parts: Sequence[tuple[Numbers, Bools | None]]) -> NumberColumn:
    """Return the blocks of a column as one; whole numbers only where all are whole."""
    if not parts:
        return NumberColumn(np.empty(0, np.int64))
    values: Numbers = np.concatenate([block for block, _ in parts])
    if all(known is None for _, known in parts):
        return NumberColumn(values)
    masks = [np.ones(len(b), bool) if known is None else known for b, known in parts]
    return NumberColumn(values, np.concatenate(masks))
