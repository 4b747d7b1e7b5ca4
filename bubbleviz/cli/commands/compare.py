"""``bubbleviz compare``: the differences between runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from bubbleviz.cli import options
from bubbleviz.cli.help import ALL_DETAILS, argument, flag, select_tables
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.selection import PaperOptions
from bubbleviz.cli.terminal import print_message, show
from bubbleviz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubbleviz.report.compared.comparison import ComparedRun

#: Exit code used if a run is worse than the first run. Codes 1 and 2 mean bad input and wrong
#: usage.
WORSE = 3


@options.command(
    {
        **options.MARKDOWN,
        **options.JSON,
        **options.CSV,
        **options.LATEX,
        **options.PICTURE_FILES,
    }
)
def compare(
    runs: list[str] = argument(
        "RUNS...",
        "Two or more runs. Each is a report written by analyze -o report.json, or the profiles of "
        "one run (a file or a directory).",
    ),
    *,
    fail_if_worse: bool = flag(
        "Exit with code 3 if a run is worse than the first one.", "Limits", "--fail-if-worse"
    ),
    outputs: Outputs,
    paper: PaperOptions,
    measurement: options.MeasurementOptions,
    details: list[str] | None = ALL_DETAILS,
) -> None:
    """Show what changed between runs, and why.

    A run is worse if its iterations are significantly longer (p < 0.05) than those of the first
    run, or if they are not shorter and its bubble ratio is significantly larger. Runs with
    different numbers of microbatches are compared per microbatch. Exit codes: 0 success, 1 bad
    input, 2 wrong usage, 3 a run is worse and --fail-if-worse is given.
    """
    everything = bool(select_tables(details))
    if len(runs) < 2:
        raise UsageError(
            "compare needs at least two runs, for example bubbleviz compare before.json after.json"
        )
    paper.check(outputs.formats.values())
    inputs = {path: options.recognize_run(path) for path in runs}
    files = [file for run in inputs.values() for file in run.find_files()]
    outputs.check([*files, *(measurement.convention or [])])
    from bubbleviz.render import comparison as comparison_report
    from bubbleviz.report.compared.comparison import compare as compare_runs
    from bubbleviz.report.compared.comparison import find_worse_runs

    draws = bool(comparison_report.PICTURES & set(outputs.formats.values()))
    comparison = compare_runs(_read_runs(runs, inputs, measurement, outputs.names, draws=draws))
    view = paper.make_view(outputs.public_formats)
    outputs.deliver(
        comparison,
        lambda public, name, _: comparison_report.RENDERINGS[name](public, view),
        lambda public: show(comparison_report.list_sections(public, screen=not everything)),
    )
    if fail_if_worse and (worse := find_worse_runs(comparison)):
        message = f"{', '.join(worse)}: worse than {comparison.runs[0].title}"
        print_message(message, WORSE, outputs.names)
        raise typer.Exit(WORSE)


def _read_runs(
    runs: list[str],
    inputs: Mapping[str, options.RunInput],
    measurement: options.MeasurementOptions,
    names: PrivateNames,
    *,
    draws: bool,
) -> list[ComparedRun]:
    """Read or measure each run, and give it a title. A path given twice is read only once.

    Saved reports are read first, because measuring the other runs takes longer. Titles are derived
    from paths. With ``--anonymous``, path stand-ins are used, because parts of a path have no
    stand-ins.

    Args:
        runs: Paths of the runs.
        inputs: The report or the profiles at each path, keyed by path.
        measurement: Options for measuring profiles.
        names: Private names to replace in the paths and titles of runs.
        draws: Whether the runs will be drawn.

    Raises:
        UsageError: A saved report cannot be drawn, although the runs will be drawn.
    """
    from bubbleviz.render.comparison import check_drawable
    from bubbleviz.report.compared.comparison import ComparedRun, make_titles

    reports = {}
    for path, run in sorted(inputs.items(), key=lambda item: not item[1].is_saved):
        reports[path] = measurement.read(run)
        if draws and run.is_saved:
            check_drawable(path, reports[path][0])
    public_paths = names.replaced(runs)
    titles = make_titles(public_paths)
    return [
        ComparedRun(title, public_path, *reports[path])
        for title, public_path, path in zip(titles, public_paths, runs, strict=True)
    ]
