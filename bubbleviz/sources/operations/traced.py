"""Reads operations that a tracer in the training program wrote as Chrome trace events.

An event is named after a pass, such as "forward". Its ``args`` contain the operation's numbers,
such as its microbatch. MegaScan, the tracer of MegatronApp (megatron/training/trace.py,
scripts/aggregate.py), writes one event with a duration per operation, or a begin event and an end
event. Only the end event contains all numbers::

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

#: Exclusive upper bound on the numbers in ``args``. Larger numbers are ignored.
_MAX_NUMBER = 1 << 31
#: Maximum fraction of a trace's operations that may occur on several threads of a rank. A larger
#: fraction means that the trace contains several runs.
_MAX_SHARED = 0.05


def _make_field(name: str) -> Any:
    return msgspec.field(default=None, name=name)


class OperationArgs(msgspec.Struct, gc=False):
    """The numbers in an operation's ``args``, under their full names and abbreviations."""

    iteration: int | None = None
    microbatch: int | None = None
    chunk: int | None = _make_field("model_chunk")
    pp_rank: int | None = None
    pp_rk: int | None = None
    dp_rank: int | None = None
    dp_rk: int | None = None
    g_rk: int | None = None


#: Names of the numbers in ``args``, and the (negative) index of the microbatch in an event row.
_FIELDS = OperationArgs.__struct_fields__
_MICROBATCH = _FIELDS.index("microbatch") - len(_FIELDS)
#: An event row: event type (the code of X, B or E), thread, name, start, end and the numbers.
_Traced: TypeAlias = "list[int]"


def _pair_events(
    events: Sequence[_Traced], letters: Sequence[int]
) -> Iterator[tuple[_Traced, _Traced]]:
    """Yield the begin event and the end event of each operation.

    An end event is paired with the most recent open begin event on its thread, regardless of their
    names. A complete event (X) is yielded as both. Unpaired events are dropped.

    Args:
        events: Events sorted by thread and time. At equal times, end events come first.
        letters: Codes of the event types X, B and E, in this order.
    """
    complete_letter, begin_letter, end_letter = letters
    open_events: dict[int, list[_Traced]] = defaultdict(list)
    early_ends: dict[int, list[_Traced]] = defaultdict(list)
    for event in events:
        letter, thread, name, start_ns = event[:4]
        if letter == complete_letter:
            yield event, event
        elif letter == begin_letter:
            # The end event of an operation with zero duration is sorted before its begin event.
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
    """Read the operations in a trace as table columns.

    An event is an operation if its name implies a phase, and if it has a microbatch or is an
    optimizer step. All other events are left out. The rank is the argument ``g_rk``, or the process
    id if ``g_rk`` is missing.

    Args:
        path: Path to the trace.
        watch: Progress callback.

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
        {name: column for name, column in texts.items() if column.has_text.any()},
        notes=tuple(file.limitations()),
    )


def _read_columns(file: TraceFile[OperationArgs]) -> tuple[Mapping[str, Ints], list[Phase]]:
    """Read the operations in a trace.

    If an operation has a begin event and an end event, its numbers are taken from the end event.

    Returns:
        columns: Columns with one value per operation, keyed by ``thread``, ``name``, ``start_ns``,
            ``end_ns`` and the fields of :class:`OperationArgs`. Missing numbers are MISSING.
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
    """Read all events in a trace, sorted by thread and start time.

    At equal times, end events come first. All other events with the same time are sorted by
    descending end time, so that longer events precede the events inside them.
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
    """Return the events in a block as an array of shape (5 + fields, events).

    The first axis contains the event type, thread, name, start and end of an event, followed by the
    fields of :class:`OperationArgs`. Missing start times and durations are 0. Numbers that are
    missing, negative or too large are MISSING.
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
    """Return the process id of each operation, or MISSING if it is not a 64-bit integer.

    Args:
        file: The trace.
        thread: Index of each operation's thread.
    """
    threads = file.threads.values
    pids = (threads[number][0] for number in thread.tolist())
    numbers = [pid if isinstance(pid, int) and not abs(pid) >> 63 else MISSING for pid in pids]
    return np.array(numbers, np.int64)


def _refuse_two_threads(path: str, thread: Ints, key: Sequence[Ints]) -> None:
    """Raise an error if the same operations ran on several threads of a rank.

    The same operations run on several threads if a trace contains several runs.

    Args:
        path: Path to the trace, for the message.
        thread: Index of the thread that ran each operation.
        key: Columns that identify an operation, including its rank.

    Raises:
        ProfileError: More than 5 % of the distinct operations occur on several threads.
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
    """Return a column whose missing values are replaced with values from another column."""
    return np.where(column == MISSING, substitute, column)


def _make_number_column(values: Ints) -> NumberColumn:
    """Convert an array to a number column. Missing values become empty cells."""
    filled = values != MISSING
    return NumberColumn(np.where(filled, values, 0), filled)


def _format_numbers(values: Ints) -> CodedTexts:
    """Convert an array of numbers to a text column. Missing numbers become empty cells."""
    return _make_text_column(["" if value == MISSING else str(value) for value in values.tolist()])


def _make_text_column(values: Sequence[str]) -> CodedTexts:
    texts = Numbering[str]()
    code = texts.numbers(values)
    return trim_texts(code, texts.values)
