"""Host: what launching threads did while their GPU had run dry and nothing new was launched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.columns import NONE, Ints
from bubbleviz.containment import Innermost
from bubbleviz.grouping import groups_of
from bubbleviz.intervals import group_sum
from bubbleviz.launches import Late
from bubbleviz.model import Operations
from bubbleviz.profile import CallLog, Calls, Profile, Ranges

#: Shorter delays are launch overhead.
_SHORTEST_NS = 20_000
#: Delays that are so much shorter than the longest are not looked into, nor more than so many.
_SHARE, _MOST = 20, 2000


def with_host(
    operations: Operations, late: Late, lengthy: Calls | None, profile: Profile
) -> Operations:
    """Return operations with what the host did before their late launches.

    Args:
        operations: of one profile.
        late: those that were launched late.
        lengthy: calls that took their time; None for none.
        profile: the profile.
    """
    late = _longest(late)
    if len(late) == 0:
        return operations
    call = _calls(late, lengthy, profile.calls)
    around = _ranges(late, profile)
    names = list(operations.names)
    number = {name: index for index, name in enumerate(names)}

    def numbered(texts: Sequence[str | None]) -> Ints:
        column = np.full(len(operations), NONE, np.int64)
        for row, text in zip(late.operation.tolist(), texts, strict=True):
            if text is not None:
                column[row] = number.setdefault(text, len(number))
        return column

    kept = {name: getattr(operations, name) for name in Operations.column_names()}
    kept |= {"host_call_id": numbered(call), "host_range_id": numbered(around)}
    return Operations(**kept, names=tuple(number) if len(number) > len(names) else tuple(names))


def _longest(late: Late) -> Late:
    """Return the delays that are worth a look, in order of the operations."""
    length_ns = late.until_ns - late.since_ns
    least_ns = max(_SHORTEST_NS, int(length_ns.max(initial=0)) // _SHARE)
    rows = np.flatnonzero(length_ns >= least_ns)
    order = np.argsort(-length_ns[rows], kind="stable")[:_MOST]
    return late.take(np.sort(rows[order]))


def _calls(late: Late, lengthy: Calls | None, calls: CallLog) -> list[str | None]:
    """Return the name of the calls that took at least half of each delay; None for none."""
    found: list[str | None] = [None] * len(late)
    if lengthy is None:
        return found
    delay, row = _touching(late, lengthy)
    if len(row) == 0:
        return found
    numbers, of_row = np.unique(lengthy.row[row], return_inverse=True)
    names = calls.names(numbers)
    texts = sorted(set(names))
    code = np.array([texts.index(name) for name in names], np.int64)[of_row]
    spent_ns = np.minimum(lengthy.end_ns[row], late.until_ns[delay])
    spent_ns -= np.maximum(lengthy.start_ns[row], late.since_ns[delay])
    groups = groups_of(delay, code)
    total_ns = group_sum(groups.of_row, len(groups), spent_ns)
    delay, code = delay[groups.first], code[groups.first]
    most = 2 * total_ns >= (late.until_ns - late.since_ns)[delay]
    # Of two names that both took half, the first by name stays.
    for one, name in zip(delay[most][::-1].tolist(), code[most][::-1].tolist(), strict=True):
        found[one] = texts[name] or None
    return found


def _touching(late: Late, calls: Calls) -> tuple[Ints, Ints]:
    """Return (delay, call): which calls of the launching thread each delay touches."""
    pairs = []
    for thread in np.unique(late.thread).tolist():
        own = np.flatnonzero(calls.thread == thread)
        own = own[np.argsort(calls.start_ns[own], kind="stable")]
        delays = np.flatnonzero(late.thread == thread)
        ended_ns = np.maximum.accumulate(calls.end_ns[own])
        first = np.searchsorted(ended_ns, late.since_ns[delays], side="right")
        count = np.maximum(np.searchsorted(calls.start_ns[own], late.until_ns[delays]) - first, 0)
        step = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        delay, call = np.repeat(delays, count), own[np.repeat(first, count) + step]
        real = calls.end_ns[call] > late.since_ns[delay]
        pairs.append((delay[real], call[real]))
    delay, call = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return delay, call


def _ranges(late: Late, profile: Profile) -> list[str | None]:
    """Return the innermost range around the middle half of each delay; None for none."""
    shortest_ns = int((late.until_ns - late.since_ns).min()) // 2
    ranges: Ranges = profile.every_range.lasting(
        shortest_ns, int(late.since_ns.min()), int(late.until_ns.max())
    )
    found: list[str | None] = [None] * len(late)
    for thread in np.unique(late.thread).tolist():
        own = np.flatnonzero(ranges.thread == thread)
        delays = np.flatnonzero(late.thread == thread)
        if len(own) == 0:
            continue
        quarter_ns = (late.until_ns[delays] - late.since_ns[delays]) // 4
        index = Innermost.of(ranges.start_ns[own], ranges.end_ns[own])
        around = index.around(
            late.since_ns[delays] + quarter_ns, late.until_ns[delays] - quarter_ns
        )
        for delay, row in zip(delays.tolist(), around.tolist(), strict=True):
            if row != NONE:
                found[delay] = ranges.names[ranges.name_id[own[row]]]
    return found
