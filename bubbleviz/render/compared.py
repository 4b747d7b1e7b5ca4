"""The ``Comparison`` class of the Python API: a comparison of runs with a picture and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bubbleviz.model.texts import label_document
from bubbleviz.render.comparison import RENDERINGS, SCHEMA, draw_svg, list_sections, make_document
from bubbleviz.render.display import Hinting, Picture, draw_picture, save_as, wrap_fragment
from bubbleviz.render.html import render_html
from bubbleviz.report.compared import comparison
from bubbleviz.report.view import View

#: Code to use instead of attributes of other results, keyed by attribute name.
_HINTS: Mapping[str, str] = {
    "bubble_ratio": "compared.ratios[compared.headline]",
    "summary": "print(compared)",
    "to_csv": 'compared.save("x.csv")',
    "to_pandas": 'compared.save("x.csv")',
}


class Comparison(comparison.Comparison, Hinting):  # noqa: D101 - help() shows the docstring of the base class
    # The subclass adds plotting, saving and a notebook representation.

    _hints = _HINTS

    def plot(
        self, *, style: str | None = None, width: str | float | None = None, causes: bool = False
    ) -> Picture:
        """Return a picture with the typical iteration of each run on a common time axis.

        Args:
            style: ``"screen"`` or ``"paper"``; see :class:`.View`.
            width: Width on paper, such as ``"89mm"`` or ``"3.5in"``, or a number of millimeters.
            causes: Whether to color idle time by cause.

        Raises:
            UsageError: A run has no operations to draw, or a value is invalid.
        """
        return draw_picture(partial(draw_svg, self), style, width, causes=causes)

    def save(self, path: str | Path) -> None:
        """Write the comparison to a file. The path's suffix determines the format.

        Args:
            path: Path of the file. An existing file is replaced. The suffix is ``.json``, ``.csv``,
                ``.md``, ``.tex``, ``.svg``, ``.pdf`` or ``.png``.

        Raises:
            UsageError: No format has this suffix, or a run has no operations to draw.
            OutputError: A package for the format is not installed, or the file cannot be written.
        """
        save_as(path, RENDERINGS, lambda name: RENDERINGS[name](self, View()))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document (``bubbleviz.comparison/1``) as dictionaries and values."""
        return label_document(SCHEMA, make_document(self))

    def _repr_html_(self) -> str:
        """Return the differences, times and ratios as an HTML fragment."""
        return wrap_fragment(render_html(list_sections(self)))
