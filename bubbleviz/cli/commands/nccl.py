"""``bubbleviz nccl``: what NCCL moved, between whom, how fast, and who waited."""

from __future__ import annotations

from typing import Annotated

import typer

from bubbleviz.cli.help import CLOCKS, AllDetails
from bubbleviz.cli.help import details as tables_of
from bubbleviz.cli.options import (
    Additions,
    CsvFile,
    Force,
    JsonFile,
    Output,
    ReadingOptions,
    formats_by_file,
    with_anonymity,
    with_groups,
)
from bubbleviz.cli.terminal import deliver, progress_bars, show
from bubbleviz.model.private_names import anonymous


@with_anonymity
@with_groups
def nccl(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES...",
            help="Event files of NCCL's profiler plugin or proxy profiler, profiles of the same "
            "run, or both; or directories of them.",
        ),
    ],
    *,
    output: Output = None,
    csv: CsvFile = None,
    json: JsonFile = None,
    force: Force = False,
    anchor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[FILE:]EVENT=NS",
            help="Clock of an event file: EVENT was at NS.",
            rich_help_panel=CLOCKS,
        ),
    ] = None,
    convention: Additions = None,
    reading: ReadingOptions,
    details: AllDetails = None,
) -> None:
    """Show what NCCL moved, how fast, and who waited.

    EVENT of --anchor is a ts in us, or a StartGpuClk, and NS a time of the first profile's clock;
    two anchors of a file also give its drift. Event files come from NCCL_PROFILER_PLUGIN and
    NCCL_PROFILE_DUMP_FILE, or NCCL_PROXY_PROFILE.
    """
    from bubbleviz.analyses.nccl import measure_communication
    from bubbleviz.analyses.nccl.profiles import find_inputs
    from bubbleviz.cli.outputs import check_outputs

    everything = bool(tables_of(details))
    window = reading.run_window()
    formats = formats_by_file({"csv": csv, "json": json}, output)
    inputs = [*(file.path for file in find_inputs(files)), *(convention or ())]
    check_outputs(list(formats), inputs, force=force)
    from bubbleviz.analyses.nccl.documents import as_json, csv_of_operations
    from bubbleviz.analyses.nccl.text import first_screen, sections

    with progress_bars() as bars:
        report = measure_communication(
            files,
            anchors=anchor or (),
            convention=convention or (),
            window=window,
            keep_export=reading.keep_export,
            jobs=reading.job_count(),
            progress=bars,
        )
    report = anonymous(report)
    written = {"csv": csv_of_operations, "json": as_json}
    deliver(
        {file: written[name](report) for file, name in formats.items()},
        lambda: show(sections(report) if everything else first_screen(report)),
        inputs=inputs,
        force=force,
        warnings=[limitation.sentence for limitation in report.limitations],
    )
