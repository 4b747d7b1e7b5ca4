"""Recordings: the interpreted tables of one or more profiles.

Kernels are not kept. A recording contains only the operations, their busy intervals, compute
outside operations, and counts. Joining recordings is associative. Therefore, each reader process
joins the files that it has read, and the main process joins the results of all readers.
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
from bubbleviz.interpret.listed_gpus import ListedGpu
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
    """A rank of one profile: a process and one of its devices.

    Attributes:
        process: Process number.
        device_id: Number of the device within the process.
        device: Description of the device in the profile, or None if there is none.
        global_rank: Rank number in the whole run, or None if unknown.
        device_label: Display name of the device, such as ``GPU 0``.
        world_size: Number of ranks in the run, or None if unknown.
        declared: Properties that a table of operations declares for the rank, or None for a rank of
            a profile.
        stage_in_file_name: Pipeline stage and replica, read from the process label or file name.
            The stage is -1 if the text contains none.
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
    """Kernels on one rank that share a name which is in no list of known kernel names.

    Attributes:
        rank: Index of the rank in its profile.
        name: Demangled kernel name.
        count: Number of kernels with this name.
        total_ns: Total duration of the kernels.
        start_ns: Start times in a sample of consecutive kernels with this name, ascending.
        end_ns: End times of the same kernels.
    """

    rank: int
    name: str
    count: int
    total_ns: int
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True)
class Recording:
    """All information about one interpreted profile except its tables.

    Times are on the clock of the profile.

    Attributes:
        source: Source of the profile.
        convention: Name of the convention with the highest precedence.
        conventions: Names of the conventions that matched a forward or backward.
        ranks: Ranks of the profile.
        coverage: Number of kernels and amount of GPU time that belong to operations.
        start_ns: Start of the first kernel or call.
        end_ns: End of the last kernel or call.
        limitations: Limitations of the profile.
        layers: Kernel time of each layer, or None if it was not requested.
        memory: Memory use of operations, or None if it was not requested or not recorded.
        unknown_kernels: Kernels with unknown names that take much of a rank's kernel time.
        recorded: For each device, the start of its recording and its longest and first
            communication kernels. Empty if unknown.
        listed_gpus: GPUs that the profile lists.
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
    listed_gpus: tuple[ListedGpu, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class RecordedTables:
    """The tables of recorded ranks.

    Attributes:
        operations: Operations, sorted by (rank, host start). Each rank's iterations are numbered
            starting at 0.
        busy: Intervals in which operations kept their GPU busy.
        active: Time during which each rank ran kernels in each iteration.
        running: Times in which kernels and copies ran, in and between iterations.
        unattributed: Intervals in which compute kernels ran outside operations.
        exposed: Intervals in which only communication between more than two ranks ran.
        overheads: Intervals in which the profiler stopped the process of a rank.
        unrecorded: Intervals in which a rank may have run work that was launched but not recorded.
        pauses: Intervals in which nothing was recorded on a rank although it was running.
        hosts: Activities of the launching threads before late launches.
        collectives: Collectives between more than two ranks.
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


#: Table names in recordings.
TABLES = ("hints", *(part.name for part in fields(RecordedTables)))


@dataclass(frozen=True, eq=False, repr=False)
class Recordings(RecordedTables):
    """One or more recordings, with their tables concatenated.

    Ranks, operations and names are numbered within each recording.

    Attributes:
        recordings: One recording per profile, or several for a table with several clocks.
        rows: Number of rows of each table in each recording, shape (recordings, tables). The
            columns are in the order of ``TABLES``.
        names: Number of operation names in each recording.
        hints: Stages and iteration numbers in the operation names.
    """

    recordings: tuple[Recording, ...]
    rows: Ints
    names: Ints
    hints: NameHints

    @staticmethod
    def of(recording: Recording, **tables: Any) -> Recordings:
        """Create an object that contains one recording and its tables."""
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
        parts: Groups of recordings, at least one. The result has the same order.
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
    """Return the distinct host and clock names, in the order in which recordings mention them."""
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
    """Add the host names of a run to the ``hosts`` of errors raised in the ``with`` block.

    The error messages may contain the names.
    """
    try:
        yield
    except BubblevizError as error:
        error.hosts = (*error.hosts, *hosts)
        raise
