"""Files of nsys: reports (``.nsys-rep``), exported by the user's nsys, and directories of tables.

``nsys export --type parquetdir`` writes ``REPORT_pqtdir`` with a ``TABLE.parquet`` for each table,
``arrowdir`` writes ``REPORT_arwdir`` with a ``TABLE.arrow``; ``--output`` gives another name.
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

#: Endings of the directories, as nsys names them.
ENDINGS = ("_pqtdir", "_arwdir")
#: Endings of their files; where a table has several files, the first of these is read.
TABLE_SUFFIXES = (".parquet", ".arrow", ".arrows")
#: Tables of which every export has one.
TABLES = ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
#: Tables that other directories of Parquet files have none of.
_DISTINCTIVE_TABLES = (*TABLES, "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME")


def is_columnar(path: str) -> bool:
    """Tell whether a path leads to a directory of an export's tables, whole or not."""
    place = Path(path)
    if not place.is_dir():
        return False
    # A name may be ".", or lead through links.
    return place.resolve().name.endswith(ENDINGS) or has_tables(path)


def has_tables(path: str) -> bool:
    """Tell whether a directory holds tables of an export."""
    place = Path(path)
    names = (f"{table}{suffix}" for table in _DISTINCTIVE_TABLES for suffix in TABLE_SUFFIXES)
    return any((place / name).is_file() for name in names)


def find_report_stem(path: str) -> str:
    """Return the path of a directory's report without its ending, as far as the name tells."""
    return next((path.removesuffix(e) for e in ENDINGS if path.endswith(e)), path)


def is_table_of_export(path: str) -> bool:
    """Tell whether a file is a table in a directory of an export."""
    place = Path(path)
    return place.suffix in TABLE_SUFFIXES and place.is_file() and is_columnar(str(place.parent))


def measure_bytes(path: str) -> int:
    """Return the bytes of a profile: of a file, or of the files of a directory.

    Raises:
        OSError: it cannot be looked at.
    """
    place = Path(path)
    return sum(file.stat().st_size for file in (list_files(path) if place.is_dir() else [place]))


def list_files(path: str) -> list[Path]:
    """Return the files of a directory, in order.

    Raises:
        OSError: it cannot be read.
    """
    return sorted(entry for entry in Path(path).iterdir() if entry.is_file())


def find_table_files(path: str) -> Mapping[str, Path]:
    """Return the file of each table in a directory, by the table's name, in order.

    Raises:
        OSError: the directory cannot be read.
    """
    files: dict[str, Path] = {}
    entries = list_files(path)
    for suffix in TABLE_SUFFIXES:
        for entry in entries:
            if entry.suffix == suffix:
                files.setdefault(entry.stem, entry)
    return dict(sorted(files.items()))


#: Of a reason that nsys gives, characters.
_MAX_REASON = 200

#: Endings of reports of Nsight Systems; ``.qdrep`` was used until 2021.
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")


def is_report(path: str) -> bool:
    """Return whether a file is a report of Nsight Systems.

    An export that was given the name of a report is none: its content is SQLite's.
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
    """Yield an export of a report, or the path itself where it is no such report.

    It is a directory of Parquet tables if nsys can write one and DuckDB is installed to read it,
    else an SQLite file.

    Args:
        path: any profile.
        keep: leave an SQLite export beside the report, under the name nsys gives it, instead of
            removing it afterwards.

    Raises:
        ProfileError: there is no nsys to export with, or it fails.
        OutputError: the export is to be kept, and a file of that name exists.
    """
    if not is_report(path):
        yield path
        return
    beside = Path(path).with_suffix(".sqlite")
    if keep and beside.exists():
        raise OutputError(
            f"{beside}: exists already; analyze it instead of {Path(path).name}",
            paths=[str(beside)],
        )
    temporary = tempfile.TemporaryDirectory(prefix="bubbleviz-", ignore_cleanup_errors=True)
    with handle_signals([signal.SIGTERM]), temporary as folder:
        refuse_pointer(path)
        if not keep and find_spec("duckdb") is not None:
            target = Path(folder) / f"{Path(path).stem}{ENDINGS[0]}"
            # Some versions write the directory of that name, others add the ending to any name.
            places = (target, target.with_name(f"{target.name}{ENDINGS[0]}"))
            process = _run_export(path, "parquetdir", target)
            if isinstance(process, subprocess.CompletedProcess) and process.returncode == 0:
                for place in places:
                    if place.is_dir() and has_tables(str(place)):
                        yield str(place)
                        return
        target = Path(folder) / beside.name
        process = _run_export(path, "sqlite", target)
        if isinstance(process, str) or process.returncode or not target.exists():
            raise ProfileError(f"{path}: {_describe_failure(path, target.name, process)}")
        if keep:
            shutil.move(target, beside)
            target = beside
        yield str(target)


def _run_export(path: str, kind: str, target: Path) -> subprocess.CompletedProcess[bytes] | str:
    """Have nsys export a report; the reason where there is none, or it cannot be started."""
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
    """Return why there is no export, and the command by which the user makes it."""
    by_hand = f"nsys export --type sqlite --output {quote_for_shell(name)} {quote_for_shell(path)}"
    if process == "":
        return (
            "a report of nsys, and no nsys is on the PATH to export it; export it where "
            f"nsys is with: {by_hand}"
        )
    if isinstance(process, str):
        return f"nsys cannot be started ({process}); export by hand with: {by_hand}"
    reason = _find_last_line(process.stderr) or _find_last_line(process.stdout)
    reason = reason or f"exit code {process.returncode}"
    return f"nsys export failed ({reason}); export by hand with: {by_hand}"


def _find_last_line(output: bytes) -> str:
    """Return the last line that says something, where nsys gives its reason."""
    lines = [
        to_one_line(line, _MAX_REASON) for line in output.decode("utf-8", "replace").splitlines()
    ]
    return next((line for line in reversed(lines) if any(map(str.isalpha, line))), "").rstrip(".")
