"""Long calls are kept, and where there are too many the longer ones."""

from __future__ import annotations

import numpy as np

from bubbleviz.interpret.linking.long_calls import LongCalls
from bubbleviz.model.profile import Calls

US = 1_000


def calls_of(*lengths_us: int) -> Calls:
    """Return calls of these lengths, one after the other."""
    row = np.arange(len(lengths_us))
    start_ns = row * 10_000_000
    return Calls(
        row=row,
        start_ns=start_ns,
        end_ns=start_ns + np.array(lengths_us, np.int64) * US,
        thread=np.ones(len(row), np.int64),
        correlation_id=row.astype(np.uint32),
    )


def lengths(long_calls: LongCalls) -> list[int]:
    """Return the lengths that were kept, us."""
    kept = long_calls.collected()
    return [] if kept is None else ((kept.end_ns - kept.start_ns) // US).tolist()


def test_nothing_is_kept_of_nothing() -> None:
    long_calls = LongCalls()
    long_calls.add(calls_of())

    assert long_calls.collected() is None


def test_launches_are_not_kept_and_waits_are() -> None:
    long_calls = LongCalls()
    long_calls.add(calls_of(5, 19, 20, 3_000))
    long_calls.add(calls_of(1))
    long_calls.add(calls_of(40))

    assert lengths(long_calls) == [20, 3_000, 40]


def test_of_too_many_the_longer_ones_are_kept_in_their_order() -> None:
    long_calls = LongCalls(most=3)
    long_calls.add(calls_of(25, 90, 30))
    long_calls.add(calls_of(50, 41))
    # Shorter than 40 us goes, and is no longer looked at.
    long_calls.add(calls_of(39))

    assert lengths(long_calls) == [90, 50, 41]
