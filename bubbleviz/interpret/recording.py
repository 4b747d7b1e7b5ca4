"""Recordings: the interpreted tables of one or more profiles.

Kernels are not kept, only the operations, their busy intervals, compute outside operations, and
counts. Groups of recordings can be gathered again in any grouping, with the same result. So each
reader gathers the files that it has read, and the merging process gathers the groups of all
readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np

from bubbleviz.errors import BubblevizError
from bubbleviz.interpret.coverage import Coverage
from bubbleviz.interpret.layers import LayerTimes
from bubbleviz.interpret.memory import MemoryUse
from bubbleviz.interpret.operation_ranges import NameHints
from bubbleviz.interpret.spans import ActiveTime
from bubbleviz.interpret.start_skew import RecordedDevice
from bubbleviz.model import operations as model
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Ints, join_tables
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.numbering import merge_tables
from bubbleviz.model.operation_table import DeclaredRank
from bubbleviz.model.profile import Device, Source


@dataclass(frozen=True)
class LocalRank:
    """A (process, device) pair of one profile.

    Attributes:
        process: Process of the rank.
        device_id: Number of the device within the process.
        device: Description of the device in the profile, or None if there is none.
        global_rank: Number in the run, or None if unknown.
        device_label: Display name of the device, such as ``GPU 0``.
        world_size: Number of ranks of the run, or None if unknown.
        declared: Properties of the rank in a table of operations, or None for a rank of a profile.
        stage_in_file_name: Stage and replica in the file name, or -1 if it contains none.
    """

    process: int
    device_id: int
    device: Device | None
    global_rank: int | None
    device_label: str
    world_size: int | None
    declared: DeclaredRank | None = None
    stage_in_file_name: tuple[int, int] = (NONE, NONE)


@dataclass(frozen=True, eq=False, repr=False)
class UnknownKernels:
    """Kernels of one name on one rank of a profile that no list of names contains.

    Attributes:
        rank: Index of the rank in its profile.
        name: The demangled name.
        count: Number of these kernels.
        total_ns: Their total time.
        start_ns: Start times of a sample of consecutive kernels, in ascending order.
        end_ns: Their end times.
    """

    rank: int
    name: str
    count: int
    total_ns: int
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True)
class Recording:
    """One interpreted profile apart from its tables, with times on the clock of the profile.

    Attributes:
        source: Where the profile comes from.
        convention: The convention that takes precedence.
        conventions: Conventions that name a forward or backward.
        ranks: Ranks of the profile.
        coverage: Number of kernels, and the GPU time, that operations explain.
        start_ns: Start of the first kernel or call.
        end_ns: End of the last kernel or call.
        limitations: Properties that could not be determined.
        layers: Time of the kernels of layers, or None if it was not requested.
        memory: Memory of operations, or None if it was not requested or not recorded.
        unknown_kernels: Kernels of unknown names that take much of a rank's time.
        recorded: When the recording of each device began, and what it waited in; empty if unknown.
    """

    source: Source
    convention: str
    conventions: frozenset[str]
    ranks: tuple[LocalRank, ...]
    coverage: Coverage
    start_ns: int
    end_ns: int
    limitations: tuple[Limitation, ...]
    layers: LayerTimes | None = None
    memory: MemoryUse | None = None
    unknown_kernels: tuple[UnknownKernels, ...] = ()
    recorded: tuple[RecordedDevice, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class RecordedTables:
    """The tables of recorded ranks.

    Attributes:
        operations: Operations in order of (rank, host start); ``iteration`` counts the iterations
            of each rank.
        busy: When operations kept their GPU busy.
        active: Time for which each rank computed and ran kernels in each iteration.
        running: Running times of kernels and copies in and between iterations.
        unattributed: When compute kernels ran outside operations.
        exposed: When only communication between more than two ranks ran.
        overheads: When the profiler delayed the process of a rank.
        unrecorded: When a rank may have run work that was launched and not recorded.
        pauses: When nothing was recorded on a rank although it was running.
        hosts: Activities of launching threads before late launches.
        collectives: Collectives between more than two ranks, with the kinds and groups of all.
    """

    operations: model.Operations
    busy: model.BusyIntervals
    active: ActiveTime
    running: model.RunningTimes
    unattributed: model.RankIntervals
    exposed: model.RankIntervals
    overheads: model.RankIntervals
    unrecorded: model.RankIntervals
    pauses: model.RankIntervals
    hosts: model.HostActivities
    collectives: CollectiveIntervals


#: The tables of recordings.
TABLES = ("hints", *(part.name for part in fields(RecordedTables)))


@dataclass(frozen=True, eq=False, repr=False)
class Recordings(RecordedTables):
    """The tables of recordings, one recording after the other.

    Ranks, operations and names are numbered within each recording. They are numbered over all
    recordings when these are joined.

    Attributes:
        recordings: One recording per clock of a profile, in the given order.
        rows: Number of rows of each of ``TABLES`` in each recording, shape (recordings, tables).
        names: Number of operation names in each recording.
        hints: What the names of operations show beyond their keys.
    """

    recordings: tuple[Recording, ...]
    rows: Ints
    names: Ints
    hints: NameHints

    @staticmethod
    def of(recording: Recording, **tables: Any) -> Recordings:
        """Return one recording with its tables."""
        tables["collectives"] = _join_collectives([tables["collectives"]])
        rows = np.array([[len(tables[name]) for name in TABLES]], np.int64)
        names = np.array([len(tables["operations"].names)], np.int64)
        return Recordings(recordings=(recording,), rows=rows, names=names, **tables)

    def count_rows(self, table: str) -> Ints:
        """Return the number of rows of a table in each recording."""
        return self.rows[:, TABLES.index(table)]


def join_recordings(parts: Sequence[Recordings]) -> Recordings:
    """Join several groups of recordings into one group.

    Args:
        parts: At least one group, in the order of the result.
    """
    if len(parts) == 1:
        return parts[0]
    tables: dict[str, Any] = {
        name: join_tables([getattr(part, name) for part in parts])
        for name in TABLES
        if name != "collectives"
    }
    tables["collectives"] = _join_collectives([part.collectives for part in parts])
    operation_names = tuple(chain.from_iterable(part.operations.names for part in parts))
    tables["operations"] = replace(tables["operations"], names=operation_names)
    return Recordings(
        recordings=tuple(chain.from_iterable(part.recordings for part in parts)),
        rows=np.concatenate([part.rows for part in parts]),
        names=np.concatenate([part.names for part in parts]),
        **tables,
    )


def _join_collectives(tables: Sequence[CollectiveIntervals]) -> CollectiveIntervals:
    return merge_tables(tables, kinds=("kind",), groups=("group",))


def list_hosts(recordings: Sequence[Recording]) -> tuple[str, ...]:
    """Return the names of hosts and clocks in recordings, each once, in the order of recordings."""
    names: list[str] = []
    for recording in recordings:
        if recording.source.clock is None:
            names.append(recording.source.host)
        for declared in (rank.declared for rank in recording.ranks if rank.declared is not None):
            names += [] if declared.host is None else [declared.host]
            names += [] if declared.clock is None else [declared.clock.name]
    return tuple(dict.fromkeys(names))


@contextmanager
def add_hosts_to_errors(hosts: Sequence[str]) -> Iterator[None]:
    """Add the names of a run's hosts to errors, whose messages may contain them."""
    try:
        yield
    except BubblevizError as error:
        error.hosts = (*error.hosts, *hosts)
        raise
