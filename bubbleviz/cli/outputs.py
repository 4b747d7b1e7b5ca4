"""Outputs: written whole, under their own names, at the end, or not at all.

An existing pipe or device is written into, as a shell's redirection does.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bubbleviz.errors import OutputError, UsageError
from bubbleviz.model.part_names import NAMES
from bubbleviz.model.private_names import note_paths
from bubbleviz.render.parts import Parts

# Output folders: written part by part beside their place, which they take when all are there.


def check_folder(output: str, place: Path, inputs: Collection[Path], *, force: bool) -> None:
    """Refuse a folder that cannot be written.

    Args:
        output: as it was named.
        place: its path.
        inputs: files that are read.
        force: whether a folder of parts is replaced.

    Raises:
        OutputError: it is a file, holds what is read or what is no part, exists and ``force`` is
            off, or its own folder does not exist.
    """
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
        raise in_the_way(output)


def in_the_way(output: str) -> OutputError:
    """Return the error of an output that exists."""
    return OutputError(f"{output}: exists already; replace it with --force")


def written_folder(output: str, parts: Parts) -> str:
    """Write a folder under a temporary name beside its place, and return that name.

    Raises:
        OSError: it cannot be written.
    """
    from bubbleviz.model import files as temporary_files

    folder = Path(temporary_files.create_folder(Path(output).resolve().parent))
    try:
        mask = os.umask(0)
        os.umask(mask)
        for name, content in parts.files():
            file = folder / name
            file.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
            file.chmod(0o666 & ~mask)
        folder.chmod(0o777 & ~mask)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return str(folder)


def place_folder(temporary: str, output: str, *, force: bool) -> None:
    """Give a finished folder its name; one that is replaced goes once the new one is there.

    Raises:
        OutputError: a folder came meanwhile.
        OSError: it cannot take its name.
    """
    target = Path(output).resolve()
    if not target.exists():
        Path(temporary).rename(target)
        return
    if not force:
        raise in_the_way(output)
    check_folder(output, target, (), force=True)
    from bubbleviz.model import files as temporary_files

    old = Path(temporary_files.create_folder(target.parent))
    old.rmdir()
    target.rename(old)
    try:
        Path(temporary).rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


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
    profiles = {Path(path).resolve() for path in inputs if _exists(path)}
    seen: set[Path | str] = set()
    for output in outputs:
        try:
            place = output if output == "-" else Path(output).resolve()
            if place in seen:
                raise UsageError(f"{output}: named by two outputs; give each its own file")
            seen.add(place)
            if isinstance(place, Path):
                if output in folders:
                    check_folder(output, place, profiles, force=force)
                else:
                    _check_place(output, place, profiles, force=force)
        except (OSError, RuntimeError, ValueError) as error:
            # A name too long, a folder without permission, a circle of links, a NUL.
            raise _unwritable(output, error) from error


def _check_place(output: str, place: Path, profiles: set[Path], *, force: bool) -> None:
    if not output:
        raise OutputError("the path of an output is empty; name a file, or - for standard output")
    if place in profiles:
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
        raise in_the_way(output)


def encoded(content: str | bytes) -> bytes:
    """Return the bytes of a file: text in UTF-8, bytes as they are."""
    return content.encode("utf-8") if isinstance(content, str) else content


def write_outputs(contents: Mapping[str, str | bytes | Parts], *, force: bool) -> None:
    """Write each content to its file, or to its folder part by part.

    All are complete before the first takes its name.

    Raises:
        OutputError: a file cannot be written; files that took their names already stay.
    """
    channels = {
        output: content
        for output, content in contents.items()
        if not isinstance(content, Parts) and _is_channel(output)
    }
    ready: dict[str, str] = {}
    try:
        for output, content in contents.items():
            if isinstance(content, Parts):
                ready[output] = _temporary_folder(output, content)
            elif output not in channels:
                ready[output] = _temporary(output, encoded(content))
        for output, temporary in ready.items():
            if isinstance(contents[output], Parts):
                _place_folder(temporary, output, force=force)
            else:
                _place(temporary, output, force=force)
    finally:
        for left in map(Path, ready.values()):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    for output, content in channels.items():
        _write_into(output, encoded(content))


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name that is too long for one
        return False


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


def _write_into(output: str, content: bytes) -> None:
    try:
        with os.fdopen(_open_channel(output), "wb", buffering=0) as channel:
            rest = memoryview(content)
            while rest:
                rest = rest[channel.write(rest) :]
    except OSError as error:
        raise _unwritable(output, error) from error


def _temporary_folder(output: str, parts: Parts) -> str:
    try:
        return written_folder(output, parts)
    except OSError as error:
        raise _unwritable(output, error) from error


def _place_folder(temporary: str, output: str, *, force: bool) -> None:
    try:
        place_folder(temporary, output, force=force)
    except OSError as error:
        raise _unwritable(output, error) from error


def _temporary(output: str, content: bytes) -> str:
    from bubbleviz.model import files as temporary_files

    try:
        handle, name = temporary_files.create(Path(output).resolve().parent)
    except OSError as error:
        raise _unwritable(output, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise _unwritable(output, error) from error
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return name


def _place(temporary: str, output: str, *, force: bool) -> None:
    """Give a finished file its name; without ``force`` never over a file that came meanwhile.

    Where the output is a symbolic link, the file it leads to is replaced, not the link.
    """
    target = Path(output).resolve()
    try:
        if force:
            # Who may read the file is not for its content to change.
            with suppress(FileNotFoundError):
                Path(temporary).chmod(stat.S_IMODE(target.stat().st_mode))
            Path(temporary).replace(target)
        else:
            os.link(temporary, target)
    except FileExistsError as error:
        raise in_the_way(output) from error
    except OSError:
        # File systems without hard links.
        if target.exists() and not force:
            raise in_the_way(output) from None
        try:
            Path(temporary).replace(target)
        except OSError as error:
            raise _unwritable(output, error) from error


def _unwritable(output: str, error: Exception) -> OutputError:
    reason = getattr(error, "strerror", None) or str(error)
    if getattr(error, "errno", None) == errno.ENXIO:
        return OutputError(f"{output}: nothing reads this pipe; start its reader first")
    return OutputError(
        f"{output}: cannot be written ({reason}); name a file in a directory you may write to"
    )
