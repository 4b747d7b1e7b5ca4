"""DeepSpeed's pipeline engine: every instruction of its schedules.

DeepSpeed names forwards, and backwards on the last stage only (``DeepSpeedEngine.backward``); its
pipeline engine names nothing. Here the methods that run instructions are wrapped, also in the
engine's table of instructions. Buffers are not microbatches, so these are counted:
in each batch the k-th forward of a stage is that of microbatch k, and so on.

Written for DeepSpeed 0.14 to 0.19, deepspeed/runtime/pipe/engine.py, schedule.py, dualpipev.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from bubbleviz.annotate import wrapping
from bubbleviz.annotate.ranges import iteration, phase
from bubbleviz.annotate.wrapping import NO_RANGE, Annotations, Args, Kwargs
from bubbleviz.errors import AnnotationError

#: Phases of the methods that work on a buffer.
_ON_BUFFERS = {
    "_exec_forward_pass": "F",
    "_exec_backward_pass": "BW",
    "_exec_send_activations": "SEND_F",
    "_exec_recv_activations": "RECV_F",
    "_exec_send_grads": "SEND_B",
    "_exec_recv_grads": "RECV_B",
}
#: Phases of the methods for the whole batch.
_ON_BATCHES = {
    "_exec_optimizer_step": "Optimizer",
    "_exec_reduce_grads": "COLLECTIVE",
    "_exec_reduce_tied_grads": "COLLECTIVE",
}
#: Two stages a rank; transfers are queued, and started together.
_TWO_STAGE_METHODS = ("_exec_forward_pass", "_exec_backward_pass")
#: Chunk, None of a rank with one, and stage.
Place = tuple[int | None, int]


def annotate(record: wrapping.Folder = None) -> Annotations:
    """Name the instructions of DeepSpeed's pipeline engine; a batch is an iteration.

    Args:
        record: folder to which their times are recorded; None for none.

    Raises:
        AnnotationError: DeepSpeed cannot be imported, or is not as expected.
    """
    return wrapping.once("DeepSpeed", _wrap, record)


def _wrap(annotations: Annotations) -> None:
    engine = annotations.attribute(
        annotations.module("deepspeed.runtime.pipe.engine"), "PipelineEngine"
    )
    # Of two stages a rank; DeepSpeed has none to 0.18.
    two_stages = None
    with suppress(AnnotationError):
        module = annotations.module("deepspeed.runtime.pipe.dualpipev")
        two_stages = getattr(module, "DualPipeVEngine", None)
    done: Counter[tuple[str, int | None]] = Counter()

    def batch(_args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
        done.clear()
        return iteration()

    def place_of_one(args: Args, _kwargs: Kwargs) -> Place | None:
        of_two = two_stages is not None and isinstance(args[0], two_stages)
        return None if of_two else (None, args[0].stage_id)

    wrapped: dict[Any, Any] = {}
    for method, name in _ON_BUFFERS.items():
        wrapped.update([annotations.wrap(engine, method, _counted(name, done, place_of_one))])
    for method, name in _ON_BATCHES.items():
        wrapped.update([annotations.wrap(engine, method, _whole(name))])
    for method in ("train_batch", "eval_batch"):
        annotations.wrap(engine, method, batch)
    if two_stages is not None:
        for method in _TWO_STAGE_METHODS:
            place = _place_of_two(annotations, two_stages, method)
            range_of_call = _counted(_ON_BUFFERS[method], done, place)
            wrapped.update([annotations.wrap(two_stages, method, range_of_call)])
        wrapped.update([annotations.wrap(two_stages, "_exec_commit_p2p", _whole("SEND_RECV"))])
    for kind in (engine,) if two_stages is None else (engine, two_stages):
        table = annotations.attribute(kind, "_INSTRUCTION_MAP")
        annotations.replace(
            kind, "_INSTRUCTION_MAP", {i: wrapped.get(run, run) for i, run in table.items()}
        )


def _whole(name: str) -> wrapping.RangeOfCall:
    return lambda args, _: phase(name, stage=args[0].stage_id)


def _counted(
    name: str,
    done: Counter[tuple[str, int | None]],
    place_of: Callable[[Args, Kwargs], Place | None],
) -> wrapping.RangeOfCall:
    """Return the ranges of an instruction, by the place of a call; None for no range."""

    def range_of_call(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        place = place_of(args, kwargs)
        if place is None:
            return NO_RANGE
        chunk, stage = place
        microbatch = done[name, chunk]
        done[name, chunk] += 1
        return phase(name, microbatch=microbatch, chunk=chunk, stage=stage)

    return range_of_call


def _place_of_two(
    annotations: Annotations, engines: Any, method: str
) -> Callable[[Args, Kwargs], Place]:
    """Return the places of an instruction of a rank with two stages, forth and back."""
    phase_of = annotations.argument(annotations.attribute(engines, method), "phase")

    def place(args: Args, kwargs: Kwargs) -> Place:
        engine, chunk = args[0], int(phase_of(args, kwargs))
        back = 2 * engine.num_stages - 1 - engine.stage_id
        return chunk, back if chunk else engine.stage_id

    return place
