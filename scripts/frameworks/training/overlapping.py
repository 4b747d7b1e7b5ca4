"""Megatron-Core's overlapped forward and backward (``overlap_moe_expert_parallel_comm``) on CPUs.

The model returns a plan instead of an output. The plan runs both the forward and the backward. GPU
streams and events are replaced by stubs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.pipeline_parallel.utils import (  # type: ignore[import-not-found]  # a framework that only its users have
    AbstractSchedulePlan,
)


class Plan(AbstractSchedulePlan):  # type: ignore[misc]  # PyTorch is not there to be checked
    """A forward that has not run yet, and later the backward of the same microbatch."""

    def __init__(self, model: Any, rows: Any) -> None:
        self.event, self.vp_stage = torch.cuda.Event(), model.vp_stage
        self._model, self._rows, self._input = model, rows, model.input
        self._output: Any = None

    @staticmethod
    def run(
        forward: Plan | None,
        backward: Plan | None,
        b_grad: Any = None,
        pre_forward: Callable[..., Any] | None = None,
        pre_backward: Callable[..., Any] | None = None,
        post_forward: Callable[..., Any] | None = None,
        post_backward: Callable[..., Any] | None = None,
    ) -> Any:
        """Run a forward and a backward in the order of Megatron-Core's own plans."""
        output = None
        if forward and pre_forward:
            pre_forward(forward.vp_stage)
        if backward and pre_backward:
            pre_backward(backward.vp_stage)
        if backward:
            torch.autograd.backward(backward._output, b_grad)
        if forward:
            forward._model.input = forward._input
            forward._output = forward._model(forward._rows)
            output = forward._output.detach().requires_grad_()
            if post_forward:
                post_forward(output, forward.vp_stage)
        if backward and post_backward:
            gradient = None if backward._input is None else backward._input.grad
            post_backward(gradient, backward.vp_stage)
        return output
