"""Output formats of a report: a renderer for each row of ``formats.csv``.

A row names the rendering function. It is imported only when it is called, so the command line can
list all formats without importing them. A rendering function takes the report and the view, returns
text or bytes, and opens no file. Tests over all formats cover a new row automatically.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Iterable
from csv import DictReader
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bubbleviz.errors import OutputError, UsageError

if TYPE_CHECKING:  # the command line lists renderers without loading numpy
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View

#: Endings of former formats of reports. Their shorter endings belong to formats with other content.
_FORMER_ENDINGS = re.compile(
    r"\.(?:bubbles|iterations)\.parquet$|\.(?:chunks|slowdowns|memory)\.(?:svg|pdf|png)$"
)
#: Endings of former formats of plans.
_FORMER_PLAN_ENDINGS = re.compile(r"\.comms\.csv$|\.zb\.json$")

#: Messages if an optional package is needed but not installed, keyed by package.
_EXTRAS = {
    "pyarrow": "Parquet is written by pyarrow; install it with: pip install 'bubbleviz[parquet]', "
    "or write a table: -o operations.csv",
    "typst": "pictures as PDF or PNG need Typst; install it with: pip install 'bubbleviz[paper]', "
    "or write -o bubbles.svg",
    "vl_convert": "the interactive report needs Vega-Lite; install it with: "
    "pip install 'bubbleviz[html]', or draw a picture: bubbleviz analyze RUN -o bubbles.svg",
}


def check_installed(package: str) -> None:
    """Check that an optional package is installed.

    Raises:
        OutputError: The package is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise OutputError(_EXTRAS[package])


@dataclass(frozen=True)
class Renderer:
    """A format of a report.

    Attributes:
        name: Name of the format, and of its command line option ``--NAME FILE``.
        endings: Endings of the files that ``-o`` writes in this format, separated by blanks. If the
            endings of several formats match a file, the longest ending decides.
        function: Path of the rendering function below ``bubbleviz.render``. It takes the report and
            the view, and returns text or bytes.
        package: Optional package that the format needs, or "" for none.
        draws: Picture options that affect the format (``causes``, ``width``), separated by blanks.
        summary: Description for ``--help``, at most 48 characters.
    """

    name: str
    endings: str
    function: str
    package: str
    draws: str
    summary: str

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The endings as a tuple."""
        return tuple(self.endings.split())

    @property
    def binary(self) -> bool:
        """Whether the format is binary, so it cannot be printed on a terminal."""
        return self.package in {"pyarrow", "typst"}

    def check(self, file: str = "") -> None:
        """Check before any work that the format is available, and the file name is not a folder.

        Args:
            file: Name of the output file, or "" to check only the format.

        Raises:
            UsageError: The name ends with a slash, so it is a folder.
            OutputError: An optional package is not installed.
        """
        if file.endswith(("/", os.sep)):
            raise UsageError(f"{file}: --{self.name} writes a file; leave the slash out")
        if package := "typst" if self._find_conversion(file) else self.package:
            check_installed(package)

    def _find_conversion(self, file: str) -> str:
        """Return ``pdf`` or ``png`` if a file is a converted SVG in that format, otherwise ""."""
        typeset = [ending for ending in self.suffixes[1:] if ending.endswith((".pdf", ".png"))]
        return next((ending[-3:] for ending in typeset if file.lower().endswith(ending)), "")

    def render(self, report: Report, view: View) -> Any:
        """Return the report in this format, as text or bytes."""
        self.check()
        return _import_function(self.function)(report, view)

    def content(self, report: Report, view: View, file: str) -> str | bytes:
        """Return the content of a file; an SVG is converted if the name ends in .pdf or .png."""
        self.check(file)
        content: str | bytes = self.render(report, view)
        if ending := self._find_conversion(file):
            content = _import_function(f"picture.typesetting.as_{ending}")(content)
        return content


def _import_function(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"bubbleviz.render.{module}"), name)


def format_of_suffix(file: str, names: Iterable[str], more_suffixes: Iterable[str] = ()) -> str:
    """Return the name of the format that the suffix of a file stands for; the longest suffix wins.

    A suffix of a former format is rejected, even if it ends with the suffix of a current format.

    Args:
        file: Path of the file.
        names: Names of the formats to choose from.
        more_suffixes: Further suffixes that the command accepts, for the message.

    Raises:
        UsageError: The suffix belongs to none of the formats.
    """
    formats = [renderer for renderer in list_renderers() if renderer.name in set(names)]
    lowered = file.lower().rstrip("/" + os.sep)
    matches = [(len(s), r.name) for r in formats for s in r.suffixes if lowered.endswith(s)]
    is_report = len(formats) == len(list_renderers())
    is_former = _FORMER_PLAN_ENDINGS.search(lowered) or (
        is_report and _FORMER_ENDINGS.search(lowered)
    )
    if matches and not is_former:
        return max(matches)[1]
    suffixes = ", ".join((*(renderer.suffixes[0] for renderer in formats), *more_suffixes))
    if file == "-":
        options = ", ".join(f"--{renderer.name} -" for renderer in formats)
        raise UsageError(f"-o -: standard output has no suffix; give {options}")
    if not file:
        raise UsageError(f"-o '': the file name is empty; give one with a suffix: {suffixes}")
    raise UsageError(f"-o {file[:200]}: its suffix is not one of {suffixes}")


def check_suffix(file: str, name: str, names: Iterable[str]) -> None:
    """Check that the suffix of an output file does not name a different format.

    ``.txt`` and unknown suffixes are accepted for every format.

    Args:
        file: Path of the file.
        name: Name of the option, which is also the name of the format it writes.
        names: Names of the formats that ``-o`` of the command writes, for the message.

    Raises:
        UsageError: The suffix belongs to another format.
    """
    suffix = Path(file).suffix.lower()
    formats = {renderer.name: renderer for renderer in list_renderers()}
    last_suffixes = {
        renderer.name: {Path(f"x{ending}").suffix for ending in renderer.suffixes}
        for renderer in list_renderers()
    }
    matching = {format_name for format_name, used in last_suffixes.items() if suffix in used}
    if not matching or name in matching or suffix == ".txt":
        return
    output_option = f"-o {file[:200]}, or " if matching & set(names) else ""
    raise UsageError(
        f"--{name} {file[:200]}: {suffix} is the suffix of another format; give {output_option}a "
        f"name that ends in {formats[name].suffixes[0]}"
    )


@cache
def list_renderers() -> tuple[Renderer, ...]:
    """Return every renderer, in display order: the rows of ``formats.csv``."""
    with Path(__file__).with_name("formats.csv").open(encoding="utf-8", newline="") as table:
        return tuple(Renderer(**row) for row in DictReader(table))


def get_renderer(name: str) -> Renderer:
    """Return the renderer of a format, which must exist."""
    return next(renderer for renderer in list_renderers() if renderer.name == name)
