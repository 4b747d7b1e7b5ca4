"""Output formats: a module here writes a report in one way, or in a few that are akin.

Adding one is adding a module with a ``RENDERER`` constant (a renderer, or several in a tuple); the
command line offers it by its name, and the tests over all renderers take it in. A renderer sees the
report and nothing below it, returns text or bytes, and opens no file.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from bubbleviz.errors import OutputError, UsageError
from bubbleviz.model.values import frozen
from bubbleviz.registry import discover

if TYPE_CHECKING:  # the command line lists renderers without loading numpy
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


#: What a file holds: text, which is written in UTF-8, or bytes.
Content = TypeVar("Content", str, bytes)
#: Name and content of a file.
File: TypeAlias = "tuple[str, str | bytes]"

#: Options of the command line that are for pictures alone.
DRAWN = frozenset({"causes", "critical-path", "heat-map", "style", "width"})


@frozen
class Parts:
    """An output that is a folder of files, each made when it is written.

    Attributes:
        files: yields them, one after the other.
    """

    files: Callable[[], Iterator[File]]


def needs(package: str, message: str) -> Callable[[], None]:
    """Return a check that a package is installed; else it raises an OutputError with a message."""

    def check() -> None:
        if importlib.util.find_spec(package) is None:
            raise OutputError(message)

    return check


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
    check: Callable[[], None] = lambda: None
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


@cache
def renderers() -> tuple[Renderer[Any], ...]:
    """Return every renderer, in display order."""
    found: list[Renderer[Any]] = []
    for constant in discover(__name__, "RENDERER", object):
        found += constant if isinstance(constant, tuple) else [constant]  # type: ignore[list-item]
    return tuple(sorted(found, key=lambda renderer: (renderer.order, renderer.name)))


def renderer_named(name: str) -> Renderer[Any]:
    """Return a renderer by the name of its option."""
    return next(renderer for renderer in renderers() if renderer.name == name)
