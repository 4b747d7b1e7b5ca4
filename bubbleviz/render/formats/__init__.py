"""Output formats: each way to write a report is a row of a table.

A row names the function that writes, which is loaded with what it needs when it is called: the
command line lists all formats without them. A function sees the report and the view, returns text
or bytes, and opens no file; the tests over all formats take a new row in.
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

#: Packages that are extras, and what is said where one is needed and not installed.
_EXTRAS = {
    "pyarrow": "Parquet is written by pyarrow; install it with: pip install 'bubbleviz[parquet]', "
    "or write a table: -o operations.csv",
    "typst": "pictures as PDF or PNG need Typst; install it with: pip install 'bubbleviz[paper]', "
    "or write -o bubbles.svg",
    "vl_convert": "the interactive report needs Vega-Lite; install it with: "
    "pip install 'bubbleviz[html]', or draw a picture: bubbleviz analyze RUN -o bubbles.svg",
}


def check_installed(package: str) -> None:
    """Check that an extra is installed.

    Raises:
        OutputError: it is not.
    """
    if importlib.util.find_spec(package) is None:
        raise OutputError(_EXTRAS[package])


@dataclass(frozen=True)
class Renderer:
    """A way to write a report.

    Attributes:
        name: of its option on the command line: ``--NAME FILE``.
        endings: of files that are written so where no option names the format, parted by blanks; of
            several that fit a file, the longest says what it holds.
        function: what takes report and view and returns text or bytes, below ``bubbleviz.render``.
        needs: the extra that it needs; empty for none.
        draws: which options of pictures (``causes``, ``width``) it draws, parted by blanks.
        summary: one line for ``--help``, of 48 characters at most.
    """

    name: str
    endings: str
    function: str
    needs: str
    draws: str
    summary: str

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The endings, one by one."""
        return tuple(self.endings.split())

    @property
    def binary(self) -> bool:
        """Whether it is binary data, which no terminal shows."""
        return self.needs in {"pyarrow", "typst"}

    def check(self, file: str = "") -> None:
        """Check, before any work, that it can work here, and write a file of that name.

        Raises:
            UsageError: The file ends in a slash, as folders do.
            OutputError: what it needs is not installed.
        """
        if file.endswith(("/", os.sep)):
            raise UsageError(f"{file}: --{self.name} writes a file; leave the slash out")
        if needs := "typst" if self._typeset(file) else self.needs:
            check_installed(needs)

    def _typeset(self, file: str) -> str:
        """Return the ending of a file that an SVG is typeset for; empty for none."""
        typeset = [own for own in self.suffixes[1:] if own.endswith((".pdf", ".png"))]
        return next((own[-3:] for own in typeset if file.lower().endswith(own)), "")

    def render(self, report: Report, view: View) -> Any:
        """Return the report as text or bytes."""
        self.check()
        return _function(self.function)(report, view)

    def content(self, report: Report, view: View, file: str) -> str | bytes:
        """Return the content of a file, which is a PDF or PNG if its name ends so."""
        self.check(file)
        content: str | bytes = self.render(report, view)
        if ending := self._typeset(file):
            content = _function(f"picture.typesetting.as_{ending}")(content)
        return content


def _function(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"bubbleviz.render.{module}"), name)


def suffixed(file: str, names: Iterable[str], others: Iterable[str] = ()) -> str:
    """Return which of some formats a file has by its suffix.

    Args:
        file: the path.
        names: of the formats.
        others: suffixes that a command knows beside theirs, for the message.

    Raises:
        UsageError: it has none of their suffixes.
    """
    known = [r for r in renderers() if r.name in set(names)]
    lowered = file.lower().rstrip("/" + os.sep)
    fitting = [(len(s), r.name) for r in known for s in r.suffixes if lowered.endswith(s)]
    is_report = len(known) == len(renderers())
    is_former = _FORMER_PLAN_ENDINGS.search(lowered) or (
        is_report and _FORMER_ENDINGS.search(lowered)
    )
    if fitting and not is_former:
        return max(fitting)[1]
    suffixes = ", ".join((*(renderer.suffixes[0] for renderer in known), *others))
    if file == "-":
        options = ", ".join(f"--{renderer.name} -" for renderer in known)
        raise UsageError(f"-o -: standard output has no suffix; give {options}")
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
    formats = {renderer.name: renderer for renderer in renderers()}
    last_suffixes = {
        renderer.name: {Path(f"x{ending}").suffix for ending in renderer.suffixes}
        for renderer in renderers()
    }
    matching = {format_name for format_name, used in last_suffixes.items() if suffix in used}
    if not matching or name in matching or suffix == ".txt":
        return
    written = f"-o {file[:200]}, or " if matching & set(names) else ""
    raise UsageError(
        f"--{name} {file[:200]}: {suffix} is the suffix of another format; give {written}a name "
        f"that ends in {formats[name].suffixes[0]}"
    )


@cache
def renderers() -> tuple[Renderer, ...]:
    """Return every renderer, in display order: the rows of ``formats.csv``."""
    with Path(__file__).with_name("formats.csv").open(encoding="utf-8", newline="") as table:
        return tuple(Renderer(**row) for row in DictReader(table))


def renderer_named(name: str) -> Renderer:
    """Return a renderer by the name of its option."""
    return next(renderer for renderer in renderers() if renderer.name == name)
