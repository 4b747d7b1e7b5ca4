"""Logs a report to an experiment tracker: Weights & Biases, MLflow or TensorBoard.

The metric names are the same as in ``bubbleviz watch``. TensorBoard is the only tracker that this
module imports. All other trackers are recognized by the methods of the run object.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from bubbleviz.errors import OutputError, UsageError, describe_installation
from bubbleviz.report.bubble_parts import compute_bubble_parts
from bubbleviz.report.report import Report

#: Function that writes scalars (keyed by name), given their training step and Unix time in seconds.
Write: TypeAlias = Callable[[Mapping[str, float], int, float], None]


def compute_metrics(report: Report) -> dict[str, float]:
    """Return a report's metrics, which are means over the averaged iterations.

    The metrics are the number of ranks, the iteration duration in seconds, the bubble ratios, and
    the parts of the bubble. Ratios and parts are fractions of 1. Unknown ratios are left out. The
    duration is left out if no iterations are averaged.

    Returns:
        Values keyed by metric name, for example ``bubbleviz/bubble_ratio/schedule``.
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
    """Log the metrics of a report to an experiment tracker.

    If ``run`` is a path, TensorBoard event files are written. Otherwise the tracker is recognized
    by the methods of ``run``.

    Args:
        report: The report.
        run: The return value of ``wandb.init`` or ``mlflow.start_run``, the module ``wandb`` or
            ``mlflow``, a ``SummaryWriter``, or the path of a directory for TensorBoard event files.
        step: Training step, or None for the tracker's current step. If ``run`` is a path, None
            means 0.

    Raises:
        UsageError: ``run`` has none of these types.
        OutputError: The directory cannot be written, or TensorBoard is not installed.
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
        # An MLflow run object only contains data. Metrics are logged with a function from its
        # module.
        sys.modules["mlflow"].log_metrics(metrics, step=step, run_id=run.info.run_id)
    else:
        raise UsageError(
            f"log: cannot log to an object of type {type(run).__name__}; pass a Weights & "
            "Biases or MLflow run, a SummaryWriter, or the path of a TensorBoard directory"
        )


@contextmanager
def open_scalar_writer(directory: str) -> Iterator[Write]:
    """Open a TensorBoard event file in a directory, and yield a function that writes scalars to it.

    TensorBoard is imported in this function because the import takes half a second.

    Raises:
        OutputError: The file cannot be written, or TensorBoard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise OutputError(
            f"TensorBoard is not installed; {describe_installation('tensorboard')}"
        ) from error
    try:
        writer = EventFileWriter(directory, filename_suffix=".bubbleviz")
    except OSError as error:
        raise OutputError(
            f"{directory}: cannot be written ({error.strerror}); choose another directory"
        ) from error

    def write(scalars: Mapping[str, float], step: int, wall_s: float) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        writer.add_event(Event(wall_time=wall_s, step=step, summary=Summary(value=values)))
        writer.flush()

    try:
        yield write
    finally:
        writer.close()
