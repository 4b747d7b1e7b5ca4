"""Measure what ranges of bubbleviz.annotate cost where nothing records them.

    python scripts/measure_annotations.py

Needs PyTorch, and nothing else. The last line is a pipeline of PyTorch in one process, trained
with and without ranges in turn.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

sys.path.insert(0, str(Path(__file__).parents[1]))
from bubbleviz import annotate
from bubbleviz.annotate.wrapping import Annotations

_TIMES, _ROUNDS, _PAIRS = 20_000, 7, 30
_MICROBATCHES, _BATCH, _WIDTH, _LAYERS = 8, 64, 512, 8


def main() -> None:
    """Print the times."""
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, Python {sys.version.split()[0]}; nothing records")
    print(f"phase('F', microbatch=…)  {_microseconds(_named):.2f} us")
    print(f"a range that is kept      {_microseconds(_kept):.2f} us")
    print(
        f"a wrapped method          {_wrapped() - _microseconds(_plain):.2f} us more than without"
    )
    print(f"PyTorch's record_function {_microseconds(_of_torch):.2f} us")
    _compare_training()


def _microseconds(work: Callable[[int], object]) -> float:
    """Return what a call takes, at best."""
    best = float("inf")
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        for number in range(_TIMES):
            work(number)
        best = min(best, time.perf_counter() - begun)
    return best / _TIMES * 1e6


def _named(number: int) -> None:
    with annotate.phase("F", microbatch=number & 15, chunk=0):
        pass


_RANGE = annotate.phase("F", microbatch=3)


def _kept(_number: int) -> None:
    with _RANGE:
        pass


def _of_torch(_number: int) -> None:
    with torch.profiler.record_function("F3"):
        pass


class _Stage:
    stage_index = 3

    def forward(self, number: int) -> int:
        return number


def _plain(number: int) -> int:
    return _Stage.forward(_STAGE, number)


_STAGE = _Stage()


def _wrapped() -> float:
    annotations = Annotations("nothing")
    annotations.wrap(
        _Stage,
        "forward",
        lambda a, _: annotate.phase("F", microbatch=a[1] & 15, stage=a[0].stage_index),
    )
    taken = _microseconds(_plain)
    annotations.remove()
    return taken


def _compare_training() -> None:
    """Train in pairs, with and without ranges."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29519")
    distributed.init_process_group("gloo", rank=0, world_size=1)
    layers = (torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS))
    stage = PipelineStage(torch.nn.Sequential(*layers), 0, 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, _MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.01)
    batch = torch.randn(_BATCH * _MICROBATCHES, _WIDTH)

    def seconds() -> float:
        begun = time.perf_counter()
        schedule.step(batch, target=batch)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begun

    for _ in range(3):
        seconds()
    more: list[float] = []
    without: list[float] = []
    for _ in range(_PAIRS):
        without.append(seconds())
        with annotate.torch_pipelining():
            more.append(seconds() / without[-1] - 1)
    low, middle, high = (100 * q for q in statistics.quantiles(more, n=4))
    print(
        f"a step of {statistics.median(without) * 1e3:.1f} ms with {2 * _MICROBATCHES} operations: "
        f"{middle:+.2f} % with ranges (quartiles {low:+.2f} to {high:+.2f}, n = {_PAIRS})"
    )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
