"""Rows: the operations of event files, and of profiles, in one table."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeVar

import numpy as np

from bubbleviz.analyses.nccl.alignment import EventTimes
from bubbleviz.analyses.nccl.communications import SIZES, Communications, Communicator, Timing
from bubbleviz.analyses.nccl.kernel_names import parse_kernel_name
from bubbleviz.analyses.nccl.kernel_pool import KernelPool
from bubbleviz.analyses.nccl.profiles import NcclProfile
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.columns import NONE, Ints, joined
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.values import frozen
from bubbleviz.sources.nccl.events import STATES, UNKNOWN, EventFile, NcclEvents, OperationKind

#: More elements than any operation has.
_MOST_COUNT = 1 << 59
Value = TypeVar("Value", bound=Hashable)
#: The columns of operations, and what stands in those that a source does not have.
_DEFAULTS = {
    **dict.fromkeys(
        ("source", "kind", "pid", "gpu", "name", "communicator", "rank", "peer", "root"), NONE
    ),
    **dict.fromkeys(("sequence", "count", "datatype", "bytes", "algorithm", "protocol"), NONE),
    **dict.fromkeys(("channels", "clock", "start_ns", "end_ns", "duration_ns", "kernel"), NONE),
    **dict.fromkeys(("waiting_ns", "moving_ns"), NONE),
    **dict.fromkeys(("timing", "split"), 0),
    "shared": 1,
}
#: Columns that stand as they are in the tables they come from.
_OF_EVENTS = ("kind", "pid", "rank", "peer", "root", "sequence", "count", "channels", "state_ns")
_OF_TIMES = ("gpu", "start_ns", "end_ns", "duration_ns", "timing", "kernel")
_OF_OPERATIONS = ("rank", "peer", "root", "sequence", "count", "bytes")


@frozen
class _Distinct:
    """The distinct names and communicators of all tables."""

    names: Numbering[str] = field(default_factory=Numbering)
    communicators: Numbering[Communicator] = field(default_factory=Numbering)


def _numbers(numbering: Numbering[Value], values: Iterable[Value]) -> Ints:
    """Return the numbers of values, and at the end, where -1 leads, that of none."""
    return np.append(numbering.numbers(values), NONE)


def _table(rows: int, columns: Mapping[str, Ints]) -> Communications:
    """Return operations with some columns; the others hold their defaults."""
    defaults = {name: np.full(rows, value, np.int64) for name, value in _DEFAULTS.items()}
    state_ns = np.zeros((rows, len(STATES)), np.int64)
    table = {**defaults, "state_ns": state_ns, **columns}
    return Communications(**table, names=(), communicators=())


def operations_of(
    recorded: Sequence[EventFile],
    profiles: Sequence[NcclProfile],
    pool: KernelPool,
    times: EventTimes,
) -> Communications:
    """Return the operations of event files, then those of profiles that no event file has.

    Raises:
        NothingToAnalyseError: there is none.
    """
    distinct, tables = _Distinct(), []
    begin = 0
    for source, file in enumerate(recorded):
        of_file = times.take(slice(begin, begin + len(file.events)))
        tables.append(_of_events(source, file.events, of_file, len(profiles), distinct))
        begin += len(file.events)
    matched = [table.kernel[table.kind != OperationKind.PROXY] for table in tables]
    taken = np.concatenate([np.empty(0, np.int64), *matched])
    at = 0
    for number, profile in enumerate(profiles):
        table = _of_kernels(len(recorded) + number, profile, pool, at, number, distinct)
        tables.append(table.take(~np.isin(table.kernel, taken)))
        at += len(profile.kernels)
    if sum(map(len, tables)) == 0:
        paths = [file.path for file in recorded] + [profile.source.path for profile in profiles]
        others = next((f"; {profile.others}" for profile in profiles if profile.others), "")
        raise NothingToAnalyseError(
            f"{paths[0]}: no communication operation of NCCL was recorded; record events with "
            "NCCL_PROFILE_EVENT_MASK=4095, or a profile with nsys profile -t cuda,nvtx or "
            "rocprofv3 --runtime-trace; list the kernels of another library under communication "
            f"in a TOML file, and give it with --convention{others}"
        )
    return replace(
        joined(tables),
        names=distinct.names.values,
        communicators=distinct.communicators.values,
    )


def _of_events(
    source: int, events: NcclEvents, times: EventTimes, clocks: int, distinct: _Distinct
) -> Communications:
    """Return a file's operations; clocks of profiles come before those of files."""
    name = _numbers(distinct.names, events.names)
    communicator = _numbers(distinct.communicators, events.communicators)
    element = np.array([SIZES.get(text, NONE) for text in (*events.names, "")], np.int64)
    size = element[events.datatype]
    sized = (events.count >= 0) & (size > 0) & (events.count < _MOST_COUNT)
    counted = np.where(sized, np.where(sized, events.count, 0) * size, NONE)
    rows = len(events)
    return _table(
        rows,
        {
            **{column: getattr(events, column) for column in _OF_EVENTS},
            **{column: getattr(times, column) for column in _OF_TIMES},
            **{
                column: name[getattr(events, column)]
                for column in ("name", "datatype", "algorithm", "protocol")
            },
            "source": np.full(rows, source, np.int64),
            "communicator": communicator[events.communicator],
            "bytes": np.where(counted >= 0, counted, events.payload),
            "clock": times.clock + clocks,
        },
    )


def _of_kernels(
    source: int, profile: NcclProfile, pool: KernelPool, at: int, clock: int, distinct: _Distinct
) -> Communications:
    """Return a profile's operations, then its kernels that carry out none.

    Args:
        source: number of the file.
        profile: as read.
        pool: the kernels of all profiles.
        at: the profile's first kernel among them.
        clock: of the profile.
        distinct: names and communicators of all tables.
    """
    kernels, operations = profile.kernels, profile.operations
    carries = np.zeros(len(kernels), bool)
    carries[operations.first] = carries[operations.last] = True
    bare = np.flatnonzero(~carries)
    first = np.concatenate((operations.first, bare))
    last = np.concatenate((operations.last, bare))
    none = np.full(len(bare), NONE, np.int64)
    fields = [parse_kernel_name(name) for name in kernels.names]
    # The name of a kernel's operation is "unknown" where it has none, other fields are empty.
    kernel_name, algorithm, protocol = (
        _numbers(distinct.names, [texts[part] or "unknown" for texts in fields])
        for part in range(3)
    )
    for part, numbers in ((1, algorithm), (2, protocol)):
        numbers[:-1][np.array([not texts[part] for texts in fields], bool)] = NONE
    name = _numbers(distinct.names, operations.names)
    communicator = _numbers(distinct.communicators, operations.communicators)
    start_ns, end_ns = pool.start_ns[at + first], pool.end_ns[at + last]
    pids = np.array([pid for pid, _ in kernels.places] or [0], np.int64)
    rows = len(first)
    return _table(
        rows,
        {
            **{
                column: np.concatenate((getattr(operations, column), none))
                for column in _OF_OPERATIONS
            },
            "source": np.full(rows, source, np.int64),
            "kind": np.full(rows, OperationKind.KERNEL, np.int64),
            "pid": pids[kernels.place[first]],
            "name": np.concatenate((name[operations.name], kernel_name[kernels.name[bare]])),
            "communicator": np.concatenate((communicator[operations.communicator], none)),
            "datatype": np.concatenate((name[operations.datatype], none)),
            "algorithm": algorithm[kernels.name[first]],
            "protocol": protocol[kernels.name[first]],
            "clock": np.full(rows, clock, np.int64),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "duration_ns": end_ns - start_ns,
            "timing": np.full(rows, Timing.KERNEL, np.int64),
            "kernel": at + first,
            "gpu": pool.place_of(at + first),
        },
    )


def with_shared(table: Communications) -> Communications:
    """Return the operations with how many have the same kernel, or the same times."""
    shared = np.ones(len(table), np.int64)
    timed = np.flatnonzero((table.start_ns != UNKNOWN) & (table.end_ns != UNKNOWN))
    if len(timed):
        columns = (table.clock, table.kernel, table.start_ns, table.end_ns)
        groups = groups_of(*(column[timed] for column in columns))
        shared[timed] = np.bincount(groups.of_row)[groups.of_row]
    return replace(table, shared=shared)
