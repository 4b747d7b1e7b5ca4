"""A recording as a table of operations, and an open one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache

import numpy as np

from bubbleviz.conventions import convention_file, range_names
from bubbleviz.errors import NothingToAnalyseError, ProfileError
from bubbleviz.model import grouping, intervals, limitations
from bubbleviz.model import operations as model
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.operation_table import OperationTable, ToldPlace
from bubbleviz.model.phases import RECEIVING, WORK, Phase
from bubbleviz.model.profile import Source
from bubbleviz.model.texts import counted
from bubbleviz.progress import Watch
from bubbleviz.sources.operations.jsonl.parts import RecordedOperations
from bubbleviz.sources.operations.jsonl.sessions import (
    RecordedSession,
    has_neighbours,
    read_session,
)
from bubbleviz.sources.operations.open_table import OpenTable

#: The convention of the ranges that :mod:`bubbleviz.annotate` opens.
_CONVENTION = "bubbleviz"
_NUMBERS = ("microbatch", "chunk", "sequence", "second_microbatch", "second_chunk")
#: Columns that are told wherever a name gives one, by the meaning of names.
_TOLD = {
    "microbatch": "microbatch",
    "chunk": "chunk",
    "stage": "virtual_stage",
    "sequence": "sequence",
}


def table_of(session: RecordedSession) -> OperationTable:
    """Return the operations of a recording.

    Transfers that ranges only start are left out: an operation begins when its input is there, and
    when they ended nobody knows.

    Args:
        session: the recording.

    Raises:
        ProfileError: the names of its operations are damaged.
        NothingToAnalyseError: it holds no operations.
    """
    meanings = range_names.understand(session.names, convention_file.built_in()[_CONVENTION])
    recorded = session.stretch.operations
    known = np.append(meanings.phase >= 0, False)[recorded.name_id]
    rows = np.flatnonzero(known & ~recorded.launches)
    if len(rows) == 0 and session.n_damaged:
        raise ProfileError(
            f"{session.path}: is damaged where the names of its operations are; copy it again, or "
            "record again"
        )
    if len(rows) == 0:
        raise NothingToAnalyseError(
            f"{session.path}: a recording without operations; name forwards and backwards with "
            "annotate.phase, or annotate the framework"
        )
    own = with_parts_joined(recorded.take(rows), meanings.phase)
    name, count = own.name_id, len(own)
    iteration, iterations, paired = _iterations(session, own)
    none = np.full(count, NONE, np.int64)
    keys = model.Operations.without_work(
        rank=np.zeros(count, np.int64),
        iteration=iteration,
        phase=meanings.phase[name],
        **{column: getattr(meanings, column)[name] for column in _NUMBERS},
        occurrence=none,
        host_start_ns=own.host_start_ns.copy(),
        host_end_ns=np.maximum(own.host_start_ns, own.host_end_ns),
        cut=np.zeros(count, np.int64),
        tokens=meanings.all_tokens[name],
        prefix=none,
        name_id=name.copy(),
        names=meanings.texts,
    )
    # They ran on the device; else on the host, if not lost on a device.
    device = own.start_ns != NONE
    spanned = device | ~own.times_lost
    start_ns = np.where(device, own.start_ns, np.where(spanned, own.host_start_ns, NONE))
    end_ns = np.where(device, own.end_ns, np.where(spanned, own.host_end_ns, NONE))
    end_ns = np.maximum(start_ns, end_ns)
    # Receives and collectives inside the range of work are when it waits for other ranks.
    around = np.where(np.isin(keys.phase, WORK) & spanned, np.arange(count), NONE)
    around = np.maximum.accumulate(around)
    inside = np.isin(keys.phase, (*RECEIVING, Phase.COLLECTIVE)) & spanned & (around != NONE)
    rows = np.flatnonzero(inside & (own.host_end_ns <= own.host_end_ns[around]))
    waits = model.BusyIntervals(around[rows], start_ns[rows], end_ns[rows])
    rows = rows[keys.phase[rows] != Phase.COLLECTIVE]
    received_ns = intervals.group_latest(around[rows], count, end_ns[rows], NONE)
    waited_ns = intervals.group_sum(waits.operation, count, waits.end_ns - waits.start_ns)
    # The host launched what ran on the device when it entered the range, about.
    operations = keys.changed(
        start_ns=start_ns,
        end_ns=end_ns,
        has_span=spanned.astype(np.int64),
        kernels=np.zeros(count, np.int64),
        active_ns=np.maximum(end_ns - start_ns - waited_ns, 0),
        busy_ns=end_ns - start_ns,
        received_ns=received_ns,
        launched_ns=np.where(device | ~spanned, own.host_start_ns, NONE),
        receive_start_ns=none,
        receive_launched_ns=none,
    )
    told = {"rank", "phase", "start_ns", "end_ns"}
    told |= {column for of, column in _TOLD.items() if (getattr(meanings, of)[name] != NONE).any()}
    told |= {"iteration"} if iterations else set()
    told |= {"launched_ns"} if device.any() else set()
    header = session.header
    place = ToldPlace(
        number=header.rank,
        global_rank=header.rank,
        world_size=header.world_size if header.world_size > 0 else None,
    )
    return OperationTable(
        # Times are those of the host's monotonic clock.
        source=Source(
            path=session.path,
            host=header.host or session.path,
            host_known=bool(header.host),
            format="recording",
            session_utc_ns=header.clock.utc_ns - header.clock.monotonic_ns,
            session_clock_ns=0,
            device="rank",
        ),
        operations=operations,
        places=(place,),
        iterations=iterations,
        virtual_stage=meanings.stage[name],
        kind=grouping.CodedTexts(none, ()),
        group=grouping.CodedTexts(none, ()),
        paired=paired,
        told=frozenset(told),
        waits=waits,
        pauses=_pauses(session, own),
        noun="recording",
        notes=tuple(_notes(session, int((~known).sum()))),
    )


def with_parts_joined(own: RecordedOperations, phase_of_name: Ints) -> RecordedOperations:
    """Return operations in order of their host start, each once, however many ranges it has.

    A forward and its loss have two ranges of one name. They are parts of one operation if no other
    work lies between them::

        F mb=0    ├───┤ forward   ├─┤ loss           one operation
        BW mb=0                        ├────┤

    Args:
        own: some operations.
        phase_of_name: of each name.
    """
    own = own.take(grouping.sorted_rows(own.host_start_ns))
    work = np.flatnonzero(np.isin(phase_of_name[own.name_id], WORK))
    again = np.zeros(len(own), bool)
    again[work[1:]] = (own.name_id[work[1:]] == own.name_id[work[:-1]]) & (
        own.iteration[work[1:]] == own.iteration[work[:-1]]
    )
    if not again.any():
        return own
    first = np.arange(len(own))
    # Of each part of some work the place among work of the operation's first one.
    first[work] = work[np.maximum.accumulate(np.where(again[work], 0, np.arange(len(work))))]
    later = np.flatnonzero(again)
    host_end_ns, start_ns, end_ns = own.host_end_ns.copy(), own.start_ns.copy(), own.end_ns.copy()
    lost = own.times_lost.copy()
    np.maximum.at(host_end_ns, first[later], own.host_end_ns[later])
    np.maximum.at(end_ns, first[later], own.end_ns[later])
    np.logical_or.at(lost, first[later], own.times_lost[later])
    whole = replace(own, host_end_ns=host_end_ns, start_ns=start_ns, end_ns=end_ns, times_lost=lost)
    return whole.take(~again)


def _repeated_numbers(session: RecordedSession) -> bool:
    """Tell whether ranges number iterations in another way than upwards, each once."""
    number = session.stretch.iterations.number
    named = number[number >= 0]
    return bool((np.diff(named) <= 0).any())


def _iterations(
    session: RecordedSession, own: RecordedOperations
) -> tuple[Ints, tuple[str, ...], bool]:
    """Return the iteration of each operation, their names, and whether ranks share these.

    Without any number there are no names, and what an iteration is shows by its operations. Numbers
    that do not go up are no names: iterations are then counted.
    """
    number = session.stretch.iterations.number
    if _repeated_numbers(session):
        names = tuple(str(place) for place in range(len(number)))
        return own.iteration.copy(), names, False
    place = np.cumsum(number >= 0) - 1
    names = tuple(str(value) for value in number[number >= 0].tolist())
    return np.where(number >= 0, place, NONE)[own.iteration], names, True


def _pauses(session: RecordedSession, own: RecordedOperations) -> model.BusyIntervals:
    """Return when nothing was recorded: from the end of the last operation before, in its row."""
    iterations = session.stretch.iterations
    resumed = np.flatnonzero(iterations.after_gap)
    before = np.searchsorted(own.iteration, resumed) - 1
    resumed, before = resumed[before >= 0], before[before >= 0]
    end_ns = np.maximum.accumulate(own.host_end_ns)[before]
    return model.BusyIntervals(before, end_ns, np.maximum(end_ns, iterations.start_ns[resumed]))


def _notes(session: RecordedSession, unknown: int) -> Iterator[limitations.Limitation]:
    """Yield what a recording could not tell."""
    path, header, stretch = session.path, session.header, session.stretch
    kind = limitations.LimitationKind
    for what, count, note_kind, reason in (
        (
            "lost iterations of a recording (damaged lines)",
            session.n_damaged,
            kind.RECORDING_DAMAGED,
            f"{counted(session.n_damaged, 'damaged line')} ({session.damage}); their iterations "
            "are left out",
        ),
        (
            "recordings without an end",
            int(session.tail_bytes > 0),
            kind.OTHER,
            f"{session.tail_bytes:,} bytes after the last whole iteration are left out; the "
            "process was killed or is still writing",
        ),
        (
            "operations that were recorded too late",
            int(stretch.iterations.lost.sum()),
            kind.OTHER,
            "they ended after the next iteration had begun, or are too many",
        ),
        (
            "ranges with unknown names",
            unknown,
            kind.RECORDING_NAMES_LOST if session.n_damaged else kind.OTHER,
            "a newer bubbleviz wrote them, or their names are damaged; they are left out",
        ),
        (
            "operations without times of the device",
            int(stretch.operations.times_lost.sum()),
            kind.OTHER,
            "the GPU had not finished them when the recording ended, or a CUDA graph captured them",
        ),
    ):
        if count:
            yield limitations.Limitation(what, f"{path}: {reason}", count, note_kind)
    if _repeated_numbers(session):
        yield limitations.Limitation(
            "numbers of iterations",
            f"{path}: they do not increase, so iterations are counted in order",
        )
    if header.every:
        # Of any number of ranks once, and so without a path.
        yield limitations.Limitation(
            "iterations that were not recorded",
            f"{header.iterations} of every {header.every} are recorded, as requested; the period "
            "of the last one before a pause is unknown",
        )
    if has_neighbours(session):
        yield limitations.Limitation(
            "other recordings",
            "files of other runs in the directory are left out; name one to analyze it",
        )


#: What most recordings tell, and what to say where one does not.
_UNTOLD = (
    (
        "iteration",
        "no range names iterations: they are inferred from repeated microbatches and optimizer "
        "steps",
    ),
    ("virtual_stage", "no range names a stage: stages are inferred from waiting times"),
    ("microbatch", "no range names a microbatch: they are counted by order"),
    ("launched_ns", "times are the host's, so late launches are unknown"),
)


@contextmanager
def open_recording(path: str, jobs: int, watch: Watch) -> Iterator[OpenTable]:  # noqa: ARG001 - one thread reads it
    """Open a recording, all of its files; they are read when they are first asked for anything."""

    @cache
    def session() -> RecordedSession:
        return read_session(path, watch)

    yield OpenTable(path, lambda: table_of(session()), _UNTOLD, lambda: tuple(_facts(session())))


def _facts(session: RecordedSession) -> Iterator[tuple[str, str]]:
    """Yield what there is to say of a recording beside its operations."""
    header = session.header
    of = f" of {header.world_size}" if header.world_size > 0 else ""
    yield "rank", f"{header.rank}{of}, process {header.pid}"
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
        yield "damaged", f"{counted(session.n_damaged, 'line')} ({session.damage})"
    if header.every:
        yield "sampled", f"{header.iterations} of every {header.every} iterations"
