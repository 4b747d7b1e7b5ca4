"""Annotate the forwards, backwards, transfers and optimizer steps of Megatron-Core.

Megatron-Core itself names transfers and layers (``--nvtx-ranges``), but not a microbatch's forward
and backward passes. This module wraps ``forward_step`` and ``backward_step``, which all schedules
call, as well as the function that overlaps a forward with a backward. The arguments of a forward
contain its microbatch and chunk. The arguments of a backward contain the output tensor of the
matching forward.

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
from bubbleviz.annotate.ranges import Range, format_name, iteration, phase
from bubbleviz.annotate.wrapping import NO_RANGE, Annotations, Args, Kwargs
from bubbleviz.errors import AnnotationError

_CORE = "megatron.core"
_SCHEDULES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_with_interleaving",
    "forward_backward_pipelining_without_interleaving",
)
_TRANSFER = re.compile(r"(?:send|recv)_(?:forward|backward)")
#: Direction of the data (F or B), and name of the parameter that determines whether the call
#: receives data. Keyed by a word in the name of a transfer function.
_DIRECTIONS = {"forward": ("F", "recv_prev"), "backward": ("B", "recv_next")}

#: Chunk and microbatch of an operation. The chunk is None if a rank has only one chunk.
OperationId = tuple[int | None, int]


def annotate(record: wrapping.Folder = None) -> Annotations:
    """Annotate the operations of Megatron-Core. Each call of a schedule is an iteration.

    Args:
        record: Folder in which to record the times of the ranges, or None to record nothing.

    Raises:
        AnnotationError: Megatron-Core cannot be imported, or differs from the expected version.
    """
    return wrapping.wrap_once("Megatron-Core", _wrap, record, "0.5 to 0.19")


class _Batch:
    """Determines the chunk and microbatch of each operation and transfer in a batch.

    Args:
        state: The module ``megatron.core.parallel_state``.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._operation_of_output: dict[int, OperationId] = {}
        self._n_started: Counter[tuple[str, int | None]] = Counter()
        self._stages: tuple[int, int] | None = None
        #: The forward that is running, or None.
        self.forward: OperationId | None = None
        #: The operation that started last, keyed by direction ("F" or "B").
        self._latest: dict[str, OperationId] = {}
        #: Operations whose inputs have not arrived yet, keyed by direction. Empty if there is only
        #: one chunk.
        self._expected_inputs: dict[str, Iterator[OperationId]] = {}
        #: The first and the last virtual stage, keyed by direction.
        self._end_stages = {"F": (0, 0), "B": (0, 0)}

    def begin(self, model: object, microbatches: int) -> None:
        """Reset the state for a new batch.

        If a rank has several chunks, the order in which inputs arrive from other stages is derived
        here from the interleaved schedule.

        Args:
            model: The model, or the list of this rank's model chunks.
            microbatches: Number of microbatches in the batch.
        """
        self._operation_of_output.clear()
        self._n_started.clear()
        self._latest.clear()
        self._expected_inputs.clear()
        self._stages = None
        if self._state.model_parallel_is_initialized():
            ranks = self._state.get_pipeline_model_parallel_world_size()
            self._stages = self._state.get_pipeline_model_parallel_rank(), ranks
            chunks = model if isinstance(model, list) else [model]
            last = ranks * len(chunks) - 1
            self._end_stages = {"F": (0, last), "B": (last, 0)}
            if len(chunks) > 1:
                # A group of microbatches runs through one chunk before it runs through the next
                # chunk.
                config = getattr(chunks[0], "config", None)
                group = getattr(config, "microbatch_group_size_per_vp_stage", None) or ranks
                order = [
                    (chunk, first + number)
                    for first in range(0, microbatches, group)
                    for chunk in range(len(chunks))
                    for number in range(min(group, microbatches - first))
                ]
                backward_order = [(len(chunks) - 1 - chunk, number) for chunk, number in order]
                for direction, operations in (("F", order), ("B", backward_order)):
                    with_input = [op for op in operations if self.has_remote_input(direction, op)]
                    self._expected_inputs[direction] = iter(with_input)

    def has_remote_input(self, direction: str, operation: OperationId) -> bool:
        """Return whether the input of an operation comes from another virtual stage.

        A forward has a remote input unless it is on the first virtual stage. A backward has a
        remote input unless it is on the last virtual stage. If the stage is unknown, the result is
        False.

        Args:
            direction: "F" for forwards or "B" for backwards.
            operation: Chunk and microbatch of the operation.
        """
        return self.get_stage(operation[0]) not in {None, self._end_stages[direction][0]}

    def get_receiver(self, direction: str, is_receiving: bool | None) -> OperationId | None:
        """Return the operation whose input a transfer call receives, or None if there is none.

        With one chunk per rank, the data is for the next forward ("F") or backward ("B") to start.
        With several chunks, inputs arrive in the order of the interleaved schedule. Each call then
        returns the next operation with a remote input, or None if all such operations have been
        returned.

        Args:
            direction: "F" for activations or "B" for gradients.
            is_receiving: Whether the call receives data, or None if the call does not have this
                argument. In that case, every rank receives except the first rank ("F") or the last
                rank ("B").
        """
        rank, ranks = self._stages or (0, 1)
        if is_receiving is None:
            is_receiving = rank != self._end_stages[direction][0] % ranks
        if not is_receiving:
            return None
        if direction in self._expected_inputs:
            return next(self._expected_inputs[direction], None)
        # With one chunk, inputs arrive in order. Several tensors may arrive for one operation.
        return None, self._n_started[direction, None]

    def get_sender(self, direction: str) -> OperationId | None:
        """Return the operation whose result is sent by a transfer call, or None if there is none.

        The call sends the result of the forward ("F") or backward ("B") that started last. The
        result is None if no such operation has started. It is also None if the operation has no
        next stage: a forward on the last virtual stage, or a backward on the first.

        Args:
            direction: "F" for activations or "B" for gradients.
        """
        operation = self._latest.get(direction)
        return (
            None
            if operation is None or self.get_stage(operation[0]) == self._end_stages[direction][1]
            else operation
        )

    def start_forward(self, chunk: int | None, microbatch: int | None) -> OperationId:
        """Register the start of a forward, and return its chunk and microbatch.

        Args:
            chunk: Chunk that was passed to the call, or None to use the current chunk of the
                parallel state.
            microbatch: Microbatch that was passed to the call, or None to use the number of earlier
                forwards of the chunk.
        """
        chunk = self._get_current_chunk() if chunk is None else chunk
        counted = self._count("F", chunk)
        self.forward = (chunk, counted if microbatch is None else int(microbatch))
        self._latest["F"] = self.forward
        return self.forward

    def finish_forward(self, result: object) -> None:
        """Register the end of the running forward, and remember its output for its backward.

        Args:
            result: Result of the call: the output of the forward, or a tuple whose first element is
                the output.
        """
        if self.forward is not None:
            output = result[0] if isinstance(result, tuple) else result
            self._operation_of_output[id(output)] = self.forward
        self.forward = None

    def start_backward(self, output: object) -> OperationId:
        """Register the start of a backward, and return its chunk and microbatch.

        The backward has the chunk and microbatch of the forward with the same output. If that
        forward is unknown, the chunk is the parallel state's current chunk, and the microbatch is
        the number of the chunk's earlier backwards in this batch.

        Args:
            output: Output of the forward that the backward belongs to.
        """
        operation = self._operation_of_output.pop(id(output), None)
        chunk = self._get_current_chunk() if operation is None else operation[0]
        counted = self._count("B", chunk)
        self._latest["B"] = operation = (chunk, counted) if operation is None else operation
        return operation

    def get_stage(self, chunk: int | None) -> int | None:
        """Return the virtual stage of a chunk on this rank, or None if unknown.

        A chunk of None means chunk 0.
        """
        if self._stages is None:
            return None
        rank, ranks = self._stages
        return rank + ranks * (chunk or 0)

    def _get_current_chunk(self) -> int | None:
        """Return the current chunk of the parallel state, or None if it has no current chunk."""
        get_rank = getattr(self._state, "get_virtual_pipeline_model_parallel_rank", None)
        return None if get_rank is None else get_rank()

    def _count(self, name: str, chunk: int | None) -> int:
        """Count an operation, and return how many earlier ones have the same kind and chunk."""
        index = self._n_started[name, chunk]
        self._n_started[name, chunk] += 1
        return index


def _wrap(annotations: Annotations) -> None:
    """Wrap the schedules, their forwards and backwards, the transfers and the optimizers.

    Every call of a schedule starts a new batch, which is an iteration.
    """
    schedules = annotations.import_module(f"{_CORE}.pipeline_parallel.schedules")
    batch = _Batch(annotations.import_module(f"{_CORE}.parallel_state"))
    _wrap_steps(annotations, schedules, batch)
    _wrap_overlapped(annotations, batch)

    def of_schedule(_args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        # Schedules accept keyword arguments only.
        batch.begin(kwargs.get("model"), kwargs.get("num_microbatches", 0))
        return iteration()

    for name in _SCHEDULES:
        annotations.wrap(schedules, name, of_schedule)
    _wrap_transfers(annotations, batch)
    _wrap_optimizers(annotations)


def _wrap_steps(annotations: Annotations, schedules: Any, batch: _Batch) -> None:
    """Wrap ``forward_step`` and ``backward_step``.

    The chunk of a forward is the argument ``vp_stage``. If there is no such argument, it is the
    model's attribute ``vp_stage``. In older versions without ``vp_stage``, the current chunk of the
    parallel state is used.
    """
    forward = annotations.get_attribute(schedules, "forward_step")
    chunk = _get_optional_argument(annotations, forward, "vp_stage")
    microbatch = _get_optional_argument(annotations, forward, "current_microbatch")
    model = annotations.get_argument(forward, "model")
    output = annotations.get_argument(
        annotations.get_attribute(schedules, "backward_step"), "output_tensor"
    )

    def of_forward(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        number = chunk(args, kwargs)
        if number is None:
            number = getattr(model(args, kwargs), "vp_stage", None)
        return _make_range("F", batch, batch.start_forward(number, microbatch(args, kwargs)))

    def of_backward(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        return _make_range("BW", batch, batch.start_backward(output(args, kwargs)))

    annotations.wrap(schedules, "forward_step", of_forward, batch.finish_forward)
    annotations.wrap(schedules, "backward_step", of_backward)


def _wrap_overlapped(annotations: Annotations, batch: _Batch) -> None:
    """Wrap the function that overlaps a forward with a backward, if it exists (since 0.14).

    A call gets the range FB, or just F or BW if it runs only one of the two. A receive range is
    open while the function waits for an input from another stage.
    """
    try:
        module = annotations.import_module(f"{_CORE}.pipeline_parallel.combined_1f1b")
    except AnnotationError:
        return
    step = annotations.get_attribute(module, "combined_forward_backward_step")
    names = ("f_model", "b_model", "b_output_tensor", "f_model_chunk_id", "current_microbatch")
    picks = [annotations.get_argument(step, name) for name in names]

    def range_of_call(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        """Return the range of a call: FB, or just F or BW if the call runs only one of the two.

        For FB, the keyword arguments ``pre_forward`` and ``pre_backward`` are callables that wait
        for inputs. If the input comes from another stage, the callable is replaced in ``kwargs`` by
        a version that runs inside a range RECV_F or RECV_B.
        """
        forward, backward, output, chunk, microbatch = (pick(args, kwargs) for pick in picks)
        first = None if forward is None else batch.start_forward(chunk, microbatch)
        second = None if backward is None else batch.start_backward(output)
        if first is None or second is None:
            operation = first or second
            return _make_range("BW" if first is None else "F", batch, operation or (None, 0))
        # The wrapped function waits for its inputs by calling these arguments.
        for wait, direction, operation in (
            ("pre_forward", "F", first),
            ("pre_backward", "B", second),
        ):
            if kwargs.get(wait) is not None and batch.has_remote_input(direction, operation):
                kwargs[wait] = _make_range(f"RECV_{direction}", batch, operation)(kwargs[wait])
        return _make_range("FB", batch, first, second)

    name = "combined_forward_backward_step"
    annotations.wrap(module, name, range_of_call, batch.finish_forward)


def _make_range(
    name: str,
    batch: _Batch,
    operation: OperationId,
    second: OperationId | None = None,
    *,
    launches: bool = False,
) -> Range:
    """Return the range for one operation or transfer, or for two that run concurrently."""
    (chunk, number), (chunk2, number2) = operation, second or (None, None)
    stage, stage2 = batch.get_stage(chunk), batch.get_stage(chunk2) if second else None
    numbers = number, chunk, stage, None, number2, chunk2, stage2
    return Range(format_name(name, *numbers), launches=launches)


def _get_optional_argument(
    annotations: Annotations, function: Any, name: str
) -> Callable[[Args, Kwargs], Any]:
    """Return a function that looks up the argument with this name in a call.

    If ``function`` has no parameter with this name, the lookup always returns None.
    """
    if name in inspect.signature(function).parameters:
        return annotations.get_argument(function, name)
    return lambda _args, _kwargs: None


def _wrap_transfers(annotations: Annotations, batch: _Batch) -> None:
    """Wrap all transfers between stages.

    Since version 0.14, the transfers are methods of the class ``P2PCommunicator``. In older
    versions, they are functions in the module.
    """
    module = annotations.import_module(f"{_CORE}.pipeline_parallel.p2p_communication")
    owner = getattr(module, "P2PCommunicator", module)
    names = [name for name in vars(owner) if _TRANSFER.match(name)]
    if not names:
        annotations.get_attribute(owner, "send_forward")
    for name in names:
        annotations.wrap(owner, name, _make_transfer_range_factory(annotations, batch, owner, name))


def _make_transfer_range_factory(
    annotations: Annotations, batch: _Batch, owner: Any, name: str
) -> wrapping.RangeOfCall:
    """Return a function that creates the range for each call of a transfer function.

    The name of the transfer function says what it sends and receives, for example
    ``send_forward_recv_backward``. If a call makes more than two transfers, the range names only
    two of them: the last two, with all sends listed before all receives.

    Args:
        annotations: Annotations of the framework.
        batch: Chunks and microbatches of the current batch.
        owner: Module or class of the transfer function.
        name: Name of the transfer function.
    """
    function = annotations.get_attribute(owner, name)
    send_words, _, receive_words = name.partition("recv")
    # The first parameters are the tensors to send.
    tensor_names = [
        name_of_parameter
        for name_of_parameter in inspect.signature(function).parameters
        if name_of_parameter != "self"
    ]
    send_directions = [way for word, (way, _) in _DIRECTIONS.items() if word in send_words]
    sends = [
        (w, annotations.get_argument(function, t))
        for w, t in zip(send_directions, tensor_names, strict=False)
    ]
    flags = [_DIRECTIONS[word] for word in _DIRECTIONS if word in receive_words]
    receives = [(way, _get_optional_argument(annotations, function, flag)) for way, flag in flags]
    is_overlapped = _get_optional_argument(annotations, function, "overlap_p2p_comm")

    def of_call(args: Args, kwargs: Kwargs) -> AbstractContextManager[object]:
        """Return the range of a call, or ``NO_RANGE`` if the call neither sends nor receives.

        A single transfer has a range such as SEND_F, and several transfers have SEND_RECV. A call
        with the argument ``overlap_p2p_comm`` only starts its transfers.
        """
        sent = [(f"SEND_{w}", batch.get_sender(w)) for w, t in sends if t(args, kwargs) is not None]
        received = [
            (f"RECV_{w}", batch.get_receiver(w, told(args, kwargs))) for w, told in receives
        ]
        transfers = [(name, place) for name, place in (*sent, *received) if place is not None][-2:]
        if not transfers:
            return NO_RANGE
        range_name = transfers[0][0] if len(transfers) == 1 else "SEND_RECV"
        operations = [place for _, place in transfers]
        return _make_range(
            range_name, batch, *operations, launches=bool(is_overlapped(args, kwargs))
        )

    return of_call


def _wrap_optimizers(annotations: Annotations) -> None:
    """Wrap the method ``step`` of every optimizer class. A chained optimizer opens only one range.

    Up to version 0.5, Megatron-Core does not contain optimizers, so no classes are wrapped.
    """
    if importlib.util.find_spec(f"{_CORE}.optimizer") is None:
        return
    base = annotations.get_attribute(
        annotations.import_module(f"{_CORE}.optimizer.optimizer"), "MegatronOptimizer"
    )
    annotations.import_module(f"{_CORE}.optimizer")
    for kind in wrapping.list_subclasses(base):
        if "step" in vars(kind):
            annotations.wrap(kind, "step", wrapping.make_range_factory(phase, "Optimizer"))
