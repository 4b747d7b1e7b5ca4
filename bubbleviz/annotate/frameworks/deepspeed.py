"""DeepSpeed's pipeline engine: every instruction of its schedules.

DeepSpeed names forwards, and backwards on the last stage only (``DeepSpeedEngine.backward``); its
pipeline engine names nothing. Here the methods that run instructions are wrapped, where the
engine's table of instructions holds them, too. Buffers are no microbatches, so these are counted:
in each batch the k-th forward of a stage is that of microbatch k, and so on.

Written for DeepSpeed 0.14 to 0.19, deepspeed/runtime/pipe/engine.py, schedule.py, dualpipev.py.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from bubbleviz.annotate.ranges import iteration, phase
from bubbleviz.annotate.wrapping import UNNAMED, Annotations, Args, Kwargs, Naming, once
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
#: Phases of those for the whole batch.
_ON_BATCHES = {
    "_exec_optimizer_step": "Optimizer",
    "_exec_reduce_grads": "COLLECTIVE",
    "_exec_reduce_tied_grads": "COLLECTIVE",
}
#: Two stages a rank; transfers are queued, and started together.
_BOTH_WAYS = ("_exec_forward_pass", "_exec_backward_pass")


def annotate() -> Annotations:
    """Name the instructions of DeepSpeed's pipeline engine; a batch is an iteration.

    Raises:
        AnnotationError: DeepSpeed cannot be imported, or is not as expected.
    """
    return once("DeepSpeed", _wrap)


def _wrap(to: Annotations) -> None:
    engine = to.sought(to.module("deepspeed.runtime.pipe.engine"), "PipelineEngine")
    both_ways = _both_ways(to)
    done: Counter[tuple[str, int]] = Counter()
    named = {m: _counted(name, done, both_ways) for m, name in _ON_BUFFERS.items()}
    named |= {m: _whole(name) for m, name in _ON_BATCHES.items()}
    wrapped = dict(to.wrap(engine, method, naming) for method, naming in named.items())
    for method in ("train_batch", "eval_batch"):
        to.wrap(engine, method, _batch(done))
    if both_ways is not None:
        for method in _BOTH_WAYS:
            given = to.argument(to.sought(both_ways, method), "phase")
            naming = _of_two_stages(_ON_BUFFERS[method], done, given)
            wrapped.update([to.wrap(both_ways, method, naming)])
        wrapped.update([to.wrap(both_ways, "_exec_commit_p2p", _whole("SEND_RECV"))])
    for kind in (engine,) if both_ways is None else (engine, both_ways):
        table = to.sought(kind, "_INSTRUCTION_MAP")
        to.replace(kind, "_INSTRUCTION_MAP", {i: wrapped.get(run, run) for i, run in table.items()})


def _both_ways(to: Annotations) -> Any:
    """Return the engine that holds two stages a rank; None where DeepSpeed has none (to 0.18)."""
    try:
        return getattr(to.module("deepspeed.runtime.pipe.dualpipev"), "DualPipeVEngine", None)
    except AnnotationError:
        return None


def _batch(done: Counter[tuple[str, int]]) -> Naming:
    def naming(_args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
        done.clear()
        return iteration()

    return naming


def _whole(name: str) -> Naming:
    return lambda args, _: phase(name, stage=args[0].stage_id)


def _counted(name: str, done: Counter[tuple[str, int]], both_ways: Any) -> Naming:
    """Return the naming of an instruction of the one stage of a rank."""

    def naming(args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
        engine = args[0]
        if both_ways is not None and isinstance(engine, both_ways):
            return UNNAMED
        microbatch = done[name, 0]
        done[name, 0] += 1
        return phase(name, microbatch=microbatch, stage=engine.stage_id)

    return naming


def _of_two_stages(name: str, done: Counter[tuple[str, int]], given: Any) -> Naming:
    """Return the naming of an instruction of a rank with two stages, there and back."""

    def naming(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        engine, chunk = args[0], int(given(args, kwargs))
        microbatch = done[name, chunk]
        done[name, chunk] += 1
        back = 2 * engine.num_stages - 1 - engine.stage_id
        stage = back if chunk else engine.stage_id
        return phase(name, microbatch=microbatch, chunk=chunk, stage=stage)

    return naming
