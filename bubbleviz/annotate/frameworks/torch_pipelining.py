"""torch.distributed.pipelining: every schedule, by what its stages do.

PyTorch names the operations of some schedules only (``PP:0F3``, ``Forward 3``; none of 1F1B), and
none of the loss or the optimizer. Here the stage's own methods are wrapped, which every schedule
calls: a forward with its loss, a backward as BW, its input half as B, its weight half as W.

Written for PyTorch 2.5 to 2.13, torch/distributed/pipelining/stage.py and schedules.py.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from bubbleviz.annotate.ranges import Range, iteration, phase
from bubbleviz.annotate.wrapping import UNNAMED, Annotations, Args, Kwargs, always, once, subclasses

#: What a transfer carries, by the stage's method that lists it.
_TRANSFERS = {
    "get_fwd_send_ops": "SEND_F",
    "get_fwd_recv_ops": "RECV_F",
    "get_bwd_send_ops": "SEND_B",
    "get_bwd_recv_ops": "RECV_B",
}
#: How a transfer carries its name from there to where it starts.
_TAG = "_bubbleviz_transfer"


def annotate() -> Annotations:
    """Name the operations, iterations and optimizer steps of torch.distributed.pipelining.

    Names hold the virtual stage (``stage_index``) and the microbatch. Each ``schedule.step()`` is
    an iteration, unless it runs in an ``annotate.iteration`` of the script, as with several of
    them for one step of the optimizer.

    Raises:
        AnnotationError: PyTorch lacks it, or it is not as expected.
    """
    return once("torch.distributed.pipelining", _wrap)


def _wrap(to: Annotations) -> None:
    stages = to.module("torch.distributed.pipelining.stage")
    schedules = to.module("torch.distributed.pipelining.schedules")
    _wrap_stage(to, to.sought(stages, "_PipelineStageBase"))
    _wrap_transfers(to, stages, schedules)
    base = to.sought(schedules, "_PipelineSchedule")
    loss = to.sought(base, "_maybe_compute_loss")
    stage, microbatch = to.argument(loss, "stage"), to.argument(loss, "mb_index")

    def of_loss(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        at = stage(args, kwargs)
        return _work("F", at, microbatch(args, kwargs)) if at.is_last else UNNAMED

    to.wrap(base, "_maybe_compute_loss", of_loss)
    for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        to.wrap(to.sought(schedules, name), "step", always(iteration))
    _wrap_optimizers(to)


def _work(name: str, stage: Any, microbatch: int) -> Range:
    return phase(name, microbatch=microbatch, stage=stage.stage_index)


def _wrap_stage(to: Annotations, base: Any) -> None:
    """Name forwards and backwards, wherever a class of stages defines its own."""
    forward = to.argument(to.sought(base, "forward_one_chunk"), "fwd_chunk_id")
    backward = to.sought(base, "backward_one_chunk")
    chunk = to.argument(backward, "bwd_chunk_id")
    full = to.argument(backward, "full_backward", default=True)
    weights = to.argument(to.sought(base, "backward_weight_one_chunk"), "bwd_chunk_id")

    def of_backward(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        # In an evaluation a schedule calls it all the same, and it does nothing.
        if not args[0].has_backward:
            return UNNAMED
        return _work("BW" if full(args, kwargs) else "B", args[0], chunk(args, kwargs))

    def of_weights(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        if not args[0].has_backward:
            return UNNAMED
        return _work("W", args[0], weights(args, kwargs))

    to.wrap(base, "forward_one_chunk", lambda a, k: _work("F", a[0], forward(a, k)))
    to.wrap(base, "backward_one_chunk", of_backward)
    to.wrap(base, "backward_weight_one_chunk", of_weights)
    if hasattr(base, "perform_reduce_grad"):  # since PyTorch 2.9
        to.wrap(
            base, "perform_reduce_grad", lambda a, _: phase("COLLECTIVE", stage=a[0].stage_index)
        )


def _wrap_transfers(to: Annotations, stages: Any, schedules: Any) -> None:
    """Name transfers where they start, by what the stage says when it lists them."""
    base = to.sought(stages, "_PipelineStageBase")
    for method, name in _TRANSFERS.items():
        _tag(to, base, method, name)
    for function in ("_batch_p2p", "_sorted_batch_p2p"):
        ops = to.argument(to.sought(schedules, function), "p2p_ops")
        to.wrap(schedules, function, _transfers(ops))


def _tag(to: Annotations, base: Any, method: str, name: str) -> None:
    """Have each transfer that a stage lists carry its phase, microbatch and stage."""
    original = to.sought(base, method)
    parameter = next(p for p in list(inspect.signature(original).parameters)[1:])
    microbatch = to.argument(original, parameter)

    def tagged(*args: Any, **kwargs: Any) -> Any:
        ops = original(*args, **kwargs)
        if to.active:
            for op in ops:
                setattr(op, _TAG, (name, microbatch(args, kwargs), args[0].stage_index))
        return ops

    to.replace(base, method, tagged)


def _transfers(
    ops: Callable[[Args, Kwargs], Any],
) -> Callable[[Args, Kwargs], AbstractContextManager[object]]:
    """Return the naming of transfers that start together: two of different kinds are one range."""

    def naming(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        found = dict.fromkeys(getattr(op, _TAG, None) for op in ops(args, kwargs))
        tags = [tag for tag in found if tag is not None]
        if not tags or len(tags) < len(found):
            return UNNAMED
        name, microbatch, stage = tags[0]
        if len(tags) == 1:
            return phase(name, microbatch=microbatch, stage=stage)
        _, other, beside = tags[1]
        return phase(
            "SEND_RECV",
            microbatch=microbatch,
            stage=stage,
            second_microbatch=other,
            second_stage=beside,
        )

    return naming


def _wrap_optimizers(to: Annotations) -> None:
    """Name the steps of all optimizers of PyTorch.

    Its hooks around a step are none for a range: a step that raises never reaches the second one.
    """
    base = to.sought(to.module("torch.optim.optimizer"), "Optimizer")
    begun = to.sought(base, "_patch_step_function")
    wrapped: set[type] = {base}

    def wrap_kinds(kinds: Iterable[type]) -> None:
        for kind in kinds:
            if kind not in wrapped and "step" in vars(kind):
                wrapped.add(kind)
                to.wrap(kind, "step", always(_step))

    def begins(optimizer: Any) -> None:
        begun(optimizer)
        if to.active:
            wrap_kinds(kind for kind in type(optimizer).__mro__ if issubclass(kind, base))

    wrap_kinds(subclasses(base))
    # Schedulers of learning rates give an optimizer a step of its own, that holds its class's.
    for found in gc.get_objects():
        if issubclass(type(found), base) and "step" in vars(found):
            to.wrap(found, "step", always(_step))
    to.replace(base, "_patch_step_function", begins)


def _step() -> Range:
    return phase("Optimizer")
