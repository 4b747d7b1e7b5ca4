"""Hosts, processes and GPUs of the ranks, and the clocks of their files."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import Ints
from tests.planting.options import Planting

#: Global time in ns at which the first iteration can start.
TRAINING_STARTS_NS = 10_000_000_000
#: UTC at global time 0, in ns since 1970.
EPOCH_NS = 1_760_000_000_000_000_000
#: Serialized id of the host (or VM) in every planted export.
#: Real exports use 1 for the local target.
HOST_ID = 1 << 48


@dataclass(frozen=True)
class Clock:
    """The clock of one file, whose times are relative to the start of its session."""

    session_start_ns: int
    error_ns: int
    drift_ppb: int
    step_ns: int = 0
    step_at_ns: int = 0

    @property
    def started_ns(self) -> int:
        """Time of the host's clock at the session start. The clock is correct at global time 0."""
        return self.session_start_ns + self.session_start_ns * self.drift_ppb // 10**9

    @property
    def utc_epoch_ns(self) -> int:
        """Session start in UTC, as recorded in the export."""
        return EPOCH_NS + self.started_ns + self.error_ns

    def of(self, times: Ints) -> Ints:
        """Convert global times to times of the file."""
        shown_ns = times + times * self.drift_ppb // 10**9
        shown_ns = shown_ns + np.where(times >= self.step_at_ns, self.step_ns, 0)
        return np.asarray(shown_ns - self.started_ns, dtype=np.int64)

    def of_one(self, time: int) -> int:
        """Convert one global time to the time of the file."""
        return int(self.of(np.array([time], dtype=np.int64))[0])


def make_gpu_uuid(hostname: str, gpu: int) -> str:
    """Return the UUID of a GPU of a host."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"gpu{gpu}.{hostname}"))


@dataclass(frozen=True)
class Location:
    """The host, process and GPU of a rank.

    ``simulated`` is the device of the simulation that it runs.
    """

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
        return make_gpu_uuid(self.hostname, self.gpu)

    def thread(self, number: int) -> int:
        """Return the globalTid of a thread in the rank's process."""
        return HOST_ID + (self.pid << 24) + self.pid + 17 * number


def locate_ranks(planting: Planting) -> list[Location]:
    """Return the location of each rank.

    Hosts take ranks in blocks, and all hosts use the same process ids. Ranks are numbered in
    Megatron's order: ``tp + TP (dp + DP pp)``.
    """
    locations: list[Location] = []
    copies = planting.tensor * planting.replicas
    for rank in range(planting.ranks):
        stage, pipeline = divmod(rank, copies)
        simulated = stage + planting.stages * (pipeline // planting.tensor)
        host = rank * planting.servers // planting.ranks
        local = sum(place.host == host for place in locations)
        file = host if planting.files == "server" else rank
        device = local if planting.devices == "local" else 0
        pid = 2001 + 64 * local
        locations.append(Location(rank, stage, pipeline, simulated, host, file, pid, device, local))
    return locations


def make_clock(planting: Planting, location: Location) -> Clock:
    """Return the clock of the rank's file."""

    def value_of_host(values: Sequence[int]) -> int:
        return values[location.host] if location.host < len(values) else 0

    start = 1_000_000_000 + location.file * planting.session_gap_ns
    return Clock(
        start,
        value_of_host(planting.clock_error_ns),
        value_of_host(planting.drift_ppb),
        value_of_host(planting.step_ns),
        TRAINING_STARTS_NS + planting.step_at_ns,
    )
