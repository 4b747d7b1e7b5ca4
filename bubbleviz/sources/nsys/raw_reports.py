"""Reports of nsys that are not exported yet (``.nsys-rep``): exported by the user's nsys."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bubbleviz.errors import OutputError, ProfileError
from bubbleviz.model.pointers import refuse_pointer
from bubbleviz.model.private_names import note_paths
from bubbleviz.model.texts import not_option, one_line, shell_word
from bubbleviz.sources.signals import unwinding

#: Of a reason that nsys gives, characters.
_LONGEST = 200

#: Endings of reports of Nsight Systems; ``.qdrep`` was used until 2021.
SUFFIXES = (".nsys-rep", ".qdrep")


@contextmanager
def exported(path: str, *, keep: bool = False) -> Iterator[str]:
    """Yield an SQLite export of a report, or the path itself where it is no such report.

    Args:
        path: any profile.
        keep: leave the export beside the report, under the name nsys gives it, instead of
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
    from bubbleviz.model.temporary_files import temporary_folder

    with unwinding([signal.SIGTERM]), temporary_folder() as folder:
        target = Path(folder) / beside.name
        _export(path, target)
        if keep:
            shutil.move(target, beside)
            target = beside
        yield str(target)


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
        process = subprocess.run(
            [nsys, *arguments, str(target), not_option(path)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
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
