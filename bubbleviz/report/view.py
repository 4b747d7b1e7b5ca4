"""The view: the part of a report that a picture shows, and the picture's style."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """The part of a report that a picture shows. Views never affect ratios.

    Attributes:
        iterations: Indices of the iterations to draw, in ascending order. If empty, the iteration
            that :func:`bubbleviz.report.advice.choose_shown_iteration` returns is drawn.
        ranks: Numbers (:attr:`.Rank.number`) of the ranks to draw, as given with ``--ranks``. If
            empty, all ranks are drawn.
        communication: Whether to draw a thin lane of communication operations under each rank.
        rows: ``"rank"`` for one row per rank, or ``"stage"`` for one row per stage. By default,
            there is one row per rank, or one row per stage in runs with many ranks.
        causes: Whether to color idle time by cause.
        critical: Whether to draw a line along the critical path.
        heat_map: Whether to add a heat map that shows the time of each microbatch on each stage.
        style: ``"screen"`` (the default), or ``"paper"`` for a figure without title, notes and
            marks of uncertain clocks. Settings of :data:`bubbleviz.model.choices.STYLE_KEYS` may
            follow, such as ``paper,font=Times``.
        width_mm: Width of the picture on paper, or None for the style's default.
        picture_file: Name of the file that the picture is written to, which the LaTeX output
            includes as a figure, or "" if it is unknown.
    """

    iterations: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    communication: bool = False
    rows: str | None = None
    causes: bool = False
    heat_map: bool = False
    critical: bool = False
    style: str | None = None
    width_mm: float | None = None
    picture_file: str = ""
