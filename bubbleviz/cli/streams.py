"""Standard streams that the caller closed, or that accept no more output."""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO


def open_missing() -> None:
    """Open a stand-in for each standard stream that the caller closed (``>&-``).

    Without one, the next file that is opened takes the stream's number, and whatever prints writes
    into it. Input is at its end, what is written to standard error is lost, and a write to standard
    output fails as it would have.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one: those below it are open by now.
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # open to the end
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # as above
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # as above


def discard_output(stream: TextIO | None = None) -> None:
    """Drop what a stream still holds; the interpreter would try to write it at its end.

    Args:
        stream: standard output if None.
    """
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, (stream or sys.stdout).fileno())
        os.close(devnull)
    except (OSError, ValueError):  # a stream in memory, or one that is closed
        return


def failure(error: OSError) -> str:
    """Return the sentence for an operating system's error while a command ran."""
    if error.errno == errno.EBADF:
        return "standard output is closed; redirect it to a file or to /dev/null"
    return f"stopped ({error.strerror or error}); fix that and run again"
