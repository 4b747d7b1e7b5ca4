"""Temporary files beside outputs, temporary folders, and what killed runs left of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Of files beside outputs, and of folders among the system's temporary ones.
_PREFIX, _FOLDER_PREFIX = ".bubbleviz-", "bubbleviz-"


def create(folder: Path) -> tuple[int, str]:
    """Create a temporary file that the next run recognises as a leftover if this one is killed.

    Returns:
        Its open descriptor and its path.

    Raises:
        OSError: the folder takes no new file.
    """
    _remove_leftovers(folder, _PREFIX)
    return tempfile.mkstemp(prefix=f"{_PREFIX}{_host()}-{os.getpid()}-", dir=folder)


def create_folder(folder: Path) -> str:
    """Create a temporary folder in a folder, to be recognised as a leftover likewise.

    Returns:
        Its path.

    Raises:
        OSError: the folder takes no new one.
    """
    _remove_leftovers(folder, _PREFIX)
    return tempfile.mkdtemp(prefix=f"{_PREFIX}{_host()}-{os.getpid()}-", dir=folder)


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a folder that is removed afterwards, by the next run if this one is killed.

    Raises:
        OSError: none can be made.
    """
    _remove_leftovers(Path(tempfile.gettempdir()), _FOLDER_PREFIX)
    prefix = f"{_FOLDER_PREFIX}{_host()}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield folder


def _host() -> str:
    """Return eight letters for this machine: a process number means nothing on another one.

    Nor does it in another container, whose processes are numbered apart.
    """
    numbering = ""
    with contextlib.suppress(OSError):
        numbering = str(Path("/proc/self/ns/pid").readlink())
    return hashlib.blake2b(f"{platform.node()}{numbering}".encode(), digest_size=4).hexdigest()


def _remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove what processes of this machine left that do not run any more."""
    ours = f"{prefix}{_host()}-"
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(ours)]
        for name in names:
            number = name.split("-")[2] if name.count("-") >= 3 else ""
            if number.isdecimal() and not _runs(int(number)):
                with contextlib.suppress(OSError):
                    _remove(folder / name, files=prefix == _PREFIX)


def _remove(path: Path, *, files: bool) -> None:
    """Remove a file, or a folder with what it holds, never what a link leads to."""
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode):
        shutil.rmtree(path, ignore_errors=True)
    elif stat.S_ISREG(mode) and files:
        path.unlink()


def _runs(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's process, or no number of one
        return True
    return True
