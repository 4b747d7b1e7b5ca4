"""A fake engine that, like DeepSpeed's, looks up the method for each instruction in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any, ClassVar

from deepspeed.runtime.pipe import schedule

Step = tuple[type[schedule.Instruction], dict[str, int]]


class PipelineEngine:
    def __init__(self, stage_id: int, num_stages: int, orders: Sequence[Sequence[Step]]) -> None:
        self.stage_id, self.num_stages = stage_id, num_stages
        self.orders = list(orders)

    def train_batch(self, data_iter: object = None) -> int:
        for instruction, arguments in self.orders.pop(0):
            MethodType(self._INSTRUCTION_MAP[instruction], self)(**arguments)
        return 7

    def eval_batch(self, data_iter: object) -> int:
        return PipelineEngine.train_batch(self)

    def _exec_forward_pass(self, buffer_id: int) -> None:
        pass

    def _exec_backward_pass(self, buffer_id: int) -> None:
        pass

    def _exec_send_activations(self, buffer_id: int) -> None:
        pass

    def _exec_recv_activations(self, buffer_id: int) -> None:
        pass

    def _exec_send_grads(self, buffer_id: int) -> None:
        pass

    def _exec_recv_grads(self, buffer_id: int) -> None:
        pass

    def _exec_reduce_grads(self) -> None:
        pass

    def _exec_reduce_tied_grads(self) -> None:
        pass

    def _exec_optimizer_step(self, lr_kwargs: object = None) -> None:
        pass

    _INSTRUCTION_MAP: ClassVar[Mapping[type[schedule.Instruction], Callable[..., Any]]] = {
        schedule.OptimizerStep: _exec_optimizer_step,
        schedule.ReduceGrads: _exec_reduce_grads,
        schedule.ReduceTiedGrads: _exec_reduce_tied_grads,
        schedule.ForwardPass: _exec_forward_pass,
        schedule.BackwardPass: _exec_backward_pass,
        schedule.SendActivation: _exec_send_activations,
        schedule.RecvActivation: _exec_recv_activations,
        schedule.SendGrad: _exec_send_grads,
        schedule.RecvGrad: _exec_recv_grads,
    }
