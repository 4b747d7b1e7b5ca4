"""``bubbleviz gaps``: how long devices of any profile were idle, and what their hosts did."""

from __future__ import annotations

from typing import Annotated

import typer

from bubbleviz.model.choices import SHORTEST_US
from bubbleviz.cli.terminal import deliver, progress_bars


def gaps(
    profiles: Annotated[
        list[str],
        typer.Argument(
            help="Profiles of any kind and any program, pipeline or not; each is reported, none "
            "needs another's clock."
        ),
    ],
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the report as JSON; - for standard output."),
    ] = None,
    csv: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a row for each gap; - for standard output."),
    ] = None,
    svg: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Draw a strip a device: what it ran, and why it was idle."
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|REGEX",
            help="Ranges that are steps; told from their names if not given.",
        ),
    ] = None,
    shortest: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="US",
            help="Sum shorter gaps as short ones, in microseconds; a full queue's own are shorter "
            "than the default.",
        ),
    ] = SHORTEST_US,
    activities: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Names of activities of your own (TOML), before those built in."
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rows of tables, and longest gaps in the JSON.")
    ] = 12,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="iteration:A-B|time:A-B",
            help="Look at a part of the run only: at steps by their numbers, as iteration:5-8, or "
            "at time, as time:1.5s-3s.",
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
    """Show how long devices were busy, and what their hosts did while they were idle.

    Works on any profile: steps, duty cycle, and every idle gap put down to what the launching
    thread was doing.
    """
    from bubbleviz.sources.paths import find_profiles
    from bubbleviz.cli.outputs import check_outputs
    from bubbleviz.model.window import window_of

    part = None if window is None else window_of(window)
    inputs = [file.path for file in find_profiles(profiles)]
    inputs += [] if activities is None else [activities]
    outputs = [file for file in (json, csv, svg) if file is not None]
    check_outputs(outputs, inputs, force=force)
    from bubbleviz.analyses.idle import report as gap_report
    from bubbleviz.interpret.fleet.process_pool import cores
    from bubbleviz.analyses.idle.analysis import gaps as find_gaps

    with progress_bars() as bars:
        report = find_gaps(
            profiles,
            step=step,
            shortest_us=shortest,
            activities=activities,
            window=part,
            keep_export=keep_export,
            jobs=jobs or cores(),
            progress=bars,
        )
    contents: dict[str, str] = {}
    if json is not None:
        contents[json] = gap_report.json_text(report, top)
    if csv is not None:
        contents[csv] = gap_report.gaps_csv(report)
    if svg is not None:
        from bubbleviz.analyses.idle.picture import draw_gaps

        contents[svg] = draw_gaps(report)
    deliver(contents, inputs, report.limitations, gap_report.parts(report, top), force=force)
