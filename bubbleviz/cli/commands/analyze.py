"""``bubbleviz analyze``: the pipeline bubbles of one run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.cli.help import (
    ALL,
    CLOCKS,
    NAMES,
    OF_ANALYZE,
    READING,
    SCHEDULE,
    AnalysisDetails,
    option,
)
from bubbleviz.cli.help import details as tables_of
from bubbleviz.cli.options import (
    FILE,
    Conventions,
    Outputs,
    ReadingOptions,
    RunProfiles,
    Skip,
    command,
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
from bubbleviz.render.formats import renderers

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


@command({renderer.name: renderer.summary for renderer in renderers()})
def analyze(
    profiles: RunProfiles,
    *,
    context: typer.Context,
    outputs: Outputs,
    picture: PictureOptions,
    skip: Skip = 0,
    convention: Conventions = None,
    what_if: Annotated[
        bool, option("Simulate other schedules at the measured times.", SCHEDULE, "--what-if")
    ] = False,
    memory: Annotated[
        bool, option("Read allocations of PyTorch's traces, too.", READING, "--memory")
    ] = False,
    memory_limit: Annotated[
        str | None, option("Which schedules fit in 80GB, say.", SCHEDULE, metavar="SIZE")
    ] = None,
    cross_thread: Annotated[bool, option("Leave kernels of autograd's thread out of B.", NAMES)] = (
        True
    ),
    order: Annotated[
        str | None,
        option("Ranks in the order of stages, if not inferred.", CLOCKS, metavar="2,0,1"),
    ] = None,
    same_clock: Annotated[
        list[str] | None, option("Hosts (or containers) that share a clock.", CLOCKS, metavar="A,B")
    ] = None,
    align: Annotated[
        str | None,
        option(
            "Align clocks by waits (causal), UTC, or not.",
            CLOCKS,
            metavar="causal|utc|none",
            complete=ALIGNMENTS,
        ),
    ] = None,
    parallel: Annotated[
        str | None,
        option("Sizes, ranks as Megatron's, if not inferred.", CLOCKS, metavar="tp=2,pp=4,dp=8"),
    ] = None,
    plan: Annotated[
        str | None, option("Compare with a planned order (PyTorch's CSV).", SCHEDULE, metavar=FILE)
    ] = None,
    dask: Annotated[
        str | None,
        option("Read on a Dask cluster; trusted networks only.", READING, metavar="ADDRESS|FILE"),
    ] = None,
    reading: ReadingOptions,
    details: AnalysisDetails = None,
    timings: Annotated[
        bool, option("Print seconds and rows of each step.", READING, "--timings")
    ] = False,
) -> None:
    """Measure the bubbles of one run: a summary, and files."""
    from bubbleviz.cli.selection import numbers, parallel_of
    from bubbleviz.sources.paths import find_profiles
    from bubbleviz.timing import noting, step

    tables = tables_of(details, OF_ANALYZE)
    # With --dask, profiles lie on other machines, and stand as given.
    inputs = profiles if dask is not None else [file.path for file in find_profiles(profiles)]
    inputs = [*inputs, *(convention or ()), *([] if plan is None else [plan])]
    outputs.check(inputs)
    clocks = [group.split(",") for group in same_clock or ()]
    for host in (*chain(*clocks), *([dask] if dask else [])):
        note_host(host)
    by_name = {renderer.name: renderer for renderer in renderers()}
    written = [by_name[name] for name in outputs.formats.values()]
    ranks = numbers(order, "--order") if order else ()
    sizes = None if parallel is None else parallel_of(parallel)
    window = reading.run_window()
    picture.check(written)
    with noting() as steps:
        with step("load the analysis"):
            from bubbleviz.api import analyze as analyze_run
        with progress_bars() as bars:
            report = analyze_run(
                profiles,
                skip=skip,
                convention=convention or (),
                what_if=what_if,
                memory=memory,
                memory_limit=memory_limit,
                cross_thread=cross_thread,
                order=ranks,
                same_clock=clocks,
                align=align,
                parallel=sizes,
                plan=plan,
                dask=dask,
                window=window,
                ideal=any(renderer.compares for renderer in written),
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
                file: by_name[name].content(report, view, file)
                for file, name in outputs.formats.items()
            }
        deliver(
            contents,
            lambda: _print(report, view, tables, compared=what_if),
            inputs=inputs,
            force=outputs.force,
        )
    if timings:
        show_steps(steps)


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
    from bubbleviz.render.text.headline import first_screen

    shown_on = display()
    show_lines(first_screen(report, view, shown_on), shown_on)
    if report.plan is not None:
        from bubbleviz.render.text.sections import plan_deviations

        show(plan_deviations(report))
    if compared:
        from bubbleviz.render.text.sections import alternatives

        show(alternatives(report))
    if report.memory is not None:
        from bubbleviz.render.text.sections import memory

        show(memory(report))
