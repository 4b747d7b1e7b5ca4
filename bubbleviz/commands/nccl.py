"""``bubbleviz nccl``: what NCCL moved, between whom, how fast, and who waited."""

from __future__ import annotations

from typing import Annotated

import typer

from bubbleviz.cli.terminal import deliver, progress_bars


def nccl(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Event files of NCCL's profiler plugin or of its older proxy profiler, profiles "
            "(.sqlite, .nsys-rep) of the same run, or both; or directories of them."
        ),
    ],
    csv: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write one row an operation; - for standard output."),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write totals for programs; - for standard output."),
    ] = None,
    anchor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[FILE:]EVENT=NS",
            help="Put an event file on the first profile's clock: EVENT, a ts of the file (us) or "
            "a StartGpuClk, was at NS there; two give the drift, too.",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="iteration:A-B|time:A-B",
            help="Tell of operations that begin in a part of the run: in iterations, as "
            "iteration:5-8 (a profile tells these), or at times of the report's clock, as "
            "time:1.5s-3s.",
        ),
    ] = None,
    keep_export: Annotated[
        bool, typer.Option("--keep-export", help="Keep the exports made of .nsys-rep reports.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace outputs that exist.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Threads on a profile.")
    ] = None,
) -> None:
    """Show what NCCL moved, between whom and how fast, and how long ranks waited for others.

    Event files come from NCCL_PROFILER_PLUGIN and NCCL_PROFILE_DUMP_FILE, or NCCL_PROXY_PROFILE.
    """
    from bubbleviz.analyses.nccl.analysis import find_inputs, measure_communication
    from bubbleviz.cli.outputs import check_outputs
    from bubbleviz.model.window import window_of

    part = None if window is None else window_of(window)
    named = [file for file in (csv, json) if file is not None]
    inputs = [file.path for file in find_inputs(files)]
    check_outputs(named, inputs, force=force)
    from bubbleviz.analyses.nccl import report as nccl_report
    from bubbleviz.interpret.fleet.process_pool import cores

    with progress_bars() as bars:
        found = measure_communication(
            files,
            anchors=anchor or (),
            window=part,
            keep_export=keep_export,
            jobs=jobs or cores(),
            progress=bars,
        )
    contents: dict[str, str] = {}
    if csv is not None:
        contents[csv] = nccl_report.to_csv(found)
    if json is not None:
        contents[json] = nccl_report.to_json(found)
    deliver(contents, inputs, found.limitations, nccl_report.parts(found), force=force)
