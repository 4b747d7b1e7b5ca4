"""Signal handlers that let a command remove its temporary files before it exits."""

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
    """Raise SystemExit on signals that end a process, so that temporary files get removed.

    Inside this context, the exit code is 128 plus the signal number. Signals that already have a
    handler or are ignored are left alone. For example, ``nohup`` ignores SIGHUP. Outside the main
    thread this context has no effect, because only the main thread may set signal handlers.

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


#: Ctrl-C handlers installed by :func:`exit_at_once`.
_EXIT_HANDLERS: list[object] = []


def exit_at_once(last_words: str) -> None:
    """Make Ctrl-C print a line and exit with code 130 until :func:`restore_interrupt` is called.

    The function is called before modules are imported, when there is nothing to clean up yet. If
    the program already ignores or handles Ctrl-C, nothing changes.

    Args:
        last_words: The line to print on standard error, including its line feed.
    """

    def end(number: int, _: FrameType | None) -> NoReturn:
        with suppress(OSError):  # standard error may be closed
            os.write(2, last_words.encode())
        os._exit(128 + number)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _EXIT_HANDLERS.append(end)
        signal.signal(signal.SIGINT, end)


def restore_interrupt() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again after :func:`exit_at_once`.

    Any other Ctrl-C handler is kept.
    """
    if signal.getsignal(signal.SIGINT) in _EXIT_HANDLERS:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _unwind(number: int, _: FrameType | None) -> NoReturn:
    # Ignore the signal from now on, so that a second signal does not interrupt the cleanup.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
