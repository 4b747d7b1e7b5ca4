"""Recorders of ranges in this process: NVTX, for Nsight Systems, PyTorch's profiler, and files.

NVTX is called through PyTorch where it was built for GPUs, else through the package ``nvtx`` where
it is installed. PyTorch's profiler gets a range while it records. Where both do, both get it.
Without a recorder, a range checks whether PyTorch's profiler is on, and calls NVTX, which
returns at once in a process without a tool.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bubbleviz.annotate.recording.recorder import Recorder


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
        #: Writes files; see :mod:`bubbleviz.annotate.recording`.
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
