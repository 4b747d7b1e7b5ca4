"""``bubbleviz nccl``: what NCCL moved, between whom, how fast, and who waited."""

from __future__ import annotations

from typing import Annotated

import typer

from bubbleviz.cli.option_groups import with_anonymity, with_groups
from bubbleviz.cli.options import Additions, CsvFile, Force, JsonFile, ReadingOptions
from bubbleviz.cli.terminal import deliver, progress_bars, show
from bubbleviz.model.private_names import anonymous


@with_anonymity
@with_groups
def nccl(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Event files of NCCL's profiler plugin or proxy profiler, profiles of the same "
            "run, or both; or directories of them."
        ),
    ],
    *,
    csv: CsvFile = None,
    json: JsonFile = None,
    force: Force = False,
    anchor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[FILE:]EVENT=NS",
            help="Align an event file to the first profile's clock: EVENT (a ts in us, or a "
            "StartGpuClk) was at NS; two anchors also give the drift.",
        ),
    ] = None,
    convention: Additions = None,
    reading: ReadingOptions,
) -> None:
    """Show what NCCL moved, between which ranks and how fast, and how long ranks waited.

    Event files come from NCCL_PROFILER_PLUGIN and NCCL_PROFILE_DUMP_FILE, or NCCL_PROXY_PROFILE.
    """
    from bubbleviz.analyses.nccl import measure_communication
    from bubbleviz.analyses.nccl.inputs import find_inputs
    from bubbleviz.cli.outputs import check_outputs

    window = reading.run_window()
    outputs = [file for file in (csv, json) if file is not None]
    inputs = [*(file.path for file in find_inputs(files)), *(convention or ())]
    check_outputs(outputs, inputs, force=force)
    from bubbleviz.analyses.nccl.documents import as_json, csv_of_operations
    from bubbleviz.analyses.nccl.text import sections

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
    contents: dict[str, str | bytes] = {}
    if csv is not None:
        contents[csv] = csv_of_operations(report)
    if json is not None:
        contents[json] = as_json(report)
    deliver(
        contents,
        lambda: show(sections(report)),
        inputs=inputs,
        force=force,
        warnings=[limitation.sentence for limitation in report.limitations],
    )
