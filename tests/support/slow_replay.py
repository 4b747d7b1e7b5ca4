"""A replay in plain Python, row by row: slow, and easily seen to be right."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.replay import Work


def slow_ends(
    work: Work, order: Dependencies, own_ns: Sequence[int], delay_ns: Sequence[int]
) -> list[int | None]:
    """Return when each row ends from the start of its iteration; None for never."""
    rows = range(len(work))
    before: list[list[int]] = [[] for _ in rows]
    for row, earlier in zip(order.after.tolist(), order.before.tolist(), strict=True):
        before[row].append(earlier)
    numbers = work.meeting.tolist()
    members = {n: [row for row in rows if numbers[row] == n] for n in set(numbers) if n >= 0}
    starts: list[int | None] = [None for _ in rows]
    ends: list[int | None] = [None for _ in rows]
    changed = True
    while changed:
        changed = False
        for row in rows:
            ready = [ends[earlier] for earlier in before[row]]
            if starts[row] is None and None not in ready:
                starts[row] = max((e for e in ready if e is not None), default=0) + delay_ns[row]
                changed = True
            met = [starts[m] for m in members.get(numbers[row], [row])]
            if ends[row] is None and None not in met:
                ends[row] = max(s for s in met if s is not None) + own_ns[row]
                changed = True
    return ends
