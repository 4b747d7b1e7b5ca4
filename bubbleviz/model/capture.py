"""Capture: the time that a profile covers, and events that cannot lie in it.

::

    calls     ├──────── capture ────────┤
    room   ├──┼─────────────────────────┼──┤
    sound     │  ████                   │██       launched in the capture, ended after it
    outside   │                         │         ████
"""

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


def outside_capture(
    start_ns: Ints, end_ns: Ints, capture_ns: tuple[int, int] | None = None
) -> Bools | None:
    """Return which events lie far outside the capture; None for none.

    A capture may lack calls at its edges, so that it lasts as long as most events, too.

    Args:
        start_ns: of events.
        end_ns: of events.
        capture_ns: start of the first call and end of the last; None unknown.
    """
    bounds_ns = capture_bounds(start_ns, end_ns, capture_ns)
    return None if bounds_ns is None else beyond(start_ns, end_ns, bounds_ns)


def capture_bounds(
    start_ns: Ints, end_ns: Ints, capture_ns: tuple[int, int] | None = None
) -> tuple[int, int] | None:
    """Return between which times events belong to a capture; None where all of these do.

    Args: as of :func:`outside_capture`.
    """
    count = len(start_ns)
    if count == 0:
        return None
    extent_ns = int(start_ns.min()), int(end_ns.max())
    bounded = capture_ns is not None
    if capture_ns is not None and _holds(_with_room(capture_ns, bounded=True), extent_ns):
        return None
    if extent_ns[1] - extent_ns[0] <= (_BOUNDED_NS if bounded else _UNBOUNDED_NS):
        return None
    middle_ns = _middle(start_ns, end_ns)
    if middle_ns is not None:
        first_ns, last_ns = capture_ns or middle_ns
        capture_ns = min(first_ns, middle_ns[0]), max(last_ns, middle_ns[1])
    if capture_ns is None:
        return None
    bounds_ns = _with_room(capture_ns, bounded=bounded)
    return None if _holds(bounds_ns, extent_ns) else bounds_ns


def beyond(start_ns: Ints, end_ns: Ints, bounds_ns: tuple[int, int]) -> Bools:
    """Tell which events start before the first of two times or end after the last."""
    return np.asarray((start_ns < bounds_ns[0]) | (end_ns > bounds_ns[1]), bool)


def _middle(start_ns: Ints, end_ns: Ints) -> tuple[int, int] | None:
    """Return when most events begin and end; None of too few to tell."""
    sample = slice(None, None, max(len(start_ns) // _SAMPLE, 1))
    start_ns, end_ns = np.sort(start_ns[sample]), np.sort(end_ns[sample])
    edge = len(start_ns) // _EDGE + 1
    if 2 * edge >= len(start_ns):
        return None
    return int(start_ns[edge]), int(end_ns[-1 - edge])


def _with_room(capture_ns: tuple[int, int], *, bounded: bool) -> tuple[int, int]:
    least_ns = _BOUNDED_NS if bounded else _UNBOUNDED_NS
    lengths = _BOUNDED_LENGTHS if bounded else _UNBOUNDED_LENGTHS
    room_ns = max(least_ns, lengths * (capture_ns[1] - capture_ns[0]))
    return capture_ns[0] - room_ns, capture_ns[1] + room_ns


def _holds(bounds_ns: tuple[int, int], extent_ns: tuple[int, int]) -> bool:
    return bounds_ns[0] <= extent_ns[0] and extent_ns[1] <= bounds_ns[1]
