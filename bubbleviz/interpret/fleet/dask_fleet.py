"""A fleet of Dask workers: profiles are read where they are, also beyond this machine.

``bubbleviz[dask]`` installs what this needs; nothing else loads it. Every worker needs the same
version of bubbleviz. A worker that dies has its files done again by another one that sees them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bubbleviz._version import __version__
from bubbleviz.errors import BubblevizError, InputError, MismatchError, ProfileError
from bubbleviz.interpret.fleet.fleet import Glance, Outcome, digest, glance, outcome_of
from bubbleviz.interpret.record import ReadOptions, renamed
from bubbleviz.model.natural_order import natural_key
from bubbleviz.progress import Progress
from bubbleviz.sources.paths import InputFile, find_profiles

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")

#: How often to look whether something is done that was not reported.
_LOOK_S = 1.0
#: How long to wait for a scheduler, and for a worker to come back that alone sees a file.
_PATIENCE_S = 30.0


@contextmanager
def dask_fleet(address: str) -> Iterator[DaskFleet]:
    """Yield a fleet of the workers of a cluster.

    Args:
        address: of the scheduler, or the path of its scheduler file.

    Raises:
        InputError: there is no scheduler, no worker, or no Dask here.
        MismatchError: a worker has another version of bubbleviz.
    """
    with _client(address) as client, _in_touch(address):
        versions = client.run(_version)
        if not versions:
            raise InputError(f"--dask {address}: the cluster has no worker; start some first")
        for worker, version in sorted(versions.items()):
            if version != __version__:
                raise MismatchError(
                    f"--dask {address}: worker {worker} has bubbleviz {version}, not "
                    f"{__version__}; install the same version everywhere"
                )
        yield DaskFleet(client)


@contextmanager
def _client(address: str) -> Iterator[Client]:
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError(
            "--dask needs Dask, which is not installed; install it with: pip install "
            "'bubbleviz[dask]'"
        ) from error
    # The report, or an error, has all that it would log.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    where = {"address": _address_in(address) if address.endswith(".json") else address}
    try:
        client = Client(  # type: ignore[no-untyped-call]  # distributed annotates little
            timeout=_PATIENCE_S, set_as_default=False, **where
        )
    except Exception as error:  # what Dask raises for an address depends on what is wrong with it
        raise InputError(
            f"--dask {address}: no scheduler answers there ({error}); give the address or the "
            "scheduler file (.json) of one that runs"
        ) from error
    with client:
        yield client


def _address_in(file: str) -> str:
    """Return the address that a scheduler file holds.

    Raises:
        InputError: it is none.
    """
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        return str(content["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--dask {file}: is no scheduler file that can be read ({type(error).__name__}); give "
            "the one that dask scheduler --scheduler-file wrote"
        ) from error


@contextmanager
def _in_touch(address: str) -> Iterator[None]:
    """Turn what is raised where the scheduler goes away into one sentence."""
    try:
        yield
    except (OSError, CancelledError, TimeoutError, asyncio.TimeoutError) as error:
        raise InputError(
            f"--dask {address}: the scheduler has gone ({type(error).__name__}); start it and run "
            "again"
        ) from error


def _version() -> str:
    return __version__


@dataclass(frozen=True)
class _Sighting:
    """A file that one host sees, with what tells whether another one sees the same."""

    file: InputFile
    size: int
    changed_ns: int


def _sightings(paths: Sequence[str]) -> list[list[_Sighting] | str]:
    """Return the files of each path on this host, or why there are none."""
    return [_sightings_of(path) for path in paths]


def _sightings_of(path: str) -> list[_Sighting] | str:
    try:
        files = find_profiles([path])
        stats = [Path(file.path).stat() for file in files]
    except (BubblevizError, OSError) as error:
        return str(error)
    return [_Sighting(f, s.st_size, s.st_mtime_ns) for f, s in zip(files, stats, strict=True)]


def _outcome(path: str, shown: str, how: ReadOptions) -> Outcome:
    outcome = outcome_of(path, how)
    if isinstance(outcome, ProfileError):
        return type(outcome)(str(outcome).replace(path, shown))
    return replace(outcome, recording=renamed(outcome.recording, path, shown))


class DaskFleet:
    """The workers of a cluster; each file is read on a host that sees it."""

    strict = False

    def __init__(self, client: Client) -> None:
        self._client = client
        self._hosts: dict[str, set[str]] = {}

    def _workers(self) -> dict[str, str]:
        """Return a worker of each host that is there."""
        workers = sorted(self._client.nthreads())  # type: ignore[no-untyped-call]  # as above
        return {_host_of(worker): worker for worker in workers}

    def find(self, paths: Sequence[str]) -> tuple[InputFile, ...]:
        """Return the files that paths stand for on the hosts of the workers.

        Raises:
            InputError: a path leads to no profile on any of them.
            MismatchError: two hosts have different files under one path.
        """
        by_host = self._workers()
        # Workers run in directories of their own.
        there = [_absolute(path) for path in paths]
        answers = self._client.run(_sightings, there, workers=list(by_host.values()))
        files: list[InputFile] = []
        for number, path in enumerate(paths):
            seen: dict[str, _Sighting] = {}
            why = ""
            for host, worker in sorted(by_host.items()):
                answer = answers[worker][number]
                if isinstance(answer, str):
                    why = answer
                    continue
                for sighting in answer:
                    self._see(host, sighting, seen)
            if not seen:
                raise InputError(f"{why} (no worker sees it)" if why else f"{path}: not found")
            files.extend(
                replace(seen[name].file, path=_as_given(name, path))
                for name in sorted(seen, key=natural_key)
            )
        return tuple(files)

    def _see(self, host: str, sighting: _Sighting, seen: dict[str, _Sighting]) -> None:
        path = sighting.file.path
        first = seen.setdefault(path, sighting)
        if (first.size, first.changed_ns) != (sighting.size, sighting.changed_ns):
            others = ", ".join(sorted(self._hosts[path]))
            raise MismatchError(
                f"{path}: is another file on host {host} than on {others}; give each file a "
                "name of its own"
            )
        self._hosts.setdefault(path, set()).add(host)

    def glances(self, paths: Sequence[str]) -> list[Glance | ProfileError]:
        """Return the glance of each file, or why there is none."""
        return self._all(glance, paths)

    def digests(self, paths: Sequence[str]) -> list[bytes | ProfileError]:
        """Return the digest of each file, or why there is none."""
        return self._all(digest, paths)

    def _all(self, work: Callable[[str], T], paths: Sequence[str]) -> list[T | ProfileError]:
        results: dict[int, T | ProfileError] = dict(self._done(work, paths))
        return [results[number] for number in range(len(paths))]

    def record(
        self, paths: Sequence[str], how: ReadOptions, progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield (number of the path, outcome), in the order in which they are done."""
        for number, outcome in self._done(
            _outcome, paths, paths, [replace(how, jobs=1)] * len(paths)
        ):
            progress.read(paths[number], 1.0)
            yield number, outcome

    def _done(
        self, work: Callable[..., Any], paths: Sequence[str], *given: Sequence[object]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (number, result) of work on each path, and what is given for each beside it."""
        hosts = set(self._workers())
        left = {}
        for number, path in enumerate(paths):
            where = self._hosts.get(_absolute(path), hosts)
            only = None if where >= hosts else sorted(where)
            future = self._client.submit(
                work,
                _absolute(path),
                *(arguments[number] for arguments in given),
                workers=only,
                pure=False,
                priority=-number,
            )
            left[future] = number
        waited = 0.0
        while left:
            done = self._finished(list(left))
            waited = 0.0 if done else waited + _LOOK_S
            for future in sorted(done, key=lambda f: left[f]):
                number = left.pop(future)
                yield number, _result(future, paths[number])
                future.release()
            if waited >= _PATIENCE_S:
                yield from self._given_up(left, paths)

    def _finished(self, futures: list[Any]) -> set[Any]:
        """Return those that are done, after a little while at most."""
        from distributed import wait

        try:
            with self._client.as_current():
                finished: set[Any] = wait(  # type: ignore[no-untyped-call]  # as above
                    futures, timeout=_LOOK_S, return_when="FIRST_COMPLETED"
                ).done
        except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
            return set()
        return finished

    def _given_up(
        self, left: dict[Any, int], paths: Sequence[str]
    ) -> Iterator[tuple[int, ProfileError]]:
        """Yield and forget what no worker is left for."""
        there = set(self._workers())
        for future, number in list(left.items()):
            where = self._hosts.get(_absolute(paths[number]), there)
            if not where & there:
                del left[future]
                future.cancel()
                yield number, ProfileError(f"{paths[number]}: no worker that sees it is left")


def _absolute(path: str) -> str:
    return str(Path.cwd() / path) if path else path


def _as_given(found: str, given: str) -> str:
    """Return the path of a file as it would be found here: relative, if it was so given."""
    return found if Path(given).is_absolute() else str(Path(found).relative_to(Path.cwd()))


def _host_of(worker: str) -> str:
    """Return the host in a worker's address (``tcp://10.0.0.1:40000``, ``tcp://[::1]:40000``)."""
    return worker.partition("://")[2].rpartition(":")[0].strip("[]")


def _result(future: Any, path: str) -> Any:
    """Return the result of a worker; its error or its death as an error of the file."""
    try:
        return future.result()
    except ProfileError as error:
        return error
    except CancelledError:
        raise
    except Exception as error:  # whatever a worker raises must not lose the other files
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return ProfileError(f"{path}: no worker could read it ({what})")
