"""The picture of chunk costs: times of forwards against their tokens, and the fitted curves.

::

    stage 0             stage 1
    2 ms ┤       __o    2 ms ┤     o__
         │  o__o             │  __o
       0 ┼────────         0 ┼────────
         0    4096           0    4096 tokens
"""

from __future__ import annotations

from itertools import starmap

import drawsvg
import numpy as np

from bubbleviz.count.iterations import Iteration, Ratio
from bubbleviz.count.rank_iterations import indices_of, own_ratios
from bubbleviz.explain.chunk_costs import ChunkCost, costed
from bubbleviz.model.columns import Ints
from bubbleviz.model.texts import counted
from bubbleviz.render.palette import FORWARD, LIGHT
from bubbleviz.render.picture.page import UNKNOWN, Page, duration, percent, px
from bubbleviz.render.rows import Selection
from bubbleviz.report.report import Report, cost_in_words

#: More stages are not drawn.
_MOST = 32
#: Panels side by side; px: their height, and what lies around them.
_COLUMNS, _HEIGHT, _LEFT, _TOP, _BELOW = 2, 140.0, 58.0, 34.0, 30.0
#: px: radius of a dot; chunks whose dots lie this close share one.
_DOT, _GRAIN = 2.4, 1.0
_STEPS = 33


def draw_chunk_costs(report: Report) -> str:
    """Return the SVG document of the costs of chunks."""
    page = Page("bvc-")
    costs = report.explanation.chunk_costs
    if not costs:
        page.title = "Costs of chunks are unknown"
        page.heading(page.title)
        page.paragraph("no range name and no table tells how many tokens a forward takes", 10.5)
        return page.svg()
    page.title = f"Time of a chunk by its tokens, {counted(len(costs), 'stage')}"
    page.description = "A dot a chunk, a panel a stage; the line is the fitted cost."
    page.heading(page.title)
    page.y += 8
    averaged = np.array([i.averaged for i in report.iterations], bool)
    rows = costed(report.operations, averaged)
    most = (
        int(report.operations.tokens[rows].max()),
        float(report.operations.busy_ns[rows].max()),
    )
    top, width = page.y, (page.right - page.left) / _COLUMNS
    for number, cost in enumerate(costs[:_MOST]):
        row, column = divmod(number, _COLUMNS)
        corner = page.left + column * width, top + row * (_HEIGHT + _TOP + _BELOW)
        own = rows[report.operations.virtual_stage[rows] == cost.virtual_stage]
        _draw_panel(page, report, cost, own, corner, width, most)
    drawn = -(-min(len(costs), _MOST) // _COLUMNS)
    page.y = top + drawn * (_HEIGHT + _TOP + _BELOW)
    if len(costs) > _MOST:
        page.paragraph(f"and {counted(len(costs) - _MOST, 'stage')} more", 9.5)
    return page.svg()


def _draw_panel(
    page: Page,
    report: Report,
    cost: ChunkCost,
    rows: Ints,
    corner: tuple[float, float],
    width: float,
    most: tuple[int, float],
) -> None:
    """Draw the chunks of one stage, and their curve.

    Args:
        page: to draw on.
        report: whose operations these are.
        cost: of the stage.
        rows: its operations.
        corner: left and upper edge.
        width: of the panel.
        most: tokens and time at the ends of the axes.
    """
    left, right = corner[0] + _LEFT, corner[0] + width - 14
    bottom = corner[1] + _TOP + _HEIGHT
    tokens, time_ns = max(most[0], 1), max(most[1], 1.0)

    def at(length: float, own_ns: float) -> tuple[float, float]:
        x = left + length / tokens * (right - left)
        return x, bottom - own_ns / time_ns * _HEIGHT

    stage = "unknown" if cost.virtual_stage < 0 else cost.virtual_stage
    page.text(f"stage {stage}", corner[0], corner[1] + 10, 11)
    page.text(cost_in_words(cost), corner[0], corner[1] + 24, 9.5, ink="quiet")
    axes = f"M{px(left)} {px(bottom - _HEIGHT)}V{px(bottom)}H{px(right)}"
    frame = {"stroke": LIGHT.grid, "stroke_width": 1, "fill": "none", "class_": "bv-grid"}
    page.path(axes, **frame)
    page.text(duration(round(time_ns)), left - 6, bottom - _HEIGHT + 6, 9.5, text_anchor="end")
    page.text("0", left - 6, bottom, 9.5, text_anchor="end")
    page.text("0", left, bottom + 13, 9.5, text_anchor="middle")
    page.text(f"{tokens:,} tokens", right, bottom + 13, 9.5, text_anchor="end")
    lengths = report.operations.tokens[rows].tolist()
    spots = starmap(at, zip(lengths, report.operations.busy_ns[rows].tolist(), strict=True))
    for x, y in sorted({(round(x / _GRAIN), round(y / _GRAIN)) for x, y in spots}):
        dot = {"fill": FORWARD, "fill_opacity": 0.55}
        page.elements.append(drawsvg.Circle(px(x * _GRAIN), px(y * _GRAIN), _DOT, **dot))
    steps = np.linspace(cost.least_tokens, cost.most_tokens, _STEPS)
    fitted = cost.time_ns(steps)
    curve = [at(length, own_ns) for length, own_ns in zip(steps.tolist(), fitted, strict=True)]
    path = "".join(f"{'L' if n else 'M'}{px(x)} {px(y)}" for n, (x, y) in enumerate(curve))
    mark = {"stroke": LIGHT.text, "stroke_width": 1, "fill": "none", "class_": "bv-mark"}
    page.path(path, **mark)


# Bubble ratios as a picture prints them: of an iteration, and beside each row.


#: A ratio and its lower bound are both printed if they differ by more than this.
_RATIO_GRAIN = 0.01


def shows_lower_bound(ratio: Ratio | None) -> bool:
    """Return whether a ratio is printed as a range, from its lower bound."""
    if ratio is None or ratio.value is None or ratio.low is None:
        return False
    return ratio.value - ratio.low > _RATIO_GRAIN


def iteration_ratio(report: Report, iteration: Iteration) -> str:
    """Return the headline ratio, as a range where unattributed compute changes it."""
    ratio = iteration.ratios.get(report.headline)
    if ratio is None or ratio.value is None:
        return UNKNOWN
    mark = " !" if ratio.contradicted else ""
    low = f"{100 * ratio.low:.1f} to " if ratio.low is not None and shows_lower_bound(ratio) else ""
    return f"{low}{percent(ratio.value)}{mark}"


def row_ratios(report: Report, selection: Selection) -> tuple[float | None, ...]:
    """Return the bubble ratio of each row: the mean over its replicas and the drawn iterations.

    Of several iterations only those that are averaged count, as in the caption.
    """
    drawn = selection.iterations
    by_iteration = [
        dict(
            zip(
                indices_of(iteration.ranks),
                own_ratios(iteration.ranks, report.headline),
                strict=True,
            )
        )
        for iteration in [i for i in drawn if i.averaged] or drawn
    ]
    return tuple(_mean_ratio(by_iteration, row.replicas) for row in selection.rows)


def ratio_ranges(report: Report, selection: Selection) -> list[tuple[float, float] | None]:
    """Return the least and the most ratio of each row's ranks in the drawn iterations."""
    known: dict[int, list[float]] = {}
    for iteration in selection.iterations:
        ratios = own_ratios(iteration.ranks, report.headline)
        for rank, ratio in zip(indices_of(iteration.ranks), ratios, strict=True):
            if ratio is not None:
                known.setdefault(rank, []).append(ratio)
    rows = [[r for rank in row.replicas for r in known.get(rank, ())] for row in selection.rows]
    return [(min(ratios), max(ratios)) if ratios else None for ratios in rows]


def _mean_ratio(
    by_iteration: list[dict[int, float | None]], replicas: tuple[int, ...]
) -> float | None:
    means = []
    for by_rank in by_iteration:
        ratios = [by_rank[rank] for rank in replicas if rank in by_rank]
        known = [ratio for ratio in ratios if ratio is not None]
        # As in the table: a mean needs the ratio of every replica.
        if known and len(known) == len(ratios):
            means.append(sum(known) / len(known))
    return sum(means) / len(means) if means else None
