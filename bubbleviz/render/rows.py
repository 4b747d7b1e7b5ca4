"""Chooses the rows of tables and pictures: one row per rank, or one row per stage.

The tensor- and data-parallel replicas of a stage do the same work at the same time, so a row of a
picture draws only one replica. This is the replica in the pipeline with the most marked ranks, or
the first replica if no rank is marked. If the run has very many ranks, the replica with the median
bubble ratio is drawn instead. The ratio next to a row belongs to the drawn replica. Table rows
contain means over all replicas, and the table titles say so. In pictures, ranks that stand out have
additional rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from bubbleviz.explain.standouts import Standout
from bubbleviz.model.choices import ROWS, check_choice, parse_style
from bubbleviz.model.operations import Rank
from bubbleviz.report.rank_means import compute_rank_means, is_many_ranks, list_standouts
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Maximum number of ranks for which each rank gets a row. If there are more ranks, each stage gets
#: a row. The second maximum is for figures in papers, where a row is as tall as a line of text.
#: Both are ignored if the view specifies the kind of rows.
MAX_RANKS, MAX_RANKS_ON_PAPER = 64, 16
#: Maximum number of extra rows for ranks that stand out.
_MAX_STANDOUTS = 8


@dataclass(frozen=True)
class RankRow:
    """One row of a picture or table.

    Attributes:
        rank: The rank to draw.
        replicas: Indices of all ranks represented by the row, including the drawn rank.
        spread: Whether the row draws the median replica and also shows the spread of all replicas.
        reason: Reason why the rank stands out, or "" for an ordinary row.
    """

    rank: Rank
    replicas: tuple[int, ...]
    spread: bool = False
    reason: str = ""


def choose_row_kind(report: Report, view: View) -> str:
    """Return the row kind: ``rank``, ``stage`` or ``spread`` (stages with their spread).

    If the view specifies a kind, this kind is returned. Otherwise the kind depends on the number of
    selected ranks:

    - ``spread`` for very many ranks (see :func:`.is_many_ranks`);
    - ``stage`` for more than ``MAX_RANKS`` ranks, or ``MAX_RANKS_ON_PAPER`` in the style ``paper``;
    - ``rank`` for fewer ranks.

    Raises:
        UsageError: The view specifies an unknown row kind.
    """
    check_choice(view.rows, ROWS, "--rows")
    if view.rows is not None:
        return view.rows
    n_ranks = len(view.ranks or report.ranks)
    if is_many_ranks(n_ranks):
        return "spread"
    paper = parse_style(view.style)[0] == "paper"
    max_ranks = MAX_RANKS_ON_PAPER if paper else MAX_RANKS
    return "stage" if n_ranks > max_ranks else "rank"


def select_ranks(report: Report, view: View) -> list[Rank]:
    """Return the ranks whose numbers a view selects, in the order of the report.

    A view without rank numbers selects all ranks. Numbers that do not match any rank are ignored.
    """
    numbers = set(view.ranks)
    return [rank for rank in report.ranks if not numbers or rank.number in numbers]


def make_rows(report: Report, view: View, *, with_standouts: bool = False) -> tuple[RankRow, ...]:
    """Return the rows for the ranks that a view selects: one per rank, or one per stage.

    Stage rows are sorted by stage. A rank whose stage is unknown gets its own row. A stage row
    draws the first replica of the stage. If the kind of rows is ``spread``, or if there are very
    many ranks, it draws the replica with the median ratio.

    Args:
        report: The report.
        view: The selected ranks, and the kind of rows.
        with_standouts: Whether to append rows for ranks that stand out, if the kind of rows is
            ``spread``.
    """
    ranks = select_ranks(report, view)
    kind = choose_row_kind(report, view)
    if kind == "rank":
        return tuple(RankRow(rank, (rank.index,)) for rank in ranks)
    of_row: dict[tuple[str, int], list[Rank]] = {}
    for rank in ranks:
        key = ("rank", rank.index) if rank.stage is None else ("stage", rank.stage)
        of_row.setdefault(key, []).append(rank)
    # Sort the stages, because the first pipeline may lack a stage that a later pipeline has.
    stages = iter(sorted(key for key in of_row if key[0] == "stage"))
    replicas = [of_row[next(stages) if key[0] == "stage" else key] for key in of_row]
    if kind != "spread" and not is_many_ranks(len(ranks)):
        return tuple(RankRow(some[0], tuple(r.index for r in some)) for some in replicas)
    means = compute_rank_means(report)
    ratio = means.bubble_ratio.tolist()
    rows = [_make_median_row(some, ratio) for some in replicas]
    if kind == "spread" and with_standouts:
        hidden = {rank.index for rank in report.ranks} - {rank.index for rank in ranks}
        ranks_with_row = hidden | {row.rank.index for row in rows}
        rows += _make_standout_rows(report, list_standouts(report, means), ranks_with_row)
    return tuple(rows)


def draw_marked_pipeline(
    report: Report, rows: Iterable[RankRow], marked: Collection[int]
) -> tuple[RankRow, ...]:
    """Make each row draw its replica in the pipeline that contains the most marked ranks.

    Marks point to the ranks that the advice or the list of outliers is about, so the rows must draw
    those ranks.

    - If several pipelines have the most marked ranks, the pipeline of the marked rank with the
      smallest index is chosen.
    - If several of a row's replicas are in this pipeline, marked replicas are preferred. Among
      these replicas, the one with the smallest index is drawn.
    - A row without a replica in this pipeline is unchanged.

    Args:
        report: The report.
        rows: The report's rows.
        marked: Indices of the marked ranks. If none are marked, all rows are unchanged.
    """
    if not marked:
        return tuple(rows)
    marked_in = Counter(report.ranks[rank].pipeline for rank in sorted(marked))
    ((pipeline, _),) = marked_in.most_common(1)
    changed_rows = []
    for row in rows:
        replicas = [rank for rank in row.replicas if report.ranks[rank].pipeline == pipeline]
        marked_rank = min(replicas, key=lambda rank: (rank not in marked, rank), default=None)
        changed_rows.append(
            row
            if marked_rank is None
            else replace(row, rank=report.ranks[marked_rank], spread=False)
        )
    return tuple(changed_rows)


def _make_median_row(replicas: list[Rank], ratio: list[float]) -> RankRow:
    """Return a row that draws the replica with the median of the known ratios.

    If the number of known ratios is even, the lower of the two middle ratios is used.

    Args:
        replicas: The replicas of a stage. Must not be empty.
        ratio: Bubble ratio of each rank, indexed by rank index, or NaN if unknown.
    """
    ordered = sorted(replicas, key=lambda r: (ratio[r.index] != ratio[r.index], ratio[r.index]))
    n_known = sum(ratio[rank.index] == ratio[rank.index] for rank in replicas)
    middle = ordered[max(n_known - 1, 0) // 2]
    return RankRow(middle, tuple(rank.index for rank in replicas), spread=len(replicas) > 1)


def _make_standout_rows(
    report: Report, groups: tuple[Standout, ...], ranks_with_row: set[int]
) -> Iterator[RankRow]:
    """Yield an extra row for each group of ranks that stands out.

    Each row draws the first rank in the group that does not have a row yet. Stages, and groups in
    which every rank has a row, are skipped. At most ``_MAX_STANDOUTS`` rows are yielded.

    Args:
        report: The report.
        groups: Groups of ranks that stand out, most conspicuous first.
        ranks_with_row: Indices of the ranks that already have a row or must not get one.
    """
    n_rows = 0
    for standout in groups:
        ranks = [rank for rank in standout.ranks if rank not in ranks_with_row]
        # A group that is a stage already has a row.
        if not ranks or standout.kind == "stage" or n_rows == _MAX_STANDOUTS:
            continue
        n_rows += 1
        number = report.ranks[ranks[0]].number
        name = f"rank {number}" if len(standout.ranks) == 1 else f"one of {standout.name}"
        yield RankRow(report.ranks[ranks[0]], (ranks[0],), reason=f"{name}: {standout.short}")
