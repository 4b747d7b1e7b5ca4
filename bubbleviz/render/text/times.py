"""Times: how long operations take, and the path that bounds an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted, listed, one_line
from bubbleviz.render.text.cells import MOST_ROWS, milliseconds, titled
from bubbleviz.render.text.tables import BulletList, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.explain.critical_path import PathCollective
    from bubbleviz.report.report import Report

#: So many parts of the critical path, and stragglers, are listed.
_PARTS = 5
#: What transfers are called beside operations.
_TRANSFERS = {"RECV_F": "F transfer", "RECV_B": "B transfer"}


def phase_times(report: Report) -> Iterator[RenderableType]:
    """Yield the busy times of operations and transfers, with imbalance and stragglers."""
    from rich.text import Text

    from bubbleviz.report.labels import operation_label, rank_label

    times = report.explanation.phase_times
    if not times.kinds:
        return
    columns = ("median", "SD", "min", "max", "first", "last", "n")
    table = Table(
        "stage",
        "chunk",
        "phase",
        *columns,
        left=("phase",),
        giving_way=("first", "last", "min", "n", "SD", "max"),
    )
    for kind in times.kinds[:MOST_ROWS]:
        table.add_row(
            *("-" if number < 0 else str(number) for number in (kind.stage, kind.chunk)),
            _TRANSFERS.get(kind.phase.label, kind.phase.label),
            *map(
                milliseconds,
                (
                    kind.median_ns,
                    kind.std_ns,
                    kind.min_ns,
                    kind.max_ns,
                    kind.first_ns,
                    kind.last_ns,
                ),
            ),
            str(kind.n),
        )
    if len(times.kinds) > MOST_ROWS:
        table.add_row("", "", f"… {len(times.kinds) - MOST_ROWS} more")
    title = "Busy time of operations and transfers, ms (first, last: medians of those microbatches)"
    yield from titled(title, table)
    lines = [f"slowest stage over the mean: {_imbalance(report)}"] if times.imbalance else []
    if times.transfer_ns is not None:
        lines.append(f"a transfer takes {milliseconds(times.transfer_ns)} ms (median)")
    lines.extend(
        f"straggler: {operation_label(report, s.operation)} of "
        f"{rank_label(report, int(report.operations.rank[s.operation]))} in iteration "
        f"{report.iterations[int(report.operations.iteration[s.operation])].name} took "
        f"{s.times:.2f} times the median of its kind"
        for s in times.stragglers[:_PARTS]
    )
    yield BulletList(one_line(line, 300) for line in lines) if lines else Text("")
    yield from chunk_costs(report)


def chunk_costs(report: Report) -> Iterator[RenderableType]:
    """Yield the fitted time of a chunk by its tokens, a row a stage."""
    from bubbleviz.report.chunk_costs import cost_in_words

    costs = report.explanation.chunk_costs
    if not costs:
        return
    table = Table(
        "stage",
        "tokens",
        "time of a chunk",
        "residual ms",
        "explained %",
        "n",
        left=("time of a chunk",),
        giving_way=("n", "tokens", "explained %"),
    )
    for cost in costs[:MOST_ROWS]:
        table.add_row(
            "-" if cost.virtual_stage < 0 else str(cost.virtual_stage),
            f"{cost.least_tokens:,}-{cost.most_tokens:,}",
            cost_in_words(cost),
            milliseconds(cost.residual_ns),
            "-" if cost.explained is None else f"{100 * cost.explained:.2f}",
            str(cost.n),
        )
    yield from titled("Time of a chunk by its tokens: the fit with the least squares", table)


def _imbalance(report: Report) -> str:
    pairs = report.explanation.phase_times.imbalance
    return ", ".join(f"{phase} +{100 * share:.1f} %" for phase, share in pairs)


def critical_path(report: Report) -> Iterator[RenderableType]:
    """Yield the critical path of the typical iteration."""
    import numpy as np
    from rich.text import Text

    from bubbleviz.report.labels import rank_label

    path = report.explanation.path
    if path is None or len(path.operations) == 0:
        return
    name = one_line(report.iterations[path.iteration].name, 60)
    yield Text(
        f"\nCritical path of iteration {name}: {milliseconds(path.length_ns)} ms, "
        f"{counted(len(path.operations), 'operation')}",
        style="bold",
    )
    lines = [
        f"{milliseconds(part.time_ns)} ms: {part.what} on "
        f"{one_line(rank_label(report, part.rank), 60)} ({part.count})"
        for part in path.parts[:_PARTS]
    ]
    if path.collectives:
        passed = listed([_passed(collective) for collective in path.collectives], _PARTS)
        lines.append(f"it passes {passed}")
    spare = np.sort(path.slack_ns[path.slack_ns > 0])
    if len(spare):
        lines.append(
            f"{counted(len(spare), 'other operation')} can end later without a longer iteration: "
            f"by {milliseconds(float(np.median(spare)))} ms (median), by "
            f"{milliseconds(int(spare[0]))} ms at least"
        )
    yield BulletList(lines)


def _passed(collective: PathCollective) -> str:
    """Return a collective with the rank that entered last, and the one that the path goes on to."""
    what, last, rank = collective.what, collective.last_rank, collective.rank
    return f"{what} (rank {last} entered last" + (f", on to rank {rank})" if rank != last else ")")
