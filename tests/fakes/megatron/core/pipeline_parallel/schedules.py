"""Megatron-Core's schedules, reduced to the calls of their forward and backward steps."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.core import parallel_state
from megatron.core.pipeline_parallel import combined_1f1b
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

#: Whether forwards get their microbatch and chunk as arguments, as in newer versions.
#: Tests set this value.
tells = True


def forward_step(
    forward_step_func: object,
    data_iterator: object,
    model: object,
    num_microbatches: int,
    input_tensor: object,
    forward_data_store: object,
    config: object,
    current_microbatch: int | None = None,
    vp_stage: int | None = None,
) -> tuple[object, int]:
    return [object()], 1


def backward_step(
    input_tensor: object,
    output_tensor: object,
    output_tensor_grad: object,
    model_type: object,
    config: object,
) -> object:
    assert isinstance(output_tensor, list), "not what a forward returned"
    return object()


def _forward(microbatch: int, chunk: int | None = None) -> object:
    said = {"current_microbatch": microbatch, "vp_stage": chunk} if tells else {}
    parallel_state.virtual_rank = chunk
    return forward_step(None, None, None, 0, None, None, None, **said)[0]


def forward_backward_no_pipelining(num_microbatches: int, forward_only: bool = False) -> None:
    for microbatch in range(num_microbatches):
        output = _forward(microbatch)
        if not forward_only:
            backward_step(None, output, None, None, None)


def forward_backward_pipelining_without_interleaving(
    num_microbatches: int, forward_only: bool = False
) -> None:
    communicator = P2PCommunicator()
    rank, ranks = parallel_state.rank, parallel_state.ranks
    first, last = rank == 0, rank == ranks - 1
    warmup = min(ranks - rank - 1, num_microbatches)
    waiting: list[object] = []
    for microbatch in range(warmup):
        communicator.recv_forward([], first)
        waiting.append(_forward(microbatch))
        communicator.send_forward(waiting[-1], last)
    communicator.recv_forward([], first)
    for microbatch in range(warmup, num_microbatches):
        waiting.append(_forward(microbatch))
        communicator.send_forward_recv_backward(waiting[-1], last)
        gradient = backward_step(None, waiting.pop(0), None, None, None)
        if microbatch + 1 < num_microbatches:
            communicator.send_backward_recv_forward(gradient, first)
    communicator.send_backward(gradient, first)
    while waiting:
        communicator.recv_backward([], last)
        communicator.send_backward(backward_step(None, waiting.pop(0), None, None, None), first)


def forward_backward_pipelining_with_interleaving(
    order: Sequence[str], model: list[object], num_microbatches: int, forward_only: bool = False
) -> None:
    """Run an order such as ``F0 F1 B1`` (operation and chunk). ``F1B0`` is an overlapped pair.

    After each forward, the send of its result and the receive of the next input start.
    """
    communicator = P2PCommunicator()
    communicator.recv_forward([], parallel_state.rank == 0)
    waiting: dict[int, list[object]] = {0: [], 1: []}
    done = [0, 0]
    for step in order:
        forward, backward = (step.partition("B")[i] for i in (0, 2))
        chunk, back = int(forward[1:] or 0), int(backward or 0)
        parallel_state.virtual_rank = chunk if forward else back
        if forward and backward:
            output, _, _ = combined_1f1b.combined_forward_backward_step(
                None,
                None,
                object(),
                0,
                None,
                None,
                object(),
                None,
                waiting[back].pop(0),
                None,
                None,
                f_model_chunk_id=chunk,
                current_microbatch=done[chunk],
                pre_forward=lambda: None,
                pre_backward=lambda: None,
            )
            waiting[chunk].append(output)
        elif forward:
            waiting[chunk].append(_forward(done[chunk], chunk))
        else:
            backward_step(None, waiting[back].pop(0), None, None, None)
        done[chunk] += bool(forward)
        if forward:
            communicator.send_forward_recv_forward([], recv_prev=True, overlap_p2p_comm=True)
