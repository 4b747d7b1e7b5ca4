"""``bubbleviz analyze``: the pipeline bubbles of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from bubbleviz.cli import options
from bubbleviz.cli.help import ALL, ANALYSIS_DETAILS, OF_ANALYZE, flag, option, tables_of
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.private_names import Invocation
from bubbleviz.cli.selection import PictureOptions, numbers, parallel_of
from bubbleviz.cli.terminal import (
    display,
    printed_warnings,
    progress_bars,
    show,
    show_lines,
    show_steps,
)
from bubbleviz.model.choices import ALIGNMENTS
from bubbleviz.render.formats import list_renderers
from bubbleviz.report.view import View
from bubbleviz.sources.paths import find_profiles
from bubbleviz.timing import noting, step

if TYPE_CHECKING:
    from bubbleviz.report.report import Report


#: Formats with an option of their own in help, next to ``-o FILE``.
_DOCUMENTED_FORMATS = ("svg", "json", "csv", "html")


@options.command(
    {renderer.name: renderer.summary for renderer in list_renderers()},
    documented=_DOCUMENTED_FORMATS,
)
def analyze(
    profiles: list[str] = options.RUN_PROFILES,
    *,
    invocation: Invocation,
    outputs: Outputs,
    picture: PictureOptions,
    skip: int = options.SKIP,
    convention: list[str] | None = options.CONVENTIONS,
    what_if: bool = flag(
        "Simulate other schedules at the measured times.", "Schedule", "--what-if"
    ),
    memory: bool = flag("Read allocations of PyTorch's traces, too.", "Reading", "--memory"),
    memory_limit: str | None = option(
        "SIZE", "Mark schedules that fit a device of e.g. 80GB.", "Schedule"
    ),
    flops: str | None = option("FLOPS/PEAK", "Of an iteration, per GPU second: MFU.", "Tables"),
    cross_thread: bool = flag(
        *("Leave kernels of autograd's thread out of B.", "Names", " /--no-cross-thread"),
        default=True,
    ),
    order: str | None = option("2,0,1", "Ranks in the order of stages, if not inferred.", "Clocks"),
    same_clock: list[str] | None = option(
        "A,B", "Hosts (or containers) that share a clock.", "Clocks"
    ),
    align: str | None = option(
        *("causal|utc|none", "Align clocks by waits (causal), UTC, or not.", "Clocks"),
        complete=ALIGNMENTS,
    ),
    parallel: str | None = option(
        "tp=2,pp=4,dp=8", "Sizes, ranks as Megatron's, if not inferred.", "Clocks"
    ),
    plan: str | None = option("FILE", "Compare with a planned order (PyTorch's CSV).", "Schedule"),
    dask: str | None = option(
        "ADDRESS|FILE", "Read on a Dask cluster; trusted networks only.", "Reading"
    ),
    dask_timeout: float | None = option(
        "SECONDS", "Wait this long for a silent worker [600].", "Reading"
    ),
    reading: options.ReadingOptions,
    details: list[str] | None = ANALYSIS_DETAILS,
    timings: bool = flag("Print seconds and rows of each step.", "Reading", "--timings"),
) -> None:
    """Measure the bubbles of one run: a summary, and files."""
    tables = tables_of(details, OF_ANALYZE)
    # With --dask, profiles lie on other machines, and stand as given.
    files = profiles if dask is not None else [file.path for file in find_profiles(profiles)]
    outputs.check([*files, *(convention or ()), plan])
    clocks = [group.split(",") for group in same_clock or ()]
    outputs.names.note_hosts([*chain(*clocks), dask or ""])
    by_name = {renderer.name: renderer for renderer in list_renderers()}
    ranks = numbers(order, "--order") if order else ()
    sizes = None if parallel is None else parallel_of(parallel)
    settings = reading.settings()
    picture.check(outputs.formats.values())
    with noting() as steps:
        with step("load the analysis"):
            from bubbleviz.api import analyze as analyze_run
        with progress_bars() as bars, printed_warnings(outputs.names, quiet=outputs.quiet):
            report = analyze_run(
                profiles,
                skip=skip,
                convention=convention or (),
                what_if=what_if,
                memory=memory,
                memory_limit=memory_limit,
                flops=flops,
                cross_thread=cross_thread,
                order=ranks,
                same_clock=clocks,
                align=align,
                parallel=sizes,
                plan=plan,
                dask=dask,
                dask_timeout=dask_timeout,
                ideal="panels" in outputs.formats.values(),
                progress=bars,
                **settings,
            )
        # Under --dask, only now are the files known that were read.
        outputs.inputs.extend(profile.path for profile in report.profiles)
        report = replace(report, command=invocation.command_line)
        view = picture.view_of(report)
        outputs.deliver(
            report,
            lambda shown, name, file: by_name[name].content(shown, view, file),
            lambda shown: _print(shown, view, tables, compared=what_if),
        )
    if timings:
        show_steps(steps, outputs.names)


def _print(report: Report, view: View, tables: Sequence[str], *, compared: bool) -> None:
    """Print the first screen, or the tables that were asked for."""
    from bubbleviz.render.text import orders, savings, times
    from bubbleviz.render.text import report as text
    from bubbleviz.render.text.first_screen import render_first_screen

    if tables:
        shown = (
            text.list_sections(report, view)
            if ALL in tables
            else text.select_sections(report, view, tables)
        )
        show(shown)
        return
    shown_on = display()
    show_lines(render_first_screen(report, view, shown_on), shown_on)
    if report.plan is not None:
        show(orders.list_plan_deviations(report))
    if compared:
        show(savings.list_schedules(report))
    if report.memory is not None:
        show(times.list_memory(report))
