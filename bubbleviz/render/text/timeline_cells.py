"""Timeline cells: what each cell of a terminal's timeline shows, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import indices_of, own_ratios
from bubbleviz.model import intervals
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.values import frozen
from bubbleviz.render.rows import RankRow
from bubbleviz.render.selection import Selection, select
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: What a cell holds beside the phases of COMPUTE, whose codes are smaller.
OTHER_ITERATION, UNATTRIBUTED, BUBBLE, OUTSIDE = 20, 21, 22, 23
_KINDS = (*map(int, COMPUTE), OTHER_ITERATION, UNATTRIBUTED, BUBBLE, OUTSIDE)


@frozen
class CellRow:
    """One row of a timeline.

    Attributes:
        row: the rank that is drawn, with those that it stands for.
        ratio: mean bubble ratio of these; None where it is unknown.
        kinds: what each cell shows: the code of a phase, or one of those above.
    """

    row: RankRow
    ratio: float | None
    kinds: Ints


@frozen
class TimelineCells:
    """Some rows of the timeline of an iteration.

    Attributes:
        iteration: which one.
        rows: from top to bottom.
        row_count: how many rows there are.
        span_ns: from the left edge to the right one.
    """

    iteration: Iteration
    rows: tuple[CellRow, ...]
    row_count: int
    span_ns: int


def timeline_selection(report: Report, view: View, iteration: Iteration) -> Selection | None:
    """Return the rows of an iteration, a row a stage where stages are known; None without any."""
    ranks = [rank for rank in report.ranks if not view.ranks or rank.index in view.ranks]
    staged = any(rank.stage is not None for rank in ranks)
    rows = view.rows or ("stage" if staged else "rank")
    at_work = set(indices_of(iteration.ranks))
    selection = select(report, replace(view, iterations=(iteration.index,), rows=rows))
    if selection is None:
        return None
    shown = tuple(row for row in selection.rows if {*row.replicas} & at_work)
    return replace(selection, rows=shown) if shown else None


def cells_of(report: Report, selection: Selection, most_rows: int, columns: int) -> TimelineCells:
    """Return the cells of a selection of one iteration.

    Args:
        report: any report.
        selection: its rows.
        most_rows: rows that are kept: first, last, those with the most and the least bubble, some
            evenly spaced between.
        columns: cells of a row.
    """
    (iteration,), (windows,) = selection.iterations, selection.windows
    each = own_ratios(iteration.ranks, report.headline)
    of_rank = dict(zip(indices_of(iteration.ranks), each, strict=True))
    ratios = [_mean_ratio(of_rank, row) for row in selection.rows]
    kept = _kept(ratios, most_rows)
    edges = selection.start_ns + selection.span_ns * np.arange(columns + 1) // columns
    busy = _busy(report, iteration, selection.start_ns, selection.end_ns)
    shown = [selection.rows[at] for at in kept]
    shares = np.stack([_shares(busy, row.rank.index, windows, edges) for row in shown])
    rows = tuple(
        CellRow(row, ratios[at], kinds)
        for at, row, kinds in zip(kept, shown, _diffused(shares), strict=True)
    )
    return TimelineCells(iteration, rows, len(ratios), selection.span_ns)


def _mean_ratio(of_rank: Mapping[int, float | None], row: RankRow) -> float | None:
    """Return the mean ratio of a row's ranks at work; None where any of them has none."""
    own = [of_rank[rank] for rank in row.replicas if rank in of_rank]
    known = [value for value in own if value is not None]
    return sum(known) / len(known) if known and len(known) == len(own) else None


def _kept(ratios: list[float | None], most: int) -> list[int]:
    """Return which rows are kept, ascending."""
    count = len(ratios)
    if count <= most:
        return list(range(count))
    known = sorted((ratio, at) for at, ratio in enumerate(ratios) if ratio is not None)
    kept = {0, count - 1}
    # The busiest rank is the one that others wait for.
    kept |= {known[-1][1], known[0][1]} if known and most >= len(kept) + 2 else set()
    for places in range(most, 1, -1):
        spread = {round(place * (count - 1) / (places - 1)) for place in range(places)}
        if len(kept | spread) <= most:
            return sorted(kept | spread)
    return sorted(kept)


@frozen
class _Busy:
    """When ranks were busy in a time, and with what; rows in any order."""

    rank: Ints
    kind: Ints
    start_ns: Ints
    end_ns: Ints


def _busy(report: Report, iteration: Iteration, start_ns: int, end_ns: int) -> _Busy:
    operations, busy, loose = report.operations, report.busy, report.unattributed
    shown = (busy.end_ns > start_ns) & (busy.start_ns < end_ns)
    row = busy.operation[shown]
    phase = operations.phase[row]
    own = operations.iteration[row] == iteration.index
    kind = np.where(own, phase, OTHER_ITERATION)
    # Communication is no work: where nothing else runs, it is bubble.
    works = np.isin(phase, [int(p) for p in COMPUTE])
    beside = (loose.end_ns > start_ns) & (loose.start_ns < end_ns)
    return _Busy(
        rank=np.concatenate((operations.rank[row][works], loose.rank[beside])),
        kind=np.concatenate((kind[works], np.full(int(beside.sum()), UNATTRIBUTED, np.int64))),
        start_ns=np.concatenate((busy.start_ns[shown][works], loose.start_ns[beside])),
        end_ns=np.concatenate((busy.end_ns[shown][works], loose.end_ns[beside])),
    )


def _shares(busy: _Busy, rank: int, windows: Mapping[int, tuple[int, int]], edges: Ints) -> Floats:
    """Return how much of each cell of a rank each of the kinds takes, shape (kinds, cells)."""
    own = busy.rank == rank
    start_ns, end_ns, kind = busy.start_ns[own], busy.end_ns[own], busy.kind[own]
    low, high = edges[:-1], edges[1:]

    def covered(chosen: intervals.Intervals) -> Ints:
        return intervals.measure_within(chosen, low, high)

    ran = set(kind.tolist())
    measures = {code: covered(intervals.union(start_ns, end_ns, kind == code)) for code in ran}
    occupied = intervals.union(start_ns, end_ns)
    begin, end = windows.get(rank, (edges[0], edges[0]))
    window = (np.array([begin], np.int64), np.array([max(begin, end)], np.int64))
    measures[BUBBLE] = covered(intervals.difference(window, occupied))
    measures[OUTSIDE] = high - low - covered(occupied) - measures[BUBBLE]
    nothing = np.zeros_like(low)
    table = np.stack([measures.get(code, nothing) for code in _KINDS])
    shares: Floats = table / np.maximum(high - low, 1)
    return shares


def _diffused(shares: Floats) -> Ints:
    """Return one kind for each cell, so that each row shows all kinds as long as they took.

    A cell that holds one kind shows it. Of several it shows the one that is most behind what it
    took so far in this row: where operations are shorter than cells, the largest one would hide the
    others all along.

    Args:
        shares: shape (rows, kinds, cells).
    """
    rows = np.arange(len(shares))
    behind = np.zeros(shares.shape[:2])
    kinds = np.zeros((len(shares), shares.shape[2]), np.int64)
    for cell in range(shares.shape[2]):
        share = shares[:, :, cell]
        behind += share
        most = np.where(share > 0, behind, -np.inf).argmax(axis=1)
        behind[rows, most] -= 1
        np.clip(behind, -1, 1, out=behind)
        kinds[:, cell] = most
    codes: Ints = np.array(_KINDS, np.int64)[kinds]
    return codes


def phases_shown(cells: TimelineCells) -> tuple[int, ...]:
    """Return the kinds that any cell holds, ascending: phases first."""
    kinds = {kind for row in cells.rows for kind in row.kinds.tolist()}
    return tuple(sorted(kinds - {OUTSIDE}))


def kind_label(kind: int) -> str:
    """Return what a legend calls a kind."""
    called = {OTHER_ITERATION: "other iteration", UNATTRIBUTED: "unattributed", BUBBLE: "bubble"}
    return called.get(kind) or Phase(kind).label
