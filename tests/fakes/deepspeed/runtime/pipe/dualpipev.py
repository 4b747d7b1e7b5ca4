"""A fake engine for two stages per rank. Its passes call the passes of the usual engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine


class DualPipeVEngine(PipelineEngine):
    def _exec_forward_pass(self, buffer_id: int, phase: int) -> None:
        super()._exec_forward_pass(buffer_id)

    def _exec_backward_pass(self, buffer_id: int, phase: int) -> None:
        super()._exec_backward_pass(buffer_id)

    def _exec_commit_p2p(self) -> None:
        pass

    _INSTRUCTION_MAP: ClassVar[Mapping[type[schedule.Instruction], Callable[..., Any]]] = {
        **PipelineEngine._INSTRUCTION_MAP,
        schedule.ForwardPass: _exec_forward_pass,
        schedule.BackwardPass: _exec_backward_pass,
        schedule.CommitP2P: _exec_commit_p2p,
    }
