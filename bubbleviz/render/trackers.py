"""Logging of a report to experiment trackers: Weights & Biases, MLflow and TensorBoard.

The metrics have the same names as in ``bubbleviz watch``. Only TensorBoard is imported. For other
trackers, the methods of the run object show how it accepts metrics.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from bubbleviz.errors import OutputError, UsageError
from bubbleviz.report.bubble_parts import compute_bubble_parts
from bubbleviz.report.report import Report

#: Writes values, keyed by name, with their step and their time in seconds since 1970.
Write: TypeAlias = Callable[[Mapping[str, float], int, float], None]


def compute_metrics(report: Report) -> dict[str, float]:
    """Return the means over the averaged iterations, keyed by metric; ratios are fractions of 1.

    Unknown ratios, and the duration if no iteration is averaged, are left out.
    """
    ratios = {name: spread.mean for name, spread in report.summary.bubble_ratio.items()}
    metrics = {"ranks/measured": float(len(report.ranks))}
    if lengths_ns := [i.end_ns - i.start_ns for i in report.iterations if i.averaged]:
        metrics["iteration_duration_seconds"] = fmean(lengths_ns) / 1e9
    metrics |= {f"bubble_ratio/{name}": mean for name, mean in ratios.items() if mean is not None}
    metrics |= {
        f"bubble_part_ratio/{part.name}": part.share for part in compute_bubble_parts(report)
    }
    return {f"bubbleviz/{name}": value for name, value in metrics.items()}


def log(report: Report, run: Any, step: int | None = None) -> None:
    """Log the metrics of a report to a tracker.

    The tracker is recognised by the type of ``run`` (a path) or by the methods that ``run`` has.

    Args:
        report: The report.
        run: Result of ``wandb.init`` or ``mlflow.start_run``, the module ``wandb`` or ``mlflow``, a
            ``SummaryWriter``, or the path of a folder for TensorBoard.
        step: Training step, or None for the tracker's current step (0 for a folder).

    Raises:
        UsageError: ``run`` is not one of these.
        OutputError: The folder cannot be written, or TensorBoard is not installed.
    """
    metrics = compute_metrics(report)
    if isinstance(run, (str, Path)):
        with open_scalar_writer(str(run)) as write:
            write(metrics, step or 0, time.time())
    elif hasattr(run, "add_scalar"):
        for name, value in metrics.items():
            run.add_scalar(name, value, step)
    elif hasattr(run, "log_metrics"):
        run.log_metrics(metrics, step=step)
    elif hasattr(run, "log"):
        run.log(metrics, step=step)
    elif hasattr(run, "info") and "mlflow" in sys.modules:
        # An MLflow run is a plain record; the functions of its module log to it.
        sys.modules["mlflow"].log_metrics(metrics, step=step, run_id=run.info.run_id)
    else:
        raise UsageError(
            f"log: cannot log to an object of type {type(run).__name__}; give a run of Weights & "
            "Biases or MLflow, a SummaryWriter, or the path of a folder for TensorBoard"
        )


@contextmanager
def open_scalar_writer(directory: str) -> Iterator[Write]:
    """Open a TensorBoard event file in a directory, and yield a function that writes scalars to it.

    TensorBoard is imported here because loading it takes half a second.

    Raises:
        OutputError: The file cannot be written, or TensorBoard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise OutputError(
            "scalars need tensorboard; install it with: pip install 'bubbleviz[tensorboard]'"
        ) from error
    try:
        writer = EventFileWriter(directory, filename_suffix=".bubbleviz")
    except OSError as error:
        raise OutputError(
            f"{directory}: cannot be written ({error.strerror}); give another folder"
        ) from error

    def write(scalars: Mapping[str, float], step: int, wall_s: float) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        writer.add_event(Event(wall_time=wall_s, step=step, summary=Summary(value=values)))
        writer.flush()

    try:
        yield write
    finally:
        writer.close()
