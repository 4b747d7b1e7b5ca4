"""Megatron-Core: forwards, backwards, transfers and the optimizer, of all its schedules.

Megatron-Core names transfers and layers (``--nvtx-ranges``), but no forward or backward of a
microbatch. Here ``forward_step`` and ``backward_step`` are wrapped, which its schedules call, and
the step that overlaps both. A forward has its microbatch and chunk as arguments; a backward is that
of the forward whose output it takes.

Written for Megatron-Core 0.5 to 0.19, megatron/core/pipeline_parallel/schedules.py,
p2p_communication.py, combined_1f1b.py, and megatron/core/optimizer/optimizer.py.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from bubbleviz.annotate import wrapping
from bubbleviz.annotate.ranges import Range, iteration, name_of, phase
from bubbleviz.annotate.wrapping import NO_RANGE, Annotations, Args, Kwargs
from bubbleviz.errors import AnnotationError

_CORE = "megatron.core"
_SCHEDULES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_with_interleaving",
    "forward_backward_pipelining_without_interleaving",
)
_TRANSFER = re.compile(r"(?:send|recv)_(?:forward|backward)")
#: Ways that data goes, by words of functions: phase, and what tells that some is received.
_WAYS = {"forward": ("F", "recv_prev"), "backward": ("B", "recv_next")}

#: Chunk (None with one chunk per rank) and microbatch.
Place = tuple[int | None, int]


def annotate(record: wrapping.Folder = None) -> Annotations:
    """Name Megatron-Core's operations; one call of its schedule is an iteration.

    Args:
        record: folder to which their times are recorded; None for none.

    Raises:
        AnnotationError: Megatron-Core cannot be imported, or is not as expected.
    """
    return wrapping.once("Megatron-Core", _wrap, record, "0.5 to 0.19")


class _Batch:
    """Chunk and microbatch of the forwards, backwards and transfers of the running batch."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._place_of_output: dict[int, Place] = {}
        self._done: Counter[tuple[str, int | None]] = Counter()
        self._stages: tuple[int, int] | None = None
        #: The forward that runs, until its output is known.
        self.forward: Place | None = None
        #: By way (F, B): the place that went last, those that interleaved inputs still come for,
        #: and the virtual stages at which the way begins and ends.
        self._latest: dict[str, Place] = {}
        self._coming: dict[str, Iterator[Place]] = {}
        self._ends = {"F": (0, 0), "B": (0, 0)}

    def begin(self, model: object, microbatches: int) -> None:
        """Forget the batch before; this one is of a model, or of a list of a rank's chunks."""
        self._place_of_output.clear()
        self._done.clear()
        self._latest.clear()
        self._coming.clear()
        self._stages = None
        if self._state.model_parallel_is_initialized():
            ranks = self._state.get_pipeline_model_parallel_world_size()
            self._stages = self._state.get_pipeline_model_parallel_rank(), ranks
            chunks = model if isinstance(model, list) else [model]
            last = ranks * len(chunks) - 1
            self._ends = {"F": (0, last), "B": (last, 0)}
            if len(chunks) > 1:
                # A group of microbatches runs one chunk before the next.
                config = getattr(chunks[0], "config", None)
                group = getattr(config, "microbatch_group_size_per_vp_stage", None) or ranks
                order = [
                    (chunk, first + number)
                    for first in range(0, microbatches, group)
                    for chunk in range(len(chunks))
                    for number in range(min(group, microbatches - first))
                ]
                back = [(len(chunks) - 1 - chunk, number) for chunk, number in order]
                for way, places in (("F", order), ("B", back)):
                    self._coming[way] = iter([at for at in places if self.comes(way, at)])

    def comes(self, way: str, place: Place) -> bool:
        """Tell whether the input of a place comes from another one."""
        return self.stage(place[0]) not in {None, self._ends[way][0]}

    def received(self, way: str, told: bool | None) -> Place | None:
        """Return the place that the next input comes for; None where the call brings none.

        Args:
            way: F or B.
            told: whether the call receives; None where it says nothing, and the ends do not.
        """
        rank, ranks = self._stages or (0, 1)
        if not (rank != self._ends[way][0] % ranks if told is None else told):
            return None
        if way in self._coming:
            return next(self._coming[way], None)
        # One after the other: several tensors may come for one.
        return None, self._done[way, None]

    def sent(self, way: str) -> Place | None:
        """Return the place whose result goes to another one; None where it stays."""
        place = self._latest.get(way)
        return None if place is None or self.stage(place[0]) == self._ends[way][1] else place

    def forwards(self, chunk: int | None, microbatch: int | None) -> Place:
        """Return the place of a forward that begins; None for what the call does not pass."""
        chunk = self._current() if chunk is None else chunk
        counted = self._count("F", chunk)
        self.forward = (chunk, counted if microbatch is None else int(microbatch))
        self._latest["F"] = self.forward
        return self.forward

    def finish_forward(self, result: object) -> None:
        """Remember the output of the forward that ran, the first of what it returned."""
        if self.forward is not None:
            output = result[0] if isinstance(result, tuple) else result
            self._place_of_output[id(output)] = self.forward
        self.forward = None

    def backwards(self, output: object) -> Place:
        """Return the place of a backward that begins, by the output of its forward."""
        place = self._place_of_output.pop(id(output), None)
        chunk = self._current() if place is None else place[0]
        counted = self._count("B", chunk)
        self._latest["B"] = place = (chunk, counted) if place is None else place
        return place

    def stage(self, chunk: int | None) -> int | None:
        """Return the virtual stage of a chunk of this rank; None where it is unknown."""
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


def _wrap(annotations: Annotations) -> None:
    schedules = annotations.module(f"{_CORE}.pipeline_parallel.schedules")
    batch = _Batch(annotations.module(f"{_CORE}.parallel_state"))
    _wrap_steps(annotations, schedules, batch)
    _wrap_overlapped(annotations, batch)

    def of_schedule(_args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        # They take nothing by place.
        batch.begin(kwargs.get("model"), kwargs.get("num_microbatches", 0))
        return iteration()

    for name in _SCHEDULES:
        annotations.wrap(schedules, name, of_schedule)
    _wrap_transfers(annotations, batch)
    _wrap_optimizers(annotations)


def _wrap_steps(annotations: Annotations, schedules: Any, batch: _Batch) -> None:
    forward = annotations.attribute(schedules, "forward_step")
    chunk = _optional(annotations, forward, "vp_stage")
    microbatch = _optional(annotations, forward, "current_microbatch")
    model = annotations.argument(forward, "model")
    output = annotations.argument(
        annotations.attribute(schedules, "backward_step"), "output_tensor"
    )

    def of_forward(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        number = chunk(args, kwargs)
        if number is None:
            number = getattr(model(args, kwargs), "vp_stage", None)
        return _range("F", batch, batch.forwards(number, microbatch(args, kwargs)))

    def of_backward(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        return _range("BW", batch, batch.backwards(output(args, kwargs)))

    annotations.wrap(schedules, "forward_step", of_forward, batch.finish_forward)
    annotations.wrap(schedules, "backward_step", of_backward)


def _wrap_overlapped(annotations: Annotations, batch: _Batch) -> None:
    """Name the step that runs a forward beside a backward, where there is one (since 0.14)."""
    try:
        module = annotations.module(f"{_CORE}.pipeline_parallel.combined_1f1b")
    except AnnotationError:
        return
    step = annotations.attribute(module, "combined_forward_backward_step")
    names = ("f_model", "b_model", "b_output_tensor", "f_model_chunk_id", "current_microbatch")
    picks = [annotations.argument(step, name) for name in names]

    def range_of_call(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        forward, backward, output, chunk, microbatch = (pick(args, kwargs) for pick in picks)
        first = None if forward is None else batch.forwards(chunk, microbatch)
        second = None if backward is None else batch.backwards(output)
        if first is None or second is None:
            place = first or second
            return _range("BW" if first is None else "F", batch, place or (None, 0))
        # It waits for its inputs inside itself.
        for wait, way, place in (("pre_forward", "F", first), ("pre_backward", "B", second)):
            if kwargs.get(wait) is not None and batch.comes(way, place):
                kwargs[wait] = _range(f"RECV_{way}", batch, place)(kwargs[wait])
        return _range("FB", batch, first, second)

    name = "combined_forward_backward_step"
    annotations.wrap(module, name, range_of_call, batch.finish_forward)


def _range(
    name: str, batch: _Batch, place: Place, other: Place | None = None, *, launches: bool = False
) -> Range:
    (chunk, number), (chunk2, number2) = place, other or (None, None)
    stage, stage2 = batch.stage(chunk), batch.stage(chunk2) if other else None
    numbers = number, chunk, stage, None, number2, chunk2, stage2
    return Range(name_of(name, *numbers), launches=launches)


def _optional(annotations: Annotations, function: Any, name: str) -> Callable[[Args, Kwargs], Any]:
    """Return a function that picks an argument; None in versions without it."""
    if name in inspect.signature(function).parameters:
        return annotations.argument(function, name)
    return lambda _args, _kwargs: None


def _wrap_transfers(annotations: Annotations, batch: _Batch) -> None:
    """Name every transfer between stages: of a communicator (since 0.14), else of the module."""
    module = annotations.module(f"{_CORE}.pipeline_parallel.p2p_communication")
    owner = getattr(module, "P2PCommunicator", module)
    names = [name for name in vars(owner) if _TRANSFER.match(name)]
    if not names:
        annotations.attribute(owner, "send_forward")
    for name in names:
        annotations.wrap(owner, name, _transfers(annotations, batch, owner, name))


def _transfers(
    annotations: Annotations, batch: _Batch, owner: Any, name: str
) -> wrapping.RangeOfCall:
    """Return the ranges of a function that moves results and inputs: at most two of them."""
    function = annotations.attribute(owner, name)
    goes, _, comes = name.partition("recv")
    # What is sent are the first arguments.
    tensors = [each for each in inspect.signature(function).parameters if each != "self"]
    ways = [way for word, (way, _) in _WAYS.items() if word in goes]
    sends = [(w, annotations.argument(function, t)) for w, t in zip(ways, tensors, strict=False)]
    flags = [_WAYS[word] for word in _WAYS if word in comes]
    receives = [(way, _optional(annotations, function, flag)) for way, flag in flags]
    starts = _optional(annotations, function, "overlap_p2p_comm")

    def of_call(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        sent = [(f"SEND_{w}", batch.sent(w)) for w, t in sends if t(args, kwargs) is not None]
        come = [(f"RECV_{w}", batch.received(w, told(args, kwargs))) for w, told in receives]
        moved = [(name, place) for name, place in (*sent, *come) if place is not None][-2:]
        if not moved:
            return NO_RANGE
        both = moved[0][0] if len(moved) == 1 else "SEND_RECV"
        places = [place for _, place in moved]
        return _range(both, batch, *places, launches=bool(starts(args, kwargs)))

    return of_call


def _wrap_optimizers(annotations: Annotations) -> None:
    """Name the step of every class of optimizers; that of a chain is one range.

    Up to 0.5 they are not part of Megatron-Core.
    """
    if importlib.util.find_spec(f"{_CORE}.optimizer") is None:
        return
    base = annotations.attribute(
        annotations.module(f"{_CORE}.optimizer.optimizer"), "MegatronOptimizer"
    )
    annotations.module(f"{_CORE}.optimizer")
    for kind in wrapping.subclasses(base):
        if "step" in vars(kind):
            annotations.wrap(kind, "step", wrapping.always(phase, "Optimizer"))
