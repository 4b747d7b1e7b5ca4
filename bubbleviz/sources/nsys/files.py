"""Finds the files in columnar nsys exports, and runs nsys to export ``.nsys-rep`` reports.

``nsys export --type parquetdir`` writes a directory ``REPORT_pqtdir`` with one ``TABLE.parquet``
per table. ``--type arrowdir`` writes ``REPORT_arwdir`` with one ``TABLE.arrow`` per table. The
option ``--output`` changes the name of the directory.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from bubbleviz.errors import OutputError, ProfileError
from bubbleviz.model.pointers import refuse_pointer
from bubbleviz.model.texts import escape_leading_dash, quote_for_shell, to_one_line
from bubbleviz.signals import handle_signals
from bubbleviz.sources.sqlite.queries import SQLITE

#: Suffixes that nsys appends to the names of columnar exports.
ENDINGS = ("_pqtdir", "_arwdir")
#: File suffixes in a columnar export. If a table has several files, the first suffix wins.
TABLE_SUFFIXES = (".parquet", ".arrow", ".arrows")
#: Every export contains at least one table with one of these names.
TABLES = ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
#: Table names that distinguish an nsys export from other directories of Parquet files.
_DISTINCTIVE_TABLES = (*TABLES, "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME")


def is_columnar(path: str) -> bool:
    """Return whether a path is a columnar export, which may be incomplete.

    A directory is a columnar export if its name ends in a suffix that nsys uses, or if it contains
    a table that is typical of an export.
    """
    directory = Path(path)
    if not directory.is_dir():
        return False
    # Resolve the path, because it may be "." or a symbolic link.
    return directory.resolve().name.endswith(ENDINGS) or has_tables(path)


def has_tables(path: str) -> bool:
    """Return whether a directory contains a table that is typical of an nsys export."""
    names = (f"{table}{suffix}" for table in _DISTINCTIVE_TABLES for suffix in TABLE_SUFFIXES)
    return any((Path(path) / name).is_file() for name in names)


def find_report_stem(path: str) -> str:
    """Return the path, without suffix, to the report from which a directory was exported.

    If the name of the directory has no suffix that nsys uses, the path is returned unchanged.
    """
    return next((path.removesuffix(e) for e in ENDINGS if path.endswith(e)), path)


def is_table_of_export(path: str) -> bool:
    """Return whether a path is a table file in a columnar export."""
    file = Path(path)
    return file.suffix in TABLE_SUFFIXES and file.is_file() and is_columnar(str(file.parent))


def measure_bytes(path: str) -> int:
    """Return the size of a profile in bytes. For a directory, this is the total size of its files.

    Raises:
        OSError: The file or directory cannot be read.
    """
    files = list_files(path) if Path(path).is_dir() else [Path(path)]
    return sum(file.stat().st_size for file in files)


def list_files(path: str) -> list[Path]:
    """Return the files in a directory, sorted by name.

    Raises:
        OSError: The directory cannot be read.
    """
    return sorted(entry for entry in Path(path).iterdir() if entry.is_file())


def find_table_files(path: str) -> Mapping[str, Path]:
    """Return the table files in a directory, keyed and sorted by table name.

    If a table has several files, the file whose suffix comes first in ``TABLE_SUFFIXES`` wins.

    Raises:
        OSError: The directory cannot be read.
    """
    files: dict[str, Path] = {}
    entries = list_files(path)
    for suffix in TABLE_SUFFIXES:
        for entry in entries:
            if entry.suffix == suffix:
                files.setdefault(entry.stem, entry)
    return dict(sorted(files.items()))


#: Maximum number of characters that an error message quotes from an nsys message.
_MAX_REASON = 200

#: Suffixes of Nsight Systems reports. ``.qdrep`` was used until 2021.
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
#: Suffix of the recordings that nsys converts to reports when the capture ends.
STREAM_SUFFIX = ".qdstrm"


def is_report(path: str) -> bool:
    """Return whether a file is an Nsight Systems report.

    A file is a report if its name has one of ``REPORT_SUFFIXES``, unless its contents are an SQLite
    database. If the file cannot be opened, only the name is considered.
    """
    if not path.endswith(REPORT_SUFFIXES):
        return False
    try:
        with Path(path).open("rb") as file:
            return file.read(len(SQLITE)) != SQLITE
    except OSError:
        return True


@contextmanager
def export_report(path: str, *, keep: bool = False) -> Iterator[str]:
    """Export a report with nsys, and yield the path to the export.

    If ``keep`` is false and DuckDB is installed, the export is a directory of Parquet tables. In
    all other cases, and if nsys cannot write such a directory, the export is an SQLite file. The
    export is removed on exit, unless ``keep`` is true.

    Args:
        path: Path to any profile. If the profile is not a report, the path itself is yielded.
        keep: Whether to keep the export next to the report, with the suffix ``.sqlite``.

    Raises:
        ProfileError: nsys is not installed, or the export failed.
        OutputError: ``keep`` is true, but a file with the name of the export already exists.
    """
    if not is_report(path):
        yield path
        return
    kept_export = Path(path).with_suffix(".sqlite")
    if keep and kept_export.exists():
        raise OutputError(
            f"{kept_export}: already exists; analyze this file instead of {Path(path).name}",
            paths=[str(kept_export)],
        )
    temporary = tempfile.TemporaryDirectory(prefix="bubbleviz-", ignore_cleanup_errors=True)
    with handle_signals([signal.SIGTERM]), temporary as folder:
        refuse_pointer(path)
        if not keep and find_spec("duckdb") is not None:
            target = Path(folder) / f"{Path(path).stem}{ENDINGS[0]}"
            # Some versions of nsys append the suffix even if the name already ends in it.
            candidates = (target, target.with_name(f"{target.name}{ENDINGS[0]}"))
            process = _run_export(path, "parquetdir", target)
            if isinstance(process, subprocess.CompletedProcess) and process.returncode == 0:
                for candidate in candidates:
                    if candidate.is_dir() and has_tables(str(candidate)):
                        yield str(candidate)
                        return
        target = Path(folder) / kept_export.name
        process = _run_export(path, "sqlite", target)
        if isinstance(process, str) or process.returncode or not target.exists():
            raise ProfileError(f"{path}: {_describe_failure(path, target.name, process)}")
        if keep:
            shutil.move(target, kept_export)
            target = kept_export
        yield str(target)


def _run_export(path: str, kind: str, target: Path) -> subprocess.CompletedProcess[bytes] | str:
    """Run ``nsys export``.

    Args:
        path: Path to the report.
        kind: Type of the export, such as "sqlite".
        target: Path to the export.

    Returns:
        The finished process, or the reason why nsys could not be started. The reason is "" if nsys
        is not installed.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        return ""
    command = [nsys, "export", "--type", kind, "--output", str(target), escape_leading_dash(path)]
    try:
        return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        return str(error.strerror)


def _describe_failure(
    path: str, name: str, process: subprocess.CompletedProcess[bytes] | str
) -> str:
    """Describe why a report could not be exported, and add the command for exporting it by hand.

    Args:
        path: Path to the report.
        name: File name of the export.
        process: Return value of :func:`_run_export`.
    """
    by_hand = f"nsys export --type sqlite --output {quote_for_shell(name)} {quote_for_shell(path)}"
    if process == "":
        return (
            "is an nsys report, but nsys is not on the PATH; export the report on a machine that "
            f"has nsys: {by_hand}"
        )
    if isinstance(process, str):
        return f"nsys cannot be started ({process}); export the report yourself with: {by_hand}"
    reason = _find_last_line(process.stderr) or _find_last_line(process.stdout)
    reason = reason or f"exit code {process.returncode}"
    return f"nsys export failed ({reason}); export the report yourself with: {by_hand}"


def _find_last_line(output: bytes) -> str:
    """Return the last line of nsys output that contains a letter, or "" if there is none.

    This line gives the reason for a failure. A trailing period is removed.
    """
    lines = [
        to_one_line(line, _MAX_REASON) for line in output.decode("utf-8", "replace").splitlines()
    ]
    return next((line for line in reversed(lines) if any(map(str.isalpha, line))), "").rstrip(".")
