"""``bubbleviz nccl``: data, bandwidth and waiting times of NCCL operations."""

from __future__ import annotations

from bubbleviz.cli.help import ALL_DETAILS, argument, select_tables
from bubbleviz.cli.options import ADDITIONS, CSV, JSON, ReadingOptions, command
from bubbleviz.cli.outputs import Outputs
from bubbleviz.cli.terminal import show, show_reading_progress


@command({**CSV, **JSON})
def nccl(
    files: list[str] = argument(
        "FILES...",
        "Event files of NCCL's profiler plugin, NCCL Inspector or proxy profiler, dumps of "
        "PyTorch's flight recorder, and profiles of the same run, or directories that contain "
        "them.",
    ),
    *,
    outputs: Outputs,
    convention: list[str] | None = ADDITIONS,
    reading: ReadingOptions,
    details: list[str] | None = ALL_DETAILS,
) -> None:
    """Measure NCCL operations: data, bandwidth and waiting times.

    NCCL writes event files if NCCL_PROFILER_PLUGIN and NCCL_PROFILE_DUMP_FILE,
    NCCL_INSPECTOR_ENABLE, or NCCL_PROXY_PROFILE are set.
    """
    from bubbleviz.analyses.nccl import measure_communication
    from bubbleviz.analyses.nccl.inputs import find_inputs

    everything = bool(select_tables(details))
    settings = reading.make_arguments()
    outputs.check([*(file.path for file in find_inputs(files)), *(convention or ())])
    from bubbleviz.analyses.nccl.outputs import RENDERINGS
    from bubbleviz.analyses.nccl.text import first_screen, sections

    with show_reading_progress() as bars:
        report = measure_communication(
            files, convention=convention or (), progress=bars, **settings
        )
    outputs.deliver(
        report,
        lambda public, name, _: RENDERINGS[name](public),
        lambda shown: show(sections(shown) if everything else first_screen(shown)),
        warnings=[limitation.sentence for limitation in report.limitations],
    )
