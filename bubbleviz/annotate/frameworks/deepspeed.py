"""Annotate the instructions of DeepSpeed's pipeline engine.

DeepSpeed itself names forward passes, but backward passes only on the last stage
(``DeepSpeedEngine.backward``). The pipeline engine does not name any operations. This module wraps
the methods that run instructions, and puts the wrapped methods into the engine's table. Buffer ids
are not microbatch numbers, so operations are counted. The k-th operation of a phase in a batch,
counting from 0, is microbatch k.

Written for DeepSpeed 0.14 to 0.19, deepspeed/runtime/pipe/engine.py and schedule.py.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from bubbleviz.annotate import wrapping
from bubbleviz.annotate.ranges import iteration, phase
from bubbleviz.annotate.wrapping import NO_RANGE, Annotations, Args, Kwargs

#: Phases of the methods that process one buffer, keyed by method name.
_BUFFER_PHASES = {
    "_exec_forward_pass": "F",
    "_exec_backward_pass": "BW",
    "_exec_send_activations": "SEND_F",
    "_exec_recv_activations": "RECV_F",
    "_exec_send_grads": "SEND_B",
    "_exec_recv_grads": "RECV_B",
}
#: Phases of the methods that process the whole batch, keyed by method name.
_BATCH_PHASES = {
    "_exec_optimizer_step": "Optimizer",
    "_exec_reduce_grads": "COLLECTIVE",
    "_exec_reduce_tied_grads": "COLLECTIVE",
}


def annotate(record: wrapping.Folder = None) -> Annotations:
    """Annotate the instructions of DeepSpeed's pipeline engine. Each batch is an iteration.

    Args:
        record: Folder in which to record the times of the ranges, or None to record nothing.

    Raises:
        AnnotationError: DeepSpeed cannot be imported, or differs from the expected version.
    """
    return wrapping.wrap_once("DeepSpeed", _wrap, record, "0.14 to 0.19")


def _wrap(annotations: Annotations) -> None:
    """Wrap the methods of the pipeline engine, and replace them in its table of instructions.

    Each call of ``train_batch`` or ``eval_batch`` is a batch, and each batch is an iteration. The
    operations of each phase are counted from the start of a batch. An engine with a different
    instruction table has several stages per rank. In that case, the stage of an operation on a
    buffer is unknown, and the operation gets no range.
    """
    engine = annotations.get_attribute(
        annotations.import_module("deepspeed.runtime.pipe.engine"), "PipelineEngine"
    )
    n_started: Counter[str] = Counter()
    wrapped: dict[Any, Any] = {}

    def start_batch(_args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
        n_started.clear()
        return iteration()

    def make_buffer_range(name: str) -> wrapping.RangeOfCall:
        """Return a function that counts the calls of a phase, and returns the range for each call.

        The microbatch is the number of earlier calls in the batch.
        """

        def range_of_call(args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
            if args[0]._INSTRUCTION_MAP is not annotated_table:
                # Engines with a different instruction table have several stages per rank.
                return NO_RANGE
            n_started[name] += 1
            return phase(name, microbatch=n_started[name] - 1, stage=args[0].stage_id)

        return range_of_call

    def make_batch_range(name: str) -> wrapping.RangeOfCall:
        return lambda args, _: phase(name, stage=args[0].stage_id)

    for method, name in _BUFFER_PHASES.items():
        wrapped.update([annotations.wrap(engine, method, make_buffer_range(name))])
    for method, name in _BATCH_PHASES.items():
        wrapped.update([annotations.wrap(engine, method, make_batch_range(name))])
    for method in ("train_batch", "eval_batch"):
        annotations.wrap(engine, method, start_batch)
    table = annotations.get_attribute(engine, "_INSTRUCTION_MAP")
    annotated_table = {instruction: wrapped.get(run, run) for instruction, run in table.items()}
    annotations.replace(engine, "_INSTRUCTION_MAP", annotated_table)
