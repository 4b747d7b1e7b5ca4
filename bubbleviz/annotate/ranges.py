"""Ranges with names of bubbleviz's own convention, for every active recorder."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from bubbleviz.annotate.distributed import numbers_in_torch
from bubbleviz.annotate.recorders import Recorders
from bubbleviz.errors import UsageError

if TYPE_CHECKING:
    from bubbleviz.annotate.recording.recorder import Recorder

#: The phases of bubbleviz/model/phases.py, without the import; a test keeps them equal.
PHASES = (
    *("F", "B", "W", "BW", "R", "FB", "Optimizer"),
    *("SEND_F", "RECV_F", "SEND_B", "RECV_B", "SEND_RECV", "COLLECTIVE"),
)
_PREFIX = "bubbleviz:"
_WORDS = ("mb", "chunk", "stage", "sequence", "mb2", "chunk2", "stage2")
_F = TypeVar("_F", bound=Callable[..., Any])


_recorders = Recorders()


def record_with(recorder: Recorder | None) -> None:
    """Give all ranges to a recorder of files, too, and stop the one before; None for none."""
    before = _recorders.recorder
    attach(recorder)
    if before is not None and before is not recorder:
        before.stop()


def attach(recorder: Recorder | None) -> None:
    """Give all ranges to a recorder of files, too; the one before gets no more, and goes on."""
    _recorders.recorder = recorder


def recorder_of_files() -> Recorder | None:
    """Return the recorder of files that all ranges are given to; None for none."""
    return _recorders.recorder


class Range:
    """A range: a context manager, and a decorator of functions that run inside it.

    The same range may be entered again, in one thread at a time; a decorated function opens a range
    for each call.

    Attributes:
        name: recorded name.
    """

    __slots__ = ("_opened", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._opened: list[tuple[Any, ...]] = []

    def __enter__(self) -> Range:
        self._opened.append(self._recorded())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _recorders.close(self._opened.pop())

    def __call__(self, function: _F) -> _F:
        """Return the function inside this range, one for each call.

        Raises:
            UsageError: it runs after it returns, as generators and coroutines do.
        """
        code = getattr(getattr(function, "__code__", None), "co_flags", 0)
        if code & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise UsageError(
                f"annotate: {function.__qualname__} is a generator or a coroutine, which runs "
                "after the call; use with annotate.phase(...) inside it"
            )

        @functools.wraps(function)
        def ranged(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return ranged  # type: ignore[return-value]  # it has the signature of the function

    def _recorded(self) -> tuple[Any, ...]:
        """Open the range with every recorder, and return what closes it."""
        return _recorders.open(self.name)

    def _again(self) -> Range:
        """Return a range like this one, for a call that may run beside others."""
        return type(self)(self.name)


class Launch(Range):
    """A range in which transfers only start: when they end, nothing here shows."""

    __slots__ = ()

    def _recorded(self) -> tuple[Any, ...]:
        return _recorders.open(self.name, launches=True)


class Outermost(Range):
    """A range of which only the outermost of its kind is recorded, in each thread.

    A script may name its whole optimizer step around ranges that a wrapper opens in it.
    """

    __slots__ = ("_kind",)
    _open = threading.local()

    def __init__(self, name: str, kind: str | None = None) -> None:
        super().__init__(name)
        self._kind = kind or name

    def __enter__(self) -> Outermost:
        depth = getattr(self._open, self._kind, 0)
        setattr(self._open, self._kind, depth + 1)
        self._opened.append(() if depth else self._recorded())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        setattr(self._open, self._kind, getattr(self._open, self._kind) - 1)
        opened = self._opened.pop()
        if opened:
            _recorders.close(opened)

    def _again(self) -> Outermost:
        return type(self)(self.name, self._kind)


class _IterationRange(Outermost):
    """An iteration, numbered when it opens unless a number is given."""

    __slots__ = ("_number", "_taken")

    def __init__(self, number: int | None) -> None:
        super().__init__("", "iteration")
        self._number, self._taken = number, 0

    def __enter__(self) -> _IterationRange:
        if not getattr(self._open, self._kind, 0):
            numbers = numbers_in_torch()
            of_rank = "" if numbers is None else f" rank={numbers[0]}"
            self._taken = _iterations.take(self._number)
            self.name = f"{_PREFIX}iteration {self._taken}{of_rank}"
        super().__enter__()
        return self

    def _recorded(self) -> tuple[Any, ...]:
        return _recorders.open(self.name, iteration=self._taken)

    def _again(self) -> _IterationRange:
        return type(self)(self._number)


class _Iterations:
    """The numbers of iterations, counted from 0 in a process."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, number: int | None) -> int:
        """Return the number of an iteration that begins; the next one continues from it."""
        taken = self._next if number is None else number
        self._next = taken + 1
        return taken


_iterations = _Iterations()


def phase(
    name: str,
    *,
    microbatch: int | None = None,
    chunk: int | None = None,
    stage: int | None = None,
    sequence: int | None = None,
    second_microbatch: int | None = None,
    second_chunk: int | None = None,
    second_stage: int | None = None,
) -> Range:
    """Return a range for an operation: ``with annotate.phase("F", microbatch=3, chunk=0): ...``.

    Args:
        name: F, B (for the input alone), W, BW (both), R (recompute), FB (a forward and a backward
            overlapped), Optimizer, SEND_F, RECV_F, SEND_B, RECV_B, SEND_RECV or COLLECTIVE.
        microbatch: counted from 0 in each iteration; where none is given it is counted by order.
        chunk: which of the rank's model chunks, in the model's order; not needed with one.
        stage: virtual stage, where it is known; it determines the chunk and the order of ranks.
        sequence: which part of a split sequence.
        second_microbatch: of the second of two operations under one name (FB, SEND_RECV).
        second_chunk: likewise.
        second_stage: likewise.

    Raises:
        UsageError: there is no such phase, or a number is not valid.
    """
    numbers = (microbatch, chunk, stage, sequence, second_microbatch, second_chunk, second_stage)
    try:
        text = name_of(name, *numbers)
    except TypeError as error:
        raise UsageError(f"annotate.phase({name!r}): numbers must be whole ({error})") from error
    return Outermost(text, name) if name == "Optimizer" else Range(text)


@functools.lru_cache(maxsize=1 << 14)
def name_of(phase: str, *numbers: int | None) -> str:
    """Return the name of an operation's range; numbers are those of :func:`phase`, in its order.

    Raises:
        UsageError: there is no such phase, or a number is not valid.
    """
    if phase not in PHASES:
        raise UsageError(f"annotate.phase({phase!r}): the phases are {', '.join(PHASES)}")
    pairs = [(word, n) for word, n in zip(_WORDS, numbers, strict=False) if n is not None]
    return _PREFIX + " ".join((phase, *(f"{word}={_checked(word, n)}" for word, n in pairs)))


def _checked(word: str, number: object) -> int:
    """Return a number that a name can hold.

    Raises:
        UsageError: it cannot.
    """
    try:
        whole = int(number.__index__())  # type: ignore[attr-defined]  # an error reports its absence
    except (AttributeError, TypeError):
        whole = -1
    if not 0 <= whole < 10**9:
        raise UsageError(f"annotate: {word}={number!r} must be a number from 0 to 999,999,999")
    return whole


def iteration(number: int | None = None) -> Range:
    """Return a range for an iteration: ``with annotate.iteration(step): ...``.

    Iterations that a framework's wrapper would open inside it are not recorded. Work after it (an
    optimizer step) belongs to it too, until a forward begins.

    Args:
        number: the same on all ranks; counted from 0 where none is given.

    Raises:
        UsageError: it is not a valid number.
    """
    return _IterationRange(None if number is None else _checked("iteration", number))
