"""Output formats: each module here writes a report down in one way.

Adding one is adding a module with a ``RENDERER`` constant; the command line offers it by its
name, and the tests over all renderers take it in. A renderer sees the report and nothing below
it, returns text, and opens no file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bubbleviz.registry import discover

if TYPE_CHECKING:  # the command line lists renderers without loading numpy
    from bubbleviz.report import Report, View


@dataclass(frozen=True)
class Renderer:
    """A way to write a report down.

    Attributes:
        name: what ``--NAME FILE`` is called on the command line.
        summary: one line for ``--help``.
        render: report and view to text.
        order: place in ``--help``.
    """

    name: str
    summary: str
    render: Callable[[Report, View], str]
    order: int = 0


def renderers() -> tuple[Renderer, ...]:
    """Return every renderer, in display order."""
    return discover(__name__, "RENDERER", Renderer)
