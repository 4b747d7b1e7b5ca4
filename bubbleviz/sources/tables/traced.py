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
from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import CodedTexts, Numbering, groups_of, sorted_rows
from bubbleviz.model.phases import Phase
from bubbleviz.progress import Watch
from bubbleviz.sources.tables.cells import Cells, NumberColumn, stripped
from bubbleviz.sources.trace_events import MISSING, TraceFile

#: Counts are below this.
_MOST = 1 << 31
#: Share of operations on several threads of one rank, above which a trace merges several runs.
_MIN_SHARED = 0.05


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


def _pair_events(
    events: Sequence[_Traced], words: Sequence[int]
) -> Iterator[tuple[_Traced, _Traced]]:
    """Yield the events that begin and that end something; one with a duration does both.

    Args:
        events: Events by thread and time; of those at one time, ends come first.
        words: Words of an event with a duration, of one that begins, and of one that ends.
    """
    lasting, begin, end = words
    open_events: dict[int, list[_Traced]] = defaultdict(list)
    early_ends: dict[int, list[_Traced]] = defaultdict(list)
    for event in events:
        word, thread, name, start_ns = event[:4]
        if word == lasting:
            yield event, event
        elif word == begin:
            # What takes no time ends where it begins.
            ended = early_ends[thread]
            if ended and ended[-1][2:4] == [name, start_ns]:
                yield event, ended.pop()
            else:
                open_events[thread].append(event)
        elif word == end and open_events[thread]:
            yield open_events[thread].pop(), event
        elif word == end:
            early_ends[thread].append(event)


def read_traced(path: str, watch: Watch) -> Cells:
    """Return the operations of a trace as the columns of a table.

    Optimizer steps, and all that counts microbatches, are operations; other events are left out.

    Raises:
        ProfileError: the trace cannot be read, or merges several runs.
    """
    rows: list[list[int]] = []
    phases: list[Phase] = []
    fields = OperationArgs.__struct_fields__
    microbatch = fields.index("microbatch") - len(fields)
    file = TraceFile(path, OperationArgs, watch)
    words = [file.texts.number(word) for word in "XBE"]
    blocks = [np.empty((5 + len(fields), 0), np.int64)]
    for block in file.blocks():
        start_ns, duration_ns = (
            np.where(times_ns == MISSING, 0, times_ns)
            for times_ns in (block.start_ns, block.duration_ns)
        )
        known = (block.arguments[field] for field in fields)
        counts = [np.where((n >= 0) & (n < _MOST), n, MISSING) for n in known]
        times = (start_ns, start_ns + duration_ns)
        blocks.append(np.stack((block.ph, block.thread, block.name, *times, *counts)))
    table = np.concatenate(blocks, axis=1)
    is_end = table[0] == words[2]
    order = sorted_rows(table[1], table[3], (~is_end).astype(np.int64), -table[4], table[2])
    names = file.texts.values
    for begin, end in _pair_events(table.T[order].tolist(), words):
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
    rank = _first(count["g_rk"], np.array(processes, np.int64))
    stage = _first(count["pp_rank"], count["pp_rk"])
    pipeline = _first(count["dp_rank"], count["dp_rk"])
    operation = (count["iteration"], np.array(phases, np.int64), count["microbatch"])
    _refuse_two_threads(path, thread, (rank, stage, pipeline, *operation, count["chunk"]))
    numbers = {
        "rank": _numbers(rank),
        "stage": _numbers(stage),
        "pipeline": _numbers(pipeline),
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
        tuple(file.limitations()),
    )


def _refuse_two_threads(path: str, thread: Ints, key: Sequence[Ints]) -> None:
    """Refuse a trace in which several threads of a rank ran the same operations.

    Args:
        path: Path of the trace, for the message.
        thread: Thread of each operation.
        key: Columns that tell operations apart.

    Raises:
        ProfileError: It is such a trace.
    """
    if len(thread) == 0:
        return
    operations = groups_of(*key)
    pairs = groups_of(operations.of_row, thread)
    n_threads = np.bincount(operations.of_row[pairs.first], minlength=len(operations))
    n_shared = int((n_threads > 1).sum())
    if n_shared > _MIN_SHARED * len(operations):
        raise ProfileError(
            f"{path}: {n_shared:,} of {len(operations):,} operations occur on several threads of "
            "one rank, so several runs were merged; give each run a file of its own"
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
