"""The function ``compare`` of the Python API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    | Sequence[Report | RunSummary | IdleReport | IdleSummary | str | Path]
    | Mapping[str, Report | RunSummary | IdleReport | IdleSummary | str | Path],
) -> Comparison:
    """Compare the bubble ratios and durations of two or more runs.

    The comparison also checks whether the advice for the first run was followed in the later runs,
    and whether that helped.

    Args:
        runs: Each run is a report from ``analyze``, ``idle`` or ``load``, the path of a saved
            report, or the path of profiles. Profiles are analyzed with the default options. The
            runs can also be passed as a single list, or as a mapping from titles to runs.

    Raises:
        UsageError: There are fewer than two runs.
        InputError: A path cannot be read.
    """
    titled_runs = [pair for each in runs for pair in _list_titled_runs(each)]
    if len(titled_runs) < 2:
        raise UsageError("compare needs at least two runs")
    compared = [
        _read_compared_run(title or f"run {number}", run)
        for number, (title, run) in enumerate(titled_runs, 1)
    ]
    return convert_to(Comparison, comparison.compare(compared))


def _list_titled_runs(
    runs: _Run | Sequence[_Run] | Mapping[str, _Run],
) -> Sequence[tuple[str, _Run]]:
    """Return (title, run) pairs. The title is the mapping's key, the run's path, or ""."""
    if isinstance(runs, Mapping):
        return [(str(title), run) for title, run in runs.items()]
    if isinstance(runs, (Report, RunSummary, IdleSummary, str, Path)):
        listed: Sequence[_Run] = (runs,)
    else:
        listed = tuple(runs) if isinstance(runs, Iterable) else (runs,)
    return [(str(run) if isinstance(run, (str, Path)) else "", run) for run in listed]


def _read_compared_run(title: str, run: _Run) -> comparison.ComparedRun:
    """Return a run of a comparison. Paths are loaded or analyzed.

    Args:
        title: Title of the run.
        run: The run.

    Raises:
        InputError: The path cannot be read.
    """
    path = title
    if isinstance(run, (str, Path)):
        path = str(run)
        run = load(run) if is_saved_report(path) else analyze(run)
    if isinstance(run, Report):
        summary = summarize(run, by_rank=False)
        return comparison.ComparedRun(title, path, summary, run)
    if isinstance(run, (RunSummary, IdleSummary)):
        return comparison.ComparedRun(title, path, run)
    return comparison.ComparedRun(title, path, run.summarize())
