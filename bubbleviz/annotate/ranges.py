"""Ranges that follow bubbleviz's naming convention, and the recorders that receive these ranges."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from bubbleviz.annotate.distributed import get_torch_rank_and_size
from bubbleviz.annotate.recorder import Recorder
from bubbleviz.errors import UsageError

if TYPE_CHECKING:
    from bubbleviz.annotate.recorder import Recorder


class Recorders:
    """The destinations of ranges in this process: NVTX, PyTorch's profiler, and recording files.

    NVTX and PyTorch's profiler are set up when the first range is opened after PyTorch has been
    loaded. NVTX is called through PyTorch if PyTorch was built for GPUs, and through the package
    ``nvtx`` (if installed) otherwise. PyTorch's profiler receives ranges only while it is
    recording. If no recorder is active, a range only calls NVTX and checks whether PyTorch's
    profiler is on. NVTX returns immediately if no tool is attached to the process.

    This module never imports PyTorch. If a script does not load PyTorch, PyTorch is not used.
    """

    def __init__(self) -> None:
        self._push: Callable[[str], object] | None = None
        self._pop: Callable[[], object] | None = None
        self._is_profiling: Callable[[], bool] = bool
        self._record: Callable[[str], Any] | None = None
        self._is_set_up = False
        #: Number for the next iteration to which the script does not give a number, starting at 0.
        self.next_iteration = 0
        #: Recorder that writes files, or None. See :mod:`bubbleviz.annotate.recorder`.
        self.recorder: Recorder | None = None

    def open(
        self, name: str, *, iteration: int | None = None, launches: bool = False
    ) -> tuple[Any, ...]:
        """Open a range on this thread, and return a handle for :meth:`close`.

        The range is opened in NVTX if it is available, in PyTorch's profiler if it is recording,
        and in the file recorder if there is one. The handle consists of the functions that
        close the range in these destinations.

        Args:
            name: Name of the range.
            iteration: Number of the iteration, or None if the range is an operation.
            launches: Whether the range only starts transfers, without waiting for them to end.
        """
        if not self._is_set_up:
            self._set_up()
        close_functions: list[Callable[[], object]] = []
        if self._push is not None and self._pop is not None:
            try:
                self._push(name)
                close_functions.append(self._pop)
            except RuntimeError:
                # If PyTorch was built without NVTX, the function exists but raises an error.
                self._push, self._pop = _load_nvtx_package()
        if self._is_profiling() and self._record is not None:
            recorded = self._record(name)
            recorded.__enter__()
            close_functions.append(functools.partial(recorded.__exit__, None, None, None))
        if self.recorder is not None:
            opened = self.recorder.open(name, launches=launches, iteration=iteration)
            close_functions.append(functools.partial(self.recorder.close, opened))
        return tuple(close_functions)

    def close(self, opened: tuple[Any, ...]) -> None:
        """Close a range, on the thread that opened it."""
        for close_range in reversed(opened):
            close_range()

    def _set_up(self) -> None:
        """Set up NVTX, and PyTorch's profiler if PyTorch is loaded.

        Every new range calls this method again until PyTorch is loaded completely.
        """
        torch: Any = sys.modules.get("torch")
        # PyTorch may be loaded later, or may be loading right now.
        self._is_set_up = hasattr(torch, "profiler") and hasattr(getattr(torch, "cuda", 0), "nvtx")
        if self._is_set_up and (torch.version.cuda or torch.version.hip):
            self._push, self._pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
        else:
            self._push, self._pop = _load_nvtx_package()
        if self._is_set_up:
            self._is_profiling = _make_profiler_check(torch)
            self._record = torch.profiler.record_function


@functools.cache
def _load_nvtx_package() -> tuple[Callable[[str], object] | None, Callable[[], object] | None]:
    """Return the push and pop functions of the package ``nvtx``.

    The result is (None, None) if the package is not installed or lacks one of the functions.
    """
    try:
        nvtx = importlib.import_module("nvtx")
    except ImportError:
        return None, None
    push, pop = getattr(nvtx, "push_range", None), getattr(nvtx, "pop_range", None)
    return (push, pop) if push and pop else (None, None)


def _make_profiler_check(torch: Any) -> Callable[[], bool]:
    """Return a function that checks whether PyTorch's profiler is recording on this thread.

    The check returns False under ``emit_nvtx``, because the profiler would then write an NVTX range
    a second time.
    """
    autograd = torch.autograd
    enabled: Callable[[], bool] = autograd._profiler_enabled
    kind = getattr(torch._C._autograd, "_profiler_type", None)
    if kind is None:
        return enabled
    to_nvtx = torch._C._profiler.ActiveProfilerType.NVTX
    return lambda: enabled() and kind() != to_nvtx


#: Phase labels as in bubbleviz/model/phases.py, duplicated here to avoid importing that module. A
#: test checks that the two lists agree.
PHASES = (
    *("F", "B", "W", "BW", "R", "FB", "Optimizer"),
    *("SEND_F", "RECV_F", "SEND_B", "RECV_B", "SEND_RECV", "COLLECTIVE"),
)
_PREFIX, _ITERATION = "bubbleviz:", "iteration"
_WORDS = ("mb", "chunk", "stage", "sequence", "mb2", "chunk2", "stage2")
_F = TypeVar("_F", bound=Callable[..., Any])


_recorders = Recorders()


def append_recorder(recorder: Recorder | None) -> Recorder | None:
    """Replace the recorder that writes files, and return the previous one."""
    previous, _recorders.recorder = _recorders.recorder, recorder
    return previous


def get_recorder() -> Recorder | None:
    """Return the recorder that writes files, or None if there is none."""
    return _recorders.recorder


def open_in_recorder(name: str) -> Callable[[], None] | None:
    """Open an operation only in the recorder that writes files.

    Another thread may close the operation, which is not possible with NVTX or PyTorch's profiler.

    Returns:
        Function that closes the operation, or None if no recorder writes files.
    """
    recorder = _recorders.recorder
    if recorder is None:
        return None
    return functools.partial(recorder.close, recorder.open(name, launches=False, iteration=None))


class Range:
    """A range that can be used as a context manager or as a function decorator.

    A range may be entered repeatedly, but only in one thread at a time. A decorated function opens
    a new range for each call. If ranges of the same ``kind`` are nested in a thread, only the
    outermost one is recorded. A script may therefore put a range around an optimizer step for which
    a framework wrapper opens another range.

    Args:
        name: Name of the range.
        launches: Whether the range only contains the start of transfers, not their end.
        kind: Kind of range: iteration, optimizer step, or "" for a range that is always recorded,
            even when nested.
        number: Number of an iteration, or None to number iterations by counting them.

    Attributes:
        name: Name of the range. The name of an iteration is set when the range is entered.
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
            numbers = get_torch_rank_and_size()
            rank_suffix = "" if numbers is None else f" rank={numbers[0]}"
            number = _recorders.next_iteration if self._number is None else self._number
            _recorders.next_iteration = number + 1
            self.name = f"{_PREFIX}iteration {number}{rank_suffix}"
            self._opened.append(_recorders.open(self.name, iteration=number))
        return self

    def __exit__(self, *_: object) -> None:
        if self._kind:
            setattr(self._depth, self._kind, getattr(self._depth, self._kind) - 1)
        if opened := self._opened.pop():
            _recorders.close(opened)

    def __call__(self, function: _F) -> _F:
        """Decorate a function so that each call runs inside a new range.

        Raises:
            UsageError: The function is a generator or a coroutine, whose body runs after the call
                has returned.
        """
        code = getattr(getattr(function, "__code__", None), "co_flags", 0)
        if code & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise UsageError(
                f"annotate: {function.__qualname__} is a generator or a coroutine, which runs "
                "after the call; instead of decorating it, use 'with annotate.phase(...)' inside it"
            )

        @functools.wraps(function)
        def run_in_range(*args: Any, **kwargs: Any) -> Any:
            # Each call gets a new range, because calls may run concurrently.
            call_range = Range(
                self.name, launches=self._launches, kind=self._kind, number=self._number
            )
            with call_range:
                return function(*args, **kwargs)

        return run_in_range  # type: ignore[return-value]  # it has the signature of the function


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
        name: Phase of the operation: F, B (input gradient only), W (weight gradient), BW (both
            gradients), R (recompute), FB (a forward overlapped with a backward), Optimizer, SEND_F,
            RECV_F, SEND_B, RECV_B, SEND_RECV or COLLECTIVE.
        microbatch: Zero-based number of the microbatch within its iteration. By default,
            microbatches are numbered in the order of their operations.
        chunk: Index of the model chunk on this rank, in model order. Needed only if a rank has
            several chunks.
        stage: Virtual stage, if known. ``bubbleviz`` derives the chunk and the rank order from it.
        sequence: Index of the sequence split, if sequences are split.
        second_microbatch: Microbatch of the second operation, if a range represents two operations
            (FB, SEND_RECV).
        second_chunk: Chunk of the second operation.
        second_stage: Virtual stage of the second operation.

    Raises:
        UsageError: The phase does not exist, or a number is invalid.
    """
    numbers = (microbatch, chunk, stage, sequence, second_microbatch, second_chunk, second_stage)
    try:
        text = format_name(name, *numbers)
    except TypeError as error:
        raise UsageError(f"annotate.phase({name!r}): numbers must be integers ({error})") from error
    return Range(text, kind=name if name == "Optimizer" else "")


@functools.lru_cache(maxsize=1 << 14)
def format_name(phase: str, *numbers: int | None) -> str:
    """Return the range name of an operation.

    Args:
        phase: Label of the phase.
        numbers: Values of the other arguments to :func:`phase`, in the same order. None values are
            left out.

    Raises:
        UsageError: The phase does not exist, or a number is invalid.
    """
    if phase not in PHASES:
        raise UsageError(f"annotate.phase({phase!r}): the phase must be one of {', '.join(PHASES)}")
    pairs = [(word, n) for word, n in zip(_WORDS, numbers, strict=False) if n is not None]
    return _PREFIX + " ".join((phase, *(f"{word}={_check_number(word, n)}" for word, n in pairs)))


def _check_number(word: str, number: object) -> int:
    """Convert a number to int after checking that it is an integer from 0 to 999,999,999.

    Args:
        word: Name of the number, used in messages.
        number: Value to check.

    Raises:
        UsageError: The value is not an integer in this range.
    """
    try:
        value = int(number.__index__())  # type: ignore[attr-defined]  # an error reports its absence
    except (AttributeError, TypeError):
        value = -1
    if not 0 <= value < 10**9:
        raise UsageError(f"annotate: {word}={number!r} must be an integer from 0 to 999,999,999")
    return value


def iteration(number: int | None = None) -> Range:
    """Return a range for an iteration: ``with annotate.iteration(step): ...``.

    Iterations that a framework wrapper opens inside this range are not recorded. Work between the
    end of the range and the next forward, such as an optimizer step, also belongs to the iteration.

    Args:
        number: Number of the iteration, which must be the same on all ranks. By default, iterations
            are counted from 0.

    Raises:
        UsageError: The number is invalid.
    """
    return Range(
        "", kind=_ITERATION, number=None if number is None else _check_number("iteration", number)
    )


@contextmanager
def step(number: int | None = None) -> Iterator[None]:
    """Return a range for a training step that runs in one call: ``with annotate.step(): ...``.

    The step is recorded as an iteration with one operation, which contains the forward and backward
    of a single stage. If the call returns before its work is done, as in JAX, the script must wait
    for the result inside the range: ``jax.block_until_ready(train_step(state))``.

    Args:
        number: Number of the iteration. By default, iterations are counted from 0.

    Raises:
        UsageError: The number is invalid.
    """
    second_numbers = {"second_microbatch": 0, "second_chunk": 0, "second_stage": 0}
    with iteration(number), phase("FB", microbatch=0, chunk=0, stage=0, **second_numbers):
        yield
