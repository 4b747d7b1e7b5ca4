"""Bundles: what reproduces the numbers of a run, without the names that nobody else should read.

The operations go in as a table, which is measured again as any other tracer's is; whether that
gives the same numbers is in the bundle, too. Names of ranges, kernels, process groups, hosts and
files stay out.
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

#: Files of a bundle, and the time that all of them have.
_TABLE, _NUMBERS, _TIME = "operations.csv", "numbers.json", (1980, 1, 1, 0, 0, 0)
#: Names of ranges, which say what the program is.
_NAMING = "name"


@dataclass(frozen=True)
class Bundle:
    """A bundle.

    Attributes:
        content: the bytes of its ZIP file.
        measured: mean of each ratio of the profiles; None where it is unknown.
        reproduced: the same of the table in the bundle.
    """

    content: bytes
    measured: Mapping[str, float | None]
    reproduced: Mapping[str, float | None]

    @property
    def differing(self) -> tuple[str, ...]:
        """Names of the ratios that the table gives otherwise: reading the profiles decides them."""
        return tuple(n for n, value in self.measured.items() if self.reproduced.get(n) != value)


def bundle(report: Report, measure: Callable[[str], Report]) -> Bundle:
    """Return the bundle of a run.

    Args:
        report: of its profiles, without names of hosts and files.
        measure: returns the report of a table.
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
        again = _means(measure(str(path)))
    measured = _means(report)
    numbers = {
        "bubbleviz": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "primary": report.headline,
        "measured": measured,
        "of_the_table": again,
        "restrictions": [one.code for one in report.restrictions],
        "ratios": {name: asdict(own) for name, own in report.summary.bubble_ratio.items()},
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {_TABLE: table, _NUMBERS: json.dumps(numbers, indent=2)}.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), text, zipfile.ZIP_DEFLATED)
    return Bundle(content.getvalue(), measured, again)


def _means(report: Report) -> dict[str, float | None]:
    return {name: own.mean for name, own in report.summary.bubble_ratio.items()}
