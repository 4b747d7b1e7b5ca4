"""The function ``load`` of the Python API."""

from __future__ import annotations

from pathlib import Path

from bubbleviz.errors import InputError
from bubbleviz.render.display import convert_to
from bubbleviz.render.loaded import LoadedIdleReport, LoadedReport
from bubbleviz.report.saved import read_saved
from bubbleviz.report.summary import RunSummary


def load(path: str | Path) -> LoadedReport | LoadedIdleReport:
    """Load a report that was saved as JSON.

    Args:
        path: Path of the JSON file.

    Returns:
        A ``RunSummary`` if the report is from ``analyze``, or an ``IdleSummary`` if it is from
        ``idle``. The summary's attributes have the same names as the JSON keys. A ``RunSummary``
        also has ``plot``, ``save``, ``to_pandas``, ``ratios``, ``causes``, ``stages`` and
        ``what_if()`` of the report that was saved, and an ``IdleSummary`` also has ``causes`` and
        ``save``.

    Raises:
        InputError: The file cannot be read, or is not a saved report.
    """
    if Path(path).is_dir():
        raise InputError(
            f"{path}: is a directory, not a saved report; to measure the profiles in it, call "
            f"bubbleviz.analyze({str(path)!r})"
        )
    saved = read_saved(str(path))
    if isinstance(saved, RunSummary):
        return convert_to(LoadedReport, saved)
    return convert_to(LoadedIdleReport, saved)
