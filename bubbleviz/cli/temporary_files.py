"""Temporary files beside outputs, and what killed runs left of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import tempfile
from pathlib import Path

_PREFIX = ".bubbleviz-"


def create(folder: Path) -> tuple[int, str]:
    """Create a temporary file that the next run recognises as a leftover if this one is killed.

    Returns:
        Its open descriptor and its path.

    Raises:
        OSError: the folder takes no new file.
    """
    _remove_leftovers(folder)
    return tempfile.mkstemp(prefix=f"{_PREFIX}{_host()}-{os.getpid()}-", dir=folder)


def _host() -> str:
    """Return eight letters for this machine: a process number means nothing on another one."""
    return hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes of this machine that do not run any more."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(f"{_PREFIX}{_host()}-")]
        for name in names:
            number = name.split("-")[2] if name.count("-") >= 3 else ""
            if number.isdecimal() and not _runs(int(number)):
                with contextlib.suppress(OSError):
                    _remove_file(folder / name)


def _remove_file(path: Path) -> None:
    if stat.S_ISREG(path.lstat().st_mode):
        path.unlink()


def _runs(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's process, or no number of one
        return True
    return True
