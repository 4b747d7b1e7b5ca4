"""Open columnar exports of Nsight Systems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.pointers import refuse_pointer
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.nsys.columnar.answers import opened_answers
from bubbleviz.sources.nsys.columnar.directory import files_of
from bubbleviz.sources.nsys.columnar.reader import ColumnarReader
from bubbleviz.sources.nsys.columnar.table_files import opened_table, plain_memory
from bubbleviz.sources.nsys.columnar.tables import Tables
from bubbleviz.sources.nsys.export import Export, check_schema
from bubbleviz.sources.nsys.export_file import NsysFile, scanned
from bubbleviz.sources.nsys.queries import tables as known_tables
from bubbleviz.sources.nsys.queries import views_of
from bubbleviz.sources.tables.column_files import check_pyarrow


@contextmanager
def opened_directory(path: str, jobs: int = 1) -> Iterator[Export]:
    """Open a directory that holds a file for each table.

    Args:
        path: of the directory.
        jobs: pyarrow's threads, of which there are several unless this is 1.

    Raises:
        ProfileError: it is damaged, no export, or pyarrow is not installed.
    """
    check_pyarrow(path, "an export of Parquet or Arrow tables", "export it as SQLite")
    with plain_memory():
        tables = _opened_tables(path, threads=jobs > 1)
        schema = tables.schema
        check_schema(path, schema, "a directory of tables")
        views = views_of(schema)
        reader = ColumnarReader(tables, views)
        with opened_answers(tables, views, reader) as answers:
            yield Export(schema, views, answers, answers, reader)


def _opened_tables(path: str, *, threads: bool) -> Tables:
    try:
        files = files_of(path)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error
    wanted = {table: file for table, file in files.items() if table in known_tables()}
    for file in wanted.values():
        refuse_pointer(str(file))
        if not file.stat().st_size:
            raise ProfileError(f"{path}: {file.name} is empty; {EXPORT_AGAIN}")
    opened = {t: (f, opened_table(path, f, threads=threads)) for t, f in wanted.items()}
    return Tables(path, opened)


@contextmanager
def open_directory(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[NsysFile]:
    """Open a columnar export.

    Raises:
        ProfileError: it is damaged, or no export.
    """
    # Stretches follow one another, so that one thread reads them; pyarrow has threads of its own.
    with opened_directory(path, jobs) as export, scanned(export, 1, watch) as file:
        yield file
