"""Signals that end a command: what it began is removed, and one line says that it is incomplete."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

#: Signals whose default ends a process on the spot, without cleaning up.
ENDING: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)


@contextmanager
def unwinding(signals: Sequence[signal.Signals] = ENDING) -> Iterator[None]:
    """Have signals that end a process raise SystemExit, so that temporary files are removed.

    Handlers that the program has already stay (``nohup`` ignores SIGHUP), and only the main thread
    may set any.

    Args:
        signals: that are handled so.
    """
    numbers: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        numbers = [number for number in signals if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _unwind)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def end_at_once(last_words: str) -> None:
    """Have Ctrl-C end the process with 130 and a line, until :func:`interrupt` is called.

    There is nothing to clean up while modules load. A Ctrl-C that the program ignores, or handles
    itself, stays as it is.

    Args:
        last_words: the line, with its line feed.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _AtOnce(last_words))


def interrupt() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again, where :func:`end_at_once` changed that."""
    if isinstance(signal.getsignal(signal.SIGINT), _AtOnce):
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _AtOnce:
    """A handler that ends the process with a line on standard error, and no exception."""

    def __init__(self, last_words: str) -> None:
        self._last_words = last_words

    def __call__(self, number: int, _: FrameType | None) -> NoReturn:
        with suppress(OSError):  # standard error may be closed
            os.write(2, self._last_words.encode())
        os._exit(128 + number)


def _unwind(number: int, _: FrameType | None) -> NoReturn:
    # A second signal must not interrupt the clean-up of the first.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
