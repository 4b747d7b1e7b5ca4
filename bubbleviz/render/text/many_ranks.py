"""Very many ranks: how their numbers are spread, and what stands out, in place of a row each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.count.rank_iterations import indices_of
from bubbleviz.model.texts import counted, percent
from bubbleviz.model.values import frozen
from bubbleviz.render.text.cells import MOST_ROWS, in_percent, milliseconds, titled
from bubbleviz.render.text.display import Display, Line, Span, cell_width, paragraph
from bubbleviz.render.text.tables import Table
from bubbleviz.report.rank_means import RankMeans, distribution, many_ranks, rank_means
from bubbleviz.report.standouts import sentence_of, standouts

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from rich.console import RenderableType

    from bubbleviz.count.iterations import Iteration
    from bubbleviz.model.columns import Floats
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View

#: Bins of a histogram, and their characters by how many values they hold.
_BINS, _BARS = 16, " ▁▂▃▄▅▆▇█"
#: What stands out: rows of a table, and sentences on the first screen.
_LISTED, _NAMED = 20, 2


def summarised(report: Report, view: View) -> bool:
    """Return whether tables summarise the ranks: of very many, unless some or all are asked for."""
    return many_ranks(len(report.ranks)) and not view.ranks and view.rows != "rank"


@frozen
class RankRows:
    """A row of a table by rank: its first two cells, and the ranks that it is the mean of."""

    number: str
    stage: str
    ranks: tuple[int, ...]


@frozen
class ListedRanks:
    """The rows of a table by rank.

    Attributes:
        rows: from top to bottom.
        omitted: how many ranks are not listed.
        of: what a row is, where it is no rank, for the title.
    """

    rows: tuple[RankRows, ...]
    omitted: int = 0
    of: str = ""


def listed_ranks(report: Report, view: View, iteration: Iteration) -> ListedRanks:
    """Return the rows of an iteration's ranks: the first of them, or a stage each of very many."""
    at_work = indices_of(iteration.ranks)
    if summarised(report, view):
        return ListedRanks(tuple(_by_stage(report, at_work)), of=" by stage (mean of its ranks)")
    if many_ranks(len(report.ranks)):
        wanted = set(view.ranks or at_work)
        return ListedRanks(tuple(_row(report, rank) for rank in at_work if rank in wanted))
    shown = at_work[:MOST_ROWS]
    return ListedRanks(tuple(_row(report, rank) for rank in shown), len(at_work) - len(shown))


def _row(report: Report, rank: int) -> RankRows:
    stage = report.ranks[rank].stage
    return RankRows(str(rank), "-" if stage is None else str(stage), (rank,))


def _by_stage(report: Report, ranks: Sequence[int]) -> Iterator[RankRows]:
    stages: dict[int | None, list[int]] = {}
    for rank in ranks:
        stages.setdefault(report.ranks[rank].stage, []).append(rank)
    for stage, own in stages.items():
        yield RankRows("", "-" if stage is None else str(stage), tuple(own))


def spread_of_ranks(report: Report) -> Iterator[RenderableType]:
    """Yield how ranks, hosts and pipelines are spread, and what of them stands out."""
    means = rank_means(report)
    table = Table(
        *("over ranks", "least", "median", "95 %", "most", "from least to most"),
        left=("over ranks", "from least to most"),
        giving_way=("from least to most",),
    )
    for name, values, cell in _quantities(report, means):
        own = distribution(values)
        if own is not None and own.high > 0:
            cells = (cell(value) for value in (own.low, own.median, own.p95, own.high))
            table.add_row(name, *cells, histogram(values))
    title = f"How the {counted(len(report.ranks), 'rank')} are spread, means of the iterations"
    yield from titled(f"{title} ({means.ratio} window)", table)
    yield from _standing_out(report, means)


def _quantities(
    report: Report, means: RankMeans
) -> Iterator[tuple[str, Floats, Callable[[float | None], str]]]:
    from bubbleviz.explain.causes.cause import Cause

    yield "ratio %", means.bubble_ratio, in_percent
    hosts = [rank.host for rank in report.ranks]
    pipelines = [rank.pipeline for rank in report.ranks]
    for name, keys in (("hosts: ratio %", hosts), ("pipelines: ratio %", pipelines)):
        if len({*keys}) > 1:
            yield name, _by_key(keys, means.bubble_ratio), in_percent
    yield "bubble ms", means.bubble_ns, milliseconds
    for phase, busy_ns in means.busy_ns.items():
        yield f"{phase} ms", busy_ns, milliseconds
    yield "launch-gap %", means.launch_gap, in_percent
    for cause in Cause:
        yield f"idle: {cause.label} ms", means.idle_ns[:, cause], milliseconds
    for name, column in means.communication_ns.items():
        label = name.removesuffix("_ns").replace("communication", "kernels")
        yield f"communication: {label} ms", column, milliseconds


def _by_key(keys: Sequence[Hashable], values: Floats) -> Floats:
    """Return the mean of the known values of each key."""
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    of_rank = np.array([places[key] for key in keys], np.int64)
    known = ~np.isnan(values)
    counts = np.bincount(of_rank[known], minlength=len(places))
    sums = np.bincount(of_rank[known], values[known], minlength=len(places))
    return np.asarray(sums[counts > 0] / counts[counts > 0], np.float64)


def histogram(values: Floats) -> str:
    """Return how many values lie in equal parts from the least to the most, a character each."""
    known = values[~np.isnan(values)]
    if not len(known) or known.min() == known.max():
        return ""
    counts, _ = np.histogram(known, _BINS)
    heights = np.ceil(counts * (len(_BARS) - 1) / counts.max()).astype(np.int64)
    return "".join(_BARS[height] for height in heights.tolist())


def _standing_out(report: Report, means: RankMeans) -> Iterator[RenderableType]:
    from rich.text import Text

    found = standouts(report, means)
    if not found:
        yield Text("\nNo rank, host, pipeline or stage stands out")
        return
    table = Table("what", "ranks", "ratio %", "to the median", "why", left=("what", "why"))
    for own in found[:_LISTED]:
        table.add_row(
            own.name,
            f"{len(own.ranks):,}",
            in_percent(own.ratio),
            f"{100 * own.above:+.2f}",
            own.why,
        )
    if len(found) > _LISTED:
        table.add_row(f"… and {len(found) - _LISTED:,} more")
    yield from titled(
        "What stands out (--ranks, --pipelines or --hosts lists some ranks, --rows rank all)", table
    )


def first_lines(report: Report, display: Display) -> list[Line]:
    """Return how ranks are spread, and what stands out most, for the first screen."""
    means = rank_means(report)
    own = distribution(means.bubble_ratio)
    if own is None:
        return []
    bars = display.shown(histogram(means.bubble_ratio))
    lead = f"The {counted(len(report.ranks), 'rank')}: "
    text = f"{percent(own.low)} {bars} {percent(own.high)}, median {percent(own.median)}"
    if cell_width(lead + text) > display.width:
        text = f"{percent(own.low)} to {percent(own.high)}"
    # Blanks of the histogram stay.
    lines: list[Line] = [(Span(lead, "bold"), Span(text))]
    found = standouts(report, means)
    named = [sentence_of(standout) for standout in found[:_NAMED]]
    if len(found) > _NAMED:
        named.append(f"{len(found) - _NAMED:,} more (-v ranks)")
    if named:
        lines += paragraph("; ".join(named), display, lead="Standing out:", most=3)
    return lines
