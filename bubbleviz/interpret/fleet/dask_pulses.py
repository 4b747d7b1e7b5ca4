"""Heartbeats of Dask workers, which distinguish a frozen worker from a busy one."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic

from bubbleviz.interpret.fleet.dask_cluster import LOOK_S, Cluster

#: A worker without a heartbeat for so long does nothing any more; Dask asks for two a second.
_SILENCE_S = 7.0
#: Workers that Dask allows a second of heartbeats each, in clusters of thousands.
_HEARTBEATS_PER_S = 200


class Pulses:
    """When each worker's heartbeat was last seen to change, by the clock here."""

    def __init__(self, cluster: Cluster, answering: set[str]) -> None:
        self._cluster = cluster
        self._looked = monotonic()
        self._beats = cluster.pulses()
        self._changed = dict.fromkeys(answering, self._looked)

    def look(self) -> bool:
        """Look again, unless that was a moment ago; tell whether it was done."""
        now = monotonic()
        if now - self._looked < self._spacing(LOOK_S):
            return False
        beats = self._cluster.pulses()
        self._looked = now = monotonic()
        for worker, beat in beats.items():
            if beat != self._beats.get(worker):
                self._changed[worker] = now
        self._beats = beats
        return True

    def living(self) -> set[str]:
        """Return the workers that are there and have been heard of lately."""
        return {worker for worker in self._beats if self.lives(worker)}

    def lives(self, worker: str) -> bool:
        """Tell whether a worker is there and has been heard of lately."""
        return worker in self._beats and self._is_recent(worker)

    def silent(self) -> set[str]:
        """Return the workers that are there and have not been heard of lately."""
        return set(self._beats) - self.living()

    def have_left(self, where: Collection[str] | None) -> bool:
        """Tell whether none of some workers or hosts is there any more; None is anywhere."""
        return where is not None and not any(
            worker in where or host_of(worker) in where for worker in self._beats
        )

    def hosts(self) -> set[str]:
        """Return the hosts of which a worker has been heard of lately, if it has left since."""
        return {host_of(worker) for worker in self._changed if self._is_recent(worker)}

    def _is_recent(self, worker: str) -> bool:
        silence = self._looked - self._changed.get(worker, float("-inf"))
        return silence <= self._spacing(_SILENCE_S)

    def _spacing(self, least_s: float) -> float:
        return max(least_s, least_s * len(self._beats) / _HEARTBEATS_PER_S)


def host_of(worker: str) -> str:
    """Return the host in a worker's address (``tcp://10.0.0.1:40000``, ``tcp://[::1]:40000``)."""
    return worker.partition("://")[2].rpartition(":")[0].strip("[]")
