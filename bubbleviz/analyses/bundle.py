"""Makes bundles: ZIP files that reproduce the numbers of a run without confidential names.

A bundle contains the operations as a table, the numbers measured from the profiles, and the numbers
measured again from the table. The names of ranges, kernels, process groups, hosts and files are
left out.
"""

from __future__ import annotations

import io
import json
import platform
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz._version import __version__
from bubbleviz.render.formats import csv

if TYPE_CHECKING:
    from bubbleviz.report.report import Report

#: File names in a bundle, and the timestamp given to all files.
_TABLE, _NUMBERS, _TIME = "operations.csv", "numbers.json", (1980, 1, 1, 0, 0, 0)
#: Name of the column that contains range names, which are confidential.
_NAMING = "name"


@dataclass(frozen=True)
class Bundle:
    """A ZIP file that reproduces the ratios of a run, along with the ratios themselves.

    Attributes:
        content: Content of the ZIP file.
        measured: Mean of each ratio as measured from the profiles, keyed by ratio name; None if
            unknown.
        reproduced: Mean of each ratio as measured from the table in the ZIP file, keyed by ratio
            name; None if unknown.
    """

    content: bytes
    measured: Mapping[str, float | None]
    reproduced: Mapping[str, float | None]

    @property
    def differing(self) -> tuple[str, ...]:
        """Names of the ratios that the operations table fails to reproduce."""
        return tuple(n for n, value in self.measured.items() if self.reproduced.get(n) != value)


def make_bundle(report: Report, measure: Callable[[str], Report]) -> Bundle:
    """Make a bundle: the operations of a run without names, and the ratios measured from them.

    The names of ranges and process groups are removed. The resulting table is then measured to
    check whether it reproduces the ratios of the report.

    Args:
        report: Report on the profiles. The names of hosts and files must already be anonymous.
        measure: Function that takes the path to an operations table and analyzes the table.
    """
    groups = tuple(
        replace(own, name="", ranks_text="", description="") for own in report.collectives.groups
    )
    unnamed = replace(report, collectives=replace(report.collectives, groups=groups))
    columns = {
        name: column for name, column in csv.list_columns(unnamed).items() if name != _NAMING
    }
    table = csv.write_csv(columns)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _TABLE
        path.write_text(table, encoding="utf-8")
        reproduced = _get_means(measure(str(path)))
    measured = _get_means(report)
    numbers = {
        "bubbleviz": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "primary": report.headline,
        "measured": measured,
        "of_the_table": reproduced,
        "restrictions": [one.code for one in report.restrictions],
        "ratios": {name: asdict(own) for name, own in report.summary.bubble_ratio.items()},
    }
    archive = _make_archive({_TABLE: table, _NUMBERS: json.dumps(numbers, indent=2)})
    return Bundle(archive, measured, reproduced)


def _make_archive(texts: Mapping[str, str]) -> bytes:
    """Return a ZIP file that contains the given texts, which are keyed by file name.

    All files have the same timestamp, so the same texts always give the same bytes.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), text, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _get_means(report: Report) -> dict[str, float | None]:
    return {name: own.mean for name, own in report.summary.bubble_ratio.items()}
