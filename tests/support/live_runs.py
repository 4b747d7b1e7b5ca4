"""Synthetic runs that a test records one iteration at a time."""

from __future__ import annotations

import socket
from collections.abc import Collection
from pathlib import Path

import pytest

from bubbleviz.annotate.recorder import Recorder
from tests.planting.truth import Truth
from tests.support.recorded_runs import UPTIME_NS, Clock, record_iteration


class LiveRun:
    """Ranks that record a synthetic run. Each rank has its own host.

    Args:
        truth: Planted run.
        folder: Directory of the recording.
        monkeypatch: Fixture that sets the names of hosts.
        first: Number given to the first recorded iteration.
        later_ns: Offset in ns that is added to all times in the synthetic run.
        limit_bytes: Maximum size of the files of a rank.
        host_ending: Suffix that is appended to each host name.
    """

    def __init__(
        self,
        truth: Truth,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        first: int = 0,
        later_ns: int = 0,
        limit_bytes: int = 1 << 22,
        host_ending: str = "",
    ) -> None:
        self._truth, self._folder, self._monkeypatch = truth, folder, monkeypatch
        self._first, self._later_ns, self._limit_bytes = first, later_ns, limit_bytes
        self._host_ending = host_ending
        self.clocks: dict[int, Clock] = {}
        self._recorders: dict[int, Recorder] = {}
        for rank in truth.ranks:
            clock = self.clocks[rank.rank] = Clock(0, UPTIME_NS + later_ns)
            clock.now_ns = later_ns

    def continue_as(self, truth: Truth) -> None:
        """Continue with the operations of another run that has the same number of ranks."""
        self._truth = truth

    def begin_at(self, first: int, later_ns: int) -> None:
        """Set the number of the next iteration and the offset of the clocks."""
        self._first, self._later_ns = first, later_ns

    def run(self, iteration: int, ranks: Collection[int] | None = None) -> None:
        """Run an iteration on the given ranks. Each rank then writes its previous iteration."""
        for rank, clock in self.clocks.items():
            if ranks is not None and rank not in ranks:
                continue
            # A recorder reads its host's name when it writes for the first time.
            host = f"node{rank}{self._host_ending}"
            self._monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
            recorder = self._get_recorder(rank)
            operations = [
                o for o in self._truth.operations if (o.rank, o.iteration) == (rank, iteration)
            ]
            record_iteration(recorder, clock, operations, iteration + self._first, self._later_ns)

    def stop(self) -> None:
        for recorder in self._recorders.values():
            recorder.stop()

    def _get_recorder(self, rank: int) -> Recorder:
        """Return a rank's recorder, which is created on first use."""
        if rank not in self._recorders:
            clock = self.clocks[rank]
            self._recorders[rank] = Recorder(
                self._folder,
                limit_bytes=self._limit_bytes,
                place=(rank, len(self._truth.ranks)),
                monotonic=lambda: clock.now_ns + UPTIME_NS,
                utc=clock.utc,
            )
        return self._recorders[rank]
