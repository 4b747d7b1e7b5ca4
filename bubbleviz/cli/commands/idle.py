"""``bubbleviz idle``: the idle time of the devices of any profile, and its causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.cli.help import ALL_DETAILS, argument, option, select_tables
from bubbleviz.cli.options import (
    ADDITIONS,
    CSV,
    JSON,
    MARKDOWN,
    PICTURE_FILES,
    UNPROFILED_STEP,
    ReadingOptions,
    command,
)
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import find_text_display, show, show_reading_progress
from bubbleviz.model.choices import SHORTEST_US
from bubbleviz.sources.paths import find_profiles

if TYPE_CHECKING:
    from bubbleviz.analyses.idle.report import IdleMeasurement

#: Default maximum number of table rows with ``--details`` and of gaps in the JSON output.
_TOP = 12


@command(
    {
        **JSON,
        **CSV,
        **MARKDOWN,
        "text": "Write all tables as plain text.",
        **PICTURE_FILES,
        "page": "Write a page for a browser.",
    },
    {".html": "page"},
)
def idle(
    profiles: list[str] = argument(
        "PROFILES...",
        "Profiles of any program, with or without a pipeline. Each is reported on its own clock.",
    ),
    *,
    outputs: Outputs,
    step: str | None = option(
        "NAME|REGEX", "Name of the ranges that mark steps, if not recognized.", "Names"
    ),
    shortest: float = option(
        "US", "Ignore gaps shorter than this time, in us.", "Selection", default=SHORTEST_US, min=0
    ),
    activities: str | None = option("FILE", "TOML file with additional host activities.", "Names"),
    convention: list[str] | None = ADDITIONS,
    top: int | None = option(
        "N", "Maximum number of rows in tables, and of gaps in the JSON output.", "Selection", min=1
    ),
    unprofiled_step: str | None = UNPROFILED_STEP,
    reading: ReadingOptions,
    details: list[str] | None = ALL_DETAILS,
) -> None:
    """Measure the idle time of devices, its causes, and the longest kernels.

    Works with or without a pipeline. Reports steps, duty cycle, launch queue and kernels by class.
    Every idle gap is attributed to the activity of the thread that launched the next kernel.
    """
    everything = bool(select_tables(details))
    settings = reading.make_arguments()
    files = (file.path for file in find_profiles(profiles))
    outputs.check([*files, activities, *(convention or ())])
    from bubbleviz.analyses.idle import idle as measure_idle_time
    from bubbleviz.analyses.idle.text import first_screen, sections

    with show_reading_progress() as bars:
        report = measure_idle_time(
            profiles,
            step=step,
            shortest_us=shortest,
            activities=activities,
            convention=convention or (),
            unprofiled_step=unprofiled_step,
            progress=bars,
            **settings,
        )
    rows = top or _TOP

    def content(public: IdleMeasurement, name: str, _: str) -> str | bytes:
        from bubbleviz.analyses.idle.page import format_output

        return format_output(public, name, rows)

    outputs.deliver(
        report,
        content,
        lambda shown: show(
            sections(shown, rows) if everything else first_screen(shown, top, find_text_display())
        ),
        warnings=_list_warnings(report),
    )


def _list_warnings(report: IdleMeasurement) -> list[str]:
    """Return the limitations to print as warnings.

    For a run of XLA on CPUs, the first screen says that there is no device. Only limitations of the
    file, such as damage, are then printed.
    """
    from bubbleviz.model.limitations import LimitationKind

    kinds = {note.kind for note in report.limitations}
    is_on_cpus = not report.devices and LimitationKind.WITHOUT_DEVICE in kinds
    implied = (LimitationKind.OTHER, LimitationKind.WITHOUT_DEVICE) if is_on_cpus else ()
    return [note.sentence for note in report.limitations if note.kind not in implied]
