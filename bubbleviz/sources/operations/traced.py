"""Reads operations that a tracer in the training program wrote as Chrome trace events.

The name of an event is the word for a pass, and ``args`` contains the numbers of the operation.
MegaScan, the tracer of MegatronApp (megatron/training/trace.py, scripts/aggregate.py), writes one
event with a duration, or two events, of which the second has all numbers::

    {"name": "forward", "ph": "B", "ts": 770, "pid": 0, "tid": 0, "args": {"iteration": 10}}
    {"name": "forward", "ph": "E", "ts": 5188, "pid": 0, "tid": 0, "args":
        {"iteration": 10, "microbatch": 0, "model_chunk": 0, "pp_rank": 0}}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from bubbleviz.conventions.name_words import guess_phase
from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import group_rows, sort_rows
from bubbleviz.model.numbering import CodedTexts, Numbering
from bubbleviz.model.phases import Phase
from bubbleviz.progress import Watch
from bubbleviz.sources.operations.cells import Cells, NumberColumn, trim_texts
from bubbleviz.sources.trace_events import MISSING, TraceEvents, TraceFile

#: Upper bound of the numbers in ``args``.
_MAX_NUMBER = 1 << 31
#: Maximum share of operations that occur on several threads of one rank in a single run.
_MAX_SHARED = 0.05


def _make_field(name: str) -> Any:
    return msgspec.field(default=None, name=name)


class OperationArgs(msgspec.Struct, gc=False):
    """Numbers of an operation, under the names of the tracer's code and their abbreviations."""

    iteration: int | None = None
    microbatch: int | None = None
    chunk: int | None = _make_field("model_chunk")
    pp_rank: int | None = None
    pp_rk: int | None = None
    dp_rank: int | None = None
    dp_rk: int | None = None
    g_rk: int | None = None


#: Names of the arguments, and the position of the microbatch from the end of an event's row.
_FIELDS = OperationArgs.__struct_fields__
_MICROBATCH = _FIELDS.index("microbatch") - len(_FIELDS)
#: Phase letter, thread, name, start, end and numbers of an event.
_Traced: TypeAlias = "list[int]"


def _pair_events(
    events: Sequence[_Traced], letters: Sequence[int]
) -> Iterator[tuple[_Traced, _Traced]]:
    """Yield the begin event and the end event of each operation.

    An event with a duration is both. An end event closes the last open event of its thread,
    whatever their names. Events without a partner are dropped.

    Args:
        events: Events sorted by thread and time. At equal times, end events come first.
        letters: Numbers of the phase letters X, B and E.
    """
    complete_letter, begin_letter, end_letter = letters
    open_events: dict[int, list[_Traced]] = defaultdict(list)
    early_ends: dict[int, list[_Traced]] = defaultdict(list)
    for event in events:
        letter, thread, name, start_ns = event[:4]
        if letter == complete_letter:
            yield event, event
        elif letter == begin_letter:
            # An operation without a duration has its end event before its begin event.
            ended_events = early_ends[thread]
            if ended_events and ended_events[-1][2:4] == [name, start_ns]:
                yield event, ended_events.pop()
            else:
                open_events[thread].append(event)
        elif letter == end_letter and open_events[thread]:
            yield open_events[thread].pop(), event
        elif letter == end_letter:
            early_ends[thread].append(event)


def read_traced(path: str, watch: Watch) -> Cells:
    """Read the operations of a trace as the columns of a table.

    Events whose name is a word for a pass are operations if they have a microbatch or are optimizer
    steps. Other events are left out. The rank is ``g_rk``, or else the process id.

    Raises:
        ProfileError: The trace cannot be read, or contains several runs.
    """
    file = TraceFile(path, OperationArgs, watch)
    columns, phases = _read_columns(file)
    thread = columns["thread"]
    rank = _fill_missing(columns["g_rk"], _get_process_ids(file, thread))
    stage = _fill_missing(columns["pp_rank"], columns["pp_rk"])
    pipeline = _fill_missing(columns["dp_rank"], columns["dp_rk"])
    operation = (columns["iteration"], np.array(phases, np.int64), columns["microbatch"])
    _refuse_two_threads(path, thread, (rank, stage, pipeline, *operation, columns["chunk"]))
    numbers = {
        "rank": _make_number_column(rank),
        "stage": _make_number_column(stage),
        "pipeline": _make_number_column(pipeline),
        "start_ns": _make_number_column(columns["start_ns"]),
        "end_ns": _make_number_column(columns["end_ns"]),
    }
    names = file.texts.values
    texts = {
        "phase": _make_text_column([phase.label for phase in phases]),
        "name": _make_text_column([names[index] for index in columns["name"].tolist()]),
        "iteration": _format_numbers(columns["iteration"]),
        "microbatch": _format_numbers(columns["microbatch"]),
        "chunk": _format_numbers(columns["chunk"]),
    }
    return Cells(
        path,
        len(phases),
        {name: column for name, column in numbers.items() if column.filled.any()},
        {name: column for name, column in texts.items() if column.known.any()},
        notes=tuple(file.limitations()),
    )


def _read_columns(file: TraceFile[OperationArgs]) -> tuple[Mapping[str, Ints], list[Phase]]:
    """Read the operations of a trace.

    The numbers of an operation that has two events are those of its end event.

    Returns:
        columns: Columns of the operations, keyed by ``thread``, ``name``, ``start_ns`` and
            ``end_ns``, and by the fields of :class:`OperationArgs`. Missing numbers are MISSING.
        phases: Phase of each operation.
    """
    events = _read_events(file)
    letters = [file.texts.number(letter) for letter in "XBE"]
    names = file.texts.values
    rows: list[_Traced] = []
    phases: list[Phase] = []
    for begin_event, end_event in _pair_events(events, letters):
        phase = guess_phase(names[begin_event[2]])
        has_microbatch = end_event[_MICROBATCH] != MISSING
        if phase is not None and (has_microbatch or phase is Phase.OPTIMIZER):
            rows.append([*begin_event[1:4], *end_event[4:]])
            phases.append(phase)
    keys = ("thread", "name", "start_ns", "end_ns", *_FIELDS)
    table = np.array(rows, np.int64).reshape(len(rows), len(keys)).T
    return dict(zip(keys, table, strict=True)), phases


def _read_events(file: TraceFile[OperationArgs]) -> list[_Traced]:
    """Read all events, sorted by thread and time.

    At equal times, end events come first, then longer events before the events inside them.
    """
    blocks = [np.empty((5 + len(_FIELDS), 0), np.int64)]
    blocks += [_make_rows(block) for block in file.blocks()]
    table = np.concatenate(blocks, axis=1)
    letter, thread, name, start_ns, end_ns = table[:5]
    is_no_end = (letter != file.texts.number("E")).astype(np.int64)
    order = sort_rows(thread, start_ns, is_no_end, -end_ns, name)
    events: list[_Traced] = table.T[order].tolist()
    return events


def _make_rows(events: TraceEvents[OperationArgs]) -> Ints:
    """Return the events of a block as a table, shape (5 + fields, events).

    The columns are the letter, thread, name, start, end and numbers of each event. Missing times
    are 0. Numbers that are missing or out of range are MISSING.
    """
    start_ns, duration_ns = (
        np.where(times_ns == MISSING, 0, times_ns)
        for times_ns in (events.start_ns, events.duration_ns)
    )
    times_ns = (start_ns, start_ns + duration_ns)
    arguments = (events.arguments[field] for field in _FIELDS)
    numbers = [np.where((n >= 0) & (n < _MAX_NUMBER), n, MISSING) for n in arguments]
    return np.stack((events.ph, events.thread, events.name, *times_ns, *numbers))


def _get_process_ids(file: TraceFile[OperationArgs], thread: Ints) -> Ints:
    """Return the process id of each operation's thread, or MISSING if it is not a number."""
    threads = file.threads.values
    pids = (threads[number][0] for number in thread.tolist())
    numbers = [pid if isinstance(pid, int) and not abs(pid) >> 63 else MISSING for pid in pids]
    return np.array(numbers, np.int64)


def _refuse_two_threads(path: str, thread: Ints, key: Sequence[Ints]) -> None:
    """Refuse a trace in which several threads of a rank ran the same operations.

    Args:
        path: Path of the trace, for the message.
        thread: Thread of each operation.
        key: Columns that identify an operation.

    Raises:
        ProfileError: More than 5 % of the operations occur on several threads of a rank.
    """
    if len(thread) == 0:
        return
    operations = group_rows(*key)
    pairs = group_rows(operations.of_row, thread)
    n_threads = np.bincount(operations.of_row[pairs.first], minlength=len(operations))
    n_shared = int((n_threads > 1).sum())
    if n_shared > _MAX_SHARED * len(operations):
        raise ProfileError(
            f"{path}: {n_shared:,} of {len(operations):,} operations occur on several threads of "
            "one rank, so the file contains two runs; write each run to a separate file"
        )


def _fill_missing(column: Ints, substitute: Ints) -> Ints:
    """Return a column with its missing values replaced."""
    return np.where(column == MISSING, substitute, column)


def _make_number_column(values: Ints) -> NumberColumn:
    """Return a column of numbers; missing values are empty cells."""
    filled = values != MISSING
    return NumberColumn(np.where(filled, values, 0), filled)


def _format_numbers(values: Ints) -> CodedTexts:
    """Return a column of numbers as texts; missing numbers are empty cells."""
    return _make_text_column(["" if value == MISSING else str(value) for value in values.tolist()])


def _make_text_column(values: Sequence[str]) -> CodedTexts:
    texts = Numbering[str]()
    code = texts.numbers(values)
    return trim_texts(code, texts.values)
