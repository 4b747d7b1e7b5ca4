"""Operations that a tracer inside the training program wrote, as events of Chrome's format.

An event names its operation by a word of a pass, and counts it in ``args``. MegaScan, the tracer of
MegatronApp (megatron/training/trace.py, scripts/aggregate.py), writes two events, of which the
second has the counts, or one with a duration::

    {"name": "forward", "ph": "B", "ts": 770, "pid": 0, "tid": 0, "args": {"iteration": 10}}
    {"name": "forward", "ph": "E", "ts": 5188, "pid": 0, "tid": 0, "args":
        {"iteration": 10, "microbatch": 0, "model_chunk": 0, "pp_rank": 0}}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from bubbleviz.conventions.name_words import phase_in
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import CodedTexts, Numbering
from bubbleviz.model.phases import Phase
from bubbleviz.progress import Watch
from bubbleviz.sources.tables.cells import Cells, NumberColumn, stripped
from bubbleviz.sources.trace_events import MISSING, TraceFile

#: Counts are below this.
_MOST = 1 << 31


def _named(name: str) -> Any:
    return msgspec.field(default=None, name=name)


class OperationArgs(msgspec.Struct, gc=False):
    """Counts of an operation: the words of the tracer's code, and its abbreviations."""

    iteration: int | None = None
    microbatch: int | None = None
    chunk: int | None = _named("model_chunk")
    pp_rank: int | None = None
    pp_rk: int | None = None
    dp_rank: int | None = None
    dp_rk: int | None = None
    g_rk: int | None = None


#: The word, the thread, the name, the start, the end and the counts of an event.
_Traced: TypeAlias = "list[int]"


def _pairs(
    events: Sequence[_Traced], words: Sequence[int], open_events: dict[int, list[_Traced]]
) -> Iterator[tuple[_Traced, _Traced]]:
    """Yield the events that begin and that end something; one with a duration does both."""
    lasting, begin, end = words
    for event in events:
        word, thread = event[:2]
        if word == lasting:
            yield event, event
        elif word == begin:
            open_events[thread].append(event)
        elif word == end and open_events[thread]:
            yield open_events[thread].pop(), event


def read_traced(path: str, watch: Watch) -> Cells:
    """Return the operations of a trace as the columns of a table.

    Optimizer steps, and all that counts microbatches, are operations; other events are left out.

    Raises:
        ProfileError: the trace cannot be read.
    """
    rows: list[list[int]] = []
    phases: list[Phase] = []
    open_events: dict[int, list[_Traced]] = defaultdict(list)
    fields = OperationArgs.__struct_fields__
    microbatch = fields.index("microbatch") - len(fields)
    file = TraceFile(path, OperationArgs, watch)
    words = [file.texts.number(word) for word in "XBE"]
    for block in file.blocks():
        start_ns, duration_ns = (
            np.where(times_ns == MISSING, 0, times_ns)
            for times_ns in (block.start_ns, block.duration_ns)
        )
        known = (block.arguments[field] for field in fields)
        counts = [np.where((n >= 0) & (n < _MOST), n, MISSING) for n in known]
        times = (start_ns, start_ns + duration_ns)
        table = np.stack((block.ph, block.thread, block.name, *times, *counts))
        names = file.texts.values
        for begin, end in _pairs(table.T.tolist(), words, open_events):
            phase = phase_in(names[begin[2]])
            counted = end[microbatch] != MISSING or phase is Phase.OPTIMIZER
            if phase is not None and counted:
                rows.append([*begin[1:4], *end[4:]])
                phases.append(phase)
    names, threads = file.texts.values, file.threads.values
    columns = np.array(rows, np.int64).reshape(len(rows), 4 + len(fields)).T
    thread, name, started_ns, ended_ns = columns[:4]
    count = dict(zip(fields, columns[4:], strict=True))
    pids = (threads[number][0] for number in thread.tolist())
    processes = [pid if isinstance(pid, int) and not abs(pid) >> 63 else MISSING for pid in pids]
    numbers = {
        "rank": _numbers(_first(count["g_rk"], np.array(processes, np.int64))),
        "stage": _numbers(_first(count["pp_rank"], count["pp_rk"])),
        "pipeline": _numbers(_first(count["dp_rank"], count["dp_rk"])),
        "start_ns": _numbers(started_ns),
        "end_ns": _numbers(ended_ns),
    }
    told = {field: count[field].tolist() for field in ("iteration", "microbatch", "chunk")}
    texts = {
        "phase": _texts([phase.label for phase in phases]),
        "name": _texts([names[number] for number in name.tolist()]),
        **{
            field: _texts(["" if n == MISSING else str(n) for n in values])
            for field, values in told.items()
        },
    }
    return Cells(
        path,
        len(rows),
        {name: column for name, column in numbers.items() if column.filled.any()},
        {name: column for name, column in texts.items() if column.known.any()},
    )


def _first(column: Ints, otherwise: Ints) -> Ints:
    """Return a count of each operation, or else another."""
    return np.where(column == MISSING, otherwise, column)


def _numbers(values: Ints) -> NumberColumn:
    filled = values != MISSING
    return NumberColumn(np.where(filled, values, 0), filled)


def _texts(values: Sequence[str]) -> CodedTexts:
    texts = Numbering[str]()
    code = texts.numbers(values)
    return stripped(code, texts.values)
