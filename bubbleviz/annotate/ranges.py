"""Ranges with names of bubbleviz's own convention, for every active recorder."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bubbleviz.annotate.distributed import numbers_in_torch
from bubbleviz.errors import UsageError

if TYPE_CHECKING:
    from bubbleviz.annotate.recorder import Recorder


# Recorders of ranges in this process: NVTX, for Nsight Systems, PyTorch's profiler, and files.
#
# NVTX is called through PyTorch where it was built for GPUs, else through the package ``nvtx``
# where it is installed. PyTorch's profiler gets a range while it records. Where both do, both get
# it.
# Without a recorder, a range checks whether PyTorch's profiler is on, and calls NVTX, which
# returns at once in a process without a tool.


class Recorders:
    """The recorders of this process, looked up when the first range opens after PyTorch is loaded.

    PyTorch is never imported from here: a script that has not loaded it records nothing with it.
    """

    def __init__(self) -> None:
        self._push: Callable[[str], object] | None = None
        self._pop: Callable[[], object] | None = None
        self._profiling: Callable[[], bool] = _never
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
        pushed = None
        if self._push is not None:
            pushed = self._pushed(name)
        recorded = None
        if self._profiling() and self._record is not None:
            recorded = self._record(name)
            recorded.__enter__()
        recorder = self.recorder
        if recorder is None:
            return pushed, recorded
        if iteration is None:
            return pushed, recorded, recorder, recorder.open(name, launches=launches)
        return pushed, recorded, recorder, recorder.begin_iteration(iteration)

    def close(self, opened: tuple[Any, ...]) -> None:
        """Close a range on the thread that opened it."""
        if len(opened) == 4:
            opened[2].close(opened[3])
        if opened[1] is not None:
            opened[1].__exit__(None, None, None)
        if opened[0] is not None:
            opened[0]()

    def _pushed(self, name: str) -> Callable[[], object] | None:
        """Push an NVTX range, and return the pop function; None where this process has no NVTX."""
        try:
            self._push(name)  # type: ignore[misc]  # the caller has checked that it is not None
        except RuntimeError:
            # PyTorch without NVTX raises when it is called, not before.
            self._push, self._pop = _of_package()
            return None
        return self._pop

    def _settle(self) -> None:
        """Look for PyTorch and NVTX among the modules that the script has loaded."""
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if torch is None or not hasattr(torch, "profiler") or not hasattr(cuda, "nvtx"):
            self._push, self._pop = _of_package()
            return  # It may be loaded, or finish loading, later.
        if torch.version.cuda or torch.version.hip:
            self._push, self._pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
        else:
            self._push, self._pop = _of_package()
        self._profiling = _profiler_check(torch)
        self._record = torch.profiler.record_function
        self._settled = True


def _never() -> bool:
    return False


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

    Args:
        name: recorded name.
        launches: whether transfers only start in it: when they end, nothing here shows.

    Attributes:
        name: recorded name.
    """

    __slots__ = ("_launches", "_opened", "name")

    def __init__(self, name: str, *, launches: bool = False) -> None:
        self.name, self._launches = name, launches
        self._opened: list[tuple[Any, ...]] = []

    def __enter__(self) -> Range:
        self._opened.append(self._recorded())
        return self

    def __exit__(self, *_: object) -> None:
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
        return _recorders.open(self.name, launches=self._launches)

    def _again(self) -> Range:
        """Return a range like this one, for a call that may run beside others."""
        return type(self)(self.name, launches=self._launches)


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

    def __exit__(self, *_: object) -> None:
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
            number = self._number
            self._taken = taken = _recorders.next_iteration if number is None else number
            _recorders.next_iteration = taken + 1
            self.name = f"{_PREFIX}iteration {self._taken}{of_rank}"
        super().__enter__()
        return self

    def _recorded(self) -> tuple[Any, ...]:
        return _recorders.open(self.name, iteration=self._taken)

    def _again(self) -> _IterationRange:
        return type(self)(self._number)


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


# Switch: what turns a recording on, in a training script or by variables of the environment.


#: The folder; and what :func:`record` takes besides.
FOLDER, EVERY, ITERATIONS = (
    "BUBBLEVIZ_RECORD",
    "BUBBLEVIZ_RECORD_EVERY",
    "BUBBLEVIZ_RECORD_ITERATIONS",
)
#: Bytes that the files of a rank take at most, unless another limit is given.
_LIMIT_BYTES = 256 << 20


def record(
    folder: str | os.PathLike[str],
    *,
    every: int = 0,
    iterations: int = 2,
    limit_bytes: int = _LIMIT_BYTES,
    rank: int | None = None,
    world_size: int | None = None,
) -> Recorder:
    """Record when the ranges of this process run, without a profiler: ``annotate.record("run/")``.

    ``bubbleviz analyze run/`` reads the files, one a rank. A recording to the same folder that runs
    already goes on; one to another folder ends.

    Args:
        folder: where the files are; made when the first iteration is over.
        every: of so many iterations only some are recorded; 0 for all.
        iterations: how many of these.
        limit_bytes: what the files of this rank hold at most; the oldest iterations make room.
        rank: number of this process, where neither torch.distributed nor the launcher tells it.
        world_size: how many processes there are, likewise.

    Returns:
        The recording; ``stop()`` ends it, and so does leaving ``with`` or the process.

    Raises:
        UsageError: a number is not valid.
    """
    numbers: dict[str, tuple[Any, int]] = {
        "every": (every, 0),
        "iterations": (iterations, 1),
        "limit_bytes": (limit_bytes, 1),
    }
    for word, (number, least) in numbers.items():
        if not isinstance(number, int) or number < least:
            raise UsageError(f"annotate.record: {word}={number!r} must be a number from {least}")
    running = recorder_of_files()
    if running is not None and running.active and running.folder == Path(folder):
        return running
    # Most scripts record nothing.
    from bubbleviz.annotate.recorder import Recorder

    place = None if rank is None else (rank, -1 if world_size is None else world_size)
    recorder = Recorder(
        Path(folder), every=every, iterations=iterations, limit_bytes=limit_bytes, place=place
    )
    record_with(recorder)
    return recorder


def record_as_environment_says() -> None:
    """Record where a variable of the environment names a folder; nothing is raised."""
    folder = os.environ.get(FOLDER)
    if folder is None or folder == "":
        return
    try:
        every, iterations = (
            int(os.environ.get(name, default))
            for name, default in ((EVERY, "0"), (ITERATIONS, "2"))
        )
        record(folder, every=every, iterations=iterations)
    except (ValueError, UsageError) as error:
        text = f"{EVERY} and {ITERATIONS} must be numbers ({error})"
        said = error if isinstance(error, UsageError) else text
        logging.getLogger("bubbleviz.annotate").warning("nothing is recorded: %s", said)
