"""The capture, which is the time that a profile covers, and the events far outside it."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Bools, Ints

#: Events between the quantiles 1/20 and 19/20 are the middle of the capture.
_EDGE = 20
#: Margin around a capture with known calls: a minimum in ns and a multiple of the length of the
#: capture, of which the larger one applies.
_BOUNDED_NS, _BOUNDED_LENGTHS = 100_000_000, 1
#: Margin around a capture without known calls, in the same form.
_UNBOUNDED_NS, _UNBOUNDED_LENGTHS = 1_000_000_000, 10
#: Approximate number of events from which the middle of the capture is estimated.
_SAMPLE = 1 << 16


def mask_outside_capture(
    start_ns: Ints, end_ns: Ints, capture_ns: tuple[int, int] | None = None
) -> Bools | None:
    """Return a mask of the events far outside the capture, or None if there are none.

    ::

        calls     ├──────── capture ────────┤
        margin ├──┼─────────────────────────┼──┤
        inside    │  ████                   │██       launched in the capture, ended after it
        outside   │                         │         ████

    Calls may be missing at the edges of a capture, so it is extended to the middle 90 % of the
    events. An event is outside if it starts before, or ends after, the bounds of
    :func:`find_capture_bounds`.

    Args:
        start_ns: Start of each event.
        end_ns: End of each event.
        capture_ns: Start of the first and end of the last call, or None if unknown.
    """
    bounds_ns = find_capture_bounds(start_ns, end_ns, capture_ns)
    return None if bounds_ns is None else mask_outside(start_ns, end_ns, bounds_ns)


def find_capture_bounds(
    start_ns: Ints, end_ns: Ints, capture_ns: tuple[int, int] | None = None
) -> tuple[int, int] | None:
    """Return the earliest start and latest end of events that belong to the capture.

    The capture is extended to the middle 90 % of the events, and by a margin on both sides. The
    margin grows with the length of the capture and is larger if ``capture_ns`` is unknown. Without
    calls, the middle 90 % of the events are the capture.

    Args:
        start_ns: Start of each event.
        end_ns: End of each event.
        capture_ns: Start of the first and end of the last call, or None if unknown.

    Returns:
        The bounds, margin included, or None if all events are inside, or if there are neither calls
        nor at least three events.
    """
    count = len(start_ns)
    if count == 0:
        return None
    extent_ns = int(start_ns.min()), int(end_ns.max())
    unbounded = _UNBOUNDED_NS, _UNBOUNDED_LENGTHS
    min_room_ns, n_lengths = unbounded if capture_ns is None else (_BOUNDED_NS, _BOUNDED_LENGTHS)

    def add_margin(capture_ns: tuple[int, int]) -> tuple[int, int] | None:
        """Return the capture with its margin, or None if that contains all events."""
        room_ns = max(min_room_ns, n_lengths * (capture_ns[1] - capture_ns[0]))
        low_ns, high_ns = capture_ns[0] - room_ns, capture_ns[1] + room_ns
        return None if low_ns <= extent_ns[0] and extent_ns[1] <= high_ns else (low_ns, high_ns)

    if capture_ns is not None and add_margin(capture_ns) is None:
        return None
    if extent_ns[1] - extent_ns[0] <= min_room_ns:
        return None
    middle_ns = _find_middle(start_ns, end_ns)
    if middle_ns is not None:
        first_ns, last_ns = capture_ns or middle_ns
        capture_ns = min(first_ns, middle_ns[0]), max(last_ns, middle_ns[1])
    return None if capture_ns is None else add_margin(capture_ns)


def mask_outside(start_ns: Ints, end_ns: Ints, bounds_ns: tuple[int, int]) -> Bools:
    """Return a mask of the events that start before the first bound or end after the second."""
    return np.asarray((start_ns < bounds_ns[0]) | (end_ns > bounds_ns[1]), bool)


def _find_middle(start_ns: Ints, end_ns: Ints) -> tuple[int, int] | None:
    """Return the quantile 1/20 of the starts and the quantile 19/20 of the ends.

    A regular sample is used if there are many events. The result is None for fewer than three
    events.
    """
    sample = slice(None, None, max(len(start_ns) // _SAMPLE, 1))
    start_ns, end_ns = np.sort(start_ns[sample]), np.sort(end_ns[sample])
    edge = len(start_ns) // _EDGE + 1
    if 2 * edge >= len(start_ns):
        return None
    return int(start_ns[edge]), int(end_ns[-1 - edge])
