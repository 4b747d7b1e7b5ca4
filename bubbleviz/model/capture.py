"""The capture: the time that a profile covers, and events that are too far outside it."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Bools, Ints

#: The first and the last such part of all events does not bound a capture.
_EDGE = 20
#: Events may lie so far outside a capture that calls bound, or as far as it is long; ns.
_BOUNDED_NS, _BOUNDED_LENGTHS = 100_000_000, 1
#: The same where only events bound it.
_UNBOUNDED_NS, _UNBOUNDED_LENGTHS = 1_000_000_000, 10
#: So many events are enough to find the middle.
_SAMPLE = 1 << 16


def mask_outside_capture(
    start_ns: Ints, end_ns: Ints, capture_ns: tuple[int, int] | None = None
) -> Bools | None:
    """Return which events lie far outside the capture; None for none.

    ::

        calls     ├──────── capture ────────┤
        room   ├──┼─────────────────────────┼──┤
        sound     │  ████                   │██       launched in the capture, ended after it
        outside   │                         │         ████

    A capture may lack calls at its edges, so that it lasts as long as most events, too.

    Args:
        start_ns: of events.
        end_ns: of events.
        capture_ns: start of the first call and end of the last; None unknown.
    """
    bounds_ns = find_capture_bounds(start_ns, end_ns, capture_ns)
    return None if bounds_ns is None else mask_outside(start_ns, end_ns, bounds_ns)


def find_capture_bounds(
    start_ns: Ints, end_ns: Ints, capture_ns: tuple[int, int] | None = None
) -> tuple[int, int] | None:
    """Return between which times events belong to a capture; None where all of these do.

    Args: as of :func:`mask_outside_capture`.
    """
    count = len(start_ns)
    if count == 0:
        return None
    extent_ns = int(start_ns.min()), int(end_ns.max())
    unbounded = _UNBOUNDED_NS, _UNBOUNDED_LENGTHS
    min_room_ns, n_lengths = unbounded if capture_ns is None else (_BOUNDED_NS, _BOUNDED_LENGTHS)

    def beyond_extent(capture_ns: tuple[int, int]) -> tuple[int, int] | None:
        """Return the bounds of a capture with room around; None where they hold the extent."""
        room_ns = max(min_room_ns, n_lengths * (capture_ns[1] - capture_ns[0]))
        low_ns, high_ns = capture_ns[0] - room_ns, capture_ns[1] + room_ns
        return None if low_ns <= extent_ns[0] and extent_ns[1] <= high_ns else (low_ns, high_ns)

    if capture_ns is not None and beyond_extent(capture_ns) is None:
        return None
    if extent_ns[1] - extent_ns[0] <= min_room_ns:
        return None
    middle_ns = _find_middle(start_ns, end_ns)
    if middle_ns is not None:
        first_ns, last_ns = capture_ns or middle_ns
        capture_ns = min(first_ns, middle_ns[0]), max(last_ns, middle_ns[1])
    return None if capture_ns is None else beyond_extent(capture_ns)


def mask_outside(start_ns: Ints, end_ns: Ints, bounds_ns: tuple[int, int]) -> Bools:
    """Tell which events start before the first of two times or end after the last."""
    return np.asarray((start_ns < bounds_ns[0]) | (end_ns > bounds_ns[1]), bool)


def _find_middle(start_ns: Ints, end_ns: Ints) -> tuple[int, int] | None:
    """Return when most events begin and end; None of too few to tell."""
    sample = slice(None, None, max(len(start_ns) // _SAMPLE, 1))
    start_ns, end_ns = np.sort(start_ns[sample]), np.sort(end_ns[sample])
    edge = len(start_ns) // _EDGE + 1
    if 2 * edge >= len(start_ns):
        return None
    return int(start_ns[edge]), int(end_ns[-1 - edge])
