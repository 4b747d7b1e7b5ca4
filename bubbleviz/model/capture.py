"""The capture (the time span that a profile covers), and events far outside of it."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Bools, Ints

#: The middle of the capture is between the quantiles ``1 / _EDGE`` and ``1 - 1 / _EDGE``.
_EDGE = 20
#: Margin around a capture whose calls are known: a minimum in ns, and a multiple of the length. The
#: larger of the two margins is used.
_BOUNDED_NS, _BOUNDED_LENGTHS = 100_000_000, 1
#: Margin around a capture whose calls are unknown: a minimum in ns, and a multiple of the length.
_UNBOUNDED_NS, _UNBOUNDED_LENGTHS = 1_000_000_000, 10
#: Approximate number of events from which the middle of the capture is estimated.
_SAMPLE = 1 << 16


def mask_outside_capture(
    start_ns: Ints, end_ns: Ints, capture_ns: tuple[int, int] | None = None
) -> Bools | None:
    """Return a mask of the events far outside the capture, or None if no event is outside.

    ::

        calls     ├──────── capture ────────┤
        margin ├──┼─────────────────────────┼──┤
        inside    │  ████                   │██       launched in the capture, ended after it
        outside   │                         │         ████

    An event is outside if it starts before the lower bound or ends after the upper bound of
    :func:`find_capture_bounds`.

    Args:
        start_ns: Start time of each event.
        end_ns: End time of each event.
        capture_ns: Start time of the first call and end time of the last call, or None if unknown.
    """
    bounds_ns = find_capture_bounds(start_ns, end_ns, capture_ns)
    return None if bounds_ns is None else mask_outside(start_ns, end_ns, bounds_ns)


def find_capture_bounds(
    start_ns: Ints, end_ns: Ints, capture_ns: tuple[int, int] | None = None
) -> tuple[int, int] | None:
    """Return the time bounds of the capture, with a margin.

    Events outside these bounds do not belong to the capture.

    If the calls are known, the capture lasts from the first to the last call. Calls may be missing
    at its edges, so the capture is extended to cover the middle 90 % of the events (see
    :func:`_find_middle`). If the calls are unknown, the capture is the middle 90 % of the events.

    The margin on both sides is

    - ``max(_BOUNDED_NS, _BOUNDED_LENGTHS * length)`` if the calls are known;
    - ``max(_UNBOUNDED_NS, _UNBOUNDED_LENGTHS * length)`` otherwise.

    Args:
        start_ns: Start time of each event.
        end_ns: End time of each event.
        capture_ns: Start time of the first call and end time of the last call, or None if unknown.

    Returns:
        The lower and the upper bound in ns. The result is None in any of these cases:

        - all events are inside the bounds;
        - all events together span at most the minimum margin;
        - the calls are unknown, and there are fewer than three events.
    """
    count = len(start_ns)
    if count == 0:
        return None
    extent_ns = int(start_ns.min()), int(end_ns.max())
    unbounded = _UNBOUNDED_NS, _UNBOUNDED_LENGTHS
    min_room_ns, n_lengths = unbounded if capture_ns is None else (_BOUNDED_NS, _BOUNDED_LENGTHS)

    def add_margin(capture_ns: tuple[int, int]) -> tuple[int, int] | None:
        """Return the bounds of the capture and its margin, or None if they contain all events."""
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
    """Return the 1/20 quantile of the starts and the 19/20 quantile of the ends.

    For n events, ``k = n // _EDGE + 1`` starts are before the returned start, and k ends are after
    the returned end. If there are at least ``2 * _SAMPLE`` events, only an evenly spaced sample is
    used. The result is None for fewer than three events.
    """
    sample = slice(None, None, max(len(start_ns) // _SAMPLE, 1))
    start_ns, end_ns = np.sort(start_ns[sample]), np.sort(end_ns[sample])
    edge = len(start_ns) // _EDGE + 1
    if 2 * edge >= len(start_ns):
        return None
    return int(start_ns[edge]), int(end_ns[-1 - edge])
