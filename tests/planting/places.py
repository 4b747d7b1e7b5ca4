"""Where ranks run, and what the clocks of their hosts show."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import Ints
from tests.planting.options import Planting

#: Global time at which the first iteration can start.
TRAINING_STARTS_NS = 10_000_000_000
#: UTC of global time 0.
EPOCH_NS = 1_760_000_000_000_000_000
#: Serialized id of the host (or VM) in every export: real ones hold 1 for the local target.
HOST_ID = 1 << 48


@dataclass(frozen=True)
class Clock:
    """The clock of one file: its times count from the start of its session."""

    session_start_ns: int
    error_ns: int
    drift_ppb: int
    step_ns: int = 0
    step_at_ns: int = 0

    @property
    def started_ns(self) -> int:
        """What the host's clock, right at global time 0, showed when the session started."""
        return self.session_start_ns + self.session_start_ns * self.drift_ppb // 10**9

    @property
    def utc_epoch_ns(self) -> int:
        """What the export says its session started at."""
        return EPOCH_NS + self.started_ns + self.error_ns

    def of(self, times: Ints) -> Ints:
        """Return the file's times of global times."""
        shown_ns = times + times * self.drift_ppb // 10**9
        shown_ns = shown_ns + np.where(times >= self.step_at_ns, self.step_ns, 0)
        return np.asarray(shown_ns - self.started_ns, dtype=np.int64)

    def of_one(self, time: int) -> int:
        """Return the file's time of one global time."""
        return int(self.of(np.array([time], dtype=np.int64))[0])


def gpu_uuid(hostname: str, gpu: int) -> str:
    """Return the UUID of a GPU of a host."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"gpu{gpu}.{hostname}"))


@dataclass(frozen=True)
class Place:
    """Where a rank runs, and what of the simulation it is: the device ``simulated``."""

    rank: int
    stage: int
    pipeline: int
    simulated: int
    host: int
    file: int
    pid: int
    device: int
    gpu: int

    @property
    def hostname(self) -> str:
        """Name of the host."""
        return f"node{self.host}"

    @property
    def uuid(self) -> str:
        """The GPU's UUID."""
        return gpu_uuid(self.hostname, self.gpu)

    def thread(self, number: int) -> int:
        """Return the globalTid of a thread of its process."""
        return HOST_ID + (self.pid << 24) + self.pid + 17 * number


def places_of(planting: Planting) -> list[Place]:
    """Return where each rank runs: hosts take ranks in blocks, with the same process ids.

    Ranks are numbered as Megatron does: ``tp + TP (dp + DP pp)``.
    """
    places: list[Place] = []
    copies = planting.tensor * planting.replicas
    for rank in range(planting.ranks):
        stage, pipeline = divmod(rank, copies)
        simulated = stage + planting.stages * (pipeline // planting.tensor)
        host = rank * planting.servers // planting.ranks
        local = sum(place.host == host for place in places)
        file = host if planting.files == "server" else rank
        device = local if planting.devices == "local" else 0
        pid = 2001 + 64 * local
        places.append(Place(rank, stage, pipeline, simulated, host, file, pid, device, local))
    return places


def clock_of(planting: Planting, place: Place) -> Clock:
    """Return the clock of the rank's file."""

    def at(values: Sequence[int]) -> int:
        return values[place.host] if place.host < len(values) else 0

    start = 1_000_000_000 + place.file * planting.session_gap_ns
    return Clock(
        start,
        at(planting.clock_error_ns),
        at(planting.drift_ppb),
        at(planting.step_ns),
        TRAINING_STARTS_NS + planting.step_at_ns,
    )
