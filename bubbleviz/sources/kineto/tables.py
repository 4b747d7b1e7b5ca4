"""Tables of a profile, made of the events of PyTorch's profiler.

``threads`` and ``names`` are those of the profile, by the numbers that the events' columns hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import found_in
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Activities, Calls, Ranges, correlations, process_of
from bubbleviz.sources.in_memory import InMemoryCalls
from bubbleviz.sources.kineto.event_columns import (
    CORRELATION,
    DEVICE,
    END,
    EXTERNAL,
    NAME,
    START,
    THREAD,
    EventRows,
)
from bubbleviz.sources.kineto.events import ANNOTATION, CALL, KERNEL, OPERATOR

#: Processes with lower numbers are devices: Kineto gives their work the device as its process.
_MOST_DEVICES = 4096


def with_devices(
    work: EventRows, threads: Ints, path: str
) -> tuple[EventRows, tuple[Limitation, ...]]:
    """Return work that names no device on the one that stands for its process, else on device 0."""
    lacking = np.flatnonzero(work[DEVICE] < 0)
    if len(lacking) == 0:
        return work, ()
    columns = work.columns.copy()
    process = process_of(threads[work[THREAD][lacking]])
    columns[DEVICE, lacking] = np.where(process < _MOST_DEVICES, process, 0)
    reason = f"{path}: they count as those of the device that their process (pid) names, else of 0"
    note = Limitation(
        "devices of some kernels and copies", reason, len(lacking), LimitationKind.COSTS
    )
    return EventRows(columns, work.kind, work.impossible), (note,)


def with_operators(
    work: EventRows, calls: EventRows, ranges: EventRows, path: str
) -> tuple[EventRows, tuple[Limitation, ...]]:
    """Return the calls, with operators in place of those calls that the trace lacks.

    A kernel and the operator that launched it share an ``External id``.
    """
    lost = np.flatnonzero(~np.isin(work[CORRELATION], calls[CORRELATION]) & (work[EXTERNAL] >= 0))
    if len(lost) == 0:
        return calls, ()
    operators = np.flatnonzero(np.isin(ranges.kind, (OPERATOR, ANNOTATION)))
    external, first = np.unique(ranges[EXTERNAL][operators], return_index=True)
    at = found_in(external, work[EXTERNAL][lost])
    lost, at = lost[at != NONE], at[at != NONE]
    if len(lost) == 0:
        return calls, ()
    rows = ranges.take(operators[first[at]]).columns.copy()
    rows[END] = rows[START]
    rows[CORRELATION] = work[CORRELATION][lost]
    reason = f"{path}: the operators with their External id stand for the calls"
    note = Limitation(
        "CUDA API calls of some kernels and copies", reason, len(lost), LimitationKind.COSTS
    )
    columns = np.concatenate((calls.columns, rows), axis=1)
    kind = np.full(columns.shape[1], CALL, np.int64)
    return EventRows(columns, kind, 0), (note,)


def operators_as_work(ranges: EventRows, threads: Ints) -> tuple[EventRows, EventRows]:
    """Return the outermost operators of each thread as work, and a call for each.

    ::

        operators   ├──── linear ────┤  ├─ relu ─┤
                      ├ addmm ┤
        work        ├────────────────┤  ├────────┤
    """
    rows = np.flatnonzero(ranges.kind == OPERATOR)
    thread = threads[ranges[THREAD][rows]]
    order = np.lexsort((-ranges[END][rows], ranges[START][rows], thread))
    rows, thread = rows[order], thread[order]
    start_ns, end_ns = ranges[START][rows], ranges[END][rows]
    first = np.ones(len(rows), bool)
    first[1:] = thread[1:] != thread[:-1]
    # Threads follow one another in time once each is moved behind the one before.
    span_ns = int(end_ns.max(initial=0)) + 1
    place = np.cumsum(first) * span_ns
    latest_ns = np.maximum.accumulate(end_ns + place) if len(rows) else end_ns
    outermost = first.copy()
    outermost[1:] |= start_ns[1:] + place[1:] >= latest_ns[:-1]
    columns = ranges.columns[:, rows[outermost]].copy()
    columns[CORRELATION] = np.arange(columns.shape[1])
    columns[DEVICE] = 0
    calls = columns.copy()
    calls[END] = calls[START]
    kernel, call = (np.full(columns.shape[1], kind, np.int64) for kind in (KERNEL, CALL))
    return EventRows(columns, kernel, 0), EventRows(calls, call, 0)


def processes_of(work: EventRows, calls: EventRows, threads: Ints) -> Ints:
    """Return the process of each kernel, which is that of its launching call.

    A kernel without one belongs to the process that made the most calls.
    """
    process = process_of(threads[calls[THREAD]])
    known, count = np.unique(process, return_counts=True)
    most = int(known[count.argmax()]) if len(known) else 0
    if len(known) < 2:
        return np.full(len(work), most, np.int64)
    correlation, first = np.unique(calls[CORRELATION], return_index=True)
    at = found_in(correlation, work[CORRELATION])
    launched = (at != NONE) & (work[CORRELATION] >= 0)
    return np.where(launched, process[first[at]], most)


def activities_of(work: EventRows, process: Ints, names: Sequence[str]) -> Activities:
    """Return work as activities; ``process`` is that of each row."""
    ranks, rank = np.unique(np.stack((process, work[DEVICE]), axis=1), axis=0, return_inverse=True)
    kernels = int((work.kind == KERNEL).sum())
    name, name_id = np.unique(work[NAME][:kernels], return_inverse=True)
    return Activities(
        start_ns=work[START].copy(),
        end_ns=work[END].copy(),
        rank=rank.reshape(-1).astype(np.int32),
        correlation_id=correlations(work[CORRELATION]),
        name_id=np.concatenate((name_id, np.full(len(work) - kernels, NONE))).astype(np.int32),
        kernels=kernels,
        names=tuple(names[n] for n in name.tolist()),
        ranks=ranks.reshape(-1, 2),
    )


def calls_of(calls: EventRows, threads: Ints, names: Sequence[str]) -> InMemoryCalls:
    """Return calls, by thread and time."""
    thread = threads[calls[THREAD]]
    order = np.lexsort((calls[START], thread))
    name, name_id = np.unique(calls[NAME][order], return_inverse=True)
    table = Calls(
        row=np.arange(len(calls)),
        start_ns=calls[START][order],
        end_ns=calls[END][order],
        thread=thread[order],
        correlation_id=correlations(calls[CORRELATION][order]),
    )
    return InMemoryCalls(table, name_id.astype(np.int32), tuple(names[n] for n in name.tolist()))


def ranges_of(ranges: EventRows, threads: Ints, names: Sequence[str]) -> Ranges:
    """Return ranges, in the order of the file."""
    name, name_id = np.unique(ranges[NAME], return_inverse=True)
    none = np.zeros(len(ranges), bool)
    return Ranges(
        start_ns=ranges[START].copy(),
        end_ns=ranges[END].copy(),
        thread=threads[ranges[THREAD]],
        end_thread=np.full(len(ranges), NONE, np.int64),
        start_end=none,
        cut=none.copy(),
        name_id=name_id.astype(np.int64),
        names=tuple(names[n] for n in name.tolist()),
    )
