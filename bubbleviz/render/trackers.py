"""Experiment trackers: a report's numbers for Weights & Biases, MLflow and TensorBoard.

Their names are those that ``bubbleviz watch`` gives a running job. No tracker is needed here: what
a run can do tells how it takes metrics.
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
from bubbleviz.report.bubble_parts import bubble_parts
from bubbleviz.report.report import Report

#: Writes values by name, with a step, and when they were measured in seconds since 1970.
Write: TypeAlias = Callable[[Mapping[str, float], int, float], None]


def metrics_of(report: Report) -> dict[str, float]:
    """Return means over the averaged iterations, by name; ratios are fractions of 1."""
    ratios = {name: spread.mean for name, spread in report.summary.bubble_ratio.items()}
    known = {"ranks/measured": float(len(report.ranks))}
    if lengths_ns := [i.end_ns - i.start_ns for i in report.iterations if i.averaged]:
        known["iteration_duration_seconds"] = fmean(lengths_ns) / 1e9
    known |= {f"bubble_ratio/{name}": mean for name, mean in ratios.items() if mean is not None}
    known |= {f"bubble_part_ratio/{part.name}": part.share for part in bubble_parts(report)}
    return {f"bubbleviz/{name}": value for name, value in known.items()}


def log(report: Report, run: Any, step: int | None = None) -> None:
    """Give the metrics of a report to a run of a tracker.

    Args:
        report: any report.
        run: what ``wandb.init`` or ``mlflow.start_run`` returns, these modules themselves, a
            ``SummaryWriter``, or the path of a folder for TensorBoard.
        step: of the training; None for the tracker's own, 0 for TensorBoard.

    Raises:
        UsageError: it is none of these.
        OutputError: the folder cannot be written, or TensorBoard is not installed.
    """
    metrics = metrics_of(report)
    if isinstance(run, (str, Path)):
        with scalar_writer(str(run)) as write:
            write(metrics, step or 0, time.time())
    elif hasattr(run, "add_scalar"):
        for name, value in metrics.items():
            run.add_scalar(name, value, step)
    elif hasattr(run, "log_metrics"):
        run.log_metrics(metrics, step=step)
    elif hasattr(run, "log"):
        run.log(metrics, step=step)
    elif hasattr(run, "info") and "mlflow" in sys.modules:
        # A run of MLflow has no methods; its module logs to it.
        sys.modules["mlflow"].log_metrics(metrics, step=step, run_id=run.info.run_id)
    else:
        raise UsageError(
            f"log: {type(run).__name__} is no run of Weights & Biases or MLflow, and no "
            "SummaryWriter; give one, or the path of a folder for TensorBoard"
        )


@contextmanager
def scalar_writer(directory: str) -> Iterator[Write]:
    """Yield what writes scalars for TensorBoard, an event file a process.

    Its own writer writes them; it is imported when used, for it takes half a second to load.

    Raises:
        OutputError: they cannot be written, or TensorBoard is not installed.
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
