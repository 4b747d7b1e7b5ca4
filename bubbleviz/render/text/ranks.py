"""Ranks: busy time by phase and bubble of each, in one iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bubbleviz.count.rank_iterations import (
    account_column,
    accounted,
    has_account,
    indices_of,
    own_ratios,
    phase_columns,
    rank_column,
)
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.texts import one_line
from bubbleviz.render.text.cells import MOST_ROWS, in_percent, milliseconds, titled
from bubbleviz.render.text.display import shortened
from bubbleviz.render.text.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from bubbleviz.count.iterations import Iteration, RankIteration
    from bubbleviz.model.operations import RankCoverage
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View

_SHORTEST_LABEL = 12
_LONGEST_LABEL = 200
#: Columns that are shown even where they are nothing but zeros.
_ALWAYS = frozenset({"bubble", "ratio %", "attributed %"})
_NOTHING = frozenset({"0.000", "0.00", "-0.00", "-"})


def ranks(report: Report, view: View, iteration: Iteration, width: int) -> Iterator[RenderableType]:
    """Yield the table of ranks of an iteration, at most ``width`` wide if its numbers fit."""
    from bubbleviz.render.rows import rows_of
    from bubbleviz.render.text.many_ranks import spread_of_ranks, summarised
    from bubbleviz.report.rank_means import many_ranks

    name = report.headline
    if not has_account(iteration.ranks, name):
        name = "schedule"
    at_work = set(indices_of(iteration.ranks))
    coverage = {rank.rank: rank for rank in report.coverage}
    # Of very many ranks those that are asked for are all listed.
    many = many_ranks(len(report.ranks))
    listed = view if many else replace(view, ranks=())
    if many and view.ranks and view.rows is None:
        listed = replace(view, rows="rank")
    rows = [row for row in rows_of(report, listed) if any(r in at_work for r in row.replicas)]
    if not rows:
        return
    most = len(rows) if many and not summarised(report, view) else MOST_ROWS
    shown = rows[:most]
    counted = _Counted(iteration.ranks, name)
    cells = [_row_cells(coverage, counted, row.replicas) for row in shown]
    columns = [
        column
        for column in cells[0]
        if column in _ALWAYS or any(row[column] not in _NOTHING for row in cells)
    ]
    # The width of the numbers, with a blank and a rule's width between columns.
    numbers = sum(max(len(c), *(len(row[c]) for row in cells)) + 2 for c in columns)
    stages = ["-" if row.rank.stage is None else str(row.rank.stage) for row in shown]
    labels = rank_labels(
        report, [row.rank.index for row in shown], width - numbers - len("stage") - 8
    )
    table = Table("#", "stage", "rank", *columns, left=("rank",), giving_way=_giving_way(columns))
    for row, stage, label, values in zip(shown, stages, labels, cells, strict=True):
        replicas = len(row.replicas)
        text = label if replicas == 1 else f"{replicas} replicas"
        index = str(row.rank.index) if replicas == 1 else ""
        table.add_row(index, stage, text, *(values[column] for column in columns))
    if len(rows) > most:
        table.add_row("", "", f"… and {len(rows) - most} more in --json")
    by = "rank" if all(len(row.replicas) == 1 for row in rows) else "stage (mean of its replicas)"
    title = (
        f"Iteration {one_line(iteration.name, 60)}: busy time and bubble by {by}, ms "
        f"({name} window)"
    )
    yield from titled(title, table)
    if summarised(report, view):
        yield from spread_of_ranks(report)


def _giving_way(columns: Sequence[str]) -> list[str]:
    """Return the columns that go first where a terminal is narrow: phases, in the end the rank."""
    last = ["rank", "bubble", "ratio %"]
    first = ["overlap", "unattrib.", "launch-gap %", "attributed %"]
    phases = [column for column in columns if column not in {*first, *last}]
    return [*(c for c in first if c in columns), *reversed(phases), "stage", *last[:2], last[2]]


class _Counted:
    """What is counted of the ranks of an iteration, by their places in its columns."""

    def __init__(self, ranks: Sequence[RankIteration], name: str) -> None:
        self.place = {rank: place for place, rank in enumerate(indices_of(ranks))}
        self.phase_ns = phase_columns(ranks)
        self.compute_ns, self.active_ns = (
            rank_column(ranks, column) for column in ("compute_ns", "active_ns")
        )
        self.accounted = accounted(ranks, name)
        self.account_ns = {
            column: account_column(ranks, name, column)
            for column in ("overlap_ns", "unattributed_ns", "bubble_ns")
        }
        self.ratio = own_ratios(ranks, name)


def _row_cells(
    known: Mapping[int, RankCoverage], counted: _Counted, replicas: Sequence[int]
) -> dict[str, str]:
    """Return a row's cells by column, in the order of the columns: means over its ranks."""
    at = [counted.place[rank] for rank in replicas if rank in counted.place]
    with_account = [place for place in at if counted.accounted[place]]
    compute_ns, active_ns = int(counted.compute_ns[at].sum()), int(counted.active_ns[at].sum())
    coverage = [known[rank] for rank in replicas if rank in known and rank in counted.place]
    gpu_ns = sum(rank.gpu_ns for rank in coverage)
    attributed_ns = sum(rank.attributed_gpu_ns for rank in coverage)
    return {
        **{
            phase.label: milliseconds(_mean(counted.phase_ns[at, place].tolist()))
            for place, phase in enumerate(COMPUTE)
        },
        **{
            column: milliseconds(_mean(counted.account_ns[name][with_account].tolist()))
            for column, name in (
                ("overlap", "overlap_ns"),
                ("unattrib.", "unattributed_ns"),
                ("bubble", "bubble_ns"),
            )
        },
        "ratio %": in_percent(_mean([counted.ratio[place] for place in at])),
        "launch-gap %": in_percent(1 - active_ns / compute_ns if compute_ns else None),
        "attributed %": in_percent(attributed_ns / gpu_ns if gpu_ns else None),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None where any value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def rank_labels(report: Report, ranks: list[int], width: int) -> list[str]:
    """Return the labels of ranks, without the host where all share it, else without its domain.

    They are at most ``width`` wide, or a few letters, unless two would look alike.
    """
    hosts = {rank.host for rank in report.ranks}
    short = {host: host.split(".")[0] for host in hosts}
    if len(hosts) == 1:
        short = dict.fromkeys(hosts, "")
    elif len(set(short.values())) < len(hosts):
        short = {host: host for host in hosts}
    whole = []
    for rank in (report.ranks[index] for index in ranks):
        rest = rank.label.removeprefix(rank.host)
        label = f"{short[rank.host]}{rest}" if rest != rank.label else rank.label
        whole.append(one_line(label.strip() or rank.label, _LONGEST_LABEL))
    for room in range(max(width, _SHORTEST_LABEL), _LONGEST_LABEL):
        labels = [shortened(label, room) for label in whole]
        if len(set(labels)) == len(set(whole)):
            return labels
    return whole
