"""Operations: a recording as a table of operations, and an open one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache

import numpy as np

from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.range_names import understand
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.collectives import ToldCollectives
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import CodedTexts, sorted_rows
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operation_table import OperationTable, RowIntervals, ToldPlace
from bubbleviz.model.operations import (
    OperationKeys,
    OperationLaunches,
    OperationSpans,
    RankOperations,
)
from bubbleviz.model.phases import WORK
from bubbleviz.model.profile import Source
from bubbleviz.progress import Watch
from bubbleviz.sources.recordings.parts import RecordedOperations
from bubbleviz.sources.recordings.sessions import RecordedSession, others_of, read_session
from bubbleviz.sources.tables.operations import OpenTable

#: The convention of the ranges that :mod:`bubbleviz.annotate` opens.
_CONVENTION = "bubbleviz"
#: Columns that are told wherever a name gives one, by the meaning of names.
_TOLD = {
    "microbatch": "microbatch",
    "chunk": "chunk",
    "stage": "virtual_stage",
    "sequence": "sequence",
}


def table_of(session: RecordedSession, others: int) -> OperationTable:
    """Return the operations of a recording.

    Transfers that ranges only start are left out: an operation begins when its input is there, and
    when they ended nobody knows.

    Args:
        session: the recording.
        others: how many files of other recordings of the same rank lie beside it.

    Raises:
        NothingToAnalyseError: it holds no operations.
    """
    meanings = understand(session.names, built_in()[_CONVENTION])
    recorded = session.stretch.operations
    known = np.append(meanings.phase >= 0, False)[recorded.name_id]
    rows = np.flatnonzero(known & ~recorded.launches)
    if len(rows) == 0:
        raise NothingToAnalyseError(
            f"{session.path}: a recording of iterations without any operation; name forwards and "
            "backwards with annotate.phase, or annotate the framework"
        )
    own = with_parts_joined(recorded.take(rows), meanings.phase)
    name, count = own.name_id, len(own)
    iteration, iterations, paired = _iterations(session, own)
    none = np.full(count, NONE, np.int64)
    keys = OperationKeys(
        rank=np.zeros(count, np.int64),
        iteration=iteration,
        phase=meanings.phase[name],
        microbatch=meanings.microbatch[name],
        chunk=meanings.chunk[name],
        sequence=meanings.sequence[name],
        second_microbatch=meanings.second_microbatch[name],
        second_chunk=meanings.second_chunk[name],
        occurrence=none,
        host_start_ns=own.host_start_ns.copy(),
        host_end_ns=np.maximum(own.host_start_ns, own.host_end_ns),
        cut=np.zeros(count, np.int64),
        tokens=meanings.all_tokens[name],
        name_id=name.copy(),
        names=meanings.texts,
    )
    # They ran on the device; else on the host, if not lost on a device.
    device = own.start_ns != NONE
    spanned = device | ~own.times_lost
    start_ns = np.where(device, own.start_ns, np.where(spanned, own.host_start_ns, NONE))
    end_ns = np.where(device, own.end_ns, np.where(spanned, own.host_end_ns, NONE))
    end_ns = np.maximum(start_ns, end_ns)
    spans = OperationSpans(
        start_ns=start_ns,
        end_ns=end_ns,
        has_span=spanned.astype(np.int64),
        kernels=np.zeros(count, np.int64),
        active_ns=end_ns - start_ns,
        busy_ns=end_ns - start_ns,
        received_ns=none,
    )
    # The host launched what ran on the device when it entered the range, about.
    launched_ns = np.where(device, own.host_start_ns, NONE)
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
            host=session.host or session.path,
            host_known=bool(session.host),
            format="recording",
            nsys_version=None,
            schema_version=None,
            session_utc_ns=header.utc_ns - header.monotonic_ns,
            session_clock_ns=0,
            device="rank",
        ),
        operations=RankOperations.of(keys, spans, OperationLaunches(launched_ns, none, none)),
        places=(place,),
        iterations=iterations,
        virtual_stage=meanings.stage[name],
        kind=CodedTexts(none, ()),
        group=CodedTexts(none, ()),
        paired=paired,
        told=frozenset(told),
        waits=RowIntervals.none(),
        unattributed=RowIntervals.none(),
        exposed=RowIntervals.none(),
        overheads=RowIntervals.none(),
        collectives=ToldCollectives.none(),
        pauses=_pauses(session, own),
        noun="recording",
        notes=tuple(_notes(session, int((~known).sum()), others)),
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
    own = own.take(sorted_rows(own.host_start_ns))
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


def _pauses(session: RecordedSession, own: RecordedOperations) -> RowIntervals:
    """Return when nothing was recorded: from the end of the last operation before, in its row."""
    iterations = session.stretch.iterations
    resumed = np.flatnonzero(iterations.after_gap)
    before = np.searchsorted(own.iteration, resumed) - 1
    resumed, before = resumed[before >= 0], before[before >= 0]
    end_ns = np.maximum.accumulate(own.host_end_ns)[before]
    return RowIntervals(before, end_ns, np.maximum(end_ns, iterations.start_ns[resumed]))


def _notes(session: RecordedSession, unknown: int, others: int) -> Iterator[Limitation]:
    """Yield what a recording could not tell."""
    path, header = session.path, session.header
    if session.damaged:
        yield Limitation(
            "damaged parts of a recording",
            f"{path}: {session.damaged:,} records of 40 bytes belong to no whole iteration; their "
            "iterations are left out",
            session.damaged,
        )
    if session.tail_bytes:
        yield Limitation(
            "recordings without an end",
            f"{path}: {session.tail_bytes:,} bytes behind the last whole iteration are left out; "
            "the process was ended, or still writes",
        )
    lost = int(session.stretch.iterations.lost.sum())
    if lost:
        yield Limitation(
            "operations that were recorded too late",
            f"{path}: they ended after the next iteration had begun, or are too many",
            lost,
        )
    if unknown:
        yield Limitation(
            "ranges with unknown names",
            f"{path}: a newer bubbleviz wrote them, or their names are damaged; they are left out",
            unknown,
        )
    timeless = int(session.stretch.operations.times_lost.sum())
    if timeless:
        yield Limitation(
            "operations without times of the device",
            f"{path}: the GPU had not done them when the recording ended, or they were captured as "
            "a CUDA graph",
            timeless,
        )
    if _repeated_numbers(session):
        yield Limitation(
            "numbers of iterations",
            f"{path}: they do not go up, so iterations are counted in their order",
        )
    if header.every:
        # Of any number of ranks once, and so without a path.
        yield Limitation(
            "iterations that were not recorded",
            f"{header.iterations} of every {header.every} were, as asked for; the period of the "
            "last one before a pause is unknown",
        )
    if others:
        yield Limitation(
            "other recordings",
            "beside these files lie those of other runs, which are left out; name one of them to "
            "analyze it",
        )


#: What most recordings tell, and what to say where one does not.
_UNTOLD = (
    (
        "iteration",
        "no range names iterations: repeated microbatches and optimizer steps tell them apart",
    ),
    ("virtual_stage", "no range names a stage: waiting times tell them"),
    ("microbatch", "no range names a microbatch: they are counted by order"),
    ("launched_ns", "times are the host's, so nothing shows when it launched late"),
)


@contextmanager
def open_recording(path: str, watch: Watch) -> Iterator[OpenTable]:
    """Open a recording, all of its files; they are read when they are first asked for anything."""

    @cache
    def session() -> RecordedSession:
        return read_session(path, watch)

    yield OpenTable(
        path,
        lambda: table_of(session(), others_of(path)),
        _UNTOLD,
        lambda: tuple(_facts(session())),
    )


def _facts(session: RecordedSession) -> Iterator[tuple[str, str]]:
    """Yield what there is to say of a recording beside its operations."""
    header = session.header
    of = f" of {header.world_size}" if header.world_size > 0 else ""
    yield "rank", f"{header.rank}{of}, process {header.pid}"
    yield "host", session.host or "not recorded"
    device = "GPU" if header.on_gpu else "the host itself"
    yield "device", f"{device}, {session.device}" if session.device else device
    began = datetime.fromtimestamp(header.began_utc_ns // 10**9, timezone.utc)
    yield "began", f"{began:%Y-%m-%d %H:%M:%S} UTC"
    if session.run:
        yield "run", session.run
    if session.parts > 1:
        yield "files", f"{session.parts}"
    if header.every:
        yield "sampled", f"{header.iterations} of every {header.every} iterations"
