"""Training with torch.distributed.pipelining: all of its schedules, and orders from a file."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage, schedules

from scripts.frameworks.cases import Case
from scripts.proving.stages import ROWS, WIDTH, batch, make_stages


class Training:
    """One rank of a training job with PyTorch."""

    roots = ("torch.distributed.pipelining", "torch.optim")

    def __init__(self, case: Case, rank: int, folder: Path) -> None:
        distributed.init_process_group("gloo")
        if "pop" in schedules._batch_p2p.__code__.co_names:
            schedules._batch_p2p = _start
        self._case, job = case, case.job
        models = make_stages(job, rank)
        self.stages = list(models.values())
        count = len(job.placement)
        stages = [
            PipelineStage(model, stage, count, torch.device("cpu"), **_make_shapes())
            for stage, model in models.items()
        ]
        loss = torch.nn.functional.mse_loss
        if case.planned:
            self._schedule = schedules._PipelineScheduleRuntime(
                stages, job.microbatches, loss_fn=loss
            )
            self._schedule._load_csv(str(folder / "plan.csv"), format="compute_only")
        else:
            kind = schedules.get_schedule_class(case.schedule)
            has_several_stages = issubclass(kind, schedules.PipelineScheduleMulti)
            stages_argument = stages if has_several_stages else stages[0]
            self._schedule = kind(
                stages_argument, job.microbatches, loss_fn=loss, **dict(case.options)
            )
        inputs, target = batch(job.microbatches)
        self._inputs = (inputs,) if 0 in models else ()
        self._target = {"target": target} if count - 1 in models else {}
        weights = [weight for model in self.stages for weight in model.parameters()]
        self._optimizer = torch.optim.SGD(weights, lr=0.01)

    def iterate(self) -> list[float]:
        """Train one batch."""
        losses: list[Any] = []
        if self._case.forward_only:
            with torch.no_grad():
                self._schedule.eval(*self._inputs, **self._target, losses=losses)
        else:
            self._schedule.step(*self._inputs, **self._target, losses=losses)
            self._optimizer.step()
            self._optimizer.zero_grad()
        return [float(loss) for loss in losses]


class _Transfers:
    """A group of transfers that were started together."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        """Wait for all transfers of the group."""
        for work in self._works:
            work.wait()


def _start(p2p_ops: list[Any], desc: str | None = None) -> _Transfers | None:
    """Start transfers as a single work object, as NCCL does, because PyTorch 2.5 expects one."""
    del desc
    return _Transfers(distributed.batch_isend_irecv(p2p_ops)) if p2p_ops else None


def _make_shapes() -> dict[str, Any]:
    """Return the shape arguments of a stage for PyTorch 2.5, which does not infer them."""
    if inspect.signature(PipelineStage).parameters["input_args"].default is None:
        return {}
    rows = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    return {"input_args": rows, "output_args": rows}
