"""Temporary files beside outputs, temporary folders, and what killed runs left of them."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import select
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bubbleviz.errors import InputError
from bubbleviz.model.pointers import pointer_words
from bubbleviz.model.private_names import note_paths

#: Of files beside outputs, and of folders among the system's temporary ones.
_PREFIX, _FOLDER_PREFIX = ".bubbleviz-", "bubbleviz-"


def create(folder: Path) -> tuple[int, str]:
    """Create a temporary file that the next run recognises as a leftover if this one is killed.

    Returns:
        Its open descriptor and its path.

    Raises:
        OSError: the folder takes no new file.
    """
    return tempfile.mkstemp(prefix=_beginning(folder, _PREFIX), dir=folder)


def create_folder(folder: Path) -> str:
    """Create a temporary folder in a folder, to be recognised as a leftover likewise.

    Returns:
        Its path.

    Raises:
        OSError: the folder takes no new one.
    """
    return tempfile.mkdtemp(prefix=_beginning(folder, _PREFIX), dir=folder)


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a folder that is removed afterwards, by the next run if this one is killed.

    Raises:
        OSError: none can be made.
    """
    prefix = _beginning(Path(tempfile.gettempdir()), _FOLDER_PREFIX)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield folder


def _host() -> str:
    """Return eight letters for this machine: a process number means nothing on another one.

    Nor does it in another container, whose processes are numbered apart.
    """
    # Most runs write no file.
    import hashlib

    numbering = ""
    with contextlib.suppress(OSError):
        numbering = str(Path("/proc/self/ns/pid").readlink())
    return hashlib.blake2b(f"{platform.node()}{numbering}".encode(), digest_size=4).hexdigest()


def _beginning(folder: Path, prefix: str) -> str:
    """Return how names of this process begin, and remove what others here left that run no more."""
    ours = f"{prefix}{_host()}-"
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(ours)]
        for name in names:
            number = name.split("-")[2] if name.count("-") >= 3 else ""
            if number.isdecimal() and not _runs(int(number)):
                with contextlib.suppress(OSError):
                    _remove(folder / name, files=prefix == _PREFIX)
    return f"{ours}{os.getpid()}-"


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


# Small files that users name: conventions, plans, costs and saved reports, within a size.
#
# What never ends (a device, a pipe without a writer, a kernel log) is refused instead of waited
# for.


#: Seconds that a named pipe has until something is written into it.
_PATIENCE_S = 10
_BLOCK = 1 << 20


def read_bounded(path: str, most_bytes: int, kind: str, hint: str, *, pipes: bool = False) -> bytes:
    """Read a whole file.

    Args:
        path: of the file.
        most_bytes: no file of this kind is larger.
        kind: what it should be, with its article, for the message.
        hint: what to do where it cannot be read.
        pipes: whether it may be a pipe, as of ``<(zcat report.json.gz)``.

    Raises:
        InputError: it cannot be read, is larger, or is neither a regular file nor an allowed pipe;
            or it is a pointer of Git LFS or git-annex.
    """
    note_paths([path])
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer, who may never come.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            _check_kind(descriptor, path, pipes=pipes)
            content = _read(descriptor, most_bytes)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as {kind} ({_reason(error)}); {hint}") from error
    if len(content) > most_bytes:
        size = f"{most_bytes >> 20} MiB" if most_bytes >> 20 else f"{most_bytes >> 10} KiB"
        raise InputError(f"{path}: larger than {size}, so it is not {kind}; {hint}")
    words = pointer_words(content)
    if words is not None:
        raise InputError(f"{path}: {words}")
    return content


def _check_kind(descriptor: int, path: str, *, pipes: bool) -> None:
    """Raise ValueError unless the file ends some time, as far as one can know."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise ValueError("a directory")
    if stat.S_ISREG(mode):
        return
    if not (pipes and stat.S_ISFIFO(mode)):
        raise ValueError("not a regular file")
    if not os.path.realpath(path).startswith(("/dev/fd/", "/proc/")):
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        if not waiting.poll(_PATIENCE_S * 1000):
            raise ValueError(f"a pipe into which nothing was written for {_PATIENCE_S} s")
    os.set_blocking(descriptor, True)


def _read(descriptor: int, most_bytes: int) -> bytes:
    """Read up to one byte more than allowed."""
    blocks: list[bytes] = []
    rest = most_bytes + 1
    while rest and (block := os.read(descriptor, min(rest, _BLOCK))):
        blocks.append(block)
        rest -= len(block)
    return b"".join(blocks)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, BlockingIOError):
        return "it never ends"
    return getattr(error, "strerror", None) or str(error)


# Part names: what the files of an output that is written by parts are called.


#: The file of a report by parts that names the others, and the schema of these.
INDEX = "index.json"
PART_SCHEMA = "bubbleviz.report-part/1"
#: Files of such folders; no other folder is ever replaced.
NAMES = re.compile(r"index\.json|part-\d{5}\.(json|parquet)")


def part_name(number: int, suffix: str) -> str:
    """Return the name of the file of a part."""
    return f"part-{number:05}.{suffix}"


def whole_of(path: str) -> str:
    """Return what a file is a part of: its folder, by its name; else the file itself."""
    return str(Path(path).parent) if NAMES.fullmatch(Path(path).name) else path
