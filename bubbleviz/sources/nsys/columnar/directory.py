"""Directories of tables: which are exports of nsys, and which file holds which table.

``nsys export --type parquetdir`` writes ``REPORT_pqtdir`` with a ``TABLE.parquet`` for each table,
``arrowdir`` writes ``REPORT_arwdir`` with a ``TABLE.arrow``; ``--output`` gives another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: Endings of the directories, as nsys names them.
ENDINGS = ("_pqtdir", "_arwdir")
#: Endings of their files; where a table has several files, the first of these is read.
SUFFIXES = (".parquet", ".arrow", ".arrows")
#: Tables of which every export has one; other directories of Parquet files have none.
_TELLING = (
    "StringIds",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "META_DATA_EXPORT",
    "TARGET_INFO_SESSION_START_TIME",
)


def is_columnar(path: str) -> bool:
    """Tell whether a path leads to a directory of an export's tables, whole or not."""
    place = Path(path)
    if not place.is_dir():
        return False
    # A name may be ".", or lead through links.
    return place.resolve().name.endswith(ENDINGS) or holds_tables(path)


def holds_tables(path: str) -> bool:
    """Tell whether a directory holds tables of an export."""
    place = Path(path)
    return any((place / f"{table}{suffix}").is_file() for table in _TELLING for suffix in SUFFIXES)


def report_stem(path: str) -> str:
    """Return the path of a directory's report without its ending, as far as the name tells."""
    for ending in ENDINGS:
        if path.endswith(ending):
            return path.removesuffix(ending)
    return path


def is_table_of_export(path: str) -> bool:
    """Tell whether a file is a table in a directory of an export."""
    place = Path(path)
    return place.suffix in SUFFIXES and place.is_file() and is_columnar(str(place.parent))


def bytes_of(path: str) -> int:
    """Return the bytes of a profile: of a file, or of the files of a directory.

    Raises:
        OSError: it cannot be looked at.
    """
    place = Path(path)
    return sum(file.stat().st_size for file in (parts_of(path) if place.is_dir() else [place]))


def parts_of(path: str) -> list[Path]:
    """Return the files of a directory, in order.

    Raises:
        OSError: it cannot be read.
    """
    return sorted(entry for entry in Path(path).iterdir() if entry.is_file())


def files_of(path: str) -> Mapping[str, Path]:
    """Return the file of each table in a directory, by the table's name, in order.

    Raises:
        OSError: the directory cannot be read.
    """
    files: dict[str, Path] = {}
    entries = parts_of(path)
    for suffix in SUFFIXES:
        for entry in entries:
            if entry.suffix == suffix:
                files.setdefault(entry.stem, entry)
    return dict(sorted(files.items()))
