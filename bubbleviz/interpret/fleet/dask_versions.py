"""The version of bubbleviz on each Dask worker, which must be that of this process."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable
from pkgutil import resolve_name
from time import monotonic
from typing import TypeVar

from bubbleviz._version import __version__
from bubbleviz.errors import InputError, MismatchError
from bubbleviz.interpret.fleet.dask_cluster import LOOK_S, Cluster
from bubbleviz.interpret.fleet.dask_pulses import Pulses

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
