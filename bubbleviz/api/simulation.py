"""The function ``simulate`` of the Python API."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bubbleviz.errors import InputError, UsageError
from bubbleviz.render.display import convert_to
from bubbleviz.render.simulated import Estimate, Ideal
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import read_restrictions
from bubbleviz.report.run_times import choose_sizes_and_times, describe_left_out
from bubbleviz.report.saved import check_pipeline, read_pipeline
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.summary import RunSummary
from bubbleviz.schedules import ideal
from bubbleviz.schedules.ideal import simulate_or_estimate


def simulate(
    schedule: str | None = None,
    stages: int | None = None,
    microbatches: int | None = None,
    *,
    report: Report | RunSummary | str | Path | None = None,
    tf: float | Sequence[float] | None = None,
    tb: float | Sequence[float] | None = None,
    tw: float | Sequence[float] | None = None,
    tcomm: float | None = None,
    chunks: int | None = None,
) -> Ideal | Estimate:
    """Simulate a schedule, and return its theoretical cost, makespan, bubble ratios and memory.

    Arguments that are None are taken from the report. If there is no report, each operation takes 1
    ms and each transfer takes 0 ms.

    Args:
        schedule: Name of the schedule, such as ``"zb-h1"``. ``bubbleviz schedules`` lists all
            names.
        stages: Number of devices.
        microbatches: Number of microbatches per iteration.
        report: A report from ``analyze`` or ``load``, or the path of a saved report.
        tf: Forward time of a microbatch in milliseconds: one value for all stages, or one per
            stage.
        tb: Input-gradient time of a microbatch in milliseconds: one value for all stages, or one
            per stage.
        tw: Weight-gradient time of a microbatch in milliseconds: one value for all stages, or one
            per stage.
        tcomm: Time of a transfer in milliseconds.
        chunks: Number of model chunks per device, or None for the schedule's default.

    Raises:
        UsageError: The schedule does not exist or does not support the sizes, or a size is neither
            given nor in the report.
        InputError: The report cannot be read, or does not contain a complete pipeline.
    """
    run = None if report is None else _get_pipeline(report)
    given_sizes = schedule, stages, microbatches
    sizes, times = choose_sizes_and_times(run, given_sizes, tf, tb, tw, tcomm)
    name, p, m = sizes
    if name is None or p is None or m is None:
        raise UsageError(
            "simulate needs a schedule, stages and microbatches, or a report that contains them"
        )
    simulated = simulate_or_estimate(name, p, m, times, chunks)
    restrictions = () if run is None else read_restrictions(run.restrictions)
    left_out = describe_left_out(run, (tf, tb, tw, tcomm))
    if isinstance(simulated, ideal.Ideal):
        return convert_to(Ideal, simulated, restrictions=restrictions, left_out=left_out)
    return convert_to(Estimate, simulated, restrictions=restrictions, left_out=left_out)


def _get_pipeline(report: Report | RunSummary | str | Path) -> RunSummary:
    """Return a report's summary after checking that schedules can be simulated from it.

    Raises:
        InputError: The report cannot be read, is about idle time, or does not contain a complete
            pipeline.
    """
    if isinstance(report, Report):
        report = summarize(report, by_rank=False, slowdown=False)
    if isinstance(report, RunSummary):
        return check_pipeline("the run", report)
    if isinstance(report, IdleSummary):
        raise InputError("the report contains only idle time; pass a report from analyze instead")
    return read_pipeline(str(report))
