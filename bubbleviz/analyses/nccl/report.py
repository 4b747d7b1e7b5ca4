"""The Python API for communication: ``bubbleviz.nccl`` and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bubbleviz.analyses.nccl.analysis import Communication, measure_communication
from bubbleviz.analyses.nccl.communications import format_communicator
from bubbleviz.analyses.nccl.outputs import RENDERINGS, build_summary
from bubbleviz.analyses.nccl.text import make_total_table, sections, summary
from bubbleviz.analyses.nccl.totals import find_totals
from bubbleviz.model.arrow import Kind, make_row_type
from bubbleviz.model.window import Window, parse_window
from bubbleviz.progress import Progress
from bubbleviz.render.display import PrintedRecords, convert_to, save_as, wrap_fragment
from bubbleviz.render.html import render_html
from bubbleviz.report.summary import to_values

#: Maximum number of totals that :attr:`NcclReport.totals` prints.
_MAX_TOTALS = 20
#: Column types of :attr:`NcclReport.totals`.
_TOTAL_KINDS: Mapping[str, Kind] = {
    "communicator": "string",
    "ranks": "int64",
    **dict.fromkeys(("name", "algorithm", "protocol"), "string"),
    **dict.fromkeys(("operations", "bytes"), "int64"),
    **dict.fromkeys(("duration_ns", "busy_ns", "waiting_ns", "moving_ns"), "int64"),
    **dict.fromkeys(("algorithm_gbps", "bus_gbps", "moving_gbps"), "float64"),
}


class NcclReport(Communication):  # noqa: D101 - help() shows the docstring of the base class
    # Adds notebook display, a table of totals, and a method that writes output files.

    def __repr__(self) -> str:
        """Return the sums over all operations on one line."""
        return f"<NcclReport: {summary(self).splitlines()[-1]}>"

    @property
    def totals(self) -> PrintedRecords[Any]:
        """One record per communicator, operation name, algorithm and protocol, longest first.

        The columns have the same names as the entries of ``totals`` in the JSON.
        """
        row = make_row_type("Total", tuple(_TOTAL_KINDS))
        names = [name for name in _TOTAL_KINDS if name != "communicator"]
        rows = [
            row(
                format_communicator(total.communicator) or None,
                *(getattr(total, name) for name in names),
            )
            for total in find_totals(self)
        ]
        return PrintedRecords(rows, _TOTAL_KINDS, [make_total_table(self, _MAX_TOTALS)])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document (``bubbleviz.nccl/1``) as dictionaries, lists and values."""
        return to_values(build_summary(self))

    def save(self, path: str | Path) -> None:
        """Write the report (``.json``) or the operations (``.csv``).

        Args:
            path: Path of the file. An existing file is replaced.

        Raises:
            UsageError: The suffix belongs to neither format.
            OutputError: The file cannot be written.
        """
        save_as(path, RENDERINGS, lambda name: RENDERINGS[name](self))

    def _repr_html_(self) -> str:
        """Return the report as an HTML fragment."""
        return wrap_fragment(render_html(sections(self)))


def nccl(
    paths: str | Path | Sequence[str | Path],
    *,
    convention: str | Path | Sequence[str | Path] = (),
    window: str | Window | None = None,
    keep_export: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> NcclReport:
    """Measure NCCL operations: data, bandwidth and waiting times.

    Args:
        paths: Event files and profiles of one run, directories that contain them, or glob patterns.
            Files are recognized by their content.
        convention: Names of conventions, or paths to TOML files. The communication kernels that
            they list are added to NCCL's kernels.
        window: Part of the run to analyze, in the format of the option ``--window``. Iterations are
            numbered as in the first profile, and times are on its clock. None selects the complete
            run.
        keep_export: Whether to keep the files exported from ``.nsys-rep`` reports, next to the
            reports.
        jobs: Number of threads used to read a profile.
        progress: Callback that receives the progress of reading each file.

    Raises:
        BubblevizError: The files cannot be analyzed. The message states what happened, where, and
            what to do next; see :mod:`bubbleviz.errors`.
    """
    communication = measure_communication(
        paths,
        convention=convention,
        window=parse_window(window) if isinstance(window, str) else window,
        keep_export=keep_export,
        jobs=jobs,
        progress=progress,
    )
    return convert_to(NcclReport, communication)
