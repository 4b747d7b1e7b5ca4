"""The options that several commands share, alone and in groups."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.errors import OutputError, UsageError
from bubbleviz.model.private_names import anonymous, hide
from bubbleviz.model.values import frozen
from bubbleviz.render.formats import renderers

if TYPE_CHECKING:
    from bubbleviz.model.window import Window as RunWindow
    from bubbleviz.report.report import Report

#: The value of every option that names an output.
FILE = "FILE"

RunProfiles = Annotated[
    list[str],
    typer.Argument(
        help="Profiles of one run, or directories of them: Nsight Systems exports (.sqlite) or "
        "reports (.nsys-rep), PyTorch traces (.json, .json.gz), XLA profiles (.xplane.pb, "
        ".trace.json.gz)."
    ),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace existing outputs.")]
Skip = Annotated[
    int, typer.Option(min=0, metavar="N", help="Leave the first N iterations out of averages.")
]
Conventions = Annotated[
    list[str] | None,
    typer.Option(
        "--convention",
        metavar="NAME|FILE",
        help="NVTX convention of the range names; recognised if not given.",
    ),
]
Additions = Annotated[
    list[str] | None,
    typer.Option(
        "--convention",
        metavar="NAME|FILE",
        help="Convention whose list of communication kernels extends the built-in one.",
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="iteration:5-8|time:1.5s-3s",
        help="Analyse only this part of the run: iterations by name, or a time of the first "
        "profile.",
    ),
]
KeepExport = Annotated[
    bool, typer.Option("--keep-export", help="Keep the exports made of .nsys-rep reports.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        help="Threads for one profile, processes for several; all cores if not given.",
    ),
]


def _hide_names(given: bool) -> bool:
    if given:
        hide()
    return given


Anonymous = Annotated[
    bool,
    typer.Option(
        "--anonymous",
        callback=_hide_names,
        is_eager=True,
        help="Replace names of hosts, files, threads and source functions in all output.",
    ),
]
JsonFile = Annotated[
    str | None, typer.Option("--json", metavar=FILE, help="Write JSON; - for standard output.")
]
CsvFile = Annotated[
    str | None, typer.Option("--csv", metavar=FILE, help="Write CSV; - for standard output.")
]
SvgFile = Annotated[
    str | None, typer.Option("--svg", metavar=FILE, help="Draw an SVG; - for standard output.")
]
PdfFile = Annotated[
    str | None, typer.Option("--pdf", metavar=FILE, help="Draw a PDF; - for standard output.")
]
PngFile = Annotated[
    str | None, typer.Option("--png", metavar=FILE, help="Draw a PNG; - for standard output.")
]


@frozen
class ReadingOptions:
    """How profiles are read: the part of the run, what stays of exports, and on how many cores."""

    window: Window = None
    keep_export: KeepExport = False
    jobs: Jobs = None

    def run_window(self) -> RunWindow | None:
        """Return the part of the run to analyse; None for all of it.

        Raises:
            UsageError: the option is not of its form.
        """
        from bubbleviz.model.window import parse_window

        return None if self.window is None else parse_window(self.window)

    def job_count(self) -> int:
        """Return the number of jobs: that given, or as many as there are cores."""
        return jobs_or_cores(self.jobs)


@frozen
class MeasurementOptions:
    """How profiles are measured where a command takes them in place of a saved report."""

    skip: Skip = 0
    convention: Conventions = None
    jobs: Jobs = None

    def given(self) -> bool:
        """Return whether any of them was given."""
        return bool(self.skip or self.convention or self.jobs)

    def measure(self, paths: str | Sequence[str]) -> Report:
        """Return the report on the profiles of one run, with progress on standard error.

        Raises:
            BubblevizError: see :func:`bubbleviz.analyze`.
        """
        from bubbleviz.api import analyze
        from bubbleviz.cli.terminal import progress_bars

        with progress_bars() as bars:
            report = analyze(
                paths,
                skip=self.skip,
                convention=self.convention or (),
                jobs=jobs_or_cores(self.jobs),
                progress=bars,
            )
        return anonymous(report)


def jobs_or_cores(jobs: int | None) -> int:
    """Return the number of jobs: that given, or as many as there are cores."""
    from bubbleviz.interpret.fleet.fleet import cores

    return jobs or cores()


def formats_by_file(files: Mapping[str, str | None]) -> dict[str, str]:
    """Return the output format of each file that an option names.

    Args:
        files: file by format; None where the option was not given.

    Raises:
        UsageError: two formats have the same file.
        OutputError: a format needs a package that is not installed, or is binary and standard
            output is a terminal.
    """
    named = {file: name for name, file in files.items() if file is not None}
    if len(named) < sum(file is not None for file in files.values()):
        raise UsageError("two outputs name the same file; give each its own")
    known = {renderer.name: renderer for renderer in renderers()}
    for file, name in named.items():
        if name not in known:
            continue
        known[name].check()
        if known[name].binary and file == "-" and sys.stdout.isatty():
            raise OutputError(
                f"--{name} -: refusing to write binary data to a terminal; name a file or pipe it"
            )
    return named
