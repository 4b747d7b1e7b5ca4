"""Handles standard streams that are closed or accept no more output."""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO


def open_missing() -> None:
    """Open a replacement for each standard stream closed by the caller (``>&-``).

    Without a replacement, the next file that is opened would get the stream's file descriptor, and
    printed text would be written to that file. The replacement for standard input contains no data.
    Text on standard error is discarded, and writing to standard output fails.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # os.open returns the lowest free descriptor, which is the missing one.
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # open to the end
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # as above
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # as above


def discard_output(stream: TextIO | None = None) -> None:
    """Discard a stream's buffered text, so that the interpreter does not write it at exit.

    Args:
        stream: The stream, or None for standard output.
    """
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, (stream or sys.stdout).fileno())
        os.close(devnull)
    except (OSError, ValueError):  # the stream is in memory, or it is closed
        return


def describe_os_error(error: OSError) -> str:
    """Return the error message for an operating system error that ended a command."""
    if error.errno == errno.EBADF:
        return "standard output is closed; redirect it to a file or to /dev/null"
    return f"stopped ({error.strerror or error}); fix the problem and run the command again"
