"""Converts a recording to an operation table, and opens recordings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache

import numpy as np

from bubbleviz.conventions import convention_file, range_names
from bubbleviz.errors import NothingToAnalyzeError, ProfileError
from bubbleviz.model import grouping, intervals, limitations
from bubbleviz.model import operations as model
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.operation_table import DeclaredRank, OperationTable
from bubbleviz.model.phases import RECEIVING, WORK, Phase
from bubbleviz.model.profile import Source, validate_utc
from bubbleviz.model.texts import format_count
from bubbleviz.progress import Watch
from bubbleviz.sources.operations.cells import Cells, NumberColumn
from bubbleviz.sources.operations.jsonl.parts import RecordedOperations
from bubbleviz.sources.operations.jsonl.sessions import (
    RecordedSession,
    has_neighbors,
    read_session,
)
from bubbleviz.sources.operations.open_table import OpenTable
from bubbleviz.sources.operations.table import make_operation_table

#: The naming convention of the ranges that :mod:`bubbleviz.annotate` opens.
_CONVENTION = "bubbleviz"
#: Columns whose values come from range names, and the corresponding columns of ``NameMeanings``.
_FROM_NAMES = {
    "microbatch": "microbatch",
    "chunk": "chunk",
    "sequence": "sequence",
    "second_microbatch": "second_microbatch",
    "second_chunk": "second_chunk",
    "virtual_stage": "stage",
    "tokens": "all_tokens",
}


def make_table(session: RecordedSession) -> OperationTable:
    """Convert a recording to an operation table.

    Ranges whose names are unknown are left out. Ranges that only start transfers are left out too,
    because the end of the transfer is unknown.

    Raises:
        ProfileError: The names of the operations are damaged, or operations contradict each other.
        NothingToAnalyzeError: The recording contains no operations.
    """
    meanings = range_names.parse_range_names(session.names, convention_file.built_in()[_CONVENTION])
    recorded = session.stretch.operations
    is_known = np.append(meanings.phase >= 0, False)[recorded.name_id]
    rows = np.flatnonzero(is_known & ~recorded.launches)
    if len(rows) == 0 and session.n_damaged:
        raise ProfileError(
            f"{session.path}: the operation names in the recording are damaged; copy the file "
            "again, or record the run again"
        )
    if len(rows) == 0:
        raise NothingToAnalyzeError(
            f"{session.path}: the recording contains no operations; name forwards and backwards "
            "with annotate.phase, or annotate the framework (bubbleviz guide annotate)"
        )
    operations = join_parts(recorded.take(rows), meanings.phase)
    n_unknown = int((~is_known).sum())
    cells = _make_cells(
        session, operations, meanings, tuple(_report_limitations(session, n_unknown))
    )
    header = session.header
    source = Source(
        path=session.path,
        host=header.host or session.path,
        host_known=bool(header.host),
        format="recording",
        # Times are on the host's monotonic clock.
        session_utc_ns=validate_utc(header.clock.utc_ns - header.clock.monotonic_ns),
        session_clock_ns=0,
        device="rank",
    )
    declared_rank = DeclaredRank(
        number=header.rank,
        global_rank=header.rank,
        world_size=header.world_size if header.world_size > 0 else None,
    )
    table = make_operation_table(cells, source)
    declared_columns = table.told
    if (operations.start_ns == NONE).all():
        # Without any device start times, launch times cannot reveal late launches.
        declared_columns -= {"launched_ns"}
    return replace(table, places=(declared_rank,), told=declared_columns, noun="recording")


def _make_cells(
    session: RecordedSession,
    operations: RecordedOperations,
    meanings: range_names.NameMeanings,
    notes: tuple[limitations.Limitation, ...],
) -> Cells:
    """Convert the operations in a recording to columns of the operation schema.

    Start and end are an operation's device times, or its host times if it ran on the host. If
    device times were lost, start and end are empty. The active time is the duration minus the time
    spent waiting for receives and collectives.

    Args:
        session: The recording.
        operations: Operations in the recording, sorted by host start.
        meanings: Meaning of each range name, indexed by name id.
        notes: Limitations found while reading the recording.
    """
    name, count = operations.name_id, len(operations)
    phase = meanings.phase[name]
    iteration, iteration_names, is_paired = _make_iterations(session, operations)
    has_span, start_ns, end_ns = _find_spans(operations)
    waiting, awaited = _find_waits(phase, has_span, operations.host_end_ns)
    waits = model.BusyIntervals(waiting, start_ns[awaited], end_ns[awaited])
    waited_ns = intervals.group_sum(waiting, count, waits.end_ns - waits.start_ns)
    received_ns = _find_last_receives(waits, phase[awaited] != Phase.COLLECTIVE, count)
    numbers = {
        "rank": NumberColumn(np.full(count, session.header.rank), np.ones(count, bool)),
        "start_ns": NumberColumn(start_ns, has_span),
        "end_ns": NumberColumn(end_ns, has_span),
        "host_start_ns": NumberColumn(operations.host_start_ns, np.ones(count, bool)),
        "host_end_ns": NumberColumn(operations.host_end_ns, np.ones(count, bool)),
        "active_ns": NumberColumn(np.maximum(end_ns - start_ns - waited_ns, 0), has_span),
        "received_ns": NumberColumn(received_ns, received_ns != NONE),
    }
    # Assume that the host launched the work when it entered the range.
    is_launched = (operations.start_ns != NONE) | operations.times_lost
    if is_launched.any():
        numbers["launched_ns"] = NumberColumn(operations.host_start_ns, is_launched)
    if not is_paired:
        numbers["paired"] = NumberColumn(np.zeros(count, np.int64), np.ones(count, bool))
    numbers |= _make_columns_from_names(meanings, name)
    texts = {
        "phase": CodedTexts(phase, [phase.label for phase in Phase]),
        "name": CodedTexts(name, meanings.texts),
    }
    if iteration_names:
        texts["iteration"] = CodedTexts(iteration, iteration_names)
    return Cells(
        session.path,
        count,
        numbers,
        texts,
        {"waits": waits, "pauses": _find_pauses(session, operations)},
        row_noun="operation",
        notes=notes,
    )


def _find_spans(operations: RecordedOperations) -> tuple[Bools, Ints, Ints]:
    """Find when each operation ran: at its device times, or at its host times if it has none.

    Returns:
        has_span: Mask of the operations whose times are known. Operations without device times ran
            on the host, unless their device times were lost.
        start_ns: Start of each operation.
        end_ns: End of each operation, at least its start.
    """
    on_device = operations.start_ns != NONE
    start_ns = np.where(on_device, operations.start_ns, operations.host_start_ns)
    end_ns = np.where(on_device, operations.end_ns, operations.host_end_ns)
    return on_device | ~operations.times_lost, start_ns, np.maximum(start_ns, end_ns)


def _make_columns_from_names(
    meanings: range_names.NameMeanings, name: Ints
) -> Mapping[str, NumberColumn]:
    """Return the columns in ``_FROM_NAMES``, keyed by column name, leaving out empty columns.

    Args:
        meanings: Meaning of each range name, indexed by name id.
        name: Name id of each operation.
    """
    columns = {}
    for column, attribute in _FROM_NAMES.items():
        values = getattr(meanings, attribute)[name]
        is_known = values != NONE
        if is_known.any():
            columns[column] = NumberColumn(values, is_known)
    return columns


def _find_last_receives(waits: model.BusyIntervals, is_receive: Bools, n_operations: int) -> Ints:
    """Return the end time in ns of the last receive inside each operation, or -1 if there is none.

    Args:
        waits: Intervals in which operations wait for receives or collectives.
        is_receive: Mask of the intervals in ``waits`` in which operations wait for receives.
        n_operations: Number of operations.
    """
    rows, end_ns = waits.operation[is_receive], waits.end_ns[is_receive]
    return intervals.group_latest(rows, n_operations, end_ns, NONE)


def _find_waits(phase: Ints, has_span: Bools, host_end_ns: Ints) -> tuple[Ints, Ints]:
    """Find the receives and collectives that run inside a compute operation that waits for them.

    A compute operation has one of the phases in ``WORK``. Each receive or collective is compared
    with the last compute operation that starts before it. The receive or collective is inside this
    compute operation unless it ends later::

        F mb=0         ├─────────────────────┤
        RECV_F mb=0      ├────┤                 awaited by this F
        SEND_F mb=0                    ├───┤    not awaited

    Operations without known times are ignored.

    Args:
        phase: Phase of each operation, sorted by host start.
        has_span: Mask of the operations whose times are known.
        host_end_ns: Time at which the host left each operation's range.

    Returns:
        waiting: For each awaited operation, the row of the compute operation that waits for it.
        awaited: Rows of the awaited receives and collectives, in ascending order.
    """
    rows = np.arange(len(phase))
    work = np.maximum.accumulate(np.where(np.isin(phase, WORK) & has_span, rows, NONE))
    is_awaited = np.isin(phase, (*RECEIVING, Phase.COLLECTIVE)) & has_span & (work != NONE)
    awaited = np.flatnonzero(is_awaited & (host_end_ns <= host_end_ns[work]))
    return work[awaited], awaited


def join_parts(operations: RecordedOperations, phase_of_name: Ints) -> RecordedOperations:
    """Sort ranges by host start, and join consecutive ranges that are parts of the same operation.

    For example, a forward and its loss have two ranges with the same name. Only compute ranges
    (with a phase in ``WORK``) are joined. Ranges are joined if they have the same name and
    iteration, and no other compute range starts between them::

        F mb=0    ├───┤ forward   ├─┤ loss           one operation
        BW mb=0                        ├────┤

    Args:
        operations: One row per range.
        phase_of_name: Phase of each name, indexed by name id.
    """
    operations = operations.take(grouping.sort_rows(operations.host_start_ns))
    name, iteration = operations.name_id, operations.iteration
    work = np.flatnonzero(np.isin(phase_of_name[name], WORK))
    is_repeated = (name[work[1:]] == name[work[:-1]]) & (
        iteration[work[1:]] == iteration[work[:-1]]
    )
    is_later_part = np.zeros(len(operations), bool)
    is_later_part[work[1:]] = is_repeated
    if not is_later_part.any():
        return operations
    # For each compute range, the index of its operation's first range among the compute ranges.
    first_position = np.where(is_later_part[work], 0, np.arange(len(work)))
    first_row = np.arange(len(operations))
    first_row[work] = work[np.maximum.accumulate(first_position)]
    later = np.flatnonzero(is_later_part)
    return _extend_first_parts(operations, first_row[later], later).take(~is_later_part)


def _extend_first_parts(
    operations: RecordedOperations, first: Ints, later: Ints
) -> RecordedOperations:
    """Extend each operation's first range to the latest end of any of its ranges.

    The host end and the device end are extended separately. If any range has lost its device times,
    the first range is marked as having lost them.

    Args:
        operations: One row per range.
        first: For each row in ``later``, the row of the same operation's first range.
        later: Rows of the ranges that are not the first range of their operation.

    Returns:
        A copy of all rows. The rows in ``later`` are unchanged.
    """
    host_end_ns, end_ns = operations.host_end_ns.copy(), operations.end_ns.copy()
    times_lost = operations.times_lost.copy()
    np.maximum.at(host_end_ns, first, operations.host_end_ns[later])
    np.maximum.at(end_ns, first, operations.end_ns[later])
    np.logical_or.at(times_lost, first, operations.times_lost[later])
    return replace(operations, host_end_ns=host_end_ns, end_ns=end_ns, times_lost=times_lost)


def _has_repeated_numbers(session: RecordedSession) -> bool:
    """Return whether any iteration number is smaller than or equal to the previous known number."""
    number = session.stretch.iterations.number
    return bool((np.diff(number[number >= 0]) <= 0).any())


def _make_iterations(
    session: RecordedSession, operations: RecordedOperations
) -> tuple[Ints, tuple[str, ...], bool]:
    """Return the iteration names, and the iteration of each operation.

    If the iteration numbers do not strictly increase, they are ignored, and all iterations are
    numbered from 0 instead.

    Returns:
        iteration: For each operation, the index of its iteration in ``names``, or -1 if the
            iteration has no number.
        names: Iteration numbers as texts. Empty if no iteration has a number.
        is_paired: Whether equal names denote the same iteration on all ranks. False if the recorded
            numbers were ignored.
    """
    number = session.stretch.iterations.number
    if _has_repeated_numbers(session):
        names = tuple(str(index) for index in range(len(number)))
        return operations.iteration.copy(), names, False
    is_numbered = number >= 0
    index = np.where(is_numbered, np.cumsum(is_numbered) - 1, NONE)
    names = tuple(str(value) for value in number[is_numbered].tolist())
    return index[operations.iteration], names, True


def _find_pauses(session: RecordedSession, operations: RecordedOperations) -> model.BusyIntervals:
    """Return the pauses in which nothing was recorded, as one interval per gap between iterations.

    A pause lasts from the latest host end of any operation before the gap to the start of the
    iteration after the gap. If that iteration starts earlier, the pause has a length of 0. Each
    pause is assigned to the last operation before the gap. Gaps before the first operation are left
    out.
    """
    iterations = session.stretch.iterations
    resumed = np.flatnonzero(iterations.after_gap)
    row_before = np.searchsorted(operations.iteration, resumed) - 1
    resumed, row_before = resumed[row_before >= 0], row_before[row_before >= 0]
    start_ns = np.maximum.accumulate(operations.host_end_ns)[row_before]
    end_ns = np.maximum(start_ns, iterations.start_ns[resumed])
    return model.BusyIntervals(row_before, start_ns, end_ns)


def _report_limitations(
    session: RecordedSession, n_unknown: int
) -> Iterator[limitations.Limitation]:
    """Yield limitations for data that is missing from the recording or damaged.

    Args:
        session: The recording.
        n_unknown: Number of ranges whose names do not follow the bubbleviz convention.
    """
    path, header, stretch = session.path, session.header, session.stretch
    kind = limitations.LimitationKind
    for subject, count, note_kind, reason in (
        (
            "recorded iterations lost to damaged lines",
            session.n_damaged,
            kind.RECORDING_DAMAGED,
            f"{format_count(session.n_damaged, 'damaged line')} ({session.damage}); their "
            "iterations are left out",
        ),
        (
            "unfinished recordings",
            int(session.tail_bytes > 0),
            kind.OTHER,
            f"the process was killed or is still writing, so {session.tail_bytes:,} bytes after "
            "the last complete iteration are left out",
        ),
        (
            "operations that were not recorded",
            int(stretch.iterations.n_lost.sum()),
            kind.OTHER,
            "they ended after the next iteration had begun, or there were too many of them",
        ),
        (
            "ranges with unknown names",
            n_unknown,
            kind.RECORDING_NAMES_LOST if session.n_damaged else kind.OTHER,
            "these ranges are left out because their names are damaged or were written by a newer "
            "version of bubbleviz",
        ),
        (
            "operations without device times",
            int(stretch.operations.times_lost.sum()),
            kind.OTHER,
            "the GPU had not finished them when the recording ended, or a CUDA graph captured them",
        ),
    ):
        if count:
            yield limitations.Limitation(subject, f"{path}: {reason}", count, note_kind)
    if _has_repeated_numbers(session):
        yield limitations.Limitation(
            "iteration numbers",
            f"{path}: these numbers do not increase, so the iterations are numbered in order",
        )
    if header.every:
        # Leave the path out of the reason, so that all ranks share one entry in the report.
        yield limitations.Limitation(
            "iterations that were not recorded",
            f"as requested, only {header.iterations} of every {header.every} iterations were "
            "recorded, so the period of the last iteration before each pause is unknown",
        )
    if has_neighbors(session):
        yield limitations.Limitation(
            "other recordings",
            "the directory also contains recordings of other runs, which are left out; to analyze "
            "one, pass its file",
        )


#: Columns that most recordings have. Each is paired with the message to show if it is missing.
_EXPECTED_COLUMNS = (
    (
        "iteration",
        "no range marks iterations, so they are inferred from repeated microbatches and optimizer "
        "steps",
    ),
    ("virtual_stage", "no range name contains a stage, so stages are inferred from waiting times"),
    ("microbatch", "no range name contains a microbatch, so microbatches are numbered in order"),
    ("launched_ns", "times were measured on the host, so late launches are unknown"),
)


@contextmanager
def open_recording(path: str, jobs: int, watch: Watch) -> Iterator[OpenTable]:  # noqa: ARG001 - one thread reads it
    """Open a recording. All of its files are read on first use, and only once.

    Args:
        path: Path to any file in the recording.
        jobs: Ignored, because one thread reads the files.
        watch: Progress callback.
    """

    @cache
    def read_once() -> RecordedSession:
        return read_session(path, watch)

    yield OpenTable(
        path,
        lambda: make_table(read_once()),
        _EXPECTED_COLUMNS,
        lambda: tuple(_list_facts(read_once())),
    )


def _list_facts(session: RecordedSession) -> Iterator[tuple[str, str]]:
    """Yield a recording's properties as (name, value) pairs."""
    header = session.header
    world = f" of {header.world_size}" if header.world_size > 0 else ""
    yield "rank", f"{header.rank}{world}, process {header.pid}"
    yield "host", header.host or "not recorded"
    device = "GPU" if header.on_gpu else "the host itself"
    yield "device", f"{device}, {header.device}" if header.device else device
    began = datetime.fromtimestamp(header.began_utc_ns // 10**9, timezone.utc)
    yield "began", f"{began:%Y-%m-%d %H:%M:%S} UTC"
    if header.run:
        yield "run", header.run
    if session.parts > 1:
        yield "files", f"{session.parts}"
    if session.n_damaged:
        yield "damaged", f"{format_count(session.n_damaged, 'line')} ({session.damage})"
    if header.every:
        yield "sampled", f"{header.iterations} of every {header.every} iterations"
