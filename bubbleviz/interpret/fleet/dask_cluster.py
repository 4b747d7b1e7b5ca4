"""A Dask cluster of which every question has its limit of time.

The client of Dask runs in the event loop of another thread; a scheduler that dies or stops is one
sentence, soon.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, TypeVar

from bubbleviz.errors import InputError
from bubbleviz.model.files import read_bounded
from bubbleviz.model.values import frozen

#: ``distributed.Client``, which annotates little, and some of that for other uses.
Client: TypeAlias = Any
#: What was asked for, and its outcome once it is here.
Arrival: TypeAlias = "asyncio.Task[Any]"
T = TypeVar("T")

#: How long a scheduler may take for an answer, seconds.
PATIENCE_S = 7.0
#: How often to look who is alive, seconds.
LOOK_S = 1.0


@frozen(eq=False)
class Attempt:
    """One submission of a task.

    Attributes:
        arrival: ends when the outcome is here.
        key: of the task on the cluster.
        where: workers or hosts of which one is to do it; None for any.
        future: of Dask.
    """

    arrival: Arrival
    key: str
    where: Collection[str] | None
    future: Any


def error_of(arrival: Arrival) -> BaseException | None:
    """Return what was raised instead of a result; None where there is a result."""
    return CancelledError() if arrival.cancelled() else arrival.exception()


class _Call:
    """A call that is made where it is unpickled."""

    def __init__(self, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._call


class Cluster:
    """The scheduler and workers at an address; ``dask_connection.connected`` yields one."""

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop, client: Client) -> None:
        self.address = address
        self._loop, self._client = loop, client

    @property
    def connected(self) -> bool:
        """Whether the scheduler is there, as far as is known."""
        return bool(self._client.status == "running")

    def gone(self, error: BaseException) -> InputError:
        """Return the error of a scheduler that was there."""
        what = f"{type(error).__name__}"
        return InputError(
            f"--dask {self.address}: the scheduler has gone or no longer answers ({what}); start "
            "it and run again"
        )

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine in the loop.

        Raises:
            InputError: the scheduler does not answer.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except Exception as error:  # a lost connection shows in many ways, none of them ours
            raise self.gone(error) from error

    def pulses(self) -> dict[str, float]:
        """Return when each worker's heartbeat last reached the scheduler, by the latter's clock."""

        async def ask() -> Mapping[str, Any]:
            identity = await within(PATIENCE_S, self._client.scheduler.identity())
            workers: Mapping[str, Any] = identity["workers"]
            return workers

        workers = self._do(ask())
        return {worker: float(state.get("last_seen", 0)) for worker, state in workers.items()}

    def ask(
        self, workers: Iterable[str], function: Callable[..., object], *arguments: object
    ) -> dict[Arrival, str]:
        """Ask each worker what a function returns there; coroutines leave its event loop free.

        An error that it answers is a result; where it has left, an OSError is raised instead.
        """

        async def answer(worker: str) -> object:
            where = {"workers": [worker], "on_error": "return"}
            answers = await self._client.run(function, *arguments, **where)
            if isinstance(answers[worker], OSError):
                raise answers[worker]
            return answers[worker]

        async def begin() -> dict[Arrival, str]:
            return {asyncio.ensure_future(answer(worker)): worker for worker in workers}

        return self._do(begin())

    def scheduler_answer(self, function: Callable[..., object], *arguments: object) -> object:
        """Return what the scheduler itself answers, an error included.

        It may take its time as long as its event loop is free.

        Raises:
            InputError: the scheduler has gone or no longer answers.
        """

        async def ask() -> object:
            question = asyncio.ensure_future(self._client.run_on_scheduler(function, *arguments))
            try:
                while not (await asyncio.wait({question}, timeout=LOOK_S))[0]:
                    await within(PATIENCE_S, self._client.scheduler.identity())
            finally:
                question.cancel()
            try:
                return question.result()
            except OSError:
                raise
            except Exception as error:  # whatever it raises instead of an answer
                return error

        return self._do(ask())

    def keys_on(self, workers: Collection[str]) -> set[str]:
        """Return the keys of what some workers are doing, or have done and hold."""

        async def ask() -> set[str]:
            doing = await within(PATIENCE_S, self._client.processing(list(workers)))
            holding = await within(PATIENCE_S, self._client.has_what(list(workers)))
            return {str(key) for each in (doing, holding) for keys in each.values() for key in keys}

        return self._do(ask())

    def submit(
        self,
        work: Callable[..., Any],
        arguments: tuple[object, ...],
        where: Collection[str] | None,
        priority: int,
    ) -> Attempt:
        """Have a worker do something.

        Args:
            work: what to do; its result travels here as soon as it is done. The worker loads its
                module as a part of the task, so that its event loop, and its heartbeat, go on.
            arguments: of the work.
            where: workers or hosts of which one is to do it; None for any.
            priority: what has more is done first.
        """

        async def begin() -> Attempt:
            future = self._client.submit(
                pickle.loads,
                pickle.dumps(_Call(work, arguments)),
                workers=None if where is None else sorted(where),
                pure=False,
                priority=priority,
            )
            return Attempt(asyncio.ensure_future(_arrival(future)), str(future.key), where, future)

        return self._do(begin())

    def finished(self, arrivals: Collection[Arrival], patience_s: float) -> list[Arrival]:
        """Return what has arrived, as soon as there is something, within a time."""

        async def wait() -> list[Arrival]:
            await asyncio.wait(arrivals, timeout=patience_s, return_when="FIRST_COMPLETED")
            return [arrival for arrival in arrivals if arrival.done()]

        return self._do(wait())

    def forget(self, pending: Collection[Arrival | Attempt]) -> None:
        """Give up what is pending, and let the cluster drop the results of attempts."""

        async def release() -> None:
            for each in pending:
                if isinstance(each, Attempt):
                    each.arrival.cancel()
                    each.future.release()
                else:
                    each.cancel()

        self._do(release())


async def _arrival(future: Any) -> Any:
    return await future.result()


async def within(patience_s: float, answer: Awaitable[T]) -> T:
    """Wait for an answer, within a time.

    Raises:
        TimeoutError: there is none.
    """
    question = asyncio.ensure_future(answer)
    done, _ = await asyncio.wait({question}, timeout=patience_s)
    if not done:
        question.cancel()
        raise TimeoutError(f"no answer within {patience_s:g} s")
    return question.result()


# The connection to a Dask scheduler: its address, the client, and the event loop of that.
#
# The loop runs in a thread of its own, and what Dask would log is silent: a scheduler that does not
# answer, or never was one, is one sentence, soon.


#: How long the connection may take to close, seconds.
_CLOSING_S = 1.0
#: Loggers that would print tracebacks of what becomes one sentence here.
_LOGGERS = ("distributed", "tornado")
#: A scheduler file holds an address and what the workers are; any is smaller.
_MOST_BYTES = 64 << 20
_GIVE = "give the address of a scheduler, such as tcp://HOST:8786, or its scheduler file (.json)"


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Yield the cluster at an address.

    Args:
        address: of the scheduler, or the path of its scheduler file.

    Raises:
        InputError: there is no scheduler, or no Dask here.
    """
    try:
        import distributed  # noqa: F401  # all that it shows is whether it is there
    except ImportError as error:
        raise InputError(
            "--dask needs Dask, which is not installed; install it with: pip install "
            "'bubbleviz[dask]'"
        ) from error
    place = _address_in(address) if address.endswith(".json") else address
    _check_address(address, place)
    with _quiet_loggers(), _large_arguments(), _loop() as loop:
        try:
            connection = asyncio.run_coroutine_threadsafe(_client_of(place), loop)
            client = connection.result()
        except Exception as error:  # what Dask raises depends on what answers there
            raise InputError(
                f"--dask {address}: no scheduler answers there ({_reason(error)}); {_GIVE} of one "
                "that runs"
            ) from error
        try:
            yield Cluster(address, loop, client)
        finally:
            with suppress(Exception):  # of a connection that is lost already
                closing = within(_CLOSING_S, client.close(timeout=_CLOSING_S))
                asyncio.run_coroutine_threadsafe(closing, loop).result()


async def _client_of(place: str) -> Client:
    """Return a client of the scheduler at an address.

    Raises:
        Exception: none answers.
    """
    import distributed

    client: Client = distributed.Client(  # type: ignore[no-untyped-call]  # as said above
        place, timeout=PATIENCE_S, set_as_default=False, asynchronous=True
    )
    try:
        started: Client = await within(PATIENCE_S, client)
        identity = await within(PATIENCE_S, started.scheduler.identity())
        if "workers" not in identity:
            raise ValueError(f"a {identity.get('type', 'server')} of Dask does")
    except BaseException:
        with suppress(Exception):
            await within(_CLOSING_S, client.close(timeout=_CLOSING_S))
        raise
    return started


def _reason(error: BaseException) -> str:
    """Return why no scheduler answers, in a few words."""
    if isinstance(error, MemoryError):  # the length that its first bytes would be
        return "what answers speaks another protocol"
    if isinstance(error, TypeError) and "ssl_context" in str(error):
        return "Dask's configuration here, distributed.comm.tls, names no certificates"
    return " ".join(str(error).split())[:200] or type(error).__name__


def _check_address(address: str, place: str) -> None:
    """Raise InputError unless an address names a host and a port of a known protocol."""
    from distributed.comm.addressing import get_address_host_port, parse_address

    try:
        scheme, _ = parse_address(place)
        host, port = get_address_host_port(place)
        sound = scheme != "inproc" and bool(host.strip()) and 0 < port < 1 << 16
        # What no resolver takes: labels that are empty or too long, and characters out of place.
        sound = sound and host.isprintable() and bool(host.encode("idna"))
    except Exception:  # protocols refuse what they do not understand in ways of their own
        sound = False
    if not sound:
        source = "" if place == address else f"its address {place!r} "
        raise InputError(
            f"--dask {address}: {source}is no address of a Dask scheduler; {_GIVE}"
        ) from None


def _address_in(file: str) -> str:
    """Return the address that a scheduler file holds.

    Raises:
        InputError: it is none.
    """
    hint = "give the one that dask scheduler --scheduler-file wrote"
    content = read_bounded(file, _MOST_BYTES, "a scheduler file", hint)
    try:
        return str(json.loads(content)["address"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"--dask {file}: is no scheduler file that can be read ({type(error).__name__}); {hint}"
        ) from error


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Silence what would be logged; the report, or an error, has all of it.

    Dask itself stays silent, as it logs what the garbage collector does afterwards.
    """
    # Dask gives loggers below these levels of their own.
    names = [
        n for n in (*_LOGGERS, *logging.root.manager.loggerDict) if n.split(".")[0] in _LOGGERS
    ]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            if not name.startswith("distributed"):
                logging.getLogger(name).setLevel(level)


@contextmanager
def _large_arguments() -> Iterator[None]:
    """Have Dask take arguments of megabytes without a warning; few are on their way at a time."""
    import dask

    with dask.config.set({"distributed.admin.large-graph-warning-threshold": 1 << 60}):
        yield


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield an event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    # It would print the errors of what nobody waits for any more.
    loop.set_exception_handler(lambda *_: None)
    thread = threading.Thread(target=loop.run_forever, name="bubbleviz-dask", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result(2 * _CLOSING_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSING_S)
        if not thread.is_alive():
            loop.close()


async def _end_tasks() -> None:
    """Cancel all that the loop still does, as what is pending when it closes is logged."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending, timeout=_CLOSING_S)
