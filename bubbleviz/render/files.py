"""Files of outputs: written whole, under their own names, at the end, or not at all.

An existing pipe or device is written into, as a shell's redirection does.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bubbleviz.errors import OutputError, UsageError

#: Of temporary files beside outputs.
_PREFIX = ".bubbleviz-"
#: Seconds that a pipe's reader has to come.
_PATIENCE_S = 10


def check_outputs(outputs: Sequence[str], inputs: Sequence[str], *, force: bool) -> None:
    """Refuse, before any work, outputs that cannot be written; ``-`` is standard output.

    Args:
        outputs: files.
        inputs: files that are read.
        force: whether what exists is replaced.

    Raises:
        UsageError: an output is named twice.
        OutputError: an output exists and ``force`` is off, is an input, or its directory does not
            exist.
    """
    profiles = set()
    for path in inputs:
        with suppress(OSError):  # a name that is too long for one
            profiles |= {Path(path).resolve()} if Path(path).exists() else set()
    seen: set[Path | str] = set()
    for output in outputs:
        # A name too long, a folder without permission, a circle of links, a NUL.
        with _writing(output, (OSError, RuntimeError, ValueError)):
            place = output if output == "-" else Path(output).resolve()
            if place in seen:
                raise UsageError(f"{output}: named by two outputs; give each its own file")
            seen.add(place)
            if isinstance(place, Path):
                _check(output, place, profiles, force=force)


def _check(output: str, place: Path, inputs: Collection[Path], *, force: bool) -> None:
    """Refuse an output that is an input, is a directory, or exists."""
    if not output:
        raise OutputError("the path of an output is empty; name a file, or - for standard output")
    if place in inputs:
        raise OutputError(
            f"{output}: is an input, and inputs are never replaced; name another file"
        )
    if place.is_dir():
        raise OutputError(f"{output}: is a directory; name a file in it")
    if _is_channel(output):
        return
    if not place.parent.is_dir():
        raise OutputError(f"{output}: its directory does not exist; create it first")
    if place.exists() and not force:
        raise _exists_already(output)


def _exists_already(output: str) -> OutputError:
    return OutputError(f"{output}: exists already; replace it with --force")


def encoded(content: str | bytes) -> bytes:
    """Return the bytes of a file: text in UTF-8, bytes as they are."""
    return content.encode("utf-8") if isinstance(content, str) else content


def write_outputs(contents: Mapping[str, str | bytes], *, force: bool) -> None:
    """Write each content to its file.

    All are complete before the first takes its name.

    Raises:
        OutputError: a file cannot be written; files that took their names already stay.
    """
    channels: dict[str, bytes] = {}
    ready: dict[str, Path] = {}
    try:
        for output, content in contents.items():
            with _writing(output):
                if _is_channel(output):
                    channels[output] = encoded(content)
                else:
                    ready[output] = _temporary(output, encoded(content))
        for output, temporary in ready.items():
            with _writing(output):
                _place_file(temporary, output, force=force)
    finally:
        for left in ready.values():
            left.unlink(missing_ok=True)
    for output, rest in channels.items():
        with _writing(output), os.fdopen(_open_channel(output), "wb", buffering=0) as channel:
            left_over = memoryview(rest)
            while left_over:
                left_over = left_over[channel.write(left_over) :]


@contextmanager
def _writing(output: str, errors: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Turn errors of the operating system into the sentence about an output."""
    try:
        yield
    except errors as error:
        if getattr(error, "errno", None) == errno.ENXIO:
            raise OutputError(
                f"{output}: nothing reads this pipe; start its reader first"
            ) from error
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "name a file in a directory you may write to"
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:
            remedy = "give it a shorter name"
        raise OutputError(f"{output}: cannot be written ({reason}); {remedy}") from error


def _is_channel(output: str) -> bool:
    """Return whether an output is a pipe or a device: neither a file nor a directory."""
    try:
        mode = Path(output).stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _open_channel(output: str) -> int:
    """Open a pipe or a device; a pipe's reader has some seconds to come.

    Raises:
        OSError: it cannot be opened, or nothing reads the pipe.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            # Without O_NONBLOCK, opening a pipe waits for a reader, who may never come.
            descriptor = os.open(output, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _temporary(output: str, content: bytes) -> Path:
    """Write a file under a temporary name in the directory of the output."""
    handle, name = tempfile.mkstemp(prefix=_PREFIX, dir=Path(output).resolve().parent)
    os.close(handle)
    place = Path(name)
    try:
        place.write_bytes(content)
        place.chmod(0o666 & ~_mask())
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    return place


def _mask() -> int:
    """Return which permissions this process withholds from new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _place_file(temporary: Path, output: str, *, force: bool) -> None:
    """Give a finished file its name; without ``force`` never over a file that came meanwhile.

    Where the output is a symbolic link, the file it leads to is replaced, not the link.
    """
    target = Path(output).resolve()
    if force:
        # Who may read the file is not for its content to change.
        with suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
        return
    try:
        os.link(temporary, target)
    except OSError as error:
        if target.exists():
            raise _exists_already(output) from error
        # File systems without hard links.
        temporary.replace(target)
