"""Read small files specified by the user, such as conventions, plans, costs and saved reports.

Files that are too large are rejected, as are inputs that never end, such as devices, pipes without
a writer, and kernel logs.
"""

from __future__ import annotations

import os
import select
import stat

from bubbleviz.errors import InputError
from bubbleviz.model.pointers import describe_pointer

#: Maximum time in seconds to wait for data from a named pipe.
_PATIENCE_S = 10
_BLOCK = 1 << 20


def read_bounded(path: str, max_bytes: int, kind: str, hint: str, *, pipes: bool = False) -> bytes:
    """Read a complete file after checking its kind and size.

    Args:
        path: Path of the file.
        max_bytes: Maximum size of the file.
        kind: Kind of file with an article, such as "a saved report", for messages.
        hint: Advice for a file that cannot be read, for messages.
        pipes: Whether the path may be a pipe, such as ``<(zcat report.json.gz)``.

    Raises:
        InputError: The file cannot be read, is too large, is a pointer of Git LFS or git-annex, or
            is neither a regular file nor an allowed pipe.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer, which may never come.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            _check_kind(descriptor, path, pipes=pipes)
            content = _read(descriptor, max_bytes)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise InputError(f"{path or repr(path)}: no such file; check the path") from error
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read as {kind} ({_describe_error(error)}); {hint}"
        ) from error
    if len(content) > max_bytes:
        size = f"{max_bytes >> 20} MiB" if max_bytes >> 20 else f"{max_bytes >> 10} KiB"
        raise InputError(f"{path}: larger than {size}, so it cannot be {kind}; {hint}")
    description = describe_pointer(content)
    if description is not None:
        raise InputError(f"{path}: {description}")
    return content


def _check_kind(descriptor: int, path: str, *, pipes: bool) -> None:
    """Check that a file is a regular file or a pipe that receives data, so it has an end.

    A named pipe must deliver data within ``_PATIENCE_S`` seconds. A pipe created by the shell
    (``/dev/fd/N``) may take any amount of time. The descriptor of a pipe is set to blocking mode.

    Args:
        descriptor: Descriptor of the file, opened in non-blocking mode.
        path: Path of the file.
        pipes: Whether a pipe is allowed.

    Raises:
        ValueError: The file is a directory, another kind of file, or a named pipe without data.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise ValueError("it is a directory")
    if stat.S_ISREG(mode):
        return
    if not (pipes and stat.S_ISFIFO(mode)):
        raise ValueError("it is not a regular file")
    if not os.path.realpath(path).startswith(("/dev/fd/", "/proc/")):
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        if not waiting.poll(_PATIENCE_S * 1000):
            raise ValueError(f"it is a pipe that received no data for {_PATIENCE_S} s")
    os.set_blocking(descriptor, True)


def _read(descriptor: int, max_bytes: int) -> bytes:
    """Read at most ``max_bytes + 1`` bytes, so the caller can detect an oversized file."""
    blocks: list[bytes] = []
    n_left = max_bytes + 1
    while n_left and (block := os.read(descriptor, min(n_left, _BLOCK))):
        blocks.append(block)
        n_left -= len(block)
    return b"".join(blocks)


def _describe_error(error: OSError | ValueError) -> str:
    if isinstance(error, BlockingIOError):
        return "it never ends"
    return getattr(error, "strerror", None) or str(error)
