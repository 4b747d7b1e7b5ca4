"""Reports of nsys that are not exported yet (``.nsys-rep``): exported by the user's nsys."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from bubbleviz.errors import OutputError, ProfileError
from bubbleviz.model.pointers import refuse_pointer
from bubbleviz.model.private_names import note_paths
from bubbleviz.model.texts import not_option, one_line, shell_word
from bubbleviz.sources.gzip_files import unwinding
from bubbleviz.sources.nsys.columnar.directory import ENDINGS, holds_tables

#: Of a reason that nsys gives, characters.
_LONGEST = 200

#: Endings of reports of Nsight Systems; ``.qdrep`` was used until 2021.
SUFFIXES = (".nsys-rep", ".qdrep")


@contextmanager
def exported(path: str, *, keep: bool = False) -> Iterator[str]:
    """Yield an export of a report, or the path itself where it is no such report.

    It is a directory of Parquet tables where nsys can write one and pyarrow is there to read it,
    else an SQLite file.

    Args:
        path: any profile.
        keep: leave an SQLite export beside the report, under the name nsys gives it, instead of
            removing it afterwards.

    Raises:
        ProfileError: there is no nsys to export with, or it fails.
        OutputError: the export is to be kept, and a file of that name exists.
    """
    if not path.endswith(SUFFIXES):
        yield path
        return
    beside = Path(path).with_suffix(".sqlite")
    note_paths([str(beside)])
    if keep and beside.exists():
        raise OutputError(f"{beside}: exists already; analyze it instead of {Path(path).name}")
    from bubbleviz.model.files import temporary_folder

    with unwinding([signal.SIGTERM]), temporary_folder() as folder:
        tables = None if keep or find_spec("pyarrow") is None else _exported_tables(path, folder)
        if tables is not None:
            yield str(tables)
            return
        target = Path(folder) / beside.name
        _export(path, target)
        if keep:
            shutil.move(target, beside)
            target = beside
        yield str(target)


def _exported_tables(path: str, folder: str) -> Path | None:
    """Return a directory of tables that nsys exports; None where it does not."""
    refuse_pointer(path)
    nsys = shutil.which("nsys")
    if nsys is None:
        return None
    target = Path(folder) / f"{Path(path).stem}{ENDINGS[0]}"
    arguments = ["export", "--type", "parquetdir", "--output", str(target), not_option(path)]
    try:
        process = _run([nsys, *arguments])
    except OSError:
        return None
    # Some versions write the directory of that name, others add the ending to any name.
    written = (target, target.with_name(f"{target.name}{ENDINGS[0]}"))
    found = (place for place in written if place.is_dir() and holds_tables(str(place)))
    return next(found, None) if process.returncode == 0 else None


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)


def _export(path: str, target: Path) -> None:
    refuse_pointer(path)
    nsys = shutil.which("nsys")
    arguments = ["export", "--type", "sqlite", "--output"]
    by_hand = " ".join(["nsys", *arguments, shell_word(target.name), shell_word(path)])
    if nsys is None:
        raise ProfileError(
            f"{path}: a report of nsys, and no nsys is on the PATH to export it; export it where "
            f"nsys is with: {by_hand}"
        )
    try:
        process = _run([nsys, *arguments, str(target), not_option(path)])
    except OSError as error:
        raise ProfileError(
            f"{path}: nsys cannot be started ({error.strerror}); export by hand with: {by_hand}"
        ) from error
    if process.returncode != 0 or not target.exists():
        reason = _last_line(process.stderr) or _last_line(process.stdout)
        reason = reason or f"exit code {process.returncode}"
        raise ProfileError(f"{path}: nsys export failed ({reason}); export by hand with: {by_hand}")


def _last_line(output: bytes) -> str:
    """Return the last line that says something, where nsys gives its reason."""
    lines = [one_line(line, _LONGEST) for line in output.decode("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if any(map(str.isalpha, line))), "").rstrip(".")
