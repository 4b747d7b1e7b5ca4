"""Measure what a recording of bubbleviz.annotate costs, by itself and in a training step.

    python scripts/measure_recorder.py

Needs nothing; with PyTorch the last line is a pipeline of PyTorch in one process, trained with and
without a recording in turn. The GPU is a stand-in whose events cost nothing themselves: what is
measured of it is the recorder's own work. Times are those of the CPU, so that others may use the
machine meanwhile.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bubbleviz import annotate
from bubbleviz.annotate import ranges

#: As many operations as a rank of 1F1B has: F, BW and four transfers of each microbatch.
_MICROBATCHES, _PHASES = 16, ("RECV_F", "F", "SEND_F", "RECV_B", "BW", "SEND_B")
_ITERATIONS, _ROUNDS, _STEP_US = 300, 7, 100_000
_PAIRS, _BATCH, _WIDTH, _LAYERS = 200, 152, 256, 8


def main() -> None:
    """Print the times."""
    print(f"Python {sys.version.split()[0]}")
    without = _microseconds(None)
    operations = _MICROBATCHES * len(_PHASES) + 1
    print(f"a range that nothing records  {without:.2f} us")
    for name, gpu in (("on the host", None), ("with a GPU's events", _Gpu())):
        with tempfile.TemporaryDirectory() as folder:
            more = _microseconds(folder, gpu) - without
            size = sum(file.stat().st_size for file in Path(folder).iterdir())
        share = more * operations / _STEP_US
        print(
            f"recorded {name:<20} {more:.2f} us more, "
            f"{size / (_ITERATIONS * operations):.1f} bytes an operation; of a step of 100 ms with "
            f"{_MICROBATCHES} microbatches {100 * share:.2f} %"
        )
    try:
        import torch
    except ImportError:
        return
    _compare_training(torch)


class _Event:
    def record(self, stream: object) -> None:
        del stream

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: object) -> float:
        del other
        return 1.0


class _Gpu(ModuleType):
    """What the recorder asks of ``torch.cuda``, done at once."""

    def __init__(self) -> None:
        super().__init__("torch.cuda")

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return False

    def current_stream(self) -> object:
        return self

    def get_device_name(self) -> str:
        return "none"

    def Stream(self) -> object:  # noqa: N802 - torch.cuda has it
        return self

    def Event(self, *, enable_timing: bool) -> _Event:  # noqa: N802 - likewise
        del enable_timing
        return _Event()


def _microseconds(folder: str | None, gpu: _Gpu | None = None) -> float:
    """Return what an operation takes at best, writing included."""
    before = sys.modules.get("torch")
    if gpu is not None:
        torch: Any = ModuleType("torch")
        torch.cuda = gpu
        sys.modules["torch"] = torch
    best = float("inf")
    for number in range(_ROUNDS):
        recording = None if folder is None else annotate.record(f"{folder}/{number}")
        best = min(best, _iterations())
        if recording is not None:
            recording.stop()
            ranges.attach(None)
            if number:
                _remove(Path(f"{folder}/{number}"))
            else:
                _move(Path(f"{folder}/{number}"))
    if gpu is not None:
        del sys.modules["torch"]
        if before is not None:
            sys.modules["torch"] = before
    return best / (_ITERATIONS * (_MICROBATCHES * len(_PHASES) + 1)) * 1e6


def _iterations() -> float:
    begun = time.process_time()
    for _ in range(_ITERATIONS):
        with annotate.iteration():
            for microbatch in range(_MICROBATCHES):
                for phase in _PHASES:
                    with annotate.phase(phase, microbatch=microbatch, stage=1):
                        pass
        with annotate.phase("Optimizer"):
            pass
    return time.process_time() - begun


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _move(folder: Path) -> None:
    """Keep the files of one round, whose size is told."""
    for file in folder.iterdir():
        file.rename(folder.parent / file.name)
    folder.rmdir()


def _compare_training(torch: Any) -> None:
    """Train in pairs, with and without a recording of the same ranges."""
    from torch import distributed
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29520")
    distributed.init_process_group("gloo", rank=0, world_size=1)
    layers = (torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS))
    stage = PipelineStage(torch.nn.Sequential(*layers), 0, 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, _MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.01)
    batch = torch.randn(_BATCH * _MICROBATCHES, _WIDTH)

    def seconds() -> float:
        begun = time.process_time()
        schedule.step(batch, target=batch)
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - begun

    with tempfile.TemporaryDirectory() as folder, annotate.torch_pipelining():
        recording = annotate.record(folder)
        for _ in range(3):
            seconds()
        taken: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * _PAIRS):
            # Whichever comes second may find a warmer machine.
            on = (number % 2 == 0) == (number % 4 < 2)
            ranges.attach(recording if on else None)
            taken[on].append(seconds())
        ranges.attach(recording)
        recording.stop()
    without = taken[False]
    more = [with_it / plain - 1 for with_it, plain in zip(taken[True], without, strict=True)]
    low, middle, high = (100 * q for q in statistics.quantiles(more, n=4))
    print(
        f"a step of {statistics.median(without) * 1e3:.1f} ms with {3 * _MICROBATCHES} ranges: "
        f"{middle:+.2f} % with a recording (quartiles {low:+.2f} to {high:+.2f}, n = {_PAIRS})"
    )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
