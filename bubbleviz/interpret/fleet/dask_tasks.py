"""Tasks of a Dask cluster: what a worker was to do that dies, or is silent, another one does."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import field
from itertools import islice
from pkgutil import resolve_name
from time import monotonic
from typing import Any, TypeVar

from bubbleviz._version import __version__
from bubbleviz.errors import BubblevizError, InputError, MismatchError, ProfileError
from bubbleviz.interpret.fleet.dask_cluster import LOOK_S, Attempt, Cluster
from bubbleviz.model.values import frozen

# Heartbeats of Dask workers, which distinguish a frozen worker from a busy one.


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


# The version of bubbleviz on each Dask worker, which must be that of this process.


T = TypeVar("T")

#: How long a worker may take to answer at all, seconds.
_ANSWER_S = 5.0
#: How long a worker with a heartbeat may take to load bubbleviz, seconds.
_LOADING_S = 120.0
#: The question for the version; a thread loads bubbleviz, so that the heartbeat goes on.
_VERSION = (
    asyncio.to_thread,
    resolve_name,
    "bubbleviz.interpret.fleet.dask_fleet:DaskFleet.version",
)
NEWCOMER = "a worker that joined during the run"


def answering_workers(cluster: Cluster) -> set[str]:
    """Return the workers that answer.

    Raises:
        InputError: there is none.
        MismatchError: the scheduler or a worker has another version of bubbleviz, or none.
    """
    workers = cluster.pulses()
    if not workers:
        raise InputError(f"--dask {cluster.address}: the cluster has no worker; start some first")
    pulses = Pulses(cluster, set(workers))
    alive = _answers(cluster, pulses, workers, _ANSWER_S, platform.python_version)
    # A worker that answers at once may yet need a while to load bubbleviz for the first time.
    versions = _answers(cluster, pulses, alive, _LOADING_S, *_VERSION)
    if not versions:
        raise InputError(
            f"--dask {cluster.address}: no worker of {len(workers)} answers; restart them and run "
            "again"
        )
    for worker, version in sorted(versions.items()):
        check_version(f"--dask {cluster.address}: worker {worker}", version)
    check_version(f"--dask {cluster.address}: the scheduler", cluster.scheduler_answer(*_VERSION))
    return set(versions)


def _answers(
    cluster: Cluster,
    pulses: Pulses,
    workers: Iterable[str],
    patience_s: float,
    function: Callable[..., object],
    *arguments: object,
) -> dict[str, object]:
    """Return what each worker answers, an error included.

    Left out are those that do not answer in time, and those that leave or freeze meanwhile.
    """
    waiting = cluster.ask(workers, function, *arguments)
    answers: dict[str, object] = {}
    deadline = monotonic() + patience_s
    while waiting and monotonic() < deadline:
        for question in cluster.finished(waiting, min(LOOK_S, patience_s)):
            waiting.remove(question)
            if question.error is None:  # it has not left
                answers[question.worker] = question.result
        if pulses.look():
            cluster.forget([question for question in waiting if not pulses.lives(question.worker)])
    cluster.forget(waiting)
    return answers


def check_version(who: str, answer: object) -> None:
    """Raise MismatchError unless the answer is the version that runs here."""
    if answer == __version__:
        return
    if isinstance(answer, BaseException):
        reason = " ".join(str(answer).split())[:200]
        missing = lacks_bubbleviz(answer)
        has = "has no bubbleviz" if missing else f"cannot load its bubbleviz ({reason})"
    else:
        has = f"has bubbleviz {answer}"
    raise MismatchError(f"{who} {has}, not {__version__}; install the same version everywhere")


def lacks_bubbleviz(error: BaseException) -> bool:
    """Tell whether a worker's error is that it has no bubbleviz."""
    # Dask quotes the error of an import in the text of its own.
    return "No module named 'bubbleviz'" in str(error)


def with_same_version(version: str, work: Callable[..., T], *arguments: object) -> T:
    """Do some work, on a worker that may have joined after all versions were compared."""
    if version != __version__:
        raise MismatchError(
            f"--dask: {NEWCOMER} has bubbleviz {__version__}, not {version}; install the same "
            "version everywhere"
        )
    return work(*arguments)


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
