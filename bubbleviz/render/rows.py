"""Rows of tables and pictures: one row per rank, or one row per stage with all its replicas.

Tensor- and data-parallel replicas of a stage do the same work at the same time. One row of a
picture shows one of them: the replica in the pipeline that the first advice is about, otherwise the
first replica, or the replica with the median ratio if the run has very many ranks. The ratio next
to the row is the ratio of the drawn rank. Rows of tables contain means over the replicas, and their
titles say so. In pictures, ranks that stand out have separate rows.
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

#: Maximum number of ranks with separate rows, unless the view sets the rows; and the maximum in a
#: figure for a paper, where each row needs the height of a line of text.
MAX_RANKS, MAX_RANKS_ON_PAPER = 64, 16
#: Maximum number of rows for ranks that stand out.
_MOST_STANDOUTS = 8


@dataclass(frozen=True)
class RankRow:
    """One row of a picture or table.

    Attributes:
        rank: The rank that is drawn.
        replicas: Indices of all ranks that the row stands for, including the drawn one.
        spread: Whether the rank is the median of its replicas, whose spread is shown.
        reason: Reason why the rank stands out, or "" for an ordinary row.
    """

    rank: Rank
    replicas: tuple[int, ...]
    spread: bool = False
    reason: str = ""


def choose_row_kind(report: Report, view: View) -> str:
    """Return what a row stands for, one of ``ROWS``.

    The choice of the view wins. Otherwise rows are ``spread`` for very many ranks, ``stage`` for
    more than ``MAX_RANKS`` ranks (``MAX_RANKS_ON_PAPER`` in the style ``paper``), else ``rank``.

    Raises:
        UsageError: The view asks for rows of an unknown kind.
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
    """Return the ranks that a view selects by number, or all ranks, in pipeline order."""
    numbers = set(view.ranks)
    return [rank for rank in report.ranks if not numbers or rank.number in numbers]


def make_rows(report: Report, view: View, *, with_standouts: bool = False) -> tuple[RankRow, ...]:
    """Return the rows of the ranks of a view. A rank of unknown stage has a separate row.

    A row of a stage draws its first replica, or the replica with the median ratio if the kind of
    rows is ``spread`` or there are very many ranks.

    Args:
        report: Any report.
        view: The ranks, and what a row stands for.
        with_standouts: Whether rows for ranks that stand out follow if the spread is shown.
    """
    ranks = select_ranks(report, view)
    kind = choose_row_kind(report, view)
    if kind == "rank":
        return tuple(RankRow(rank, (rank.index,)) for rank in ranks)
    of_row: dict[tuple[str, int], list[Rank]] = {}
    for rank in ranks:
        key = ("rank", rank.index) if rank.stage is None else ("stage", rank.stage)
        of_row.setdefault(key, []).append(rank)
    # The first pipeline may lack a stage.
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


def draw_advised_pipeline(
    report: Report, rows: Iterable[RankRow], marked: Collection[int]
) -> tuple[RankRow, ...]:
    """Change rows to draw the replicas in the pipeline with the most marked ranks.

    Otherwise a mark next to a row could contradict the replica that is drawn. If several pipelines
    have equally many marked ranks, the pipeline of the first marked rank wins. A row without a
    replica in that pipeline is not changed.

    Args:
        report: Any report.
        rows: Rows of the report.
        marked: Indices of the marked ranks. If there are none, no row is changed.
    """
    if not marked:
        return tuple(rows)
    marked_in = Counter(report.ranks[rank].pipeline for rank in sorted(marked))
    ((pipeline, _),) = marked_in.most_common(1)
    changed_rows = []
    for row in rows:
        replicas = [rank for rank in row.replicas if report.ranks[rank].pipeline == pipeline]
        advised_rank = min(replicas, key=lambda rank: (rank not in marked, rank), default=None)
        changed_rows.append(
            row
            if advised_rank is None
            else replace(row, rank=report.ranks[advised_rank], spread=False)
        )
    return tuple(changed_rows)


def _make_median_row(replicas: list[Rank], ratio: list[float]) -> RankRow:
    """Return a row that draws the replica with the lower median of the known ratios."""
    ordered = sorted(replicas, key=lambda r: (ratio[r.index] != ratio[r.index], ratio[r.index]))
    n_known = sum(ratio[rank.index] == ratio[rank.index] for rank in replicas)
    middle = ordered[max(n_known - 1, 0) // 2]
    return RankRow(middle, tuple(rank.index for rank in replicas), spread=len(replicas) > 1)


def _make_standout_rows(
    report: Report, groups: tuple[Standout, ...], ranks_with_row: set[int]
) -> Iterator[RankRow]:
    """Yield a row for each group of ranks that stands out: its first rank without a row.

    Stages are left out, because they have a row. There are at most ``_MOST_STANDOUTS`` rows.
    """
    n_rows = 0
    for standout in groups:
        ranks = [rank for rank in standout.ranks if rank not in ranks_with_row]
        # A stage has a row already.
        if not ranks or standout.kind == "stage" or n_rows == _MOST_STANDOUTS:
            continue
        n_rows += 1
        number = report.ranks[ranks[0]].number
        name = f"rank {number}" if len(standout.ranks) == 1 else f"one of {standout.name}"
        yield RankRow(report.ranks[ranks[0]], (ranks[0],), reason=f"{name}: {standout.short}")
