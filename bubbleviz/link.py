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
from bubbleviz.grouping import groups_of
from bubbleviz.phases import BACKWARD, COMPUTE, Phase
from bubbleviz.profile import Calls, Ranges, Thread, is_main, process_of


class Rule(IntEnum):
    """By which rule an activity found its operation."""

    UNLINKED = 0
    OUTSIDE = 1
    OWN_THREAD = 2
    CROSS_THREAD = 3
    AMBIGUOUS = 4
    HELPER_THREAD = 5


@dataclass(frozen=True)
class Links(Table):
    """For each activity (kernel or copy): its call and its ranges; -1 is none.

    Attributes:
        call: row of the launching call.
        range: row of the range whose operation it belongs to.
        rule: code of :class:`Rule`.
    """

    call: Ints
    range: Ints
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
    of two that start together the earlier row.
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
    order = np.lexsort((calls.start_ns, key))
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


def _by_thread(ranges: Ranges) -> tuple[dict[int, Ints], dict[int, Ints]]:
    """Return the rows of ranges by their thread, and of those that cover a process by process."""
    wide = ranges.start_end & (ranges.end_thread != NONE) & (ranges.end_thread != ranges.thread)
    on_thread = dict(_by_group(np.where(wide, NONE, ranges.thread)))
    on_process = dict(_by_group(np.where(wide, process_of(ranges.thread), NONE)))
    on_thread.pop(NONE, None)
    on_process.pop(NONE, None)
    return on_thread, on_process


def enclosing_ranges(calls: Calls, ranges: Ranges) -> Ints:
    """Return the row of the innermost range around each call by its own thread; -1 none.

    Where a push/pop range holds the call, no start/end range can take it.
    """
    on_thread, on_process = _by_thread(ranges)
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


def _open_at(ranges: Ranges, candidates: Ints, time_ns: Ints) -> Ints:
    """Return the innermost of one thread's candidates open at each time, push/pop first."""
    best = np.full(len(time_ns), NONE, np.int64)
    for free in (False, True):
        held = candidates[ranges.start_end[candidates] == free]
        asked = np.flatnonzero(best == NONE)
        if len(held) and len(asked):
            index = Innermost.of(ranges.start_ns[held], ranges.end_ns[held])
            found = index.around(time_ns[asked], time_ns[asked])
            best[asked] = np.where(found >= 0, held[found], NONE)
    return best


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
        inside = _open_at(ranges, backward[at], calls.start_ns[rows])
        rows, inside = rows[inside >= 0], inside[inside >= 0]
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


def _opens_forward(calls: Calls, ranges: Ranges, phase: Ints) -> Bools:
    """Tell for each call whether its thread opens F, FB or Optimizer itself."""
    forward = np.isin(phase, (Phase.F, Phase.FB, Phase.OPTIMIZER))
    return np.isin(calls.thread, np.unique(ranges.thread[forward]))


def _is_helper(calls: Calls, threads: Sequence[Thread], helpers: Sequence[str]) -> Bools:
    """Tell for each call whether its thread has a name of threads that never run backward.

    A name that the process's main thread has too says nothing: threads inherit it.
    """
    helper = re.compile("|".join(helpers) or r"(?!)", re.IGNORECASE)
    inherited = {(t.thread >> 24, t.name) for t in threads if is_main(t.thread)}
    named = {
        t.thread
        for t in threads
        if helper.search(t.name)
        and (is_main(t.thread) or (t.thread >> 24, t.name) not in inherited)
    }
    return np.isin(calls.thread, np.array(sorted(named), np.int64))


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
    found = np.flatnonzero(call >= 0)
    # One call may launch on several devices (rarely more than one): each is asked about.
    launches = groups_of(call[found], activities.device_id[found])
    back = launches.of_row
    device_id = activities.device_id[found[launches.first]]
    used = calls.take(call[found[launches.first]])

    held = enclosing_ranges(used, ranges)
    rule = np.where(held >= 0, Rule.OWN_THREAD, Rule.OUTSIDE).astype(np.int64)
    if cross_thread:
        kernels = back[activities.is_kernel[found]]
        one = kernels[groups_of(used.thread[kernels], device_id[kernels]).first]
        uses = frozenset(zip(used.thread[one].tolist(), device_id[one].tolist(), strict=True))
        asked = np.flatnonzero((held < 0) & ~_opens_forward(used, ranges, phase))
        other = _cross_thread(used.take(asked), device_id[asked], ranges, phase, uses)
        helper = _is_helper(used.take(asked), threads, helpers)
        told = other.range >= 0
        rule[asked[told]] = Rule.CROSS_THREAD
        rule[asked[other.ambiguous]] = Rule.AMBIGUOUS
        rule[asked[helper & (told | other.ambiguous)]] = Rule.HELPER_THREAD
        held[asked[~helper]] = other.range[~helper]

    def spread(of_call: Ints, missing: int) -> Ints:
        result = np.full(len(activities), missing, np.int64)
        result[found] = of_call[back]
        return result

    return Links(call, spread(held, NONE), spread(rule, Rule.UNLINKED))


@dataclass(frozen=True)
class Inside(Table):
    """Which compute ranges an activity was launched inside of: one row a pair."""

    activity: Ints
    range: Ints


def launched_inside(rows: Ints, links: Links, calls: Calls, ranges: Ranges, phase: Ints) -> Inside:
    """Return all compute ranges around the launch of some activities, whatever lies between.

    Args:
        rows: the activities asked about.
        links: of all activities.
        calls: the profile's calls.
        ranges: the ranges of operations.
        phase: phase of each range.
    """
    rows = rows[links.call[rows] >= 0]
    used = calls.take(links.call[rows])
    crossed = np.flatnonzero(links.rule[rows] == Rule.CROSS_THREAD)
    found = [(rows[crossed], links.range[rows[crossed]])]
    compute = np.flatnonzero(np.isin(phase, COMPUTE))
    on_thread, on_process = _by_thread(ranges.take(compute))
    for thread, at in _by_group(used.thread):
        candidates = [on_thread.get(thread), on_process.get(thread >> 24)]
        own = compute[np.concatenate([c for c in candidates if c is not None] or [crossed[:0]])]
        index = Innermost.of(ranges.start_ns[own], ranges.end_ns[own])
        for query, held in index.all_around(used.start_ns[at], used.end_ns[at]):
            found.append((rows[at[query]], own[held]))
    activity, of_range = (np.concatenate(column) for column in zip(*found, strict=True))
    return Inside(activity, of_range)
