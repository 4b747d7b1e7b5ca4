"""Train a small pipeline with torch.distributed.pipelining, and record it as a user would.

    python scripts/record_torch_pipeline.py --schedule 1F1B --schedule ZBVZeroBubble DIR
    bubbleviz analyze DIR/1F1B/rank*.json --plan DIR/1F1B/plan.csv
    python scripts/record_torch_pipeline.py --schedule GPipe --evaluate --slow-stage 2 \
        --lengths 1,2,4 DIR

Needs PyTorch and nothing else. Each rank is a process; by default they run on the CPU and talk
through gloo. DIR/SCHEDULE gets a trace for each rank, written by PyTorch's profiler, and
``plan.csv``, the order that PyTorch planned.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage, schedules
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parents[1]))
from bubbleviz import annotate

#: The last stages lie on the first ranks again.
_V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
_BATCH = 16


@dataclass(frozen=True)
class Job:
    """What is trained, and how it is recorded."""

    folder: Path
    schedules: tuple[str, ...]
    ranks: int
    microbatches: int
    iterations: int
    width: int
    device: str
    port: int
    annotated: bool
    evaluates: bool = False
    slow_stage: int = -1
    lengths: tuple[int, ...] = (1,)
    recorded: bool = False
    sleep_ms: float = 0.0


class _Sleep(torch.autograd.Function):  # type: ignore[misc]  # PyTorch has no types here
    """Takes some time forwards and twice as much backwards, without any processor."""

    @staticmethod
    def forward(ctx: Any, rows: Any, seconds: float) -> Any:
        ctx.seconds = seconds
        time.sleep(seconds)
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class _Slow(torch.nn.Module):  # type: ignore[misc]  # likewise
    """Layers that sleep."""

    def __init__(self, layers: Any, seconds: float) -> None:
        super().__init__()
        self._layers, self._seconds = layers, seconds

    def forward(self, rows: Any) -> Any:
        return _Sleep.apply(self._layers(rows), self._seconds)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--schedule", action="append", required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--width", type=int, default=128, help="of each layer")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda with a GPU for each rank")
    parser.add_argument("--port", type=int, default=29511)
    parser.add_argument("--plain", action="store_true", help="without annotate.torch_pipelining()")
    parser.add_argument("--evaluate", action="store_true", help="go forward only")
    parser.add_argument("--slow-stage", type=int, default=-1, help="stage with twice the layers")
    parser.add_argument("--lengths", default="1", help="how often each microbatch is computed")
    parser.add_argument(
        "--record", action="store_true", help="with annotate.record, too, to DIR/SCHEDULE/recording"
    )
    parser.add_argument(
        "--sleep-ms", type=float, default=0.0, help="of each forward; a backward takes twice that"
    )
    given = parser.parse_args()
    job = Job(
        given.folder,
        tuple(given.schedule),
        given.ranks,
        given.microbatches,
        given.iterations,
        given.width,
        given.device,
        given.port,
        not given.plain,
        given.evaluate,
        given.slow_stage,
        tuple(map(int, given.lengths.split(","))),
        given.record,
        given.sleep_ms,
    )
    for name in job.schedules:
        (job.folder / name).mkdir(parents=True, exist_ok=True)
    torch.multiprocessing.spawn(run, args=(job,), nprocs=job.ranks)


def run(rank: int, job: Job) -> None:
    """Be one rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job.port))
    torch.set_num_threads(1)
    device = torch.device("cpu" if job.device == "cpu" else f"{job.device}:{rank}")
    backend = "gloo" if job.device == "cpu" else "nccl"
    distributed.init_process_group(backend, rank=rank, world_size=job.ranks)
    for name in job.schedules:
        with annotate.torch_pipelining() if job.annotated else nullcontext():
            _train(rank, job, name, device)
    distributed.barrier()
    distributed.destroy_process_group()


def _train(rank: int, job: Job, name: str, device: Any) -> None:
    """Train under one schedule, and write what was recorded and what was planned."""
    kind = schedules.get_schedule_class(name)
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    count = job.ranks * (2 if several else 1)
    mine = [rank, rank + job.ranks][: count // job.ranks]
    if kind.__name__ in _V_SHAPED:
        mine = [rank, count - 1 - rank]
    torch.manual_seed(0)
    models = [_model(job, 2 if stage == job.slow_stage else 1).to(device) for stage in mine]
    stages = [
        PipelineStage(model, stage, count, device)
        for model, stage in zip(models, mine, strict=True)
    ]
    schedule = kind(
        stages if several else stages[0], job.microbatches, loss_fn=torch.nn.functional.mse_loss
    )
    weights = [weight for model in models for weight in model.parameters()]
    optimizer = torch.optim.AdamW(weights)
    rows = _BATCH * job.microbatches
    inputs = (_inputs(job, rows).to(device),) if 0 in mine else ()
    target = {"target": torch.randn(rows, job.width, device=device)} if count - 1 in mine else {}

    def iterate(times: int) -> None:
        for _ in range(times):
            if job.evaluates:
                schedule.eval(*inputs, **target)
                continue
            schedule.step(*inputs, **target)
            optimizer.step()
            optimizer.zero_grad()

    iterate(1)
    activities = [ProfilerActivity.CPU]
    if job.device != "cpu":
        activities.append(ProfilerActivity.CUDA)
    recording = annotate.record(job.folder / name / "recording") if job.recorded else nullcontext()
    with recording, profile(activities=activities) as recorded:
        iterate(job.iterations)
    recorded.export_chrome_trace(str(job.folder / name / f"rank{rank}.json"))
    if rank == 0:
        _write_plan(schedule, job.folder / name / "plan.csv")


def _inputs(job: Job, rows: int) -> torch.Tensor:
    """Return the batch; the first number of a row says how often its microbatch is computed."""
    batch = torch.randn(rows, job.width)
    for number, microbatch in enumerate(batch.chunk(job.microbatches)):
        microbatch[:, 0] = job.lengths[number % len(job.lengths)]
    return batch


class _Layers(torch.nn.Module):  # type: ignore[misc]  # PyTorch's types are not here
    """Layers that are computed as often as their input says, as a longer chunk would be."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        count = 3 * times
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count)))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result = batch
        for _ in range(max(int(batch[0, 0].item()), 1)):
            result = self.layers(batch)
        return torch.cat((batch[:, :1], result[:, 1:]), dim=1)


def _model(job: Job, times: int) -> Any:
    if not job.sleep_ms:
        return _Layers(job.width, times)
    layers = torch.nn.Sequential(*(torch.nn.Linear(job.width, job.width) for _ in range(3)))
    return _Slow(layers, times * job.sleep_ms / 1e3)


def _write_plan(schedule: Any, path: Path) -> None:
    """Write the order that PyTorch planned, one row a rank, as it does itself."""
    order = getattr(schedule, "pipeline_order", None) or schedule._get_pipeline_order()
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        for rank in sorted(order):
            rows.writerow("" if action is None else str(action) for action in order[rank])


if __name__ == "__main__":
    main()
