"""Output formats: each module here writes a report in one way.

Adding one is adding a module with a ``RENDERER`` constant; the command line offers it by its
name, and the tests over all renderers take it in. A renderer sees the report and nothing below
it, returns text or bytes, and opens no file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from bubbleviz.errors import UsageError
from bubbleviz.model.values import frozen
from bubbleviz.registry import discover
from bubbleviz.render.parts import Parts

if TYPE_CHECKING:  # the command line lists renderers without loading numpy
    from bubbleviz.model.arrow import ArrowTable
    from bubbleviz.render.parts import File
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


#: What a file holds: text, which is written in UTF-8, or bytes.
Content = TypeVar("Content", str, bytes)

#: Options of the command line that are for pictures alone.
DRAWN = frozenset({"causes", "critical-path", "heat-map", "style", "width"})


def _nothing_needed() -> None:
    """Raise nothing: text needs nothing but bubbleviz."""


@frozen
class Renderer(Generic[Content]):
    """A way to write a report.

    Attributes:
        name: of its option on the command line: ``--NAME FILE``.
        summary: one line for ``--help``, of 48 characters at most.
        suffixes: endings of files that are written so where no option names the format; of several
            that fit a file, the longest says what it holds.
        render: report and view to text or bytes.
        order: place in ``--help``.
        check: raises, before any work, where it cannot work here (a library is not installed).
        binary: whether it is binary data, which no terminal shows.
        compares: whether it shows the schedule that ran at the measured times.
        draws: which of :data:`DRAWN` it draws.
        parts: yields the files of a folder, for runs of very many ranks; None where it is always
            one file.
    """

    name: str
    summary: str
    render: Callable[[Report, View], Content]
    suffixes: tuple[str, ...] = ()
    order: int = 0
    check: Callable[[], None] = _nothing_needed
    binary: bool = False
    compares: bool = False
    draws: frozenset[str] = frozenset()
    parts: Callable[[Report], Iterator[File]] | None = None

    def content(self, report: Report, view: View, file: str) -> str | bytes | Parts:
        """Return what is written to a file, or to a folder where that ends in a slash."""
        parts = self.parts
        if parts is None or not is_folder(file):
            return self.render(report, view)
        return Parts(lambda: parts(report))


def is_folder(file: str) -> bool:
    """Return whether the path of an output is that of a folder: it ends in a slash."""
    return file.endswith(("/", os.sep))


def typeset(name: Literal["pdf", "png"], summary: str, order: int) -> Renderer[bytes]:
    """Return the renderer of the picture in a format that Typst writes."""

    def check() -> None:
        from bubbleviz.render.picture.typesetting import check as check_typst

        check_typst()

    def render(report: Report, view: View) -> bytes:
        from bubbleviz.render.picture.legend import picture
        from bubbleviz.render.picture.typesetting import CONVERSIONS

        return CONVERSIONS[name](picture(report, view))

    return Renderer(
        name=name,
        summary=summary,
        suffixes=(f".{name}",),
        render=render,
        order=order,
        check=check,
        binary=True,
        draws=DRAWN,
    )


def as_parquet(
    name: str,
    summary: str,
    suffix: str,
    table: Callable[[Report], ArrowTable],
    tables: Callable[[Report], Iterator[ArrowTable]] | None = None,
) -> Renderer[bytes]:
    """Return the renderer of a table of the report as Parquet.

    Args:
        name: of its option.
        summary: one line for help.
        suffix: ending of its files.
        table: returns the table.
        tables: yields it by parts.
    """

    def check() -> None:
        from bubbleviz.render.arrow_files import check as check_pyarrow

        check_pyarrow()

    def render(report: Report, view: View) -> bytes:
        del view
        from bubbleviz.render.arrow_files import parquet_bytes

        check()
        return parquet_bytes(table(report))

    def parts(report: Report) -> Iterator[File]:
        from bubbleviz.model.part_names import part_name
        from bubbleviz.render.arrow_files import parquet_bytes

        check()
        assert tables is not None
        for number, part in enumerate(tables(report)):
            yield part_name(number, "parquet"), parquet_bytes(part)

    return Renderer(
        name=name,
        summary=summary,
        suffixes=(suffix,),
        render=render,
        order=3,
        check=check,
        binary=True,
        parts=None if tables is None else parts,
    )


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


def renderers() -> tuple[Renderer[Any], ...]:
    """Return every renderer, in display order."""
    return discover(__name__, "RENDERER", Renderer)
