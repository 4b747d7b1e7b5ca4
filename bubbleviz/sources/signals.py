"""Signals that end a command: what it began is removed, and one line says that it is incomplete."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def _unwind(number: int, _: FrameType | None) -> NoReturn:
    # A second signal must not interrupt the clean-up of the first.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
