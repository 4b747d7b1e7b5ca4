"""Outputs: written whole, under their own names, at the end, or not at all.

An existing pipe or device is written into, as a shell's redirection does. A folder is written part
by part beside its place, which it takes when all parts are there.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bubbleviz.errors import OutputError, UsageError
from bubbleviz.model import files as temporary_files
from bubbleviz.model.files import NAMES
from bubbleviz.model.private_names import note_paths
from bubbleviz.render.formats import Parts

#: Seconds that a pipe's reader has to come.
_PATIENCE_S = 10


def check_outputs(
    outputs: Sequence[str], inputs: Sequence[str], *, force: bool, folders: Sequence[str] = ()
) -> None:
    """Refuse, before any work, outputs that cannot be written; ``-`` is standard output.

    Args:
        outputs: files, and ``folders``.
        inputs: files that are read.
        force: whether what exists is replaced.
        folders: those of the outputs that are written by parts.

    Raises:
        UsageError: an output is named twice.
        OutputError: an output exists and ``force`` is off, is an input, or its directory does not
            exist.
    """
    note_paths([*inputs, *outputs])
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
                check = _check_folder if output in folders else _check_file
                check(output, place, profiles, force=force)


def _check_file(output: str, place: Path, inputs: Collection[Path], *, force: bool) -> None:
    if not output:
        raise OutputError("the path of an output is empty; name a file, or - for standard output")
    if place in inputs:
        raise OutputError(
            f"{output}: is an input, and inputs are never replaced; name another file"
        )
    if place.is_dir() or output.endswith("/"):
        raise OutputError(f"{output}: is a directory; name a file in it")
    if _is_channel(output):
        return
    if not place.parent.is_dir():
        raise OutputError(f"{output}: its directory does not exist; create it first")
    if place.exists() and not force:
        raise _exists_already(output)


def _check_folder(output: str, place: Path, inputs: Collection[Path], *, force: bool) -> None:
    """Refuse a file, a folder that holds what is read or what is no part, and one in the way."""
    if place.is_file():
        raise OutputError(f"{output}: is a file; leave the slash out, or name another folder")
    if not place.parent.is_dir():
        raise OutputError(f"{output}: its directory does not exist; create it first")
    if place == place.parent or any(place in (path, *path.parents) for path in inputs):
        raise OutputError(
            f"{output}: holds an input, and inputs are never replaced; name another folder"
        )
    if not place.exists():
        return
    strange = next((own for own in sorted(place.iterdir()) if not NAMES.fullmatch(own.name)), None)
    if strange is not None:
        raise OutputError(
            f"{output}: holds {strange.name[:60]!r}, which is no part of a report; name a folder "
            "that does not exist"
        )
    if not force:
        raise _exists_already(output)


def _exists_already(output: str) -> OutputError:
    return OutputError(f"{output}: exists already; replace it with --force")


def encoded(content: str | bytes) -> bytes:
    """Return the bytes of a file: text in UTF-8, bytes as they are."""
    return content.encode("utf-8") if isinstance(content, str) else content


def write_outputs(contents: Mapping[str, str | bytes | Parts], *, force: bool) -> None:
    """Write each content to its file, or to its folder part by part.

    All are complete before the first takes its name.

    Raises:
        OutputError: a file cannot be written; files that took their names already stay.
    """
    channels: dict[str, bytes] = {}
    ready: dict[str, Path] = {}
    try:
        for output, content in contents.items():
            with _writing(output):
                if isinstance(content, Parts):
                    ready[output] = _temporary_folder(output, content)
                elif _is_channel(output):
                    channels[output] = encoded(content)
                else:
                    ready[output] = _temporary_file(output, encoded(content))
        for output, temporary in ready.items():
            place = _place_folder if isinstance(contents[output], Parts) else _place_file
            with _writing(output):
                place(temporary, output, force=force)
    finally:
        for left in ready.values():
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    for output, rest in channels.items():
        with (
            _writing(output),
            os.fdopen(_open_channel(output), "wb", buffering=0) as channel,
        ):
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
        raise OutputError(
            f"{output}: cannot be written ({reason}); name a file in a directory you may write to"
        ) from error


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


def _temporary_file(output: str, content: bytes) -> Path:
    """Write a file under a temporary name beside its place."""
    handle, name = temporary_files.create(Path(output).resolve().parent)
    file = Path(name)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
        file.chmod(0o666 & ~_mask())
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    return file


def _temporary_folder(output: str, parts: Parts) -> Path:
    """Write a folder under a temporary name beside its place."""
    folder = Path(temporary_files.create_folder(Path(output).resolve().parent))
    try:
        for name, content in parts.files():
            file = folder / name
            file.write_bytes(encoded(content))
            file.chmod(0o666 & ~_mask())
        folder.chmod(0o777 & ~_mask())
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


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


def _place_folder(temporary: Path, output: str, *, force: bool) -> None:
    """Give a finished folder its name; one that is replaced goes once the new one is there."""
    target = Path(output).resolve()
    if not target.exists():
        temporary.rename(target)
        return
    _check_folder(output, target, (), force=force)
    old = Path(temporary_files.create_folder(target.parent))
    old.rmdir()
    target.rename(old)
    try:
        temporary.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
