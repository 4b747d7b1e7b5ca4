"""Workers of a cluster that no longer answer: who they are, and for how long.

A worker that is frozen, or whose machine is gone, keeps its connection open, so nothing fails. It
only stops to send the heartbeats that the scheduler expects every few seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

#: Seconds without a heartbeat after which a worker counts as silent.
SILENT_S = 10.0


class Heartbeats:
    """Times of the last heartbeats, on the clock of this process.

    The scheduler stamps heartbeats with its own clock. Only a change of the stamp counts here, so
    the clocks need not agree.
    """

    def __init__(self) -> None:
        self._stamps: dict[str, float] = {}
        self._changed_s: dict[str, float] = {}

    def note(self, stamps: Mapping[str, float], now_s: float) -> None:
        """Take the newest stamps of all workers; workers that are left out have left.

        Args:
            stamps: Time of each worker's last heartbeat, on any clock, by address.
            now_s: The time now, in seconds.
        """
        for worker, stamp in stamps.items():
            if self._stamps.get(worker) != stamp:
                self._changed_s[worker] = now_s
        self._stamps = dict(stamps)

    def silent_s(self, now_s: float) -> dict[str, float]:
        """Return how long each silent worker has been silent, in seconds, by address."""
        silence_s = {worker: now_s - self._changed_s[worker] for worker in sorted(self._stamps)}
        return {worker: length_s for worker, length_s in silence_s.items() if length_s > SILENT_S}


class Patience:
    """Decides what to say of silent workers, and when to give up.

    Args:
        max_wait_s: Maximum time to wait for silent workers, in seconds.
    """

    def __init__(self, max_wait_s: float) -> None:
        self.max_wait_s = max_wait_s
        self._heartbeats = Heartbeats()
        self._reported: set[str] = set()
        self._last_result_s = 0.0

    def note_result(self, now_s: float) -> None:
        """Note that work goes on: a result came, or work begins."""
        self._last_result_s = now_s

    def note_heartbeats(self, stamps: Mapping[str, float], now_s: float) -> list[str]:
        """Take the newest heartbeats and return the silent workers, see :class:`Heartbeats`."""
        self._heartbeats.note(stamps, now_s)
        silent = list(self._heartbeats.silent_s(now_s))
        self._reported &= {*silent}
        return silent

    def unreported(self, workers: Collection[str]) -> list[str]:
        """Return the workers that were not reported since they fell silent, and mark them so."""
        unreported = [worker for worker in workers if worker not in self._reported]
        self._reported.update(unreported)
        return unreported

    def is_over(self, workers: Collection[str], now_s: float) -> bool:
        """Return whether no result came for too long while one of these workers was silent."""
        silent_s = self._heartbeats.silent_s(now_s)
        longest_s = max((silent_s.get(worker, 0.0) for worker in workers), default=0.0)
        return min(longest_s, now_s - self._last_result_s) >= self.max_wait_s
