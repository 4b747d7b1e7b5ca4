"""Annotate all schedules of torch.distributed.pipelining by wrapping stage methods.

PyTorch itself names the operations of some schedules (``PP:0F3``, ``Forward 3``), but not those of
1F1B. It names neither the loss nor the optimizer. This module wraps stage methods, which every
schedule calls. A forward and its loss are F, and a complete backward is BW. A backward that
computes only the input gradient is B, and one that computes only the weight gradients is W.

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

#: Transfer phases, keyed by the name of the stage method that lists the transfers.
_TRANSFERS = {
    "get_fwd_send_ops": "SEND_F",
    "get_fwd_recv_ops": "RECV_F",
    "get_bwd_send_ops": "SEND_B",
    "get_bwd_recv_ops": "RECV_B",
}
#: Attribute of a transfer in which its phase, microbatch and stage are stored until it starts.
_TAG = "_bubbleviz_transfer"


def annotate(record: wrapping.Folder = None) -> Annotations:
    """Annotate the operations, iterations and optimizer steps of torch.distributed.pipelining.

    Range names contain the virtual stage (``stage_index``) and the microbatch. Each call of
    ``schedule.step()`` is an iteration, unless it runs inside an ``annotate.iteration`` of the
    script. A script needs ``annotate.iteration`` if several calls belong to one optimizer step.

    Args:
        record: Folder in which to record the times of the ranges, or None to record nothing.

    Raises:
        AnnotationError: PyTorch lacks the module, or differs from the expected version.
    """
    return wrapping.wrap_once("torch.distributed.pipelining", _wrap, record, "2.5 to 2.14")


def _wrap(annotations: Annotations) -> None:
    """Wrap the stage methods, the transfers, the loss, the schedules and the optimizers.

    Every call of a schedule's ``step`` is an iteration. The loss gets a range F, because it is
    part of the forward on the last stage.
    """
    stages = annotations.import_module("torch.distributed.pipelining.stage")
    schedules = annotations.import_module("torch.distributed.pipelining.schedules")
    _wrap_stage(annotations, stages, annotations.get_attribute(stages, "_PipelineStageBase"))
    _wrap_transfers(annotations, stages, schedules)
    base = annotations.get_attribute(schedules, "_PipelineSchedule")
    loss = annotations.get_attribute(base, "_maybe_compute_loss")
    stage = annotations.get_argument(loss, "stage")
    microbatch = annotations.get_argument(loss, "mb_index")

    def of_loss(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        """Return a range F on the last stage, and ``NO_RANGE`` on all other stages."""
        stage_object = stage(args, kwargs)
        return (
            _make_range("F", stage_object, microbatch(args, kwargs))
            if stage_object.is_last
            else NO_RANGE
        )

    annotations.wrap(base, "_maybe_compute_loss", of_loss)
    for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        annotations.wrap(
            annotations.get_attribute(schedules, name),
            "step",
            wrapping.make_range_factory(iteration),
        )
    wrap_optimizers(annotations)


def _make_range(name: str, stage: Any, microbatch: int) -> Range:
    return phase(name, microbatch=microbatch, stage=stage.stage_index)


def _wrap_stage(annotations: Annotations, stages: Any, base: Any) -> None:
    """Wrap the forwards, backwards and gradient reductions of all stage classes.

    A backward has the range BW, or B if it computes only the input gradient. The computation of the
    weight gradients has the range W. If a stage has no backwards, as during evaluation, no ranges
    are opened for them.
    """
    forward = annotations.get_argument(
        annotations.get_attribute(base, "forward_one_chunk"), "fwd_chunk_id"
    )
    backward = annotations.get_attribute(base, "backward_one_chunk")
    chunk = annotations.get_argument(backward, "bwd_chunk_id")
    full = annotations.get_argument(backward, "full_backward", default=True)
    weights = annotations.get_argument(
        annotations.get_attribute(base, "backward_weight_one_chunk"), "bwd_chunk_id"
    )

    # During evaluation, schedules still call the backward methods, which have no effect.
    def of_backward(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        name = "BW" if full(args, kwargs) else "B"
        return _make_range(name, args[0], chunk(args, kwargs)) if args[0].has_backward else NO_RANGE

    def of_weights(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        return (
            _make_range("W", args[0], weights(args, kwargs)) if args[0].has_backward else NO_RANGE
        )

    annotations.wrap(base, "forward_one_chunk", lambda a, k: _make_range("F", a[0], forward(a, k)))
    annotations.wrap(base, "backward_one_chunk", of_backward)
    annotations.wrap(base, "backward_weight_one_chunk", of_weights)
    if hasattr(base, "perform_reduce_grad"):  # since PyTorch 2.9
        annotations.wrap(
            base,
            "perform_reduce_grad",
            _make_reduction_range_factory(getattr(stages, "FSDPModule", ())),
        )


def _make_reduction_range_factory(sharded: Any) -> wrapping.RangeOfCall:
    """Return a function that creates the range for a gradient reduction.

    Only stages with a sharded module reduce gradients, so other stages do not get a range.

    Args:
        sharded: Class of sharded modules, or () if unknown. If it is unknown, every stage gets a
            range.
    """

    def of_reduction(args: Args, _kwargs: Kwargs) -> AbstractContextManager[object]:
        stage = args[0]
        if sharded and not isinstance(getattr(stage, "submod", None), sharded):
            return NO_RANGE
        return phase("COLLECTIVE", stage=stage.stage_index)

    return of_reduction


def _wrap_transfers(annotations: Annotations, stages: Any, schedules: Any) -> None:
    """Wrap the functions that start transfers, and the stage methods that list transfers.

    Stage methods that list transfers are changed to tag each transfer, so that ranges can be named
    after the transfers.
    """
    base = annotations.get_attribute(stages, "_PipelineStageBase")
    for method, name in _TRANSFERS.items():
        _tag_transfers(annotations, base, method, name)

    def of_transfers(ops: Callable[[Args, Kwargs], Any]) -> wrapping.RangeOfCall:
        return lambda args, kwargs: _make_transfer_range(ops(args, kwargs))

    for function in ("_batch_p2p", "_sorted_batch_p2p"):
        ops = annotations.get_argument(annotations.get_attribute(schedules, function), "p2p_ops")
        annotations.wrap(schedules, function, of_transfers(ops))


def _tag_transfers(annotations: Annotations, base: Any, method: str, name: str) -> None:
    """Make a stage method tag each transfer that it lists with phase, microbatch and stage.

    Args:
        annotations: Annotations of the framework.
        base: Base class of stages.
        method: Name of the method that lists transfers.
        name: Phase of the transfers that the method lists.
    """
    original = annotations.get_attribute(base, method)
    microbatch = annotations.get_argument(original, list(inspect.signature(original).parameters)[1])

    def tagged(*args: Any, **kwargs: Any) -> Any:
        ops = original(*args, **kwargs)
        if annotations.active:
            for op in ops:
                setattr(op, _TAG, (name, microbatch(args, kwargs), args[0].stage_index))
        return ops

    annotations.replace(base, method, tagged)


def _make_transfer_range(ops: Iterable[Any]) -> AbstractContextManager[object]:
    """Return one range for transfers that start together.

    The range is named after the tag of the transfers. If the transfers have different tags, the
    range is a ``SEND_RECV`` with the first two tags. The result is ``NO_RANGE`` if there are no
    transfers or a transfer has no tag.
    """
    distinct = dict.fromkeys(getattr(op, _TAG, None) for op in ops)
    tags = [tag for tag in distinct if tag is not None]
    if not tags or len(tags) < len(distinct):
        return NO_RANGE
    name, microbatch, stage = tags[0]
    second = {}
    if len(tags) > 1:
        name, second = "SEND_RECV", {"second_microbatch": tags[1][1], "second_stage": tags[1][2]}
    name_source = phase(name, microbatch=microbatch, stage=stage, **second)
    return Range(name_source.name, launches=True)


def wrap_optimizers(
    annotations: Annotations, on_result: Callable[[Any], None] | None = None
) -> None:
    """Wrap the method ``step`` of all PyTorch optimizer classes.

    PyTorch's step hooks are not used, because the hook after a step is not called if the step
    raises an error. An optimizer class that is defined later is wrapped when its first instance is
    created. If a learning-rate scheduler has replaced ``step`` on an optimizer instance, the
    instance attribute is wrapped as well.

    Args:
        annotations: Annotations that wrap the methods.
        on_result: Function to call with the result of each step.
    """
    base = annotations.get_attribute(
        annotations.import_module("torch.optim.optimizer"), "Optimizer"
    )
    patch_step = annotations.get_attribute(base, "_patch_step_function")
    wrapped: set[type] = {base}

    def wrap_kinds(kinds: Iterable[type]) -> None:
        """Wrap ``step`` of all classes that define the method and are not wrapped yet."""
        for kind in kinds:
            if kind not in wrapped and "step" in vars(kind):
                wrapped.add(kind)
                annotations.wrap(
                    kind, "step", wrapping.make_range_factory(phase, "Optimizer"), on_result
                )

    def patch_and_wrap(optimizer: Any) -> None:
        patch_step(optimizer)
        if annotations.active:
            wrap_kinds(kind for kind in type(optimizer).__mro__ if issubclass(kind, base))

    wrap_kinds(wrapping.list_subclasses(base))
    # Learning-rate schedulers replace an optimizer's ``step`` with an instance attribute.
    for optimizer in gc.get_objects():
        if issubclass(type(optimizer), base) and "step" in vars(optimizer):
            annotations.wrap(
                optimizer, "step", wrapping.make_range_factory(phase, "Optimizer"), on_result
            )
    annotations.replace(base, "_patch_step_function", patch_and_wrap)
