"""Writing of output files: each file is written under a temporary name and renamed once complete.

An existing pipe or device is written to directly, like a shell redirection.
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

#: Prefix of temporary files, which are in the directory of the output.
_PREFIX = ".bubbleviz-"
#: Maximum time to wait for the reader of a pipe, in seconds.
_MAX_WAIT_S = 10


def check_outputs(outputs: Sequence[str], inputs: Sequence[str], *, force: bool) -> None:
    """Check that outputs can be written, before any work is done.

    Args:
        outputs: Paths of the outputs; ``-`` is standard output.
        inputs: Paths of the inputs, which are never replaced.
        force: Whether existing files may be replaced.

    Raises:
        UsageError: Two outputs are the same file.
        OutputError: An output exists and ``force`` is off, is an input or a directory, or its
            directory does not exist.
    """
    input_paths = set()
    for input_ in inputs:
        with suppress(OSError):  # a name that is too long for a file
            if Path(input_).exists():
                input_paths.add(Path(input_).resolve())
    checked: set[Path | str] = set()
    for output in outputs:
        # Raised for a name that is too long, a folder without permission, a cycle of links, a NUL.
        with _convert_errors(output, (OSError, RuntimeError, ValueError)):
            path = output if output == "-" else Path(output).resolve()
            if path in checked:
                raise UsageError(f"{output}: named by two outputs; give each its own file")
            checked.add(path)
            if isinstance(path, Path):
                _check_path(output, path, input_paths, force=force)


def _check_path(output: str, path: Path, inputs: Collection[Path], *, force: bool) -> None:
    """Check that an output is not an input, a directory, or an existing file without ``force``.

    Args:
        output: The output as the user wrote it.
        path: Resolved path of the output.
        inputs: Resolved paths of the inputs.
        force: Whether an existing file may be replaced.

    Raises:
        OutputError: The output cannot be written.
    """
    if not output:
        raise OutputError("the path of an output is empty; name a file, or - for standard output")
    if path in inputs:
        raise OutputError(
            f"{output}: is an input, and inputs are never replaced; name another file"
        )
    if path.is_dir():
        raise OutputError(f"{output}: is a directory; name a file in it")
    if _is_channel(output):
        return
    if not path.parent.is_dir():
        raise OutputError(f"{output}: its directory does not exist; create it first")
    if path.exists() and not force:
        raise _make_exists_error(output)


def _make_exists_error(output: str) -> OutputError:
    return OutputError(f"{output}: exists already; replace it with --force")


def encode(content: str | bytes) -> bytes:
    """Return the bytes of a file: text in UTF-8, bytes unchanged."""
    return content.encode("utf-8") if isinstance(content, str) else content


def write_outputs(contents: Mapping[str, str | bytes], *, force: bool) -> None:
    """Write contents to files, keyed by path.

    All contents are written to temporary files before the first of them is renamed.

    Raises:
        OutputError: A file cannot be written. Files that have been renamed already stay.
    """
    channels: dict[str, bytes] = {}
    temporary_files: dict[str, Path] = {}
    try:
        for output, content in contents.items():
            with _convert_errors(output):
                if _is_channel(output):
                    channels[output] = encode(content)
                else:
                    temporary_files[output] = _write_temporary_file(output, encode(content))
        for output, temporary in temporary_files.items():
            with _convert_errors(output):
                _rename_to_output(temporary, output, force=force)
    finally:
        for temporary in temporary_files.values():
            temporary.unlink(missing_ok=True)
    for output, content in channels.items():
        with (
            _convert_errors(output),
            os.fdopen(_open_channel(output), "wb", buffering=0) as channel,
        ):
            unwritten = memoryview(content)
            while unwritten:
                unwritten = unwritten[channel.write(unwritten) :]


@contextmanager
def _convert_errors(
    output: str, errors: tuple[type[Exception], ...] = (OSError,)
) -> Iterator[None]:
    """Convert exceptions inside the context to an ``OutputError`` that names the output.

    Args:
        output: The output as the user wrote it.
        errors: Types of the exceptions to convert.
    """
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
    """Return whether an output exists and is neither a file nor a directory: a pipe or a device."""
    try:
        mode = Path(output).stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _open_channel(output: str) -> int:
    """Open a pipe or a device for writing, and return its file descriptor.

    Waits up to ``_MAX_WAIT_S`` for a reader of the pipe.

    Raises:
        OSError: The output cannot be opened, or no process reads the pipe.
    """
    deadline = time.monotonic() + _MAX_WAIT_S
    while True:
        try:
            # Without O_NONBLOCK, opening a pipe blocks until it has a reader.
            descriptor = os.open(output, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _write_temporary_file(output: str, content: bytes) -> Path:
    """Write a file under a temporary name in the directory of the output, and return its path.

    The file has the permissions of a new file. It is removed if writing fails.
    """
    handle, name = tempfile.mkstemp(prefix=_PREFIX, dir=Path(output).resolve().parent)
    os.close(handle)
    path = Path(name)
    try:
        path.write_bytes(content)
        path.chmod(0o666 & ~_get_umask())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _get_umask() -> int:
    """Return the umask of the process, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _rename_to_output(temporary: Path, output: str, *, force: bool) -> None:
    """Rename a temporary file to the output.

    Without ``force``, a file that was created in the meantime is not replaced. With ``force``, the
    new file gets the permissions of the file that it replaces. If the output is a symbolic link,
    the target of the link is replaced and the link stays.

    Raises:
        OutputError: The output exists and ``force`` is off.
    """
    target = Path(output).resolve()
    if force:
        with suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
        return
    try:
        os.link(temporary, target)
    except OSError as error:
        if target.exists():
            raise _make_exists_error(output) from error
        # The file system has no hard links.
        temporary.replace(target)
