"""Output formats: each way to write a report is a row of a table.

A row names the function that writes, which is loaded with what it needs when it is called: the
command line lists all formats without them. A function sees the report and the view, returns text
or bytes, and opens no file; the tests over all formats take a new row in.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from bubbleviz.errors import OutputError, UsageError

if TYPE_CHECKING:  # the command line lists renderers without loading numpy
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View

#: Name and content of a file.
File: TypeAlias = "tuple[str, str | bytes]"

#: Options of the command line that are for pictures alone.
DRAWN = frozenset({"causes", "critical-path", "heat-map", "style", "width"})
#: Packages that are extras, and what is said where one is needed and not installed.
_EXTRAS = {
    "pyarrow": "Parquet is written by pyarrow; install it with: pip install 'bubbleviz[parquet]', "
    "or write --csv",
    "perfetto": "traces for Perfetto need its package; install it with: "
    "pip install 'bubbleviz[perfetto]', or write --chrome",
    "typst": "pictures as PDF or PNG need Typst; install it with: pip install 'bubbleviz[paper]', "
    "or write --svg",
    "vl_convert": "the interactive report needs Vega-Lite; install it with: "
    "pip install 'bubbleviz[html]', or write --svg",
}


def check_installed(package: str) -> None:
    """Check that an extra is installed.

    Raises:
        OutputError: it is not.
    """
    if importlib.util.find_spec(package) is None:
        raise OutputError(_EXTRAS[package])


@dataclass(frozen=True)
class Parts:
    """An output that is a folder of files, each made when it is written.

    Attributes:
        files: yields them, one after the other.
    """

    files: Callable[[], Iterator[File]]


@dataclass(frozen=True)
class Renderer:
    """A way to write a report.

    Attributes:
        name: of its option on the command line: ``--NAME FILE``.
        summary: one line for ``--help``, of 48 characters at most.
        suffixes: endings of files that are written so where no option names the format; of several
            that fit a file, the longest says what it holds.
        function: what takes report and view and returns text or bytes, below ``bubbleviz.render``.
        needs: the extra that it needs; empty for none.
        binary: whether it is binary data, which no terminal shows.
        compares: whether it shows the schedule that ran at the measured times.
        draws: which of :data:`DRAWN` it draws.
        parts: what takes the report of very many ranks and yields the files of a folder, likewise;
            None where it is always one file.
    """

    name: str
    summary: str
    suffixes: tuple[str, ...]
    function: str
    needs: str = ""
    binary: bool = False
    compares: bool = False
    draws: frozenset[str] = frozenset()
    parts: str | None = None

    def check(self) -> None:
        """Check, before any work, that it can work here.

        Raises:
            OutputError: what it needs is not installed.
        """
        if self.needs:
            check_installed(self.needs)

    def render(self, report: Report, view: View) -> Any:
        """Return the report as text or bytes."""
        self.check()
        return _function(self.function)(report, view)

    def content(self, report: Report, view: View, file: str) -> str | bytes | Parts:
        """Return what is written to a file, or to a folder where that ends in a slash."""
        if (parts := self.parts) is not None and is_folder(file):
            self.check()
            return Parts(lambda: _function(parts)(report))
        content: str | bytes = self.render(report, view)
        return content


def _function(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"bubbleviz.render.{module}"), name)


_RENDERERS = (
    Renderer(
        "chunk-costs",
        "times of chunks against their tokens, as SVG",
        (".chunks.svg",),
        "picture.slowdowns.chunk_costs",
    ),
    Renderer(
        "memory-plot",
        "schedules: bubble against memory, as SVG",
        (".memory.svg",),
        "picture.memory_plot.alternatives",
    ),
    Renderer(
        "panels",
        "schedule in theory above the measurement, as SVG",
        (".panels.svg",),
        "picture.panels.theory",
        compares=True,
        draws=DRAWN - {"heat-map"},
    ),
    Renderer(
        "slowdowns",
        "slowdown of ranks and over iterations, as SVG",
        (".slowdowns.svg",),
        "picture.slowdowns.slowdowns",
    ),
    Renderer(
        "json",
        "report for programs (bubbleviz.report/1)",
        (".json",),
        "json_document.render",
        parts="json_document.files_of",
    ),
    Renderer(
        "bubbles",
        "one row an idle interval, with its cause, as CSV",
        (".bubbles.csv",),
        "formats.csv.render_bubbles",
    ),
    Renderer(
        "bubbles-parquet",
        "one row an idle interval, as Parquet",
        (".bubbles.parquet",),
        "formats.parquet.bubbles",
        needs="pyarrow",
        binary=True,
        parts="formats.parquet.bubbles_by_parts",
    ),
    Renderer("csv", "one row an operation", (".csv",), "formats.csv.render"),
    Renderer(
        "iterations-parquet",
        "one row an iteration, with ratios, as Parquet",
        (".iterations.parquet",),
        "formats.parquet.iterations",
        needs="pyarrow",
        binary=True,
    ),
    Renderer(
        "parquet",
        "one row an operation, as Parquet",
        (".parquet",),
        "formats.parquet.operations",
        needs="pyarrow",
        binary=True,
        parts="formats.parquet.operations_by_parts",
    ),
    Renderer(
        "markdown",
        "ratios and causes as Markdown, for a wiki",
        (".md", ".markdown"),
        "text.report.as_markdown",
    ),
    Renderer("text", "the table as plain text", (".txt",), "text.report.as_text"),
    Renderer(
        "latex", "table of the ratios for LaTeX with booktabs", (".tex",), "formats.latex.render"
    ),
    Renderer(
        "chrome",
        "trace for chrome://tracing, as JSON",
        (".trace.json",),
        "trace.json_events.render",
    ),
    Renderer(
        "perfetto",
        "trace for ui.perfetto.dev",
        (".pftrace", ".perfetto-trace"),
        "trace.packets.render",
        needs="perfetto",
        binary=True,
    ),
    Renderer(
        "html",
        "interactive report: one file for any browser",
        (".html", ".htm"),
        "web.page.render",
        needs="vl_convert",
    ),
    Renderer(
        "svg",
        "picture: operations and bubbles of each GPU",
        (".svg",),
        "picture.legend.picture",
        draws=DRAWN,
    ),
    Renderer(
        "pdf",
        "the same picture as PDF, for a paper",
        (".pdf",),
        "picture.legend.pdf",
        needs="typst",
        binary=True,
        draws=DRAWN,
    ),
    Renderer(
        "png",
        "the same picture as PNG, in pixels",
        (".png",),
        "picture.legend.png",
        needs="typst",
        binary=True,
        draws=DRAWN,
    ),
)


def is_folder(file: str) -> bool:
    """Return whether the path of an output is that of a folder: it ends in a slash."""
    return file.endswith(("/", os.sep))


def suffixed(file: str, names: Iterable[str]) -> str:
    """Return which of some formats a file has by its suffix.

    Args:
        file: the path.
        names: of the formats.

    Raises:
        UsageError: it has none of their suffixes.
    """
    known = [r for r in renderers() if r.name in set(names)]
    lowered = file.lower().rstrip("/" + os.sep)
    fitting = [(len(s), r.name) for r in known for s in r.suffixes if lowered.endswith(s)]
    if fitting:
        return max(fitting)[1]
    suffixes = ", ".join(suffix for renderer in known for suffix in renderer.suffixes)
    if file == "-":
        options = ", ".join(f"--{renderer.name} -" for renderer in known)
        raise UsageError(f"-o -: standard output has no suffix; give {options}")
    raise UsageError(f"-o {file[:200]}: its suffix is none of {suffixes}")


def renderers() -> tuple[Renderer, ...]:
    """Return every renderer, in display order."""
    return _RENDERERS


def renderer_named(name: str) -> Renderer:
    """Return a renderer by the name of its option."""
    return next(renderer for renderer in renderers() if renderer.name == name)
