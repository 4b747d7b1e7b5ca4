"""Ranks: busy time by phase and bubble of each, in one iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bubbleviz.model.texts import one_line
from bubbleviz.render.text.cells import (
    MOST_ROWS,
    in_percent,
    milliseconds,
    ruled,
    shortened,
    titled,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from bubbleviz.count.iterations import Iteration, RankIteration
    from bubbleviz.report.report import Report, View

_SHORTEST_LABEL = 12
_LONGEST_LABEL = 200
#: Columns that are shown even where they are nothing but zeros.
_ALWAYS = frozenset({"bubble", "ratio %", "told %"})
_NOTHING = frozenset({"0.000", "0.00", "-0.00", "-"})


def ranks(report: Report, view: View, iteration: Iteration, width: int) -> Iterator[RenderableType]:
    """Yield the table of ranks of an iteration, at most ``width`` wide if its numbers fit."""
    from bubbleviz.model.phases import COMPUTE
    from bubbleviz.render.rows import rows_of

    name = report.headline
    if all(name not in own.accounts for own in iteration.ranks):
        name = "schedule"
    own = {rank.rank: rank for rank in iteration.ranks}
    rows = [row for row in rows_of(report, replace(view, ranks=())) if set(row.replicas) & set(own)]
    shown = rows[:MOST_ROWS]
    phases = [p.label for p in COMPUTE]
    cells = [
        _row_cells(report, [own[rank] for rank in row.replicas if rank in own], phases, name)
        for row in shown
    ]
    kept = [
        column
        for column in cells[0]
        if column in _ALWAYS or any(row[column] not in _NOTHING for row in cells)
    ]
    # What stands beside the label, with a blank and a rule's width between columns.
    beside = sum(max(len(column), *(len(row[column]) for row in cells)) + 2 for column in kept)
    stages = ["-" if row.rank.stage is None else str(row.rank.stage) for row in shown]
    labels = _labels(report, [row.rank.index for row in shown], width - beside - len("stage") - 8)
    table = ruled("#", "stage", "rank", *kept, left=("rank",))
    for row, stage, label, values in zip(shown, stages, labels, cells, strict=True):
        copies = len(row.replicas)
        text = label if copies == 1 else f"{copies} copies"
        index = str(row.rank.index) if copies == 1 else ""
        table.add_row(index, stage, text, *(values[column] for column in kept))
    if len(rows) > MOST_ROWS:
        table.add_row("", "", f"… and {len(rows) - MOST_ROWS} more in --json")
    by = "rank" if all(len(row.replicas) == 1 for row in rows) else "stage (mean of its copies)"
    title = (
        f"Iteration {one_line(iteration.name, 60)}: busy time and bubble by {by}, ms "
        f"({name} window)"
    )
    yield from titled(title, table)


def _row_cells(
    report: Report, copies: list[RankIteration], phases: list[str], name: str
) -> dict[str, str]:
    """Return a row's cells by column, in the order of the columns: means over its ranks."""
    accounts = [account for own in copies if (account := own.accounts.get(name)) is not None]
    compute, active = (sum(getattr(own, f) for own in copies) for f in ("compute_ns", "active_ns"))
    ratios = [own.bubble_ratio.get(name) for own in copies]
    told = {own.rank for own in copies}
    coverage = [own for own in report.coverage if own.rank in told]
    gpu_ns = sum(own.gpu_ns for own in coverage)
    return {
        **{p: milliseconds(_mean([own.busy_ns[p] for own in copies])) for p in phases},
        "overlap": milliseconds(_mean([account.overlap_ns for account in accounts])),
        "unattrib.": milliseconds(_mean([account.unattributed_ns for account in accounts])),
        "bubble": milliseconds(_mean([account.bubble_ns for account in accounts])),
        "ratio %": in_percent(_mean(ratios)),
        "hollow %": in_percent(1 - active / compute if compute else None),
        "told %": in_percent(
            sum(own.attributed_gpu_ns for own in coverage) / gpu_ns if gpu_ns else None
        ),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None where any of them is not known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _labels(report: Report, ranks: list[int], width: int) -> list[str]:
    """Return the labels of ranks, without the host where all share it, else without its domain.

    They take at most ``width`` (and no less than a few letters), unless two would look alike.
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
