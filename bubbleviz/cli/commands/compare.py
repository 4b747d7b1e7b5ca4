"""``bubbleviz compare``: several runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.errors import UsageError
from bubbleviz.output_options import chosen
from bubbleviz.cli.terminal import pass_on, progress_bars, show

if TYPE_CHECKING:
    from bubbleviz.report.compare.comparison import Run

_FILE = "FILE"


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Two runs or more: each a report that analyze --json wrote, or the profiles of "
            "one run (a file, or a directory of them)."
        ),
    ],
    json: Annotated[
        str | None, typer.Option(metavar=_FILE, help="Write it as JSON; - for standard output.")
    ] = None,
    csv: Annotated[
        str | None,
        typer.Option(metavar=_FILE, help="Write one row a ratio and run; - for standard output."),
    ] = None,
    svg: Annotated[
        str | None,
        typer.Option(
            metavar=_FILE,
            help="Draw each run's typical iteration, all on one axis of time; takes profiles.",
        ),
    ] = None,
    pdf: Annotated[str | None, typer.Option(metavar=_FILE, help="Draw it as PDF.")] = None,
    png: Annotated[str | None, typer.Option(metavar=_FILE, help="Draw it as PNG.")] = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace outputs that exist.")
    ] = False,
    skip: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Leave the first N iterations of profiles out of averages."
        ),
    ] = 0,
    convention: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE", help="Naming of the ranges of profiles; recognised if not given."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, metavar="N", help="As for analyze."),
    ] = None,
) -> None:
    """Compare the bubble ratios of runs: differences to the first, and whether they are chance."""
    from bubbleviz.cli.outputs import check_outputs, write_outputs

    if len(runs) < 2:
        raise UsageError("one run is nothing to compare; give two or more")
    files = {"json": json, "csv": csv, "svg": svg, "pdf": pdf, "png": png}
    outputs = chosen(files)
    saved = _which_are_saved(runs)
    inputs = [*_inputs(saved), *(convention or ())]
    check_outputs([file for file in files.values() if file is not None], inputs, force=force)
    from bubbleviz.render.documents import comparison_report
    from bubbleviz.report.compare.comparison import compare as compared

    if comparison_report.PICTURES & set(outputs.values()):
        comparison_report.check_drawable(saved)
    found = compared(_read(runs, saved, skip, convention or (), jobs))
    contents = {file: comparison_report.RENDERINGS[kind](found) for file, kind in outputs.items()}
    to_stdout = contents.pop("-", None)
    write_outputs(contents, force=force)
    if to_stdout is not None:
        pass_on(to_stdout)
    else:
        show(comparison_report.parts(found))


def _which_are_saved(runs: list[str]) -> dict[str, bool]:
    """Return by path whether it is a saved report, else profiles."""
    from bubbleviz.report.saved import looks_saved

    return {path: looks_saved(path) for path in runs}


def _inputs(saved: dict[str, bool]) -> list[str]:
    """Return every file that is read.

    Raises:
        InputError: a path leads to nothing.
    """
    from bubbleviz.sources.paths import find_profiles

    return [
        file
        for path, is_saved in saved.items()
        for file in ([path] if is_saved else [found.path for found in find_profiles([path])])
    ]


def _read(
    runs: list[str],
    saved: dict[str, bool],
    skip: int,
    convention: list[str] | tuple[()],
    jobs: int | None,
) -> list[Run]:
    """Read or measure every run; one that is named twice is read once."""
    from bubbleviz.api import analyze
    from bubbleviz.report.compare.comparison import Run, saved_of, titles_of
    from bubbleviz.interpret.fleet.process_pool import cores
    from bubbleviz.report.saved import read_saved

    read = {path: read_saved(path) for path, is_saved in saved.items() if is_saved}
    reports = {}
    for path in (path for path, is_saved in saved.items() if not is_saved):
        with progress_bars() as bars:
            reports[path] = analyze(
                path, skip=skip, convention=convention, jobs=jobs or cores(), progress=bars
            )
        read[path] = saved_of(reports[path])
    return [
        Run(title, path, read[path], reports.get(path))
        for title, path in zip(titles_of(runs), runs, strict=True)
    ]
