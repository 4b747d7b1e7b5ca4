"""Megatron-Core: forwards, backwards, transfers and the optimizer, of all its schedules.

Megatron-Core names transfers and layers (``--nvtx-ranges``), but no forward or backward of a
microbatch. Here ``forward_step`` and ``backward_step`` are wrapped, which its schedules call, and
the step that overlaps both. A forward tells its microbatch and chunk; the backward is that of the
forward whose output it gets.

Written for Megatron-Core 0.5 to 0.16, megatron/core/pipeline_parallel/schedules.py,
p2p_communication.py, combined_1f1b.py, and megatron/core/optimizer/optimizer.py.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from bubbleviz.annotate.ranges import Range, iteration, phase
from bubbleviz.annotate.wrapping import Annotations, Args, Kwargs, Naming, always, once, subclasses
from bubbleviz.errors import AnnotationError

_CORE = "megatron.core"
_SCHEDULES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_with_interleaving",
    "forward_backward_pipelining_without_interleaving",
)
_TRANSFER = re.compile(r"(?:send|recv)_(?:forward|backward)")
_TRANSFERS = {
    "send_forward": "SEND_F",
    "recv_forward": "RECV_F",
    "send_backward": "SEND_B",
    "recv_backward": "RECV_B",
}

#: Chunk (None with one chunk a rank) and microbatch.
Place = tuple[int | None, int]


def annotate() -> Annotations:
    """Name Megatron-Core's operations; what one call of its schedule does is an iteration.

    Raises:
        AnnotationError: Megatron-Core cannot be imported, or is not as expected.
    """
    return once("Megatron-Core", _wrap)


class _Batch:
    """Which microbatch is where, in the batch that runs."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._made: dict[int, Place] = {}
        self._done: Counter[tuple[str, int | None]] = Counter()
        self._stages: tuple[int, int] | None = None
        #: The forward that runs, until its output is known.
        self.forward: Place | None = None

    def begin(self) -> None:
        """Forget the batch before."""
        self._made.clear()
        self._done.clear()
        self._stages = None
        if self._state.model_parallel_is_initialized():
            self._stages = (
                self._state.get_pipeline_model_parallel_rank(),
                self._state.get_pipeline_model_parallel_world_size(),
            )

    def forwards(self, chunk: int | None, microbatch: int | None) -> Place:
        """Return the place of a forward that begins; None is what the call does not say."""
        chunk = self._current() if chunk is None else chunk
        counted = self._count("F", chunk)
        self.forward = (chunk, counted if microbatch is None else int(microbatch))
        return self.forward

    def made(self, output: object) -> None:
        """Take the output of the forward that ran."""
        if self.forward is not None:
            self._made[id(output)] = self.forward
        self.forward = None

    def backwards(self, output: object) -> Place:
        """Return the place of a backward that begins, by the output of its forward."""
        place = self._made.pop(id(output), None)
        chunk = self._current() if place is None else place[0]
        counted = self._count("BW", chunk)
        return (chunk, counted) if place is None else place

    def stage(self, chunk: int | None) -> int | None:
        """Return the virtual stage of a chunk of this rank; None where Megatron does not say."""
        if self._stages is None:
            return None
        rank, ranks = self._stages
        return rank + ranks * (chunk or 0)

    def _current(self) -> int | None:
        """Return the chunk that older versions keep beside the call."""
        ask = getattr(self._state, "get_virtual_pipeline_model_parallel_rank", None)
        return None if ask is None else ask()

    def _count(self, name: str, chunk: int | None) -> int:
        done = self._done[name, chunk]
        self._done[name, chunk] += 1
        return done


def _wrap(to: Annotations) -> None:
    schedules = to.module(f"{_CORE}.pipeline_parallel.schedules")
    batch = _Batch(to.module(f"{_CORE}.parallel_state"))
    _wrap_steps(to, schedules, batch)
    _wrap_overlapped(to, batch)

    def of_schedule(_args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
        batch.begin()
        return iteration()

    for name in _SCHEDULES:
        to.wrap(schedules, name, of_schedule)
    _wrap_transfers(to)
    _wrap_optimizers(to)


def _wrap_steps(to: Annotations, schedules: Any, batch: _Batch) -> None:
    forward = to.sought(schedules, "forward_step")
    chunk = _optional(to, forward, "vp_stage")
    microbatch = _optional(to, forward, "current_microbatch")
    model = to.argument(forward, "model")
    output = to.argument(to.sought(schedules, "backward_step"), "output_tensor")

    def of_forward(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        said = chunk(args, kwargs)
        said = getattr(model(args, kwargs), "vp_stage", None) if said is None else said
        return _range("F", batch, batch.forwards(said, microbatch(args, kwargs)))

    def of_backward(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        return _range("BW", batch, batch.backwards(output(args, kwargs)))

    to.wrap(schedules, "forward_step", of_forward)
    _remember(to, schedules, "forward_step", batch)
    to.wrap(schedules, "backward_step", of_backward)


def _wrap_overlapped(to: Annotations, batch: _Batch) -> None:
    """Name the step that runs a forward beside a backward, where there is one (since 0.14)."""
    try:
        module = to.module(f"{_CORE}.pipeline_parallel.combined_1f1b")
    except AnnotationError:
        return
    step = to.sought(module, "combined_forward_backward_step")
    names = ("f_model", "b_model", "b_output_tensor", "f_model_chunk_id", "current_microbatch")
    pick = [to.argument(step, name) for name in names]

    def naming(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        forward, backward, output, chunk, microbatch = (one(args, kwargs) for one in pick)
        first = None if forward is None else batch.forwards(chunk, microbatch)
        second = None if backward is None else batch.backwards(output)
        if first is None or second is None:
            place = first or second
            return _range("BW" if first is None else "F", batch, place or (None, 0))
        return phase(
            "FB",
            microbatch=first[1],
            chunk=first[0],
            stage=batch.stage(first[0]),
            second_microbatch=second[1],
            second_chunk=second[0],
            second_stage=batch.stage(second[0]),
        )

    to.wrap(module, "combined_forward_backward_step", naming)
    _remember(to, module, "combined_forward_backward_step", batch)


def _range(name: str, batch: _Batch, place: Place) -> Range:
    chunk, microbatch = place
    return phase(name, microbatch=microbatch, chunk=chunk, stage=batch.stage(chunk))


def _remember(to: Annotations, owner: Any, name: str, batch: _Batch) -> None:
    """Have the first thing that a step returns remembered as its forward's output."""
    ranged = to.sought(owner, name)

    def remembered(*args: Any, **kwargs: Any) -> Any:
        result = ranged(*args, **kwargs)
        if to.active:
            batch.made(result[0] if isinstance(result, tuple) else result)
        return result

    to.replace(owner, name, remembered)


def _optional(to: Annotations, function: Any, name: str) -> Callable[[Args, Kwargs], Any]:
    """Return what picks an argument that some versions do not have; then it is None."""
    if name in inspect.signature(function).parameters:
        return to.argument(function, name)
    return lambda _args, _kwargs: None


def _wrap_transfers(to: Annotations) -> None:
    """Name every transfer between stages: of a communicator (since 0.14), else of the module."""
    module = to.module(f"{_CORE}.pipeline_parallel.p2p_communication")
    owner = getattr(module, "P2PCommunicator", module)
    names = [name for name in vars(owner) if _TRANSFER.match(name)]
    if not names:
        to.sought(owner, "send_forward")
    for name in names:
        to.wrap(owner, name, _transfer(_TRANSFERS.get(name, "SEND_RECV")))


def _transfer(name: str) -> Naming:
    return always(lambda: phase(name))


def _wrap_optimizers(to: Annotations) -> None:
    """Name the step of every class of optimizers; of a chain the whole is one."""
    base = to.sought(to.module(f"{_CORE}.optimizer.optimizer"), "MegatronOptimizer")
    to.module(f"{_CORE}.optimizer")
    for kind in subclasses(base):
        if "step" in vars(kind):
            to.wrap(kind, "step", always(lambda: phase("Optimizer")))
