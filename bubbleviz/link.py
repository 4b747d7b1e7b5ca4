"""Link: kernel to launching call to operation range, by the rules and in this order.

1. A kernel's launching call has its correlation id and its process.
2. The call belongs to the innermost range, of those that a convention names, around it on its
   own thread (a start/end range that another thread ends covers the whole process).
3. A call with no such range on its own thread belongs to the innermost backward range open at
   its start on another thread: PyTorch runs backward on a thread of its own.

Nothing else is linked, and what is not linked is counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from bubbleviz.columns import NONE, Bools, Ints, Table
from bubbleviz.containment import Innermost
from bubbleviz.phases import BACKWARD, COMPUTE, Phase
from bubbleviz.profile import Calls, Ranges, Thread, process_of


class Rule(IntEnum):
    """By which rule an activity found its operation."""

    UNLINKED = 0
    OUTSIDE = 1
    OWN_THREAD = 2
    CROSS_THREAD = 3
    AMBIGUOUS = 4


@dataclass(frozen=True)
class Links(Table):
    """For each activity (kernel or copy): its call and its ranges; -1 is none.

    Attributes:
        call: row of the launching call.
        range: row of the range whose operation it belongs to.
        compute_range: row of the innermost compute range around the launch; it differs from
            ``range`` for communication launched inside a compute operation.
        rule: code of :class:`Rule`.
    """

    call: Ints
    range: Ints
    compute_range: Ints
    rule: Ints


@dataclass(frozen=True)
class Activities(Table):
    """What ran on devices and can have been launched: kernels, then copies."""

    process: Ints
    correlation_id: Ints
    device_id: Ints
    is_kernel: Bools


def launching_calls(activities: Activities, calls: Calls) -> Ints:
    """Return the row of each activity's launching call; -1 where it is not in the profile.

    Of several rows of one call (runtime API and driver API) the one that started first counts;
    of two that start together the longer, then the earlier row.
    """
    processes, code = np.unique(
        np.concatenate((activities.process, process_of(calls.thread))), return_inverse=True
    )
    if len(processes) == 0:
        return np.empty(0, np.int64)
    # Correlation ids have 32 bits, so that process and id fit one integer.
    key = (code.astype(np.int64) << 32) | np.concatenate(
        (activities.correlation_id, calls.correlation_id)
    )
    wanted, key = key[: len(activities)], key[len(activities) :]
    order = np.lexsort((-calls.end_ns, calls.start_ns, key))
    key = key[order]
    first = np.concatenate(([True], key[1:] != key[:-1])) if len(key) else np.zeros(0, bool)
    key, order = key[first], order[first]
    at = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
    if len(key) == 0:
        return np.full(len(wanted), NONE, np.int64)
    found = (key[at] == wanted) & (activities.correlation_id >= 0)
    return np.where(found, order[at], NONE)


def _by_group(group: Ints) -> list[tuple[int, Ints]]:
    """Return (value, rows) for each distinct value, rows ascending."""
    if len(group) == 0:
        return []
    order = np.argsort(group, kind="stable")
    values, starts = np.unique(group[order], return_index=True)
    return list(zip(values.tolist(), np.split(order, starts[1:]), strict=True))


def enclosing_ranges(calls: Calls, ranges: Ranges) -> Ints:
    """Return the row of the innermost range around each call by its own thread; -1 none.

    Where a push/pop range holds the call, no start/end range can take it.
    """
    process_wide = ranges.start_end & (ranges.end_thread != NONE)
    process_wide &= ranges.end_thread != ranges.thread
    on_thread = {
        thread: rows
        for thread, rows in _by_group(np.where(process_wide, NONE, ranges.thread))
        if thread != NONE
    }
    on_process = dict(_by_group(np.where(process_wide, process_of(ranges.thread), NONE)))
    best = np.full(len(calls), NONE, np.int64)
    for thread, rows in _by_group(calls.thread):
        own = on_thread.get(thread, np.empty(0, np.int64))
        shared = on_process.get(thread >> 24, np.empty(0, np.int64))
        pushed = own[~ranges.start_end[own]]
        free = np.sort(np.concatenate((own[ranges.start_end[own]], shared)))
        for candidates in (pushed, free):
            open_rows = rows[best[rows] == NONE]
            if len(candidates) and len(open_rows):
                best[open_rows] = _innermost(candidates, ranges, calls, open_rows)
    return best


def _innermost(candidates: Ints, ranges: Ranges, calls: Calls, rows: Ints) -> Ints:
    index = Innermost.of(ranges.start_ns[candidates], ranges.end_ns[candidates])
    found = index.around(calls.start_ns[rows], calls.end_ns[rows])
    return np.where(found >= 0, candidates[found], NONE)


@dataclass(frozen=True)
class _Backward:
    """The outcome of the cross-thread rule for each call asked about."""

    range: Ints
    ambiguous: Bools


def _cross_thread(
    calls: Calls, device_id: Ints, ranges: Ranges, phase: Ints, uses: frozenset[tuple[int, int]]
) -> _Backward:
    """Apply the cross-thread rule.

    ::

        main thread      ├─B3────────────────┤  (pushed here)
        autograd thread      call call call     (launched here)  -> B3

    Args:
        calls: calls without an operation on their own thread.
        device_id: the device that each call launched on.
        ranges: the profile's ranges.
        phase: phase of each range.
        uses: (thread, device) pairs that threads' own kernels ran on.
    """
    found = np.full(len(calls), NONE, np.int64)
    candidates = np.zeros(len(calls), np.int64)
    on_device = np.full(len(calls), NONE, np.int64)
    candidates_on_device = np.zeros(len(calls), np.int64)
    backward = np.flatnonzero(np.isin(phase, BACKWARD))
    processes = dict(_by_group(process_of(calls.thread)))
    for thread, at in _by_group(ranges.thread[backward]):
        rows = processes.get(thread >> 24, np.empty(0, np.int64))
        rows = rows[calls.thread[rows] != thread]
        if len(rows) == 0:
            continue
        held = backward[at]
        index = Innermost.of(ranges.start_ns[held], ranges.end_ns[held])
        inside = index.around(calls.start_ns[rows], calls.start_ns[rows])
        rows, inside = rows[inside >= 0], held[inside[inside >= 0]]
        found[rows] = inside
        candidates[rows] += 1
        devices = np.array([d for t, d in sorted(uses) if t == thread], np.int64)
        same = np.isin(device_id[rows], devices)
        on_device[rows[same]] = inside[same]
        candidates_on_device[rows[same]] += 1
    several = candidates > 1
    decided = several & (candidates_on_device == 1)
    found[several] = NONE
    found[decided] = on_device[decided]
    return _Backward(found, several & ~decided)


def _may_run_backward(
    calls: Calls, ranges: Ranges, phase: Ints, threads: Sequence[Thread], helpers: Sequence[str]
) -> Bools:
    """Tell for each call whether its thread can be one that runs another's backward."""
    forward = np.isin(phase, (Phase.F, Phase.OPTIMIZER))
    excluded = set(ranges.thread[forward].tolist())
    helper = re.compile("|".join(helpers) or r"(?!)", re.IGNORECASE)
    excluded.update(t.thread for t in threads if helper.search(t.name))
    return ~np.isin(calls.thread, np.array(sorted(excluded), np.int64))


def link(
    activities: Activities,
    calls: Calls,
    ranges: Ranges,
    phase: Ints,
    threads: Sequence[Thread],
    helpers: Sequence[str],
    *,
    cross_thread: bool = True,
) -> Links:
    """Return each activity's call, ranges and rule.

    Args:
        activities: kernels and copies.
        calls: the profile's CUDA API calls.
        ranges: the ranges that the convention names as operations.
        phase: phase of each range (codes of :class:`~bubbleviz.phases.Phase`).
        threads: named threads.
        helpers: regexes of names of threads that never run backward.
        cross_thread: whether to apply rule 3.
    """
    call = launching_calls(activities, calls)
    launched, back = np.unique(call[call >= 0], return_inverse=True)
    used = calls.take(launched)
    device_id = np.full(len(used), NONE, np.int64)
    # Written back to front, so that the first activity of a call decides.
    device_id[back[::-1]] = activities.device_id[call >= 0][::-1]

    held = enclosing_ranges(used, ranges)
    compute = np.flatnonzero(np.isin(phase, COMPUTE))
    in_compute = enclosing_ranges(used, ranges.take(compute))
    in_compute = np.where(in_compute >= 0, compute[in_compute] if len(compute) else NONE, NONE)
    rule = np.where(held >= 0, Rule.OWN_THREAD, Rule.OUTSIDE).astype(np.int64)
    if cross_thread:
        kernel_calls = np.isin(launched, call[activities.is_kernel])
        pairs = np.unique(np.stack((used.thread, device_id))[:, kernel_calls], axis=1)
        uses = frozenset(zip(*pairs.tolist(), strict=True))
        asked = np.flatnonzero(
            (held < 0) & _may_run_backward(used, ranges, phase, threads, helpers)
        )
        other = _cross_thread(used.take(asked), device_id[asked], ranges, phase, uses)
        held[asked] = other.range
        in_compute[asked] = other.range
        rule[asked[other.range >= 0]] = Rule.CROSS_THREAD
        rule[asked[other.ambiguous]] = Rule.AMBIGUOUS

    def spread(of_call: Ints, missing: int) -> Ints:
        result = np.full(len(activities), missing, np.int64)
        result[call >= 0] = of_call[back]
        return result

    return Links(call, spread(held, NONE), spread(in_compute, NONE), spread(rule, Rule.UNLINKED))
