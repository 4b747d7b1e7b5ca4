"""A Dask cluster of which every question has its limit of time.

The client of Dask runs in the event loop of another thread; a scheduler that dies or stops is one
sentence, soon.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from typing import Any, TypeAlias, TypeVar

from bubbleviz.errors import InputError
from bubbleviz.model.values import frozen

#: ``distributed.Client``, which annotates little, and some of that for other uses.
Client: TypeAlias = Any
T = TypeVar("T")

#: How long a scheduler may take for an answer, seconds.
PATIENCE_S = 7.0
#: How often to look who is alive, seconds.
LOOK_S = 1.0


@frozen(eq=False)
class Pending:
    """Something asked of a worker, and its outcome as it comes in.

    Attributes:
        arrival: ends when the outcome is here.
    """

    arrival: asyncio.Task[Any]

    @property
    def error(self) -> BaseException | None:
        """What was raised instead of a result; None where there is a result."""
        if self.arrival.cancelled():
            return CancelledError()
        return self.arrival.exception()

    @property
    def result(self) -> Any:
        """The result."""
        return self.arrival.result()


@frozen(eq=False)
class Attempt(Pending):
    """One submission of a task.

    Attributes:
        key: of the task on the cluster.
        where: workers or hosts of which one is to do it; None for any.
        future: of Dask.
    """

    key: str
    where: Collection[str] | None
    future: Any


@frozen(eq=False)
class Question(Pending):
    """A question to one worker; an error that it answers is a result.

    Attributes:
        worker: that is asked.
    """

    worker: str


P = TypeVar("P", bound=Pending)


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
    ) -> list[Question]:
        """Ask each worker what a function returns there; coroutines leave its event loop free."""

        async def begin() -> list[Question]:
            return [
                Question(asyncio.ensure_future(self._answer(worker, function, arguments)), worker)
                for worker in workers
            ]

        return self._do(begin())

    async def _answer(
        self, worker: str, function: Callable[..., object], arguments: tuple[object, ...]
    ) -> object:
        """Return what a worker answers, or the error that it answers.

        Raises:
            OSError: it has left.
        """
        answers = await self._client.run(function, *arguments, workers=[worker], on_error="return")
        answer: object = answers[worker]
        if isinstance(answer, OSError):
            raise answer
        return answer

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

    def finished(self, pending: Collection[P], patience_s: float) -> list[P]:
        """Return what has arrived, as soon as there is something, within a time."""

        async def wait() -> list[P]:
            arrivals = [each.arrival for each in pending]
            await asyncio.wait(arrivals, timeout=patience_s, return_when="FIRST_COMPLETED")
            return [each for each in pending if each.arrival.done()]

        return self._do(wait())

    def forget(self, pending: Collection[Pending]) -> None:
        """Give up what is pending, and let the cluster drop the results of attempts."""

        async def release() -> None:
            for each in pending:
                each.arrival.cancel()
                if isinstance(each, Attempt):
                    each.future.release()

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
