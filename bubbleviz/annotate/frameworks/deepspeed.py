"""DeepSpeed's pipeline engine: every instruction of its schedules.

DeepSpeed names forwards, and backwards on the last stage only (``DeepSpeedEngine.backward``); its
pipeline engine names nothing. Here the methods that run instructions are wrapped, also in the
engine's table of instructions. Buffers are not microbatches, so these are counted:
in each batch the k-th forward of a stage is that of microbatch k, and so on.

Written for DeepSpeed 0.14 to 0.19, deepspeed/runtime/pipe/engine.py and schedule.py.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from bubbleviz.annotate import wrapping
from bubbleviz.annotate.ranges import iteration, phase
from bubbleviz.annotate.wrapping import NO_RANGE, Annotations, Args, Kwargs

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


def annotate(record: wrapping.Folder = None) -> Annotations:
    """Name the instructions of DeepSpeed's pipeline engine; a batch is an iteration.

    Args:
        record: folder to which their times are recorded; None for none.

    Raises:
        AnnotationError: DeepSpeed cannot be imported, or is not as expected.
    """
    return wrapping.once("DeepSpeed", _wrap, record, "0.14 to 0.19")


def _wrap(annotations: Annotations) -> None:
    engine = annotations.attribute(
        annotations.module("deepspeed.runtime.pipe.engine"), "PipelineEngine"
    )
    done: Counter[str] = Counter()
    wrapped: dict[Any, Any] = {}

    def batch(_args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
        done.clear()
        return iteration()

    def counted(name: str) -> wrapping.RangeOfCall:
        def range_of_call(args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
            if args[0]._INSTRUCTION_MAP is not named:
                # Engines with instructions of their own hold several stages per rank.
                return NO_RANGE
            done[name] += 1
            return phase(name, microbatch=done[name] - 1, stage=args[0].stage_id)

        return range_of_call

    def whole(name: str) -> wrapping.RangeOfCall:
        return lambda args, _: phase(name, stage=args[0].stage_id)

    for method, name in _ON_BUFFERS.items():
        wrapped.update([annotations.wrap(engine, method, counted(name))])
    for method, name in _ON_BATCHES.items():
        wrapped.update([annotations.wrap(engine, method, whole(name))])
    for method in ("train_batch", "eval_batch"):
        annotations.wrap(engine, method, batch)
    table = annotations.attribute(engine, "_INSTRUCTION_MAP")
    named = {instruction: wrapped.get(run, run) for instruction, run in table.items()}
    annotations.replace(engine, "_INSTRUCTION_MAP", named)
