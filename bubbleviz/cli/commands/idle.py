"""``bubbleviz idle``: how long the devices of any profile were idle, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.cli.help import ALL_DETAILS, argument, option, tables_of
from bubbleviz.cli.options import ADDITIONS, CSV, JSON, SVG, ReadingOptions, command
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import progress_bars, show
from bubbleviz.model.choices import SHORTEST_US
from bubbleviz.sources.paths import find_profiles

if TYPE_CHECKING:
    from bubbleviz.analyses.idle.report import IdleMeasurement

#: Rows of tables with --details, and gaps in the JSON.
_TOP = 12


@command({**JSON, **CSV, **SVG, "page": "page for a browser"}, {".html": "page"})
def idle(
    profiles: list[str] = argument(
        "PROFILES...",
        "Profiles of any program, pipelined or not; each is reported on its own clock.",
    ),
    *,
    outputs: Outputs,
    step: str | None = option("NAME|REGEX", "Ranges that are steps, if not recognised.", "Names"),
    shortest: float = option(
        "US", "Ignore gaps shorter than US us.", "Selection", default=SHORTEST_US, min=0
    ),
    activities: str | None = option("FILE", "Host activities of your own, as TOML.", "Names"),
    convention: list[str] | None = ADDITIONS,
    top: int | None = option("N", "Rows of tables, and gaps in the JSON.", "Selection", min=1),
    reading: ReadingOptions,
    details: list[str] | None = ALL_DETAILS,
) -> None:
    """Show how long devices were idle, what their hosts did, and which kernels ran longest.

    Works with or without a pipeline: steps, duty cycle, launch queue, kernels by class, and every
    idle gap attributed to what the launching thread was doing.
    """
    everything = bool(tables_of(details))
    settings = reading.settings()
    files = (file.path for file in find_profiles(profiles))
    outputs.check([*files, activities, *(convention or ())])
    from bubbleviz.analyses.idle import idle as measure_idle_time
    from bubbleviz.analyses.idle.text import sections

    with progress_bars() as bars:
        report = measure_idle_time(
            profiles,
            step=step,
            shortest_us=shortest,
            activities=activities,
            convention=convention or (),
            progress=bars,
            **settings,
        )
    rows = top or _TOP

    def content(shown: IdleMeasurement, name: str, _: str) -> str:
        from bubbleviz.analyses.idle.page import format_output

        return format_output(shown, name, rows)

    outputs.deliver(
        report,
        content,
        lambda shown: show(sections(shown, rows if everything else top, everything=everything)),
        warnings=[limitation.sentence for limitation in report.limitations],
    )
