"""DeepSpeed's pipeline engine: every instruction of its schedules.

DeepSpeed names forwards, and backwards on the last stage only (``DeepSpeedEngine.backward``); its
pipeline engine names nothing. Here the methods that run instructions are wrapped, also in the
engine's table of instructions. Buffers are not microbatches, so these are counted:
in each batch the k-th forward of a stage is that of microbatch k, and so on.

Written for DeepSpeed 0.14 to 0.19, deepspeed/runtime/pipe/engine.py, schedule.py, dualpipev.py.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from bubbleviz.annotate.ranges import iteration, phase
from bubbleviz.annotate.wrapping import (
    NO_RANGE,
    Annotations,
    Args,
    Folder,
    Kwargs,
    RangeOfCall,
    once,
)
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


def annotate(record: Folder = None) -> Annotations:
    """Name the instructions of DeepSpeed's pipeline engine; a batch is an iteration.

    Args:
        record: folder to which their times are recorded; None for none.

    Raises:
        AnnotationError: DeepSpeed cannot be imported, or is not as expected.
    """
    return once("DeepSpeed", _wrap, record)


def _wrap(annotations: Annotations) -> None:
    engine = annotations.attribute(
        annotations.module("deepspeed.runtime.pipe.engine"), "PipelineEngine"
    )
    two_stage_engine = _two_stage_engine(annotations)
    done: Counter[tuple[str, int]] = Counter()
    named = {m: _counted(name, done, two_stage_engine) for m, name in _ON_BUFFERS.items()}
    named |= {m: _whole(name) for m, name in _ON_BATCHES.items()}
    wrapped = dict(
        annotations.wrap(engine, method, range_of_call) for method, range_of_call in named.items()
    )
    for method in ("train_batch", "eval_batch"):
        annotations.wrap(engine, method, _batch(done))
    if two_stage_engine is not None:
        for method in _TWO_STAGE_METHODS:
            chunk = annotations.argument(annotations.attribute(two_stage_engine, method), "phase")
            range_of_call = _of_two_stages(_ON_BUFFERS[method], done, chunk)
            wrapped.update([annotations.wrap(two_stage_engine, method, range_of_call)])
        wrapped.update(
            [annotations.wrap(two_stage_engine, "_exec_commit_p2p", _whole("SEND_RECV"))]
        )
    for kind in (engine,) if two_stage_engine is None else (engine, two_stage_engine):
        table = annotations.attribute(kind, "_INSTRUCTION_MAP")
        annotations.replace(
            kind, "_INSTRUCTION_MAP", {i: wrapped.get(run, run) for i, run in table.items()}
        )


def _two_stage_engine(annotations: Annotations) -> Any:
    """Return the engine that holds two stages a rank; None where DeepSpeed has none (to 0.18)."""
    try:
        return getattr(
            annotations.module("deepspeed.runtime.pipe.dualpipev"), "DualPipeVEngine", None
        )
    except AnnotationError:
        return None


def _batch(done: Counter[tuple[str, int]]) -> RangeOfCall:
    def range_of_call(_args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
        done.clear()
        return iteration()

    return range_of_call


def _whole(name: str) -> RangeOfCall:
    return lambda args, _: phase(name, stage=args[0].stage_id)


def _counted(name: str, done: Counter[tuple[str, int]], two_stage_engine: Any) -> RangeOfCall:
    """Return the ranges of an instruction of a rank with one stage."""

    def range_of_call(args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
        engine = args[0]
        if two_stage_engine is not None and isinstance(engine, two_stage_engine):
            return NO_RANGE
        microbatch = done[name, 0]
        done[name, 0] += 1
        return phase(name, microbatch=microbatch, stage=engine.stage_id)

    return range_of_call


def _of_two_stages(name: str, done: Counter[tuple[str, int]], chunk_of: Any) -> RangeOfCall:
    """Return the ranges of an instruction of a rank with two stages, forth and back."""

    def range_of_call(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        engine, chunk = args[0], int(chunk_of(args, kwargs))
        microbatch = done[name, chunk]
        done[name, chunk] += 1
        back = 2 * engine.num_stages - 1 - engine.stage_id
        stage = back if chunk else engine.stage_id
        return phase(name, microbatch=microbatch, chunk=chunk, stage=stage)

    return range_of_call
