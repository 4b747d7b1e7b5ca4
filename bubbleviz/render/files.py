"""Writes output files. A file is written under a temporary name, and renamed when it is complete.

Pipes and devices are opened and written directly, as a shell redirection would do.
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

#: Prefix of temporary file names. Temporary files are in the directory of the output.
_PREFIX = ".bubbleviz-"
#: Maximum time to wait for a pipe's reader, in seconds.
_MAX_WAIT_S = 10


def check_outputs(outputs: Sequence[str], inputs: Sequence[str], *, force: bool) -> None:
    """Check that output files can be written, before the analysis starts.

    Args:
        outputs: Paths of the outputs. ``-`` means standard output.
        inputs: Paths of the input files, which must not be overwritten.
        force: Whether existing files may be replaced.

    Raises:
        UsageError: Two outputs are the same file.
        OutputError: An output path is empty, is an input or a directory, or is in a directory that
            does not exist. Also raised if the output exists and ``force`` is false.
    """
    input_paths = set()
    for input_ in inputs:
        with suppress(OSError):  # raised if the name is too long to be a file name
            if Path(input_).exists():
                input_paths.add(Path(input_).resolve())
    checked: set[Path | str] = set()
    for output in outputs:
        # ``resolve`` fails for names that are too long or contain a NUL, and for cyclic links.
        with _convert_errors(output, (OSError, RuntimeError, ValueError)):
            path = output if output == "-" else Path(output).resolve()
            if path in checked:
                raise UsageError(
                    f"{output}: two outputs have this path; choose a different path for each"
                )
            checked.add(path)
            if isinstance(path, Path):
                _check_path(output, path, input_paths, force=force)


def _check_path(output: str, path: Path, inputs: Collection[Path], *, force: bool) -> None:
    """Check that one output can be written. Existing pipes and devices are accepted.

    Args:
        output: Output path as entered by the user.
        path: Resolved path of the output.
        inputs: Resolved paths of the input files.
        force: Whether an existing file may be replaced.

    Raises:
        OutputError: The path is empty, is an input or a directory, or is in a directory that does
            not exist. Also raised if the output exists and ``force`` is false.
    """
    if not output:
        raise OutputError(
            "the path of an output is empty; enter a file name, or - for standard output"
        )
    if path in inputs:
        raise OutputError(
            f"{output}: is an input, and inputs are never replaced; choose another file name"
        )
    if path.is_dir():
        raise OutputError(f"{output}: is a directory; choose a file name in it")
    if _is_channel(output):
        return
    if not path.parent.is_dir():
        raise OutputError(f"{output}: its directory does not exist; create it first")
    if path.exists() and not force:
        raise _make_exists_error(output)


def _make_exists_error(output: str) -> OutputError:
    return OutputError(f"{output}: already exists; pass --force to replace it")


def encode(content: str | bytes) -> bytes:
    """Encode text as UTF-8. Bytes are returned unchanged."""
    return content.encode("utf-8") if isinstance(content, str) else content


def write_outputs(contents: Mapping[str, str | bytes], *, force: bool) -> None:
    """Write several output files; see :func:`write_possible_outputs`.

    Args:
        contents: Content of each output, keyed by path. Text is encoded as UTF-8.
        force: Whether existing files may be replaced.

    Raises:
        OutputError: A file cannot be written. The other files are written.
    """
    errors = write_possible_outputs(contents, force=force)
    if errors:
        raise next(iter(errors.values()))


def write_possible_outputs(
    contents: Mapping[str, str | bytes], *, force: bool
) -> dict[str, OutputError]:
    """Write all output files that can be written.

    All files are written under temporary names before any of them is renamed. Pipes and devices are
    written last, without a temporary file.

    Args:
        contents: Content of each output, keyed by path. Text is encoded as UTF-8.
        force: Whether existing files may be replaced.

    Returns:
        The errors of the files that cannot be written, keyed by path.
    """
    errors: dict[str, OutputError] = {}
    channels: list[str] = []
    temporary_files: dict[str, Path] = {}
    try:
        for output, content in contents.items():
            with _collect_errors(output, errors):
                if _is_channel(output):
                    channels.append(output)
                else:
                    temporary_files[output] = _write_temporary_file(output, encode(content))
        for output, temporary in temporary_files.items():
            with _collect_errors(output, errors):
                _rename_to_output(temporary, output, force=force)
    finally:
        for temporary in temporary_files.values():
            temporary.unlink(missing_ok=True)
    for output in channels:
        with _collect_errors(output, errors):
            _write_channel(output, encode(contents[output]))
    return errors


@contextmanager
def _collect_errors(output: str, errors: dict[str, OutputError]) -> Iterator[None]:
    """Store an error raised inside the context under the output's path instead of raising it."""
    try:
        with _convert_errors(output):
            yield
    except OutputError as error:
        errors[output] = error


def _write_channel(output: str, content: bytes) -> None:
    """Write content to a pipe or a device."""
    with os.fdopen(_open_channel(output), "wb", buffering=0) as channel:
        unwritten = memoryview(content)
        while unwritten:
            unwritten = unwritten[channel.write(unwritten) :]


@contextmanager
def _convert_errors(
    output: str, errors: tuple[type[Exception], ...] = (OSError,)
) -> Iterator[None]:
    """Convert exceptions raised inside the context to an ``OutputError`` that names the output.

    Args:
        output: Output path as entered by the user.
        errors: Exception types to convert.
    """
    try:
        yield
    except errors as error:
        if getattr(error, "errno", None) == errno.ENXIO:
            raise OutputError(
                f"{output}: no process is reading from this pipe; start the reader first"
            ) from error
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "choose a directory that you can write to"
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:
            remedy = "choose a shorter name"
        raise OutputError(f"{output}: cannot be written ({reason}); {remedy}") from error


def _is_channel(output: str) -> bool:
    """Return whether an output exists but is neither a regular file nor a directory.

    Pipes and devices are channels.
    """
    try:
        mode = Path(output).stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _open_channel(output: str) -> int:
    """Open a pipe or a device for writing, and return its file descriptor.

    If no process is reading the pipe yet, this function waits for up to ``_MAX_WAIT_S`` seconds.
    The returned descriptor is in blocking mode.

    Raises:
        OSError: The output cannot be opened, or no process opens the pipe for reading in time.
    """
    deadline = time.monotonic() + _MAX_WAIT_S
    while True:
        try:
            # Without O_NONBLOCK, opening a pipe would block until a process reads it.
            descriptor = os.open(output, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _write_temporary_file(output: str, content: bytes) -> Path:
    """Write content to a temporary file in the output's directory, and return the file's path.

    The temporary file gets the default permissions of a new file. If writing fails, the temporary
    file is removed.
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
    """Return the process's umask, which can only be read by briefly setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _rename_to_output(temporary: Path, output: str, *, force: bool) -> None:
    """Rename a temporary file to its final name.

    If ``force`` is false, an existing file is never replaced, even if it was created only a moment
    ago. If ``force`` is true, the new file gets the permissions of the file it replaces. If the
    output is a symbolic link, its target is replaced and the link is kept.

    Args:
        temporary: Path of the temporary file.
        output: Path of the output.
        force: Whether an existing file may be replaced.

    Raises:
        OutputError: The output exists and ``force`` is false.
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
        # The file system does not support hard links.
        temporary.replace(target)
