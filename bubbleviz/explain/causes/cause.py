"""The causes of idle time, and what each means."""

from __future__ import annotations

from enum import IntEnum


class Cause(IntEnum):
    """Why a rank was idle; the first that applies counts."""

    PROFILER = 0
    COLLECTIVE = 1
    WARMUP = 2
    DRAIN = 3
    DEPENDENCY = 4
    HOST = 5
    COMMUNICATION = 6
    OTHER = 7

    @property
    def label(self) -> str:
        """The name as reports print it."""
        return self.name.lower()


#: What each cause means, as tables print it.
MEANINGS = {
    Cause.PROFILER: "profiler overhead",
    Cause.COLLECTIVE: "only a collective ran",
    Cause.WARMUP: "before the rank's first operation of the iteration",
    Cause.DRAIN: "after the rank's last operation of the iteration",
    Cause.DEPENDENCY: "another rank had not finished the next operation's input",
    Cause.HOST: "input ready, host had not launched it",
    Cause.COMMUNICATION: "the input was being transferred",
    Cause.OTHER: "none of these (launch latency)",
}
