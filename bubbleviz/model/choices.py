"""Choices: the words that options take."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.model.texts import suggestion

#: How several hosts are put on one clock: by what waited for what, by their UTC, not at all.
ALIGNMENTS = ("causal", "utc", "none")
#: What transfers between ranks wait for: `bubbleviz.schedules.communication.lowered`.
CARRIERS = ("buffered", "rendezvous", "streams", "blocking")
#: What a row of a picture or a table is.
ROWS = ("rank", "stage", "spread")
#: How a picture is set.
STYLES = ("screen", "paper")
#: How a plan runs the backward: in its two halves, or as one operation.
BACKWARDS = ("split", "fused")
#: A device whose queue is full goes from one kernel to the next in 0.6 to 2.6 us (seen on A100 and
#: H100); no gap so short is the host's.
SHORTEST_US = 3.0


def one_of(value: str | None, choices: tuple[str, ...], option: str) -> None:
    """Check the value of an option; None is none given.

    Raises:
        UsageError: it is none of the choices.
    """
    if value is not None and value not in choices:
        raise UsageError(
            f"{option} {value[:60]!r}: not one of {', '.join(choices)}{suggestion(value, choices)}"
        )
