"""Simulated schedules of the Python API, with a picture and outputs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from bubbleviz.model.texts import label_document
from bubbleviz.render.display import Picture, draw_picture, save_as
from bubbleviz.render.ideal import RENDERINGS, SCHEMA, draw_svg, make_document
from bubbleviz.report.view import View
from bubbleviz.schedules import ideal


class _Simulated:
    """Methods that simulated schedules and estimates have in common."""

    def plot(
        self: Any,
        *,
        style: str | None = None,
        width: str | float | None = None,
        causes: bool = False,
    ) -> Picture:
        """Return a timeline picture of the simulated iteration.

        Args:
            style: ``"screen"`` or ``"paper"``; see :class:`.View`.
            width: Width on paper, such as ``"89mm"`` or ``"3.5in"``, or a number of millimeters.
            causes: Whether to color idle time by cause.

        Raises:
            UsageError: The schedule is a formula without operations, or a value is invalid.
        """
        return draw_picture(partial(draw_svg, self), style, width, causes=causes)

    def save(self: Any, path: str | Path) -> None:
        """Write the simulated schedule to a file. The path's suffix determines the format.

        Args:
            path: Path of the file. An existing file is replaced. The suffix is ``.json``, ``.csv``
                (the order that PyTorch loads), ``.tex``, ``.svg``, ``.pdf`` or ``.png``.

        Raises:
            UsageError: No format has this suffix, or the schedule is a formula without operations.
            OutputError: A package for the format is not installed, or the file cannot be written.
        """
        save_as(path, RENDERINGS, lambda name: RENDERINGS[name](self, View()))

    def to_dict(self: Any) -> dict[str, Any]:
        """Return the JSON document (``bubbleviz.simulation/1``) as dictionaries and values."""
        return label_document(SCHEMA, make_document(self))


class Ideal(ideal.Ideal, _Simulated):  # noqa: D101 - help() shows the docstring of the base class
    pass


class Estimate(ideal.Estimate, _Simulated):  # noqa: D101 - likewise
    pass
