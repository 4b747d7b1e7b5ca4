"""``bubbleviz analyze``: the pipeline bubbles of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bubbleviz.cli.options import (
    FILE,
    Conventions,
    Force,
    Jobs,
    KeepExport,
    RunProfiles,
    Skip,
    Window,
    with_outputs,
)
from bubbleviz.cli.terminal import pass_on, progress_bars, show, show_steps, width
from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.align.pipelines import Parallel
    from bubbleviz.model.window import Window as RunWindow
    from bubbleviz.report.report import Report, View


@with_outputs
def analyze(
    outputs: dict[str, Renderer[Any]],
    profiles: RunProfiles,
    context: typer.Context,
    force: Force = False,
    iteration: Annotated[
        str | None,
        typer.Option(
            metavar="N|A-B|all",
            help="Iterations to draw and to list by rank; the median one if not given.",
        ),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(metavar="0-3,5", help="Ranks to draw, by index.")
    ] = None,
    stages: Annotated[str | None, typer.Option(metavar="0-3,5", help="Stages to draw.")] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="rank|stage",
            help="Show a row a rank, or a row a stage with all its replicas; by stage above 64 "
            "ranks.",
        ),
    ] = None,
    communication: Annotated[
        bool, typer.Option(help="Draw a thin lane of communication under each rank.")
    ] = False,
    causes: Annotated[
        bool, typer.Option("--causes", help="Colour idle time by its cause.")
    ] = False,
    heat_map: Annotated[
        bool,
        typer.Option("--heat-map", help="Draw below which microbatch took long on which stage."),
    ] = False,
    critical_path: Annotated[
        bool,
        typer.Option(
            "--critical-path", help="Draw a line along the operations that bound the iteration."
        ),
    ] = False,
    what_if: Annotated[
        bool,
        typer.Option("--what-if", help="Simulate the other schedules at the measured times."),
    ] = False,
    window: Window = None,
    skip: Skip = 0,
    convention: Conventions = None,
    cross_thread: Annotated[
        bool,
        typer.Option(help="Give backward kernels of PyTorch's own thread to the open B range."),
    ] = True,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="2,0,1",
            help="Set the stage order by rank index instead of inferring it.",
        ),
    ] = None,
    same_clock: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="Hosts that share one clock (containers of a machine)."),
    ] = None,
    align: Annotated[
        str | None,
        typer.Option(
            metavar="causal|utc|none",
            help="Align hosts' clocks by what waited for what (the default), by UTC, or not at "
            "all.",
        ),
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            metavar="tp=2,pp=4,dp=8",
            help="Parallel sizes of the run, ranks numbered as Megatron does; inferred if not "
            "given.",
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(metavar=FILE, help="Compare the executed order with a plan (PyTorch's CSV)."),
    ] = None,
    keep_export: KeepExport = False,
    jobs: Jobs = None,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|FILE",
            help="Read profiles on the workers of a Dask cluster: its scheduler's address, or its "
            "scheduler file.",
        ),
    ] = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print seconds and rows of each step.")
    ] = False,
) -> None:
    """Measure the pipeline bubbles of one run: print a table, write the requested files."""
    from bubbleviz.cli.selection import check_drawn, numbers, parallel_of, view_of
    from bubbleviz.interpret.fleet.process_pool import cores
    from bubbleviz.model.choices import ROWS, one_of
    from bubbleviz.model.window import window_of
    from bubbleviz.timing import noting, step

    inputs = _inputs(profiles, outputs, convention, plan, force=force, local=dask is None)
    run_window: RunWindow | None = None if window is None else window_of(window)
    ranks_in_order = numbers(order, "--order") if order else ()
    sizes: Parallel | None = None if parallel is None else parallel_of(parallel)
    one_of(rows, ROWS, "--rows")
    check_drawn(
        {"causes": causes, "critical-path": critical_path, "heat-map": heat_map}, outputs.values()
    )
    with noting() as steps:
        with step("load the analysis"):
            from bubbleviz.api import analyze as analyze_run
        with progress_bars() as bars:
            report = analyze_run(
                profiles,
                convention=convention or (),
                skip=skip,
                cross_thread=cross_thread,
                order=ranks_in_order,
                same_clock=[group.split(",") for group in same_clock or ()],
                align=align,
                parallel=sizes,
                plan=plan,
                what_if=what_if or any(renderer.compares for renderer in outputs.values()),
                window=run_window,
                keep_export=keep_export,
                jobs=jobs or cores(),
                dask=dask,
                progress=bars,
            )
        report = replace(report, command=context.obj or "")
        view = view_of(
            report,
            iteration=iteration,
            ranks=ranks,
            stages=stages,
            communication=communication,
            rows=rows,
            causes=causes,
            heat_map=heat_map,
            critical=critical_path,
        )
        _write_and_print(report, view, outputs, inputs, force=force)
    if timings:
        show_steps(steps)


def _inputs(
    profiles: Sequence[str],
    outputs: Mapping[str, Renderer[Any]],
    convention: Sequence[str] | None,
    plan: str | None,
    *,
    force: bool,
    local: bool,
) -> list[str]:
    """Return the files to be read, once no output would replace one of them.

    Profiles on other machines (``local`` false) are looked for there, and stand as given.
    """
    from bubbleviz.cli.outputs import check_outputs
    from bubbleviz.sources.paths import find_profiles

    files = [file.path for file in find_profiles(profiles)] if local else profiles
    inputs = [*files, *(convention or ()), *([] if plan is None else [plan])]
    check_outputs(list(outputs), inputs, force=force)
    return inputs


def _write_and_print(
    report: Report,
    view: View,
    outputs: Mapping[str, Renderer[Any]],
    inputs: Sequence[str],
    *,
    force: bool,
) -> None:
    from bubbleviz.cli.outputs import check_outputs, write_outputs
    from bubbleviz.timing import step

    with step("render"):
        contents = {file: renderer.render(report, view) for file, renderer in outputs.items()}
    to_stdout = contents.pop("-", None)
    with step("write"):
        # Under --dask the files that were read are known only now.
        read = [profile.path for profile in report.profiles]
        check_outputs(list(outputs), [*inputs, *read], force=force)
        write_outputs(contents, force=force)
    with step("print"):
        if to_stdout is not None:
            pass_on(to_stdout)
        else:
            from bubbleviz.render.text.report import sections

            show(sections(report, view, width()))
