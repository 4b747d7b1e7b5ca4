"""Output formats of a report. Each row of ``formats.csv`` describes a format.

Each row contains the path of the rendering function, which is imported only when called. The
command line can therefore list all formats without importing them. A rendering function takes a
report and a view, returns text or bytes, and does not open any files. New rows are tested
automatically, because the tests run over all formats.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable
from csv import DictReader
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bubbleviz.errors import UsageError
from bubbleviz.render.extras import check_installed

if TYPE_CHECKING:  # the command line lists renderers without loading numpy
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View

#: Matches the suffixes of former report formats. The last part of each of these suffixes now
#: belongs to a format with different content.
_FORMER_ENDINGS = re.compile(
    r"\.(?:bubbles|iterations)\.parquet$|\.(?:chunks|slowdowns|memory)\.(?:svg|pdf|png)$"
)
#: Matches the suffixes of former plan formats.
_FORMER_PLAN_ENDINGS = re.compile(r"\.comms\.csv$|\.zb\.json$")


@dataclass(frozen=True)
class Renderer:
    """An output format of a report.

    Attributes:
        name: Name of the format, and of the command-line option ``--NAME FILE``.
        endings: Space-separated file name suffixes for which ``-o`` writes this format. If the
            suffixes of several formats match a file name, the longest one wins.
        function: Dotted path of the rendering function, relative to ``bubbleviz.render``. The
            function takes a report and a view, and returns text or bytes.
        package: Optional package that the format requires, or "" if none.
        draws: Space-separated picture options that affect the format, such as ``causes`` and
            ``width``. "" if the format is not a picture.
        summary: Description for ``--help``, at most 48 characters long.
    """

    name: str
    endings: str
    function: str
    package: str
    draws: str
    summary: str

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The file name suffixes as a tuple."""
        return tuple(self.endings.split())

    @property
    def binary(self) -> bool:
        """Whether the format is binary and therefore cannot be printed on a terminal."""
        return self.package in {"pyarrow", "typst"}

    def check(self, file: str = "") -> None:
        """Check, before the analysis starts, that the format can be written.

        Args:
            file: Path of the output file, or "" to check only whether the format is available.

        Raises:
            UsageError: The path ends with a slash, so it names a directory.
            OutputError: The optional package that the format needs is not installed.
        """
        if file.endswith(("/", os.sep)):
            raise UsageError(
                f"{file}: --{self.name} writes a single file; remove the trailing slash"
            )
        if package := "typst" if self._find_conversion(file) else self.package:
            check_installed(package)

    def _find_conversion(self, file: str) -> str:
        """Return the format that an SVG must be converted to: ``pdf``, ``png``, or "" for none.

        The first of ``suffixes`` does not require a conversion. For another suffix that ends in
        ``.pdf`` or ``.png``, the result is ``pdf`` or ``png``. For example, ``x.panels.pdf`` gives
        ``pdf``.
        """
        typeset = [ending for ending in self.suffixes[1:] if ending.endswith((".pdf", ".png"))]
        return next((ending[-3:] for ending in typeset if file.lower().endswith(ending)), "")

    def render(self, report: Report, view: View) -> Any:
        """Return the report in this format, as text or bytes."""
        self.check()
        return import_function(self.function)(report, view)

    def content(self, report: Report, view: View, file: str) -> str | bytes:
        """Return the content of an output file in this format.

        If the file name requires it, an SVG is converted to PDF or PNG.
        """
        self.check(file)
        content: str | bytes = self.render(report, view)
        if ending := self._find_conversion(file):
            content = import_function(f"picture.typesetting.as_{ending}")(content)
        return content


def import_function(path: str) -> Any:
    """Import the function at a dotted path, which is relative to ``bubbleviz.render``."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"bubbleviz.render.{module}"), name)


def format_of_suffix(file: str, names: Iterable[str], more_suffixes: Iterable[str] = ()) -> str:
    """Return the name of the format to which a file suffix belongs.

    If suffixes of several formats match, the longest suffix wins. Case is ignored. Suffixes of
    former formats are rejected, even if they end with the suffix of a current format.

    Args:
        file: Path of the file.
        names: Names of the formats to choose from.
        more_suffixes: Other suffixes that the command accepts, for use in the error message.

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
        raise UsageError(f"-o -: standard output has no suffix; choose a format with {options}")
    if not file:
        raise UsageError(
            f"-o '': the file name is empty; enter a name that ends in one of {suffixes}"
        )
    raise UsageError(f"-o {file[:200]}: unknown suffix; the name must end in one of {suffixes}")


def check_suffix(file: str, name: str, names: Iterable[str]) -> None:
    """Check that an output file's suffix does not belong to a different format.

    The suffix ``.txt``, and any suffix that does not belong to a format, are always accepted.

    Args:
        file: Path of the file.
        name: Format name, which is also the name of the option that writes the format.
        names: Names of the formats that the option ``-o`` of the command can write. If the suffix
            belongs to one of these formats, the error message recommends ``-o``.

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
        f"--{name} {file[:200]}: {suffix} is the suffix of another format; use {output_option}a "
        f"name that ends in {formats[name].suffixes[0]}"
    )


@cache
def list_renderers() -> tuple[Renderer, ...]:
    """Return all renderers in display order, which is the order of the rows in ``formats.csv``."""
    with Path(__file__).with_name("formats.csv").open(encoding="utf-8", newline="") as table:
        return tuple(Renderer(**row) for row in DictReader(table))


def get_renderer(name: str) -> Renderer:
    """Return the renderer for the format with the given name. The format must exist."""
    return next(renderer for renderer in list_renderers() if renderer.name == name)
