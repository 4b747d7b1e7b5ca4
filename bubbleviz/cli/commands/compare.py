"""``bubbleviz compare``: several runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from bubbleviz.cli import options
from bubbleviz.cli.help import ALL_DETAILS, argument, flag, tables_of
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.selection import PaperOptions
from bubbleviz.cli.terminal import complain, show
from bubbleviz.errors import UsageError
from bubbleviz.report.saved import is_saved_report

if TYPE_CHECKING:
    from bubbleviz.report.compared.comparison import ComparedRun

#: Exit code if a run is worse than the first; 1 and 2 are bad input and wrong usage.
WORSE = 3


@options.command({**options.MARKDOWN, **options.JSON, **options.CSV, **options.PICTURE_FILES})
def compare(
    runs: list[str] = argument(
        "RUNS...",
        "Two or more runs: each a report written by analyze -o report.json, or the profiles of one "
        "run (a file or a directory).",
    ),
    *,
    fail_if_worse: bool = flag(
        *("Exit with 3 where a run is worse than the first.", "Limits", "--fail-if-worse")
    ),
    outputs: Outputs,
    paper: PaperOptions,
    measurement: options.MeasurementOptions,
    details: list[str] | None = ALL_DETAILS,
) -> None:
    """Tell what changed between runs, and why.

    A run is worse where its iterations are longer than the first one's, or no shorter and with a
    larger bubble ratio, by more than chance (p < 0.05). Where iterations have other numbers of
    microbatches, the time of a microbatch takes the place of theirs. Exit codes: 0, 1 bad
    input, 2 wrong usage, and with --fail-if-worse 3.
    """
    everything = bool(tables_of(details))
    if len(runs) < 2:
        raise UsageError("compare needs two or more runs")
    paper.check(outputs.formats.values())
    is_saved = {path: is_saved_report(path) for path in runs}
    outputs.check([*options.files_of(is_saved), *(measurement.convention or [])])
    from bubbleviz.render import comparison as comparison_report
    from bubbleviz.report.compared.comparison import compare as compare_runs
    from bubbleviz.report.compared.comparison import find_worse_runs

    if comparison_report.PICTURES & set(outputs.formats.values()):
        comparison_report.check_drawable(is_saved)
    comparison = compare_runs(_read(runs, measurement, outputs.names))
    view = paper.styled()
    outputs.deliver(
        comparison,
        lambda shown, name, _: comparison_report.RENDERINGS[name](shown, view),
        lambda shown: show(comparison_report.list_sections(shown, screen=not everything)),
    )
    if fail_if_worse and (worse := find_worse_runs(comparison)):
        message = f"worse than {comparison.runs[0].title}: {', '.join(worse)}"
        complain(message, WORSE, outputs.names)
        raise typer.Exit(WORSE)


def _read(
    runs: list[str], measurement: options.MeasurementOptions, names: PrivateNames
) -> list[ComparedRun]:
    """Read or measure each run. A path that is given twice is read once.

    Titles are the last parts of paths. Stand-ins exist for whole paths only, so titles are made
    from the stand-ins.
    """
    from bubbleviz.report.compared.comparison import ComparedRun, make_titles

    reports = {path: measurement.read(path) for path in dict.fromkeys(runs)}
    public_paths = names.replaced(runs)
    titles = make_titles(public_paths)
    return [
        ComparedRun(title, public_path, *reports[path])
        for title, public_path, path in zip(titles, public_paths, runs, strict=True)
    ]
