"""torch.distributed.pipelining: every schedule, by the methods of its stages.

PyTorch names the operations of some schedules only (``PP:0F3``, ``Forward 3``; none of 1F1B), and
none of the loss or the optimizer. Here the stage's own methods are wrapped, which every schedule
calls: a forward with its loss, a backward as BW, its input half as B, its weight half as W.

Written for PyTorch 2.5 to 2.14, torch/distributed/pipelining/stage.py and schedules.py.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from bubbleviz.annotate import wrapping
from bubbleviz.annotate.ranges import Range, iteration, phase
from bubbleviz.annotate.wrapping import NO_RANGE, Annotations, Args, Kwargs

#: Phases of transfers, by the stage's method that lists them.
_TRANSFERS = {
    "get_fwd_send_ops": "SEND_F",
    "get_fwd_recv_ops": "RECV_F",
    "get_bwd_send_ops": "SEND_B",
    "get_bwd_recv_ops": "RECV_B",
}
#: Attribute of a transfer that holds its phase, microbatch and stage until it starts.
_TAG = "_bubbleviz_transfer"


def annotate(record: wrapping.Folder = None) -> Annotations:
    """Name the operations, iterations and optimizer steps of torch.distributed.pipelining.

    Names hold the virtual stage (``stage_index``) and the microbatch. Each ``schedule.step()`` is
    an iteration, unless it runs in an ``annotate.iteration`` of the script, as with several of
    them for one step of the optimizer.

    Args:
        record: folder to which their times are recorded; None for none.

    Raises:
        AnnotationError: PyTorch lacks it, or it is not as expected.
    """
    return wrapping.once("torch.distributed.pipelining", _wrap, record, "2.5 to 2.14")


def _wrap(annotations: Annotations) -> None:
    stages = annotations.module("torch.distributed.pipelining.stage")
    schedules = annotations.module("torch.distributed.pipelining.schedules")
    _wrap_stage(annotations, stages, annotations.attribute(stages, "_PipelineStageBase"))
    _wrap_transfers(annotations, stages, schedules)
    base = annotations.attribute(schedules, "_PipelineSchedule")
    loss = annotations.attribute(base, "_maybe_compute_loss")
    stage, microbatch = annotations.argument(loss, "stage"), annotations.argument(loss, "mb_index")

    def of_loss(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        at = stage(args, kwargs)
        return _work("F", at, microbatch(args, kwargs)) if at.is_last else NO_RANGE

    annotations.wrap(base, "_maybe_compute_loss", of_loss)
    for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        annotations.wrap(annotations.attribute(schedules, name), "step", wrapping.always(iteration))
    wrap_optimizers(annotations)


def _work(name: str, stage: Any, microbatch: int) -> Range:
    return phase(name, microbatch=microbatch, stage=stage.stage_index)


def _wrap_stage(annotations: Annotations, stages: Any, base: Any) -> None:
    """Name forwards and backwards, wherever a class of stages defines its own."""
    forward = annotations.argument(annotations.attribute(base, "forward_one_chunk"), "fwd_chunk_id")
    backward = annotations.attribute(base, "backward_one_chunk")
    chunk = annotations.argument(backward, "bwd_chunk_id")
    full = annotations.argument(backward, "full_backward", default=True)
    weights = annotations.argument(
        annotations.attribute(base, "backward_weight_one_chunk"), "bwd_chunk_id"
    )

    # In an evaluation a schedule calls a backward all the same, and it does nothing.
    def of_backward(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        name = "BW" if full(args, kwargs) else "B"
        return _work(name, args[0], chunk(args, kwargs)) if args[0].has_backward else NO_RANGE

    def of_weights(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        return _work("W", args[0], weights(args, kwargs)) if args[0].has_backward else NO_RANGE

    annotations.wrap(base, "forward_one_chunk", lambda a, k: _work("F", a[0], forward(a, k)))
    annotations.wrap(base, "backward_one_chunk", of_backward)
    annotations.wrap(base, "backward_weight_one_chunk", of_weights)
    if hasattr(base, "perform_reduce_grad"):  # since PyTorch 2.9
        annotations.wrap(base, "perform_reduce_grad", _reduction(getattr(stages, "FSDPModule", ())))


def _reduction(sharded: Any) -> wrapping.RangeOfCall:
    """Return the ranges of gradient reductions, which stages of other modules do not have."""

    def of_reduction(args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
        stage = args[0]
        if sharded and not isinstance(getattr(stage, "submod", None), sharded):
            return NO_RANGE
        return phase("COLLECTIVE", stage=stage.stage_index)

    return of_reduction


def _wrap_transfers(annotations: Annotations, stages: Any, schedules: Any) -> None:
    """Name transfers where they start, by the tags from when the stage listed them."""
    base = annotations.attribute(stages, "_PipelineStageBase")
    for method, name in _TRANSFERS.items():
        _tag(annotations, base, method, name)

    def of_transfers(ops: Callable[[Args, Kwargs], Any]) -> wrapping.RangeOfCall:
        return lambda args, kwargs: _transfers(ops(args, kwargs))

    for function in ("_batch_p2p", "_sorted_batch_p2p"):
        ops = annotations.argument(annotations.attribute(schedules, function), "p2p_ops")
        annotations.wrap(schedules, function, of_transfers(ops))


def _tag(annotations: Annotations, base: Any, method: str, name: str) -> None:
    """Tag each transfer that a stage lists with its phase, microbatch and stage."""
    original = annotations.attribute(base, method)
    microbatch = annotations.argument(original, list(inspect.signature(original).parameters)[1])

    def tagged(*args: Any, **kwargs: Any) -> Any:
        ops = original(*args, **kwargs)
        if annotations.active:
            for op in ops:
                setattr(op, _TAG, (name, microbatch(args, kwargs), args[0].stage_index))
        return ops

    annotations.replace(base, method, tagged)


def _transfers(ops: Iterable[Any]) -> AbstractContextManager[object]:
    """Return the range of transfers that start together: two of different kinds are one range."""
    distinct = dict.fromkeys(getattr(op, _TAG, None) for op in ops)
    tags = [tag for tag in distinct if tag is not None]
    if not tags or len(tags) < len(distinct):
        return NO_RANGE
    name, microbatch, stage = tags[0]
    second = {}
    if len(tags) > 1:
        name, second = "SEND_RECV", {"second_microbatch": tags[1][1], "second_stage": tags[1][2]}
    both = phase(name, microbatch=microbatch, stage=stage, **second)
    return Range(both.name, launches=True)


def wrap_optimizers(annotations: Annotations, done: Callable[[Any], None] | None = None) -> None:
    """Name the steps of all optimizers of PyTorch; ``done`` takes what they return.

    Its hooks around a step do not fit a range: a step that raises never reaches the second one.
    """
    base = annotations.attribute(annotations.module("torch.optim.optimizer"), "Optimizer")
    begun = annotations.attribute(base, "_patch_step_function")
    wrapped: set[type] = {base}

    def wrap_kinds(kinds: Iterable[type]) -> None:
        for kind in kinds:
            if kind not in wrapped and "step" in vars(kind):
                wrapped.add(kind)
                annotations.wrap(kind, "step", wrapping.always(phase, "Optimizer"), done)

    def begins(optimizer: Any) -> None:
        begun(optimizer)
        if annotations.active:
            wrap_kinds(kind for kind in type(optimizer).__mro__ if issubclass(kind, base))

    wrap_kinds(wrapping.subclasses(base))
    # Learning-rate schedulers give an optimizer a step of its own, around that of its class.
    for optimizer in gc.get_objects():
        if issubclass(type(optimizer), base) and "step" in vars(optimizer):
            annotations.wrap(optimizer, "step", wrapping.always(phase, "Optimizer"), done)
    annotations.replace(base, "_patch_step_function", begins)
