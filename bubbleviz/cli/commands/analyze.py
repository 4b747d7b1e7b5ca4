"""``bubbleviz analyze``: the pipeline bubbles of one run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bubbleviz.cli.details import ALL, OF_ANALYZE, AnalysisDetails
from bubbleviz.cli.details import details as tables_of
from bubbleviz.cli.option_groups import with_anonymity, with_groups, with_outputs
from bubbleviz.cli.options import FILE, Conventions, Force, ReadingOptions, RunProfiles, Skip
from bubbleviz.cli.selection import PictureOptions
from bubbleviz.cli.terminal import (
    deliver,
    display,
    progress_bars,
    show,
    show_lines,
    show_steps,
    width,
)
from bubbleviz.model.private_names import anonymous, anonymous_words, note_host
from bubbleviz.model.values import frozen
from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report, View


@frozen
class AnalysisOptions:
    """Options of the analysis: averages, names, stage order, clocks, sizes, plan and cluster."""

    skip: Skip = 0
    convention: Conventions = None
    what_if: Annotated[
        bool,
        typer.Option("--what-if", help="Simulate the other schedules at the measured times."),
    ] = False
    cross_thread: Annotated[
        bool,
        typer.Option(help="Give backward kernels of PyTorch's own thread to the open B range."),
    ] = True
    order: Annotated[
        str | None,
        typer.Option(
            metavar="2,0,1",
            help="Set the stage order by rank index instead of inferring it.",
        ),
    ] = None
    same_clock: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="Hosts that share one clock (containers of a machine)."),
    ] = None
    align: Annotated[
        str | None,
        typer.Option(
            metavar="causal|utc|none",
            help="Align hosts' clocks by what waited for what (the default), by UTC, or not at "
            "all.",
        ),
    ] = None
    parallel: Annotated[
        str | None,
        typer.Option(
            metavar="tp=2,pp=4,dp=8",
            help="Parallel sizes of the run, ranks numbered as Megatron does; inferred if not "
            "given.",
        ),
    ] = None
    plan: Annotated[
        str | None,
        typer.Option(metavar=FILE, help="Compare the executed order with a plan (PyTorch's CSV)."),
    ] = None
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|FILE",
            help="Read profiles on the workers of a Dask cluster: its scheduler's address, or its "
            "scheduler file; its messages are pickles, which run code: trusted networks only.",
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of :func:`bubbleviz.api.analyze`.

        Raises:
            UsageError: an option is not of its form.
        """
        from bubbleviz.cli.selection import numbers, parallel_of

        return {
            "skip": self.skip,
            "convention": self.convention or (),
            "what_if": self.what_if,
            "cross_thread": self.cross_thread,
            "order": numbers(self.order, "--order") if self.order else (),
            "same_clock": [group.split(",") for group in self.same_clock or ()],
            "align": self.align,
            "parallel": None if self.parallel is None else parallel_of(self.parallel),
            "plan": self.plan,
            "dask": self.dask,
        }


@with_anonymity
@with_outputs
@with_groups
def analyze(
    profiles: RunProfiles,
    *,
    context: typer.Context,
    outputs: dict[str, Renderer[Any]],
    force: Force = False,
    picture: PictureOptions,
    analysis: AnalysisOptions,
    reading: ReadingOptions,
    details: AnalysisDetails = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print seconds and rows of each step.")
    ] = False,
) -> None:
    """Measure the pipeline bubbles of one run: print a summary, write the requested files."""
    from bubbleviz.timing import noting, step

    tables = tables_of(details, OF_ANALYZE)
    inputs = _inputs(profiles, outputs, analysis, force=force)
    arguments = analysis.arguments()
    for host in (*chain(*arguments["same_clock"]), *([analysis.dask] if analysis.dask else [])):
        note_host(host)
    arguments["window"] = reading.run_window()
    arguments["what_if"] |= any(renderer.compares for renderer in outputs.values())
    picture.check(outputs.values())
    with noting() as steps:
        with step("load the analysis"):
            from bubbleviz.api import analyze as analyze_run
        with progress_bars() as bars:
            report = analyze_run(
                profiles,
                **arguments,
                keep_export=reading.keep_export,
                jobs=reading.job_count(),
                progress=bars,
            )
        # Under --dask, only now are the files known that were read.
        inputs += [profile.path for profile in report.profiles]
        words = shlex.split(context.obj or "")
        report = replace(anonymous(report), command=shlex.join(anonymous_words(words)))
        view = picture.view_of(report)
        with step("render"):
            contents = {file: renderer.render(report, view) for file, renderer in outputs.items()}
        deliver(
            contents,
            lambda: _print(report, view, tables, compared=analysis.what_if),
            inputs=inputs,
            force=force,
        )
    if timings:
        show_steps(steps)


def _inputs(
    profiles: Sequence[str],
    outputs: Mapping[str, Renderer[Any]],
    analysis: AnalysisOptions,
    *,
    force: bool,
) -> list[str]:
    """Return the files to be read, once no output would replace one of them.

    With ``--dask``, profiles lie on other machines, and stand as given.
    """
    from bubbleviz.cli.outputs import check_outputs
    from bubbleviz.sources.paths import find_profiles

    local = analysis.dask is None
    files = [file.path for file in find_profiles(profiles)] if local else profiles
    inputs = [*files, *(analysis.convention or ())]
    inputs += [] if analysis.plan is None else [analysis.plan]
    check_outputs(list(outputs), inputs, force=force)
    return inputs


def _print(report: Report, view: View, tables: Sequence[str], *, compared: bool) -> None:
    """Print the first screen, or the tables that were asked for."""
    if ALL in tables:
        from bubbleviz.render.text.report import sections

        show(sections(report, view, width()))
        return
    if tables:
        from bubbleviz.render.text.report import details as listed

        show(listed(report, view, tables, width()))
        return
    from bubbleviz.render.text.first_screen import first_screen

    shown_on = display()
    show_lines(first_screen(report, view, shown_on), shown_on)
    if compared:
        from bubbleviz.render.text.what_if import alternatives

        show(alternatives(report))
