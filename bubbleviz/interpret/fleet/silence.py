"""Detection of cluster workers that stop responding.

If a worker is frozen or its machine is gone, the connection stays open and no call fails. The only
symptom is that the heartbeats, which the scheduler expects every few seconds, stop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

#: Age of the last heartbeat, in seconds, above which a worker is silent.
SILENT_S = 10.0


class Heartbeats:
    """Time of each worker's last heartbeat, on the clock of this process.

    The scheduler stamps heartbeats with its own clock. This class only notices when a stamp
    changes, so the two clocks need not agree.
    """

    def __init__(self) -> None:
        self._stamps: dict[str, float] = {}
        self._changed_s: dict[str, float] = {}

    def update(self, stamps: Mapping[str, float], now_s: float) -> None:
        """Store the newest heartbeat stamps of all workers, and drop the workers that have left.

        Args:
            stamps: Time of each worker's last heartbeat, keyed by worker address. Any clock may be
                used. A worker without a stamp has left.
            now_s: Current time on the clock of this process, in seconds.
        """
        for worker, stamp in stamps.items():
            if self._stamps.get(worker) != stamp:
                self._changed_s[worker] = now_s
        self._stamps = dict(stamps)

    def get_silence_s(self, now_s: float) -> dict[str, float]:
        """Return the seconds since the last heartbeat of each silent worker.

        A worker is silent if its last heartbeat is older than ``SILENT_S``. The result is keyed by
        worker address and sorted by it.
        """
        elapsed_s = {worker: now_s - self._changed_s[worker] for worker in sorted(self._stamps)}
        return {worker: silence for worker, silence in elapsed_s.items() if silence > SILENT_S}


class Patience:
    """Decides which silent workers to report, and when to give up waiting for them.

    Args:
        max_wait_s: Maximum time to wait for silent workers, in seconds.
    """

    def __init__(self, max_wait_s: float) -> None:
        self.max_wait_s = max_wait_s
        self._heartbeats = Heartbeats()
        self._reported: set[str] = set()
        self._last_result_s = 0.0

    def record_result(self, now_s: float) -> None:
        """Record that work started or a result arrived at this time."""
        self._last_result_s = now_s

    def update_heartbeats(self, stamps: Mapping[str, float], now_s: float) -> list[str]:
        """Store the newest heartbeat stamps, and return the sorted addresses of silent workers.

        See :meth:`Heartbeats.update` for the arguments.
        """
        self._heartbeats.update(stamps, now_s)
        silent = list(self._heartbeats.get_silence_s(now_s))
        self._reported &= {*silent}
        return silent

    def take_unreported(self, workers: Collection[str]) -> list[str]:
        """Return the workers that have not been reported as silent, and mark them as reported.

        A worker that responds and then becomes silent again is reported again.
        """
        unreported = [worker for worker in workers if worker not in self._reported]
        self._reported.update(unreported)
        return unreported

    def is_over(self, workers: Collection[str], now_s: float) -> bool:
        """Return whether the maximum wait time has elapsed.

        The wait is over if one of the given workers has been silent for at least ``max_wait_s``,
        and if no result has arrived for at least as long.
        """
        silent_s = self._heartbeats.get_silence_s(now_s)
        longest_s = max((silent_s.get(worker, 0.0) for worker in workers), default=0.0)
        return min(longest_s, now_s - self._last_result_s) >= self.max_wait_s
