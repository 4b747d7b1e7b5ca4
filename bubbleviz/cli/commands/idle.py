"""``bubbleviz idle``: how long the devices of any profile were idle, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.cli.option_groups import with_anonymity, with_groups
from bubbleviz.cli.options import FILE, Additions, CsvFile, Force, JsonFile, ReadingOptions, SvgFile
from bubbleviz.cli.terminal import deliver, progress_bars, show
from bubbleviz.model.choices import SHORTEST_US
from bubbleviz.model.private_names import anonymous
from bubbleviz.model.values import frozen

if TYPE_CHECKING:
    from bubbleviz.analyses.idle.report import IdleReport


@frozen
class AttributionOptions:
    """How idle time is divided and attributed, and how much of it is listed."""

    step: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|REGEX",
            help="Ranges that are steps; recognised by name if not given.",
        ),
    ] = None
    shortest: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="US",
            help="Count gaps below US microseconds as kernel-to-kernel gaps.",
        ),
    ] = SHORTEST_US
    activities: Annotated[
        str | None,
        typer.Option(
            metavar=FILE, help="TOML file of host activities, matched before the built-in ones."
        ),
    ] = None
    convention: Additions = None
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rows of tables, and gaps listed in the JSON.")
    ] = 12


@with_anonymity
@with_groups
def idle(
    profiles: Annotated[
        list[str],
        typer.Argument(
            help="Profiles of any program, pipelined or not; each is reported on its own clock."
        ),
    ],
    *,
    json: JsonFile = None,
    csv: CsvFile = None,
    svg: SvgFile = None,
    force: Force = False,
    attribution: AttributionOptions,
    reading: ReadingOptions,
) -> None:
    """Show how long devices of any profile were idle, and what their hosts did meanwhile.

    Works with or without a pipeline: steps, duty cycle, and every idle gap attributed to what the
    launching thread was doing.
    """
    from bubbleviz.cli.outputs import check_outputs
    from bubbleviz.sources.paths import find_profiles

    window = reading.run_window()
    inputs = [file.path for file in find_profiles(profiles)]
    inputs += [] if attribution.activities is None else [attribution.activities]
    inputs += attribution.convention or []
    check_outputs([file for file in (json, csv, svg) if file is not None], inputs, force=force)
    from bubbleviz.analyses.idle import idle as measure_idle_time
    from bubbleviz.analyses.idle.text import sections

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
    contents = _contents(report, attribution.top, json=json, csv=csv, svg=svg)
    deliver(
        contents,
        lambda: show(sections(report, attribution.top)),
        inputs=inputs,
        force=force,
        warnings=[limitation.sentence for limitation in report.limitations],
    )


def _contents(
    report: IdleReport, top: int, *, json: str | None, csv: str | None, svg: str | None
) -> dict[str, str | bytes]:
    """Return the contents of the requested files, by file."""
    from bubbleviz.analyses.idle.documents import as_json, csv_of_gaps

    contents: dict[str, str | bytes] = {}
    if json is not None:
        contents[json] = as_json(report, top)
    if csv is not None:
        contents[csv] = csv_of_gaps(report)
    if svg is not None:
        from bubbleviz.analyses.idle.picture import draw_idle

        contents[svg] = draw_idle(report)
    return contents
