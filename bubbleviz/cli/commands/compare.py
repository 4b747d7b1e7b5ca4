"""``bubbleviz compare``: several runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.cli.help import AllDetails
from bubbleviz.cli.help import details as tables_of
from bubbleviz.cli.options import (
    CsvFile,
    Force,
    JsonFile,
    MarkdownFile,
    MeasurementOptions,
    Output,
    PdfFile,
    PngFile,
    SvgFile,
    formats_by_file,
    with_anonymity,
    with_groups,
)
from bubbleviz.cli.selection import PaperOptions
from bubbleviz.cli.terminal import deliver, show
from bubbleviz.errors import UsageError
from bubbleviz.model.private_names import anonymous

if TYPE_CHECKING:
    from bubbleviz.report.compare.comparison import ComparedRun


@with_anonymity
@with_groups
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUNS...",
            help="Two or more runs: each a report written by analyze --json, or the profiles of "
            "one run (a file or a directory).",
        ),
    ],
    *,
    output: Output = None,
    markdown: MarkdownFile = None,
    json: JsonFile = None,
    csv: CsvFile = None,
    svg: SvgFile = None,
    pdf: PdfFile = None,
    png: PngFile = None,
    paper: PaperOptions,
    force: Force = False,
    measurement: MeasurementOptions,
    details: AllDetails = None,
) -> None:
    """Compare the bubble ratios of runs, with p values."""
    from bubbleviz.cli.outputs import check_outputs

    everything = bool(tables_of(details))
    if len(runs) < 2:
        raise UsageError("compare needs two or more runs")
    files = {"json": json, "csv": csv, "svg": svg, "pdf": pdf, "png": png, "markdown": markdown}
    outputs = formats_by_file(files, output)
    paper.check_drawn(outputs.values())
    saved = _which_are_saved(runs)
    inputs = [*_inputs(saved), *(measurement.convention or ())]
    check_outputs(list(outputs), inputs, force=force)
    from bubbleviz.render.documents import comparison_report
    from bubbleviz.report.compare.comparison import compare as compare_runs

    if comparison_report.PICTURES & set(outputs.values()):
        comparison_report.check_drawable(saved)
    comparison = compare_runs(_read(runs, saved, measurement))
    view = paper.styled()
    contents = {
        file: comparison_report.RENDERINGS[name](comparison, view) for file, name in outputs.items()
    }
    deliver(
        contents,
        lambda: show(
            comparison_report.sections(comparison)
            if everything
            else comparison_report.first_screen(comparison)
        ),
        inputs=inputs,
        force=force,
    )


def _which_are_saved(runs: list[str]) -> dict[str, bool]:
    """Return for each path whether it is a saved report rather than profiles."""
    from bubbleviz.report.saved import looks_saved

    return {path: looks_saved(path) for path in runs}


def _inputs(saved: dict[str, bool]) -> list[str]:
    """Return the files to be read.

    Raises:
        InputError: a path does not exist.
    """
    from bubbleviz.sources.paths import find_profiles

    return [
        file
        for path, is_saved in saved.items()
        for file in ([path] if is_saved else [profile.path for profile in find_profiles([path])])
    ]


def _read(
    runs: list[str], saved: dict[str, bool], measurement: MeasurementOptions
) -> list[ComparedRun]:
    """Return each run, read or measured; a path that is given twice is read once."""
    from bubbleviz.report.compare.comparison import ComparedRun, saved_of, titles_of
    from bubbleviz.report.saved import read_saved

    read = {path: read_saved(path) for path, is_saved in saved.items() if is_saved}
    reports = {path: measurement.measure(path) for path, is_saved in saved.items() if not is_saved}
    read |= {path: saved_of(report) for path, report in reports.items()}
    shown = anonymous(runs)
    return [
        ComparedRun(title, name, read[path], reports.get(path))
        for title, name, path in zip(titles_of(shown), shown, runs, strict=True)
    ]
