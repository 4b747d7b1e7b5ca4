"""``bubbleviz idle``: how long the devices of any profile were idle, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from bubbleviz.cli.options import FILE, CsvFile, Force, Jobs, JsonFile, KeepExport, SvgFile, Window
from bubbleviz.cli.terminal import deliver, progress_bars
from bubbleviz.model.choices import SHORTEST_US


def idle(
    profiles: Annotated[
        list[str],
        typer.Argument(
            help="Profiles of any program, pipelined or not; each is reported on its own clock."
        ),
    ],
    json: JsonFile = None,
    csv: CsvFile = None,
    svg: SvgFile = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|REGEX",
            help="Ranges that are steps; recognised by name if not given.",
        ),
    ] = None,
    shortest: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="US",
            help="Count gaps below US microseconds as kernel-to-kernel gaps.",
        ),
    ] = SHORTEST_US,
    activities: Annotated[
        str | None,
        typer.Option(
            metavar=FILE, help="TOML file of host activities, matched before the built-in ones."
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rows of tables, and gaps listed in the JSON.")
    ] = 12,
    window: Window = None,
    keep_export: KeepExport = False,
    force: Force = False,
    jobs: Jobs = None,
) -> None:
    """Show how long devices of any profile were idle, and what their hosts did meanwhile.

    Works with or without a pipeline: steps, duty cycle, and every idle gap attributed to what the
    launching thread was doing.
    """
    from bubbleviz.cli.outputs import check_outputs
    from bubbleviz.model.window import window_of
    from bubbleviz.sources.paths import find_profiles

    run_window = None if window is None else window_of(window)
    inputs = [file.path for file in find_profiles(profiles)]
    inputs += [] if activities is None else [activities]
    outputs = [file for file in (json, csv, svg) if file is not None]
    check_outputs(outputs, inputs, force=force)
    from bubbleviz.analyses.idle import idle as measure_idle_time
    from bubbleviz.analyses.idle.documents import csv_of_gaps, json_text
    from bubbleviz.analyses.idle.text import sections
    from bubbleviz.interpret.fleet.process_pool import cores

    with progress_bars() as bars:
        report = measure_idle_time(
            profiles,
            step=step,
            shortest_us=shortest,
            activities=activities,
            window=run_window,
            keep_export=keep_export,
            jobs=jobs or cores(),
            progress=bars,
        )
    contents: dict[str, str] = {}
    if json is not None:
        contents[json] = json_text(report, top)
    if csv is not None:
        contents[csv] = csv_of_gaps(report)
    if svg is not None:
        from bubbleviz.analyses.idle.picture import draw_idle

        contents[svg] = draw_idle(report)
    deliver(contents, inputs, report.limitations, sections(report, top), force=force)
