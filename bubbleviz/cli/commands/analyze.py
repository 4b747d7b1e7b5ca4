"""``bubbleviz analyze``: the pipeline bubbles of one run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bubbleviz.cli.completion import beginning
from bubbleviz.cli.help import ALL, CLOCKS, NAMES, OF_ANALYZE, READING, SCHEDULE, AnalysisDetails
from bubbleviz.cli.help import details as tables_of
from bubbleviz.cli.options import (
    FILE,
    Conventions,
    Force,
    ReadingOptions,
    RunProfiles,
    Skip,
    with_anonymity,
    with_groups,
    with_outputs,
)
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
from bubbleviz.model.choices import ALIGNMENTS
from bubbleviz.model.private_names import anonymous, anonymous_words, note_host
from bubbleviz.model.values import frozen
from bubbleviz.render.formats import Renderer, is_folder

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


@frozen
class AnalysisOptions:
    """Options of the analysis: averages, names, stage order, clocks, sizes, plan and cluster."""

    skip: Skip = 0
    convention: Conventions = None
    what_if: Annotated[
        bool,
        typer.Option(
            "--what-if",
            help="Simulate other schedules at the measured times.",
            rich_help_panel=SCHEDULE,
        ),
    ] = False
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="Read allocations of PyTorch's traces, too.",
            rich_help_panel=READING,
        ),
    ] = False
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Which schedules fit in 80GB, say.",
            rich_help_panel=SCHEDULE,
        ),
    ] = None
    cross_thread: Annotated[
        bool,
        typer.Option(help="Leave kernels of autograd's thread out of B.", rich_help_panel=NAMES),
    ] = True
    order: Annotated[
        str | None,
        typer.Option(
            metavar="2,0,1",
            help="Ranks in the order of stages, if not inferred.",
            rich_help_panel=CLOCKS,
        ),
    ] = None
    same_clock: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B", help="Hosts (or containers) that share a clock.", rich_help_panel=CLOCKS
        ),
    ] = None
    align: Annotated[
        str | None,
        typer.Option(
            metavar="causal|utc|none",
            help="Align clocks by waits (causal), UTC, or not.",
            rich_help_panel=CLOCKS,
            autocompletion=beginning(ALIGNMENTS),
        ),
    ] = None
    parallel: Annotated[
        str | None,
        typer.Option(
            metavar="tp=2,pp=4,dp=8",
            help="Sizes, ranks as Megatron's, if not inferred.",
            rich_help_panel=CLOCKS,
        ),
    ] = None
    plan: Annotated[
        str | None,
        typer.Option(
            metavar=FILE,
            help="Compare with a planned order (PyTorch's CSV).",
            rich_help_panel=SCHEDULE,
        ),
    ] = None
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|FILE",
            help="Read on a Dask cluster; trusted networks only.",
            rich_help_panel=READING,
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
            "memory": self.memory,
            "memory_limit": self.memory_limit,
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
        bool,
        typer.Option(
            "--timings", help="Print seconds and rows of each step.", rich_help_panel=READING
        ),
    ] = False,
) -> None:
    """Measure the bubbles of one run: a summary, and files."""
    from bubbleviz.timing import noting, step

    tables = tables_of(details, OF_ANALYZE)
    inputs = _inputs(profiles, outputs, analysis, force=force)
    arguments = analysis.arguments()
    for host in (*chain(*arguments["same_clock"]), *([analysis.dask] if analysis.dask else [])):
        note_host(host)
    arguments["window"] = reading.run_window()
    arguments["ideal"] = any(renderer.compares for renderer in outputs.values())
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
            contents = {
                file: renderer.content(report, view, file) for file, renderer in outputs.items()
            }
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
    # Formats of one file refuse a slash before.
    folders = [file for file in outputs if is_folder(file)]
    check_outputs(list(outputs), inputs, force=force, folders=folders)
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
    if report.plan is not None:
        from bubbleviz.render.text.sections import plan_deviations

        show(plan_deviations(report))
    if compared:
        from bubbleviz.render.text.times import alternatives

        show(alternatives(report))
    if report.memory is not None:
        from bubbleviz.render.text.sections import memory

        show(memory(report))
