"""Handlers of signals that end a command, so that it removes temporary files and exits cleanly."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

#: Signals whose default action ends a process immediately, without cleanup.
ENDING: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)


@contextmanager
def handle_signals(signals: Sequence[signal.Signals] = ENDING) -> Iterator[None]:
    """Have signals that end a process raise SystemExit, so that temporary files are removed.

    Existing handlers are kept (``nohup`` ignores SIGHUP). Nothing changes outside the main thread,
    because only the main thread may set handlers.

    Args:
        signals: The signals to handle.
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


#: Handlers of Ctrl-C that end the process.
_EXIT_HANDLERS: list[object] = []


def exit_at_once(last_words: str) -> None:
    """Have Ctrl-C print a line and exit with code 130, until :func:`restore_interrupt` is called.

    There is nothing to clean up while modules load. If the program ignores or handles Ctrl-C
    already, nothing changes.

    Args:
        last_words: The line, including its line feed.
    """

    def end(number: int, _: FrameType | None) -> NoReturn:
        with suppress(OSError):  # standard error may be closed
            os.write(2, last_words.encode())
        os._exit(128 + number)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _EXIT_HANDLERS.append(end)
        signal.signal(signal.SIGINT, end)


def restore_interrupt() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again if :func:`exit_at_once` changed that."""
    if signal.getsignal(signal.SIGINT) in _EXIT_HANDLERS:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _unwind(number: int, _: FrameType | None) -> NoReturn:
    # A second signal must not interrupt the cleanup after the first.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
