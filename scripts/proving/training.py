"""Ranks: processes that train a job under several schedules in turn, and measure the times."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage, schedules

from bubbleviz import annotate
from scripts.proving.jobs import Job
from scripts.proving.links import Links
from scripts.proving.stages import Stage, Switch, batch, expected_gradients, make_stages

#: Maximum difference between a gradient and the undivided model's gradient.
MAX_GRADIENT_ERROR = 1e-12


@dataclass(frozen=True)
class Order:
    """An order of operations: one of PyTorch's schedules, or a file for its runtime.

    Attributes:
        name: Name of the schedule, or path of the file.
        format: Format of the file for ``_load_csv``, or "" for a schedule.
        record: Folder to record to, or None to record nothing.
        iterations: Number of timed iterations, which follow one iteration that is not timed.
    """

    name: str
    format: str = ""
    record: Path | None = None
    iterations: int = 3


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        iterations_s: Time of each iteration, from the first rank's start to the last rank's end.
        gradient_error: Largest difference between a gradient and the undivided model's gradient.
    """

    iterations_s: tuple[float, ...]
    gradient_error: float

    @property
    def seconds(self) -> float:
        """Median time of an iteration, in seconds."""
        return sorted(self.iterations_s)[len(self.iterations_s) // 2]


class RunError(Exception):
    """A rank failed or did not answer in time."""


class Ranks:
    """The processes of a job. They end when the ``with`` block is left."""

    def __init__(self, job: Job) -> None:
        self._job = job
        context = multiprocessing.get_context("fork")
        port = free_port()
        self._pipes, self._processes = [], []
        for rank in range(job.ranks * job.replicas):
            parent_end, child_end = context.Pipe()
            process = context.Process(target=_serve, args=(rank, job, port, child_end), daemon=True)
            process.start()
            self._pipes.append(parent_end)
            self._processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()

    def run(self, order: Order, timeout_s: float = 120.0) -> Result:
        """Run an order.

        Raises:
            RunError: A rank failed or did not answer in time.
        """
        for pipe in self._pipes:
            pipe.send(order)
        deadline_s = time.monotonic() + timeout_s
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, deadline_s - time.monotonic())):
                raise RunError(f"rank {rank} did not end {order.name} within {timeout_s:g} s")
            answers.append(pipe.recv())
        failed = next((answer for answer in answers if isinstance(answer, str)), None)
        if failed is not None:
            raise RunError(failed)
        spans = zip(*(spans for spans, _ in answers), strict=True)
        return Result(
            tuple(max(end for _, end in of) - min(start for start, _ in of) for of in spans),
            self._gradient_error([gradients for _, gradients in answers]),
        )

    def _gradient_error(self, parts: list[dict[str, Any]]) -> float:
        """Return the maximum absolute error of all gradients.

        Args:
            parts: Gradients of each rank, keyed by weight.

        Raises:
            RunError: The ranks have gradients for weights other than the expected ones.
        """
        expected = expected_gradients(len(self._job.placement), self._job.microbatches)
        gradients = {name: gradient for part in parts for name, gradient in part.items()}
        if gradients.keys() != expected.keys():
            difference = sorted(gradients.keys() ^ expected.keys())
            raise RunError(f"gradients of other weights: {difference}")
        errors = (
            expected[name] - torch.tensor(gradient, dtype=torch.float64)
            for name, gradient in gradients.items()
        )
        return max(float(error.abs().max()) for error in errors)


def _serve(rank: int, job: Job, port: int, pipe: Any) -> None:
    """Run the orders that arrive through a pipe, as one rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=job.ranks * job.replicas)
    pipelines, copies = _create_groups(job)
    delay_s = {(sender, receiver): ms / 1e3 for sender, receiver, ms in job.links}
    if delay_s or job.streams:
        schedules._batch_p2p = Links(rank, delay_s, streams=job.streams).start
    while True:
        order = pipe.recv()
        try:
            pipe.send(_train(divmod(rank, job.replicas), job, order, pipelines, copies))
        except BaseException:
            pipe.send(f"rank {rank}: {traceback.format_exc()}")


def _create_groups(job: Job) -> tuple[list[Any], list[Any]]:
    """Create one group per pipeline and one per set of copies, numbered as in Megatron."""
    numbers = [
        [stage * job.replicas + replica for stage in range(job.ranks)]
        for replica in range(job.replicas)
    ]
    pipelines = [distributed.new_group(members) for members in numbers]
    copies = [distributed.new_group(list(members)) for members in zip(*numbers, strict=True)]
    return pipelines, copies


def _train(
    position: tuple[int, int], job: Job, order: Order, pipelines: list[Any], copies: list[Any]
) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """Train as one rank.

    Args:
        position: Rank in the pipeline, and number of the pipeline.
        job: The job to train.
        order: The order of the operations.
        pipelines: Groups of the ranks of each pipeline.
        copies: Groups of the ranks that have the same stages.

    Returns:
        spans: Start and end of each iteration.
        gradients: Gradients of this rank as lists, keyed by stage and name.
    """
    rank, replica = position
    slow = next((factor for *slow_place, factor in job.slow if tuple(slow_place) == position), 1.0)
    Switch.factors = tuple(slow * length for length in job.lengths or (1.0,) * job.microbatches)
    models = make_stages(job, rank)
    stages = [
        PipelineStage(
            model, stage, len(job.placement), torch.device("cpu"), group=pipelines[replica]
        )
        for stage, model in models.items()
    ]
    schedule = _make_schedule(stages, job, order)
    inputs, target = batch(job.microbatches)
    first_input = (inputs,) if 0 in models else ()
    last_target = {"target": target} if len(job.placement) - 1 in models else {}
    spans = []
    Switch.asleep = False
    schedule.step(*first_input, **last_target)
    with annotate.torch_pipelining(record=order.record) if order.record else nullcontext():
        for _ in range(order.iterations):
            for model in models.values():
                model.zero_grad()
            Switch.asleep = True
            distributed.barrier()
            start_s = time.monotonic()
            with annotate.iteration() if job.replicas > 1 else nullcontext():
                schedule.step(*first_input, **last_target)
                if job.replicas > 1:
                    _average(models, copies[rank])
            spans.append((start_s, time.monotonic()))
            distributed.barrier()
    gradients = {
        f"{stage}.{name}": weight.grad.tolist()
        for stage, model in models.items()
        for name, weight in model.named_parameters()
    }
    return spans, gradients


def _average(models: dict[int, Stage], copies: Any) -> None:
    """Average each stage's gradients over its copies."""
    for stage, model in models.items():
        with annotate.phase("COLLECTIVE", stage=stage):
            for weight in model.parameters():
                distributed.all_reduce(weight.grad, group=copies)
                weight.grad /= distributed.get_world_size(copies)


def _make_schedule(stages: list[Any], job: Job, order: Order) -> Any:
    """Return PyTorch's schedule for an order: one loaded from a file, or one of its own classes."""
    loss = torch.nn.functional.mse_loss
    if order.format:
        runtime = schedules._PipelineScheduleRuntime(stages, job.microbatches, loss_fn=loss)
        runtime._load_csv(order.name, format=order.format)
        return runtime
    kind = schedules.get_schedule_class(order.name)
    has_several_stages = issubclass(kind, schedules.PipelineScheduleMulti)
    return kind(stages if has_several_stages else stages[0], job.microbatches, loss_fn=loss)


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])
