"""Recordings: what interpretation makes of profiles, as tables of any number of them.

No kernel is kept: what remains of a profile is small, its operations, their busy intervals, the
compute that no operation explains, and counts. What is gathered can be gathered again, so that
readers gather what they have read, and whoever merges gathers what they hand on: a tree, whose
result does not depend on its shape.
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
from bubbleviz.model.columns import NONE, Ints, joined
from bubbleviz.model.grouping import numbered_together
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operation_table import ToldPlace
from bubbleviz.model.profile import Device, Source


@dataclass(frozen=True)
class LocalRank:
    """A (process, device) of one profile.

    Attributes:
        process: of the rank.
        device_id: device as the process numbers it.
        device: what the profile says of it.
        global_rank: number in the run; None unknown.
        place: the device in words, ``GPU 0``.
        world_size: how many ranks the run has; None unknown.
        told: what a table of operations tells of it; None of a profile's.
        named: stage and replica by the name of its file, -1 where that tells none.
    """

    process: int
    device_id: int
    device: Device | None
    global_rank: int | None
    place: str
    world_size: int | None
    told: ToldPlace | None = None
    named: tuple[int, int] = (NONE, NONE)


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
    """What is not columns of one interpreted profile; times are the profile's own.

    Attributes:
        source: the profile.
        convention: the convention that leads.
        conventions: those that name forward or backward.
        ranks: the profile's ranks.
        coverage: how many kernels, and how much GPU time, operations explain.
        start_ns: when the first kernel or call began.
        end_ns: when the last one ended.
        limitations: what could not be determined.
        layers: how long kernels of layers ran; None where that was not asked for.
        memory: what operations hold; None where that was not asked for, or not recorded.
        unknown_kernels: kernels of unknown names that take much of a rank's time.
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
    """What was recorded of ranks, as tables.

    Attributes:
        operations: in order of (rank, host start); ``iteration`` counts each rank's own.
        busy: when operations kept their GPU busy.
        active: how long each rank computed and ran kernels, by iteration.
        running: how long kernels and copies ran in and between iterations.
        unattributed: when compute kernels ran outside operations.
        exposed: when only communication ran that is not between two ranks.
        overheads: when the profiler held a rank's process up.
        unrecorded: When a rank may have run work that was launched and not recorded.
        pauses: when nothing of a rank was recorded, though it ran on.
        hosts: what launching threads did before late launches.
        collectives: all that are kept, between more than two ranks, with the kinds and groups of
            all.
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
    """The tables of recordings, one after the other; rows count as in each recording.

    ``operations.rank`` counts a profile's ranks, ``operations.name_id`` each recording's own names;
    they get their final numbers when profiles are merged.

    Attributes:
        recordings: one a clock of a profile, in the order given.
        rows: how many rows of each of ``TABLES`` each recording has, shape (recordings, tables).
        names: how many names of operations each has.
        hints: what the operations' names give beyond their keys.
    """

    recordings: tuple[Recording, ...]
    rows: Ints
    names: Ints
    hints: NameHints

    @staticmethod
    def of(recording: Recording, **tables: Any) -> Recordings:
        """Return one recording with its tables."""
        tables["collectives"] = _collectives([tables["collectives"]])
        rows = np.array([[len(tables[name]) for name in TABLES]], np.int64)
        names = np.array([len(tables["operations"].names)], np.int64)
        return Recordings(recordings=(recording,), rows=rows, names=names, **tables)

    def lengths(self, table: str) -> Ints:
        """Return how many rows of a table each recording has."""
        return self.rows[:, TABLES.index(table)]


def gathered(parts: Sequence[Recordings]) -> Recordings:
    """Return several groups of recordings as one group.

    Args:
        parts: At least one group, in the order of the result.
    """
    if len(parts) == 1:
        return parts[0]
    tables: dict[str, Any] = {
        name: joined([getattr(part, name) for part in parts])
        for name in TABLES
        if name != "collectives"
    }
    tables["collectives"] = _collectives([part.collectives for part in parts])
    operation_names = tuple(chain.from_iterable(part.operations.names for part in parts))
    tables["operations"] = replace(tables["operations"], names=operation_names)
    return Recordings(
        recordings=tuple(chain.from_iterable(part.recordings for part in parts)),
        rows=np.concatenate([part.rows for part in parts]),
        names=np.concatenate([part.names for part in parts]),
        **tables,
    )


def _collectives(tables: Sequence[CollectiveIntervals]) -> CollectiveIntervals:
    return numbered_together(tables, kinds=("kind",), groups=("group",))


def hosts_of(recordings: Sequence[Recording]) -> tuple[str, ...]:
    """Return the names of hosts and clocks in recordings, each once, in the order of recordings."""
    names: list[str] = []
    for recording in recordings:
        if recording.source.clock is None:
            names.append(recording.source.host)
        for told in (rank.told for rank in recording.ranks if rank.told is not None):
            names += [] if told.host is None else [told.host]
            names += [] if told.clock is None else [told.clock.name]
    return tuple(dict.fromkeys(names))


@contextmanager
def hosts_in_errors(hosts: Sequence[str]) -> Iterator[None]:
    """Add the names of a run's hosts to errors, whose messages may contain them."""
    try:
        yield
    except BubblevizError as error:
        error.hosts = (*error.hosts, *hosts)
        raise
