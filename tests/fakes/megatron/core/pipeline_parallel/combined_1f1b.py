"""The step that overlaps the forward of one microbatch with the backward of another."""

from __future__ import annotations

from collections.abc import Callable


def combined_forward_backward_step(
    forward_step_func: object,
    data_iterator: object,
    f_model: object,
    num_microbatches: int,
    input_tensor: object,
    forward_data_store: object,
    b_model: object,
    b_input_tensor: object,
    b_output_tensor: object,
    b_output_tensor_grad: object,
    config: object,
    f_model_chunk_id: int | None = None,
    current_microbatch: int | None = None,
    pre_forward: Callable[[], None] | None = None,
    pre_backward: Callable[[], None] | None = None,
) -> tuple[object, int, object]:
    for wait in (pre_forward, pre_backward):
        if wait is not None:
            wait()
    return (None if f_model is None else [object()]), 0, object()
