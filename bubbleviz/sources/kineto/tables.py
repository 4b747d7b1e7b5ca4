"""Tables of a profile, made of the events of PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import found_in
from bubbleviz.model.operations import Limitation
from bubbleviz.model.profile import Activities, Calls, Ranges, correlations, process_of
from bubbleviz.sources.in_memory import InMemoryCalls
from bubbleviz.sources.kineto.events import (
    ANNOTATION,
    CALL,
    CORRELATION,
    DEVICE,
    END,
    EXTERNAL,
    KERNEL,
    NAME,
    OPERATOR,
    OWNER,
    START,
    Rows,
)


def with_operators(
    work: Rows, called: Rows, named: Rows, path: str
) -> tuple[Rows, tuple[Limitation, ...]]:
    """Return the calls, with operators in place of those calls that the trace lacks.

    A kernel and the operator that launched it share an ``External id``.
    """
    lost = np.flatnonzero(~np.isin(work[CORRELATION], called[CORRELATION]) & (work[EXTERNAL] >= 0))
    if len(lost) == 0:
        return called, ()
    operators = np.flatnonzero(np.isin(named.kind, (OPERATOR, ANNOTATION)))
    external, first = np.unique(named[EXTERNAL][operators], return_index=True)
    at = np.searchsorted(external, work[EXTERNAL][lost])
    found = at < len(external)
    found[found] = external[at[found]] == work[EXTERNAL][lost[found]]
    lost, at = lost[found], at[found]
    rows = named.take(operators[first[at]]).columns.copy()
    rows[END] = rows[START]
    rows[CORRELATION] = work[CORRELATION][lost]
    if len(lost) == 0:
        return called, ()
    reason = f"{path}: their operators, which share their External id, stand for the calls"
    note = Limitation("CUDA API calls of some kernels and copies", reason, len(lost))
    columns = np.concatenate((called.columns, rows), axis=1)
    kind = np.full(columns.shape[1], CALL, np.int64)
    return Rows(columns, kind, 0), (note,)


def operators_as_work(named: Rows, thread: Ints) -> tuple[Rows, Rows]:
    """Return the outermost operators of each thread as work, and a call for each.

    ::

        operators   ├──── linear ────┤  ├─ relu ─┤
                      ├ addmm ┤
        work        ├────────────────┤  ├────────┤
    """
    rows = np.flatnonzero(named.kind == OPERATOR)
    own = thread[named[OWNER][rows]]
    order = np.lexsort((-named[END][rows], named[START][rows], own))
    rows, own = rows[order], own[order]
    start_ns, end_ns = named[START][rows], named[END][rows]
    first = np.ones(len(rows), bool)
    first[1:] = own[1:] != own[:-1]
    # Threads follow one another in time once each is moved behind the one before.
    span_ns = int(end_ns.max(initial=0)) + 1
    place = np.cumsum(first) * span_ns
    latest_ns = np.maximum.accumulate(end_ns + place) if len(rows) else end_ns
    outermost = first.copy()
    outermost[1:] |= start_ns[1:] + place[1:] >= latest_ns[:-1]
    columns = named.columns[:, rows[outermost]].copy()
    columns[CORRELATION] = np.arange(columns.shape[1])
    columns[DEVICE] = 0
    calls = columns.copy()
    calls[END] = calls[START]
    kernel, call = (np.full(columns.shape[1], kind, np.int64) for kind in (KERNEL, CALL))
    return Rows(columns, kernel, 0), Rows(calls, call, 0)


def processes(work: Rows, called: Rows, thread: Ints) -> Ints:
    """Return the process of each kernel, which only its launching call tells.

    A kernel without one belongs to the process that made the most calls.
    """
    process = process_of(thread[called[OWNER]])
    known, count = np.unique(process, return_counts=True)
    most = int(known[count.argmax()]) if len(known) else 0
    if len(known) < 2:
        return np.full(len(work), most, np.int64)
    correlation, first = np.unique(called[CORRELATION], return_index=True)
    at = found_in(correlation, work[CORRELATION])
    found = (at != NONE) & (work[CORRELATION] >= 0)
    return np.where(found, process[first[at]], most)


def activities_of(work: Rows, process: Ints, texts: Sequence[str]) -> Activities:
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
        names=tuple(texts[n] for n in name.tolist()),
        ranks=ranks.reshape(-1, 2),
    )


def calls_of(called: Rows, thread: Ints, texts: Sequence[str]) -> InMemoryCalls:
    """Return calls, by thread and time; ``thread`` and ``texts`` are by their numbers."""
    own = thread[called[OWNER]]
    order = np.lexsort((called[START], own))
    name, name_id = np.unique(called[NAME][order], return_inverse=True)
    calls = Calls(
        row=np.arange(len(called)),
        start_ns=called[START][order],
        end_ns=called[END][order],
        thread=own[order],
        correlation_id=correlations(called[CORRELATION][order]),
    )
    return InMemoryCalls(calls, name_id.astype(np.int32), tuple(texts[n] for n in name.tolist()))


def ranges_of(named: Rows, thread: Ints, texts: Sequence[str]) -> Ranges:
    """Return ranges, in the order of the file."""
    name, name_id = np.unique(named[NAME], return_inverse=True)
    none = np.zeros(len(named), bool)
    return Ranges(
        start_ns=named[START].copy(),
        end_ns=named[END].copy(),
        thread=thread[named[OWNER]],
        end_thread=np.full(len(named), NONE, np.int64),
        start_end=none,
        cut=none.copy(),
        name_id=name_id.astype(np.int64),
        names=tuple(texts[n] for n in name.tolist()),
    )
