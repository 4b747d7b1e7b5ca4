"""Ranges with names of bubbleviz's own convention, for every active recorder."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from bubbleviz.annotate.distributed import numbers_in_torch
from bubbleviz.annotate.recorder import Recorder
from bubbleviz.errors import UsageError

if TYPE_CHECKING:
    from bubbleviz.annotate.recorder import Recorder


class Recorders:
    """The recorders of this process: NVTX for Nsight Systems, PyTorch's profiler, and files.

    They are looked up when the first range opens after PyTorch is loaded. NVTX is called through
    PyTorch if PyTorch was built for GPUs, else through the package ``nvtx`` if it is installed.
    PyTorch's profiler gets a range while it records. Without a recorder, a range checks whether
    PyTorch's profiler is on, and calls NVTX, which returns at once in a process without a tool.

    PyTorch is never imported from here: a script that has not loaded it records nothing with it.
    """

    def __init__(self) -> None:
        self._push: Callable[[str], object] | None = None
        self._pop: Callable[[], object] | None = None
        self._profiling: Callable[[], bool] = bool
        self._record: Callable[[str], Any] | None = None
        self._settled = False
        #: The number of the next iteration that is given none; they count from 0 in a process.
        self.next_iteration = 0
        #: Writes files; see :mod:`bubbleviz.annotate.recorder`.
        self.recorder: Recorder | None = None

    def open(
        self, name: str, *, iteration: int | None = None, launches: bool = False
    ) -> tuple[Any, ...]:
        """Open a range on this thread, and return the handle that :meth:`close` takes.

        Args:
            name: of the range.
            iteration: number of the iteration that it is; None for an operation.
            launches: whether it only starts transfers.
        """
        if not self._settled:
            self._settle()
        ends: list[Callable[[], object]] = []
        if self._push is not None and self._pop is not None:
            try:
                self._push(name)
                ends.append(self._pop)
            except RuntimeError:
                # PyTorch without NVTX raises when it is called, not before.
                self._push, self._pop = _of_package()
        if self._profiling() and self._record is not None:
            recorded = self._record(name)
            recorded.__enter__()
            ends.append(functools.partial(recorded.__exit__, None, None, None))
        if self.recorder is not None:
            opened = self.recorder.open(name, launches=launches, iteration=iteration)
            ends.append(functools.partial(self.recorder.close, opened))
        return tuple(ends)

    def close(self, opened: tuple[Any, ...]) -> None:
        """Close a range on the thread that opened it."""
        for end in reversed(opened):
            end()

    def _settle(self) -> None:
        """Look for PyTorch and NVTX among the modules that the script has loaded."""
        torch: Any = sys.modules.get("torch")
        # It may be loaded, or finish loading, later.
        self._settled = hasattr(torch, "profiler") and hasattr(getattr(torch, "cuda", 0), "nvtx")
        if self._settled and (torch.version.cuda or torch.version.hip):
            self._push, self._pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
        else:
            self._push, self._pop = _of_package()
        if self._settled:
            self._profiling = _profiler_check(torch)
            self._record = torch.profiler.record_function


@functools.cache
def _of_package() -> tuple[Callable[[str], object] | None, Callable[[], object] | None]:
    """Return push and pop of the package ``nvtx``, where it is installed."""
    try:
        nvtx = importlib.import_module("nvtx")
    except ImportError:
        return None, None
    push, pop = getattr(nvtx, "push_range", None), getattr(nvtx, "pop_range", None)
    return (push, pop) if push and pop else (None, None)


def _profiler_check(torch: Any) -> Callable[[], bool]:
    """Return a function that checks whether PyTorch's profiler records on this thread.

    Under ``emit_nvtx`` it does not: its records go to NVTX, where the range is anyway.
    """
    autograd = torch.autograd
    enabled: Callable[[], bool] = autograd._profiler_enabled
    kind = getattr(torch._C._autograd, "_profiler_type", None)
    if kind is None:
        return enabled
    to_nvtx = torch._C._profiler.ActiveProfilerType.NVTX
    return lambda: enabled() and kind() != to_nvtx


#: The phases of bubbleviz/model/phases.py, without the import; a test keeps them equal.
PHASES = (
    *("F", "B", "W", "BW", "R", "FB", "Optimizer"),
    *("SEND_F", "RECV_F", "SEND_B", "RECV_B", "SEND_RECV", "COLLECTIVE"),
)
_PREFIX, _ITERATION = "bubbleviz:", "iteration"
_WORDS = ("mb", "chunk", "stage", "sequence", "mb2", "chunk2", "stage2")
_F = TypeVar("_F", bound=Callable[..., Any])


_recorders = Recorders()


def attach(recorder: Recorder | None) -> Recorder | None:
    """Give all ranges to a recorder of files, too; return the one before, which gets no more."""
    before, _recorders.recorder = _recorders.recorder, recorder
    return before


def current_recorder() -> Recorder | None:
    """Return the recorder of files that gets all ranges, or None if nothing is recorded."""
    return _recorders.recorder


def recorded_from_now(name: str) -> Callable[[], None] | None:
    """Begin an operation that another thread may end, by what this returns; only files have it."""
    recorder = _recorders.recorder
    if recorder is None:
        return None
    return functools.partial(recorder.close, recorder.open(name, launches=False, iteration=None))


class Range:
    """A range: a context manager, and a decorator of functions that run inside it.

    The same range may be entered again, in one thread at a time; a decorated function opens a range
    for each call. Of iterations and optimizer steps only the outermost is recorded in each thread:
    a script may name its whole optimizer step around ranges that a wrapper opens in it.

    Args:
        name: recorded name.
        launches: whether transfers only start in it: when they end, nothing here shows.
        kind: of which only the outermost counts; "" where each does.
        number: of an iteration; None where it is counted.

    Attributes:
        name: recorded name; of an iteration once it is entered.
    """

    __slots__ = ("_kind", "_launches", "_number", "_opened", "name")
    _depth = threading.local()

    def __init__(
        self, name: str, *, launches: bool = False, kind: str = "", number: int | None = None
    ) -> None:
        self.name, self._launches, self._kind, self._number = name, launches, kind, number
        self._opened: list[tuple[Any, ...]] = []

    def __enter__(self) -> Range:
        if not self._kind:
            self._opened.append(_recorders.open(self.name, launches=self._launches))
            return self
        depth = getattr(self._depth, self._kind, 0)
        setattr(self._depth, self._kind, depth + 1)
        if depth:
            self._opened.append(())
        elif self._kind != _ITERATION:
            self._opened.append(_recorders.open(self.name))
        else:
            numbers = numbers_in_torch()
            of_rank = "" if numbers is None else f" rank={numbers[0]}"
            number = _recorders.next_iteration if self._number is None else self._number
            _recorders.next_iteration = number + 1
            self.name = f"{_PREFIX}iteration {number}{of_rank}"
            self._opened.append(_recorders.open(self.name, iteration=number))
        return self

    def __exit__(self, *_: object) -> None:
        if self._kind:
            setattr(self._depth, self._kind, getattr(self._depth, self._kind) - 1)
        if opened := self._opened.pop():
            _recorders.close(opened)

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
            # Calls may run beside each other.
            again = Range(self.name, launches=self._launches, kind=self._kind, number=self._number)
            with again:
                return function(*args, **kwargs)

        return ranged  # type: ignore[return-value]  # it has the signature of the function


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
    return Range(text, kind=name if name == "Optimizer" else "")


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
    return Range(
        "", kind=_ITERATION, number=None if number is None else _checked("iteration", number)
    )


@contextmanager
def step(number: int | None = None) -> Iterator[None]:
    """Return a range for a training step that one call runs: ``with annotate.step(): ...``.

    Its forward and its backward, of one stage, cannot be told apart. A program that returns before
    it has run, as JAX's do, ends in it: ``jax.block_until_ready(train_step(state))``.

    Args:
        number: of the iteration, which it is; counted from 0 where none is given.

    Raises:
        UsageError: it is not a valid number.
    """
    whole = {"second_microbatch": 0, "second_chunk": 0, "second_stage": 0}
    with iteration(number), phase("FB", microbatch=0, chunk=0, stage=0, **whole):
        yield
