"""The fields that all trace events share."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TypeVar

import msgspec

#: From here on, in microseconds, a double does not hold every nanosecond.
_INEXACT_US = float(1 << 43)


class TraceEvent(msgspec.Struct, gc=False):
    """The fields of every event; times in microseconds.

    Each kind of trace adds ``args``, a struct of the arguments that it needs.
    """

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None


class ExactTraceEvent(msgspec.Struct, gc=False):
    """The same fields, with times as the decimals that the file holds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Decimal | None = None
    dur: Decimal | None = None


EventT = TypeVar("EventT", bound=TraceEvent)
ExactT = TypeVar("ExactT", bound=ExactTraceEvent)


def may_be_rounded(events: Sequence[TraceEvent | ExactTraceEvent]) -> bool:
    """Tell whether doubles may have rounded the times of events."""
    times = [event.ts for event in events if event.ts is not None]
    return max(times, default=0.0) >= _INEXACT_US and any(
        not float(ts).is_integer() for ts in times
    )
