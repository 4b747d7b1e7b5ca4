"""Ranks: processes that train a case without and with annotations, and write their results.

This module runs in the environment of a framework, with the checkout on the path:

    python -m scripts.frameworks.ranks FOLDER CASE.pickle
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import distributed
from torch.profiler import ProfilerActivity, profile

from bubbleviz import annotate
from scripts.frameworks.cases import PLAIN, Case
from scripts.proving.stages import Stage, Switch
from scripts.proving.training import free_port

#: Number of iterations that only bubbleviz records, and number of iterations that PyTorch's
#: profiler also records.
RECORDED, TWICE = 3, 3
_UNRECORDED = 2


class Trainer(Protocol):
    """Trains a case with a framework on one rank.

    Attributes:
        roots: Packages in which no function may still be wrapped after recording.
        stages: Models of this rank.
    """

    roots: tuple[str, ...]
    stages: list[Stage]

    def __init__(self, case: Case, rank: int, folder: Path) -> None: ...

    def iterate(self) -> list[float]:
        """Train one batch, including the optimizer. Return its losses if this rank knows them."""


def main() -> None:
    """Run all ranks of a case, and fail if any rank fails."""
    folder, file = map(Path, sys.argv[1:])
    case = pickle.loads(file.read_bytes())  # written by the process that started this one
    module = importlib.import_module(f"scripts.frameworks.training.{case.framework}")
    # The module is loaded once, and shared by all ranks.
    context, port = multiprocessing.get_context("fork"), free_port()
    processes = [
        context.Process(target=_run_rank, args=(rank, case, folder, port, module.Training))
        for rank in range(case.job.ranks)
    ]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        if any(process.exitcode for process in processes):
            for process in processes:
                process.terminate()
            sys.exit(1)
        time.sleep(0.05)
    sys.exit(int(any(process.exitcode for process in processes)))


def _run_rank(rank: int, case: Case, folder: Path, port: int, kind: type[Trainer]) -> None:
    """Train one rank without and with annotations, and write the results to a file.

    The process exits at the end.

    Args:
        rank: Number of the rank.
        case: The framework, the schedule and the job.
        folder: Folder of the recordings, traces and results.
        port: Port at which the ranks connect.
        kind: Trainer of the framework.
    """
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(case.job.ranks),
    )
    torch.set_num_threads(1)
    # Here, a warning that an annotation does not name any operations is an error.
    warnings.filterwarnings("error", message="annotate: ", category=RuntimeWarning)
    trainer = kind(case, rank, folder)
    wrap: Callable[..., annotate.Annotations] = getattr(annotate, case.framework)
    trainer.iterate()
    (folder / PLAIN).touch()
    start = _copy_weights(trainer)
    results: dict[str, Any] = {"rank": rank}
    plain, _ = _train(trainer, start, _UNRECORDED)
    callables_before = _list_callables(trainer.roots)
    Switch.asleep = True
    with wrap(record=folder / "recording"):
        annotated, results["spans"] = _train(trainer, start, RECORDED)
    results["worked"], Switch.worked = Switch.worked, []
    with wrap(record=folder / "twice"), profile(activities=[ProfilerActivity.CPU]) as profiler:
        _, results["twice"] = _train(trainer, start, TWICE)
    profiler.export_chrome_trace(str(folder / f"trace{rank}.json"))
    Switch.asleep = False
    results["unchanged"] = plain == annotated[:_UNRECORDED]
    callables_after = _list_callables(trainer.roots)
    results["left"] = sorted(
        name
        for name, (_, last) in callables_after.items()
        if name in callables_before and callables_before[name][1] is not last
    )
    distributed.barrier()
    (folder / f"rank{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    # Threads of a framework may wait forever.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _train(
    trainer: Trainer, start: list[Any], iterations: int
) -> tuple[list[tuple[list[float], list[Any]]], list[tuple[int, int]]]:
    """Return the losses and weights after each iteration, and when each iteration ran."""
    with torch.no_grad():
        for weight, value in zip(_list_parameters(trainer), start, strict=True):
            weight.copy_(value)
            weight.grad = None
    results, spans = [], []
    for _ in range(iterations):
        distributed.barrier()
        start_ns = time.monotonic_ns()
        losses = trainer.iterate()
        spans.append((start_ns, time.monotonic_ns()))
        # The optimizer has no state, so the changes of the weights show the gradients.
        results.append((losses, [weight.tolist() for weight in _copy_weights(trainer)]))
    return results, spans


def _list_parameters(trainer: Trainer) -> Iterator[Any]:
    for stage in trainer.stages:
        yield from stage.parameters()


def _copy_weights(trainer: Trainer) -> list[Any]:
    return [weight.detach().clone() for weight in _list_parameters(trainer)]


def _list_callables(roots: tuple[str, ...]) -> dict[str, tuple[str, Any]]:
    """Return all functions, classes and tables in the packages' loaded modules, keyed by path."""
    owners: dict[str, Any] = {
        name: module for name, module in list(sys.modules.items()) if name.startswith(roots)
    }
    for name, module in list(owners.items()):
        for attribute, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == name:
                owners[f"{name}.{attribute}"] = value
    return {
        f"{path}.{attribute}": (path, value)
        for path, owner in owners.items()
        for attribute, value in list(vars(owner).items())
        if callable(value) or isinstance(value, dict)
    }


if __name__ == "__main__":
    main()
