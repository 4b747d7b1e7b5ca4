"""Handling of standard streams that are closed, or that accept no more output."""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO


def open_missing() -> None:
    """Open a replacement for each standard stream that the caller closed (``>&-``).

    Otherwise the next opened file would get the number of the stream, and printed text would go to
    that file. The replacements behave as follows: standard input is empty, standard error discards
    its text, and writing to standard output fails.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # os.open takes the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # open to the end
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # as above
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # as above


def discard_output(stream: TextIO | None = None) -> None:
    """Discard the buffered text of a stream, which the interpreter would write when it exits.

    Args:
        stream: The stream, or None for standard output.
    """
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, (stream or sys.stdout).fileno())
        os.close(devnull)
    except (OSError, ValueError):  # a stream in memory, or one that is closed
        return


def describe_os_error(error: OSError) -> str:
    """Return the message for an error of the operating system that ended a command."""
    if error.errno == errno.EBADF:
        return "standard output is closed; redirect it to a file or to /dev/null"
    return f"stopped ({error.strerror or error}); fix that and run again"
