"""Operations: a recording as a table of operations, and an open one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache
from operator import itemgetter

import numpy as np

from bubbleviz import recording_layout as layout
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
from bubbleviz.sources.recordings import parts as recorded
from bubbleviz.sources.recordings.lines import Header
from bubbleviz.sources.recordings.parts import PartReader, RecordedOperations, Stretch
from bubbleviz.sources.tables.operations import OpenTable

# Sessions: which files are parts of one recording, and which recordings are of one run.


#: Clocks of hosts may differ by that.
_CLOCKS_NS = 1_000_000_000
#: And by that where nobody sets them.
_WRONG_CLOCKS_NS = 3_600_000_000_000


def parts_of(path: str) -> list[str]:
    """Return the files of the recording that a file belongs to, in the order of their parts.

    Each part knows its recording by its header; the others have the numbers around its own.

    Raises:
        ProfileError: the file cannot be read, or is no recording.
    """
    header = recorded.header_of(path)
    parts = {header.part: path}
    for other, file in _around(path, header.session):
        parts.setdefault(other.part, file)
    return [parts[part] for part in sorted(parts)]


def _around(path: str, session: tuple[int, ...]) -> Iterator[tuple[Header, str]]:
    """Yield the files of one session with the numbers below and above that of a file."""
    stem, own = recorded.rank_and_number(path) or ("", 0)
    for step in (-1, 1) if stem else ():
        number = own + step
        while number >= 0:
            file = _numbered(stem, number)
            other = _header_or_none(file)
            if other is None or other.session != session:
                break
            yield other, file
            number += step


def first_parts(files: Sequence[str]) -> list[str]:
    """Return files without those that are later parts of others; opening one reads them all."""
    together: dict[object, list[tuple[int, str]]] = {}
    for file in files:
        header = _header_or_none(file) if file.endswith(layout.SUFFIX) else None
        session, part = (file, 0) if header is None else (header.session, header.part)
        together.setdefault(session, []).append((part, file))
    return [min(parts, key=itemgetter(0))[1] for parts in together.values()]


def newest_run(files: Sequence[str]) -> list[str]:
    """Return the files of the newest run of a directory, one a rank, and all that are none.

    Those with a damaged header may be of it: who reads them says so.

    That is of each rank the recording that began last, unless it is of another number of ranks, or
    ended before the newest one began. Where each rank was recorded once, no earlier run shows, and
    what lies minutes apart has a clock that is wrong.
    """
    headers = {f: h for f in first_parts(files) if (h := _header_or_none(f)) is not None}
    if not headers:
        return list(files)
    newest = max(headers.values(), key=lambda header: header.began_utc_ns)
    of_rank: dict[int, str] = {}
    for file, header in sorted(headers.items(), key=lambda item: item[1].began_utc_ns):
        if header.world_size == newest.world_size:
            of_rank[header.rank] = file
    alike = sum(header.world_size == newest.world_size for header in headers.values())
    clocks_ns = _CLOCKS_NS if alike > len(of_rank) else _WRONG_CLOCKS_NS
    run = {
        file
        for file in of_rank.values()
        if headers[file].session == newest.session
        or _ended_utc_ns(file, headers[file]) + clocks_ns >= newest.began_utc_ns
    }
    return [file for file in files if file in run or _header_or_none(file) is None]


def _ended_utc_ns(file: str, header: Header) -> int:
    """Return UTC at the end of a recording: of its last iteration, or its beginning without any."""
    last_part = parts_of(file)[-1]
    iteration = recorded.last_iteration(last_part)
    if iteration is None:
        return max(header.began_utc_ns, recorded.header_of(last_part).clock.utc_ns)
    return iteration.clock.utc_ns


def _numbered(stem: str, number: int) -> str:
    """Return the path of a file of a rank by its number."""
    return f"{stem}.{number}{layout.SUFFIX}" if number else f"{stem}{layout.SUFFIX}"


def _header_or_none(path: str) -> Header | None:
    try:
        return recorded.header_of(path)
    except ProfileError:
        return None


@dataclass(frozen=True)
class RecordedSession:
    """A recording of one process.

    Attributes:
        path: of its first file.
        header: of its first file.
        names: of ranges, by number.
        stretch: its whole iterations.
        parts: how many files it has.
        n_damaged: Number of damaged lines.
        damage: What is wrong with the first damaged line, or "" if none is damaged.
        tail_bytes: Number of bytes after the last line of the files.
    """

    path: str
    header: Header
    names: tuple[str, ...]
    stretch: Stretch
    parts: int = 1
    n_damaged: int = 0
    damage: str = ""
    tail_bytes: int = 0


def read_session(path: str, watch: Watch) -> RecordedSession:
    """Return the recording that a file belongs to.

    Raises:
        ProfileError: a file cannot be read, or is damaged at its beginning.
        NothingToAnalyseError: it holds no whole iteration.
    """
    watch(0.0)
    names: grouping.Numbering[str] = grouping.Numbering()
    paths = parts_of(path)
    readers = [PartReader(part, names) for part in paths]
    stretches: list[Stretch] = []
    before: Header | None = None
    for number, reader in enumerate(readers):
        count = len(stretches)
        while (stretch := reader.read()) is not None:
            part = None if reader.header is None else reader.header.part
            if number and len(stretches) == count and (before is None or before.part + 1 != part):
                # Parts in front of this one are not there, and so their iterations.
                iterations = stretch.iterations
                after_gap = np.append(True, iterations.after_gap[1:])
                stretch = replace(stretch, iterations=replace(iterations, after_gap=after_gap))
            stretches.append(stretch)
        before = reader.header
        watch((number + 1) / len(readers))
    header = next((reader.header for reader in readers if reader.header is not None), None)
    damage = next((reader.damage for reader in readers if reader.damage), "")
    if damage and not stretches:
        raise ProfileError(
            f"{path}: a recording of which every line is damaged ({damage}); copy it again, or "
            "record again"
        )
    if header is None or not stretches:
        raise NothingToAnalyseError(
            f"{path}: a recording without any whole iteration; let it run until the second one "
            "has begun"
        )
    return RecordedSession(
        path=paths[0],
        header=header,
        parts=len(paths),
        names=names.values,
        stretch=recorded.sorted_stretch(recorded.joined_stretches(stretches)),
        n_damaged=sum(reader.n_damaged + reader.n_tail_damaged for reader in readers),
        damage=damage,
        tail_bytes=sum(reader.cut_bytes for reader in readers),
    )


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
    keys = model.OperationKeys(
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
    operations = model.Operations.from_keys(
        keys,
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
    stem, number = recorded.rank_and_number(path) or ("", 0)
    beside = (n for n in (number - 1, number + session.parts) if stem and n >= 0)
    if any(_header_or_none(_numbered(stem, n)) for n in beside):
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
