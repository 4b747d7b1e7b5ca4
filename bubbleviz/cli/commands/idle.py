"""``bubbleviz idle``: how long the devices of any profile were idle, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.cli.help import NAMES, SELECTION, AllDetails
from bubbleviz.cli.help import details as tables_of
from bubbleviz.cli.options import (
    FILE,
    Additions,
    CsvFile,
    Force,
    JsonFile,
    Output,
    ReadingOptions,
    SvgFile,
    formats_by_file,
    with_anonymity,
    with_groups,
)
from bubbleviz.cli.terminal import deliver, progress_bars, show
from bubbleviz.model.choices import SHORTEST_US
from bubbleviz.model.private_names import anonymous
from bubbleviz.model.values import frozen

if TYPE_CHECKING:
    from bubbleviz.analyses.idle.report import IdleReport

#: Rows of tables with --details, and gaps in the JSON.
_TOP = 12


@frozen
class AttributionOptions:
    """How idle time is divided and attributed, and how much of it is listed."""

    step: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|REGEX",
            help="Ranges that are steps, if not recognised.",
            rich_help_panel=NAMES,
        ),
    ] = None
    shortest: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="US",
            help="Gaps below US us are no host's.",
            rich_help_panel=SELECTION,
        ),
    ] = SHORTEST_US
    activities: Annotated[
        str | None,
        typer.Option(
            metavar=FILE,
            help="Host activities of your own, as TOML.",
            rich_help_panel=NAMES,
        ),
    ] = None
    convention: Additions = None
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Rows of tables, and gaps in the JSON.",
            rich_help_panel=SELECTION,
        ),
    ] = None


@with_anonymity
@with_groups
def idle(
    profiles: Annotated[
        list[str],
        typer.Argument(
            metavar="PROFILES...",
            help="Profiles of any program, pipelined or not; each is reported on its own clock.",
        ),
    ],
    *,
    output: Output = None,
    json: JsonFile = None,
    csv: CsvFile = None,
    svg: SvgFile = None,
    force: Force = False,
    attribution: AttributionOptions,
    reading: ReadingOptions,
    details: AllDetails = None,
) -> None:
    """Show how long devices were idle, and what their hosts did.

    Works with or without a pipeline: steps, duty cycle, and every idle gap attributed to what the
    launching thread was doing.
    """
    from bubbleviz.cli.outputs import check_outputs
    from bubbleviz.sources.paths import find_profiles

    everything = bool(tables_of(details))
    window = reading.run_window()
    inputs = [file.path for file in find_profiles(profiles)]
    inputs += [] if attribution.activities is None else [attribution.activities]
    inputs += attribution.convention or []
    formats = formats_by_file({"json": json, "csv": csv, "svg": svg}, output)
    check_outputs(list(formats), inputs, force=force)
    from bubbleviz.analyses.idle import idle as measure_idle_time
    from bubbleviz.analyses.idle.text import first_screen, sections

    with progress_bars() as bars:
        report = measure_idle_time(
            profiles,
            step=attribution.step,
            shortest_us=attribution.shortest,
            activities=attribution.activities,
            convention=attribution.convention or (),
            window=window,
            keep_export=reading.keep_export,
            jobs=reading.job_count(),
            progress=bars,
        )
    report = anonymous(report)
    top = attribution.top or _TOP
    deliver(
        {file: _content(report, name, top) for file, name in formats.items()},
        lambda: show(
            sections(report, top) if everything else first_screen(report, attribution.top)
        ),
        inputs=inputs,
        force=force,
        warnings=[limitation.sentence for limitation in report.limitations],
    )


def _content(report: IdleReport, name: str, top: int) -> str:
    """Return a report in the format of that name."""
    from bubbleviz.analyses.idle.documents import as_json, csv_of_gaps

    if name == "json":
        return as_json(report, top)
    if name == "csv":
        return csv_of_gaps(report)
    from bubbleviz.analyses.idle.picture import draw_idle

    return draw_idle(report)
