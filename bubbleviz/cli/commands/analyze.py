"""``bubbleviz analyze``: the pipeline bubbles of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from bubbleviz.cli import options
from bubbleviz.cli.help import ALL, ANALYSIS_DETAILS, ANALYZE_TABLES, flag, option, select_tables
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.private_names import Invocation
from bubbleviz.cli.selection import PictureOptions, parse_numbers, parse_parallel
from bubbleviz.cli.terminal import (
    describe_display,
    print_warnings,
    show,
    show_lines,
    show_reading_progress,
    show_steps,
)
from bubbleviz.errors import UsageError
from bubbleviz.model.choices import ALIGNMENTS
from bubbleviz.render.formats import list_renderers
from bubbleviz.report.saved import is_saved_report
from bubbleviz.report.view import View
from bubbleviz.sources.paths import find_profiles
from bubbleviz.timing import record_steps, time_step

if TYPE_CHECKING:
    from bubbleviz.report.report import Report


#: Formats whose options are listed in ``--help``, in addition to ``-o FILE``.
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
        "Simulate other schedules with the measured times.", "Schedule", "--what-if"
    ),
    memory: bool = flag("Read memory allocations from PyTorch traces.", "Reading", "--memory"),
    memory_limit: str | None = option(
        "SIZE", "Memory per device, e.g. 80GB. Marks the schedules that fit.", "Schedule"
    ),
    flops: str | None = option(
        "FLOPS/PEAK", "FLOPs per iteration / peak FLOP/s of a GPU, to compute the MFU.", "Tables"
    ),
    extra_work: str | None = option(
        "120ms", "Length of a job to run in the bubbles: show how much of it fits.", "Schedule"
    ),
    piece: str | None = option(
        "4ms", "Length of the indivisible pieces of --extra-work [default: all of it]", "Schedule"
    ),
    unprofiled_step: str | None = options.UNPROFILED_STEP,
    cross_thread: bool = flag(
        "Do not count kernels of the autograd thread as backward.",
        "Names",
        " /--no-cross-thread",
        default=True,
    ),
    order: str | None = option(
        "2,0,1", "Ranks in stage order, if it cannot be inferred.", "Clocks"
    ),
    same_clock: list[str] | None = option(
        "A,B", "Hosts (or containers) that share a clock.", "Clocks"
    ),
    align: str | None = option(
        "causal|utc|none",
        "Align clocks by data dependencies (causal), by UTC, or not at all.",
        "Clocks",
        complete=ALIGNMENTS,
    ),
    parallel: str | None = option(
        "tp=2,pp=4,dp=8",
        "Parallelism sizes (in Megatron's rank order), if they cannot be inferred.",
        "Clocks",
    ),
    plan: str | None = option("FILE", "Compare with a planned order (PyTorch CSV).", "Schedule"),
    dask: str | None = option(
        "ADDRESS|FILE",
        "Read the profiles on a Dask cluster. Use only in trusted networks.",
        "Reading",
    ),
    dask_timeout: float | None = option(
        "SECONDS", "Maximum wait for an unresponsive Dask worker [default: 600]", "Reading"
    ),
    reading: options.ReadingOptions,
    details: list[str] | None = ANALYSIS_DETAILS,
    timings: bool = flag(
        "Print the duration and the number of rows of each step.", "Reading", "--timings"
    ),
) -> None:
    """Measure the pipeline bubbles of one run."""
    tables = select_tables(details, ANALYZE_TABLES)
    if len(profiles) == 1 and outputs.formats and is_saved_report(profiles[0]):
        _check_saved_options(
            {
                "--skip": skip,
                "--convention": convention,
                "--what-if": what_if,
                "--memory": memory,
                "--memory-limit": memory_limit,
                "--flops": flops,
                "--extra-work": extra_work,
                "--piece": piece,
                "--unprofiled-step": unprofiled_step,
                "--no-cross-thread": not cross_thread,
                "--order": order,
                "--same-clock": same_clock,
                "--align": align,
                "--parallel": parallel,
                "--plan": plan,
                "--dask": dask,
                "--window": reading.window,
                "--keep-export": reading.keep_export,
                "--details": tables,
            }
        )
        _draw_saved(profiles[0], outputs, picture)
        return
    # With --dask, the profiles are on other machines, so their paths cannot be resolved here.
    files = profiles if dask is not None else [file.path for file in find_profiles(profiles)]
    outputs.check([*files, *(convention or ()), plan])
    clocks = [group.split(",") for group in same_clock or ()]
    outputs.names.note_hosts([*chain(*clocks), dask or ""])
    by_name = {renderer.name: renderer for renderer in list_renderers()}
    ranks = parse_numbers(order, "--order") if order else ()
    sizes = None if parallel is None else parse_parallel(parallel)
    settings = reading.make_arguments()
    picture.check(outputs.formats.values())
    with record_steps() as steps:
        with time_step("load the analysis"):
            from bubbleviz.api.analysis import analyze as analyze_run
        with show_reading_progress() as bars, print_warnings(outputs.names, quiet=outputs.quiet):
            report = analyze_run(
                profiles,
                skip=skip,
                convention=convention or (),
                what_if=what_if,
                memory=memory,
                memory_limit=memory_limit,
                flops=flops,
                extra_work=extra_work,
                piece=piece,
                unprofiled_step=unprofiled_step,
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
        # With --dask, the file paths are known only after the files have been read.
        outputs.inputs.extend(profile.path for profile in report.profiles)
        report = replace(report, command=invocation.command_line)
        view = picture.view_of(report, outputs.public_formats)
        outputs.deliver(
            report,
            lambda public, name, file: by_name[name].content(public, view, file),
            lambda public: _print(public, view, tables, has_schedules=what_if),
            warnings=(_NO_MEMORY_EVENTS,) if memory and report.memory is None else (),
        )
    if timings:
        show_steps(steps, outputs.names)


#: Warning if ``--memory`` is given, but there is nothing to read.
_NO_MEMORY_EVENTS = (
    "--memory: the profiles contain no memory events; record them with profile_memory=True "
    "(PyTorch) or --cuda-memory-usage=true (nsys) (bubbleviz guide memory)"
)


def _check_saved_options(values: Mapping[str, object]) -> None:
    """Check that no option for measuring profiles is given together with a saved report.

    Args:
        values: Value of each option, keyed by the name of the option.

    Raises:
        UsageError: An option is given.
    """
    given = next((name for name, value in values.items() if value), None)
    if given is not None:
        raise UsageError(f"{given}: only applies to profiles; remove it for a saved report")


def _draw_saved(path: str, outputs: Outputs, picture: PictureOptions) -> None:
    """Write the outputs of a saved report.

    Args:
        path: Path of the saved report.
        outputs: Outputs of the command.
        picture: Picture options.

    Raises:
        UsageError: A saved report does not contain the data of an output, or has no timeline.
        InputError: The report cannot be read.
    """
    from bubbleviz.render.formats.saved import check_saved_format, render_saved
    from bubbleviz.report.restored import restore_numbers
    from bubbleviz.report.saved import read_summary

    for file, name in outputs.formats.items():
        check_saved_format(file, name, "pass the profiles to write other formats")
    outputs.check([path])
    picture.check(outputs.formats.values())
    summary = read_summary(path)
    view = picture.view_of(restore_numbers(path, summary), outputs.public_formats)
    outputs.deliver(
        summary,
        lambda public, name, file: render_saved(path, public, name, view, file),
        lambda _: None,
    )


def _print(report: Report, view: View, tables: Sequence[str], *, has_schedules: bool) -> None:
    """Print the selected tables, or the first screen if no table is selected.

    Args:
        report: The report.
        view: The iterations and ranks to print.
        tables: Names of the selected tables.
        has_schedules: Whether to print the comparison of schedules after the first screen.
    """
    from bubbleviz.render.text import extra_work, orders, savings, times
    from bubbleviz.render.text import report as text
    from bubbleviz.render.text.first_screen import render_first_screen

    if ALL in tables:
        show(text.list_sections(report, view))
        return
    if tables:
        show(text.select_sections(report, view, tables))
        return
    shown_on = describe_display()
    show_lines(render_first_screen(report, view, shown_on), shown_on)
    if report.plan is not None:
        show(orders.list_plan_deviations(report))
    if has_schedules:
        show(savings.list_schedules(report))
    if report.memory is not None:
        show(times.list_peaks(report))
        show(times.list_memory(report))
    show(extra_work.list_extra_work(report))
