"""Recording: what interpretation makes of one profile.

No kernel is kept: what remains of a profile is small, its operations, their busy intervals, the
compute that no operation explains, and counts.
"""

from __future__ import annotations

from dataclasses import field

from bubbleviz.interpret.collectives import ReplicaCollectives
from bubbleviz.interpret.coverage import Coverage
from bubbleviz.interpret.keys import NameHints
from bubbleviz.interpret.layers import LayerTimes
from bubbleviz.interpret.memory import MemoryUse
from bubbleviz.interpret.spans import ActiveTime
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operation_table import ToldPlace
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    RankIntervals,
    RankOperations,
    RunningTimes,
)
from bubbleviz.model.profile import Device, Source
from bubbleviz.model.values import frozen


@frozen
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
    """

    process: int
    device_id: int
    device: Device | None
    global_rank: int | None
    place: str
    world_size: int | None
    told: ToldPlace | None = None


@frozen
class Recording:
    """One profile, interpreted; times are the profile's own.

    ``operations.rank`` counts the profile's ranks and ``operations.iteration`` each rank's own
    iterations from 0; both get their final numbers when profiles are merged.

    Attributes:
        source: the profile.
        convention: the convention that leads.
        conventions: those that name forward or backward.
        ranks: the profile's ranks.
        operations: in order of (rank, host start).
        hints: what the operations' names give beyond their keys.
        busy: when operations kept their GPU busy.
        active: how long each rank computed and ran kernels, by iteration.
        running: how long kernels and copies ran in and between iterations.
        unattributed: when compute kernels ran outside operations.
        exposed: when only communication ran that is not between two ranks.
        overheads: when the profiler held a rank's process up.
        hosts: what launching threads did before late launches.
        replica_collectives: those that synchronise replicas.
        collectives: all that are kept, between more than two ranks.
        coverage: how many kernels, and how much GPU time, operations explain.
        start_ns: when the first kernel or call began.
        end_ns: when the last one ended.
        limitations: what could not be determined.
        pauses: when nothing of a rank was recorded, though it ran on.
        layers: how long kernels of layers ran; None where that was not asked for.
        memory: what operations hold; None where that was not asked for, or not recorded.
    """

    source: Source
    convention: str
    conventions: frozenset[str]
    ranks: tuple[LocalRank, ...]
    operations: RankOperations
    hints: NameHints
    busy: BusyIntervals
    active: ActiveTime
    running: RunningTimes
    unattributed: RankIntervals
    exposed: RankIntervals
    overheads: RankIntervals
    hosts: HostActivities
    replica_collectives: ReplicaCollectives
    collectives: CollectiveIntervals
    coverage: Coverage
    start_ns: int
    end_ns: int
    limitations: tuple[Limitation, ...]
    pauses: RankIntervals = field(default_factory=RankIntervals.none)
    layers: LayerTimes | None = None
    memory: MemoryUse | None = None
