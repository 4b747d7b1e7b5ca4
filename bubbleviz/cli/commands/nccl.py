"""``bubbleviz nccl``: what NCCL moved, between whom, how fast, and who waited."""

from __future__ import annotations

from bubbleviz.cli.help import ALL_DETAILS, argument, tables_of
from bubbleviz.cli.options import ADDITIONS, CSV, JSON, ReadingOptions, command
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import progress_bars, show


@command({**CSV, **JSON})
def nccl(
    files: list[str] = argument(
        "FILES...",
        "Event files of NCCL's profiler plugin or proxy profiler, dumps of PyTorch's flight "
        "recorder, profiles of the same run; or directories of them.",
    ),
    *,
    outputs: Outputs,
    convention: list[str] | None = ADDITIONS,
    reading: ReadingOptions,
    details: list[str] | None = ALL_DETAILS,
) -> None:
    """Show what NCCL moved, how fast, and who waited.

    Event files come from NCCL_PROFILER_PLUGIN and NCCL_PROFILE_DUMP_FILE, or NCCL_PROXY_PROFILE.
    """
    from bubbleviz.analyses.nccl import measure_communication
    from bubbleviz.analyses.nccl.inputs import find_inputs

    everything = bool(tables_of(details))
    settings = reading.settings()
    outputs.check([*(file.path for file in find_inputs(files)), *(convention or ())])
    from bubbleviz.analyses.nccl.outputs import as_json, format_operations_csv
    from bubbleviz.analyses.nccl.text import first_screen, sections

    with progress_bars() as bars:
        report = measure_communication(
            files, convention=convention or (), progress=bars, **settings
        )
    written = {"csv": format_operations_csv, "json": as_json}
    outputs.deliver(
        report,
        lambda shown, name, _: written[name](shown),
        lambda shown: show(sections(shown) if everything else first_screen(shown)),
        warnings=[limitation.sentence for limitation in report.limitations],
    )
