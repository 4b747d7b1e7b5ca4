"""Tasks of a Dask cluster: what a worker was to do that dies, or is silent, another one does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import field
from itertools import islice
from typing import Any

from bubbleviz._version import __version__
from bubbleviz.errors import BubblevizError, ProfileError
from bubbleviz.interpret.fleet.dask_cluster import LOOK_S, Attempt, Cluster
from bubbleviz.interpret.fleet.dask_pulses import Pulses, host_of
from bubbleviz.interpret.fleet.dask_versions import (
    NEWCOMER,
    check_version,
    lacks_bubbleviz,
    with_same_version,
)
from bubbleviz.model.values import frozen

#: How often a task is submitted again because the workers that had it are silent or left.
_ATTEMPTS = 5


@frozen
class Task:
    """What a worker is to do.

    Attributes:
        place: what it is about, for messages.
        work: what to do.
        arguments: of the work.
        hosts: where it can be done; None for anywhere.
        attempts: its submissions that are under way; the first result counts.
    """

    place: str
    work: Callable[..., Any]
    arguments: tuple[object, ...]
    hosts: frozenset[str] | None
    attempts: list[Attempt] = field(default_factory=list)


class DaskTasks:
    """Has tasks done by the workers of a cluster."""

    def __init__(self, cluster: Cluster, pulses: Pulses) -> None:
        self._cluster, self._pulses = cluster, pulses

    def done(self, tasks: Iterable[Task], at_once: int | None = None) -> Iterator[tuple[int, Any]]:
        """Yield (number, result or ProfileError) of each task, in the order that they are done.

        Args:
            tasks: numbered from 0; each is asked for when it is submitted.
            at_once: how many are submitted at once; None for all.
        """
        waiting = enumerate(tasks)
        left: dict[int, Task] = {}
        while True:
            for number, task in islice(waiting, None if at_once is None else at_once - len(left)):
                left[number] = task
                self._submit(number, task, task.hosts)
            if not left:
                return
            numbers = {attempt: n for n, task in left.items() for attempt in task.attempts}
            done = self._cluster.finished(list(numbers), LOOK_S) if numbers else []
            for attempt in sorted(done, key=lambda a: numbers[a]):
                number = numbers[attempt]
                if number not in left:
                    continue
                task = left[number]
                if attempt.error is not None and len(task.attempts) > 1:
                    task.attempts.remove(attempt)
                    continue
                result = self._result(attempt, task.place)
                self._cluster.forget(task.attempts)
                del left[number]
                yield number, result
            if left and self._pulses.look():
                yield from self._resubmit_stuck(left)

    def _submit(self, number: int, task: Task, where: Collection[str] | None) -> None:
        arguments = (__version__, task.work, *task.arguments)
        task.attempts.append(
            self._cluster.submit(with_same_version, arguments, where, priority=-number)
        )

    def _resubmit_stuck(self, left: dict[int, Task]) -> Iterator[tuple[int, ProfileError]]:
        """Have done elsewhere what a silent worker has, and give up what nobody is left for."""
        living, silent, hosts = self._pulses.living(), self._pulses.silent(), self._pulses.hosts()
        stuck = self._cluster.keys_on(silent) if silent else set()
        for number, task in list(left.items()):
            able = {w for w in living if task.hosts is None or host_of(w) in task.hosts}
            lost = all(
                attempt.key in stuck or self._pulses.have_left(attempt.where)
                for attempt in task.attempts
            )
            recent = hosts if task.hosts is None else hosts & task.hosts
            if lost and able and len(task.attempts) < _ATTEMPTS:
                self._submit(number, task, able)
            elif (lost and able) or not recent:
                self._cluster.forget(task.attempts)
                del left[number]
                yield (
                    number,
                    ProfileError(
                        f"{task.place}: no worker that sees it is left, or answers; restart it and "
                        "run again"
                    ),
                )

    def _result(self, attempt: Attempt, place: str) -> Any:
        """Return the result of an attempt; the death of workers as an error of the file."""
        error = attempt.error
        if error is None:
            return attempt.result
        if isinstance(error, ProfileError):
            return error
        if isinstance(error, BubblevizError):
            raise error
        if isinstance(error, CancelledError) or not self._cluster.connected:
            raise self._cluster.gone(error) from error
        if lacks_bubbleviz(error):
            check_version(f"--dask: {NEWCOMER}", error)
        if type(error).__name__ == "KilledWorker":
            return ProfileError(
                f"{place}: every worker that read it died; if there was too little memory, start "
                "workers with more"
            )
        # Whatever else a worker raises must not lose the other files.
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return ProfileError(f"{place}: no worker could read it ({what})")
