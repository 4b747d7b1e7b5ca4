"""The view: the part of a report that a picture shows, and how it is set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """The part of a report that a picture shows; ratios are never affected.

    Attributes:
        iterations: indices of the iterations to draw, ascending; empty for
            :func:`bubbleviz.report.advice.choose_shown_iteration`.
        ranks: numbers of the ranks to draw (:attr:`.Rank.number`), as ``--ranks`` takes them; empty
            for all.
        communication: whether to draw a thin lane of communication operations under each rank.
        rows: ``"rank"`` for a row per rank, ``"stage"`` for one per stage with all its replicas;
            None for ranks, and stages where there are many ranks.
        causes: whether to colour idle time by its cause.
        critical: whether to draw a line along the operations that bound the iteration.
        heat_map: whether to show below which microbatch took long on which stage.
        style: ``"screen"``, or ``"paper"`` for a figure of a paper: no title, notes or marks of
            uncertain clocks; None for a screen. ``,font=Times`` and the like behind it set what
            :data:`bubbleviz.model.choices.STYLE_KEYS` names.
        width_mm: the width of the picture on paper; None for that of its style.
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
