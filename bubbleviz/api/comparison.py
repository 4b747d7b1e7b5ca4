"""The function ``compare`` of the Python API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.api.analysis import analyze
from bubbleviz.api.loading import load
from bubbleviz.errors import UsageError
from bubbleviz.render.compared import Comparison
from bubbleviz.render.display import convert_to
from bubbleviz.render.notebook import Report
from bubbleviz.report.compared import comparison
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.saved import is_saved_report
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.summary import RunSummary

if TYPE_CHECKING:
    from typing import TypeAlias

    from bubbleviz.analyses.idle.analysis import IdleReport

    _Run: TypeAlias = Report | RunSummary | IdleReport | IdleSummary | str | Path


def compare(
    *runs: Report
    | RunSummary
    | IdleReport
    | IdleSummary
    | str
    | Path
    | Sequence[Report | RunSummary | IdleReport | IdleSummary | str | Path],
) -> Comparison:
    """Compare the bubble ratios and durations of two or more runs.

    The comparison also checks whether the advice for the first run was followed in the later runs,
    and whether that helped.

    Args:
        runs: Each run is a report from ``analyze``, ``idle`` or ``load``, the path of a saved
            report, or the path of profiles. Profiles are analyzed with the default options. The
            runs can also be passed as a single list.

    Raises:
        UsageError: There are fewer than two runs.
        InputError: A path cannot be read.
    """
    all_runs = [run for each in runs for run in _list_runs(each)]
    if len(all_runs) < 2:
        raise UsageError("compare needs at least two runs")
    compared = [_read_compared_run(number, run) for number, run in enumerate(all_runs, 1)]
    return convert_to(Comparison, comparison.compare(compared))


def _list_runs(runs: _Run | Sequence[_Run]) -> Sequence[_Run]:
    """Return one or more runs as a sequence."""
    if isinstance(runs, (Report, RunSummary, IdleSummary, str, Path)):
        return (runs,)
    return tuple(runs) if isinstance(runs, Iterable) else (runs,)


def _read_compared_run(number: int, run: _Run) -> comparison.ComparedRun:
    """Return a run of a comparison. Paths are loaded or analyzed.

    Args:
        number: Number of the run in the comparison, which is the title of a run without a path.
        run: The run.

    Raises:
        InputError: The path cannot be read.
    """
    title = f"run {number}"
    if isinstance(run, (str, Path)):
        title = str(run)
        run = load(run) if is_saved_report(title) else analyze(run)
    if isinstance(run, Report):
        summary = summarize(run, by_rank=False)
        return comparison.ComparedRun(title, title, summary, run)
    if isinstance(run, (RunSummary, IdleSummary)):
        return comparison.ComparedRun(title, title, run)
    return comparison.ComparedRun(title, title, run.summarize())
