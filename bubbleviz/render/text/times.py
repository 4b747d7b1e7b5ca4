"""Times: how long operations take, and the path that bounds an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted, listed, one_line
from bubbleviz.render.text.tables import (
    MOST_ROWS,
    BulletList,
    Table,
    in_percent,
    milliseconds,
    shortened,
    titled,
)

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
    from bubbleviz.report.report import cost_in_words

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


# What-if: the iteration without each delay, and other schedules at the measured times.


_MEMORY = "fits in the same memory"


def what_if(report: Report) -> Iterator[RenderableType]:
    """Yield the length of the typical iteration without each delay."""
    from rich.text import Text

    changes = report.explanation.what_if
    if not changes:
        return
    table = Table(
        *("what if", "iteration ms", "speed-up %", "schedule %"),
        left=("what if",),
        wrap=("what if",),
        giving_way=("schedule %",),
    )
    whole = changes[0].makespan_ns
    for change in changes:
        table.add_row(
            change.change,
            milliseconds(change.makespan_ns),
            in_percent(1 - change.makespan_ns / whole if whole else None),
            in_percent(change.bubble_ratio),
        )
    yield from titled("Typical iteration without each delay, all else as measured", table)
    if report.headline == "period":
        yield Text(
            "The iteration as if alone: consecutive iterations overlap, so training waits for the "
            "period, which may change less"
        )


def alternatives(report: Report) -> Iterator[RenderableType]:
    """Yield what other schedules would take, where the report has them."""
    from rich.text import Text

    others = report.alternatives
    if others is None:
        return
    if others.measured is None:
        yield Text(f"\nOther schedules cannot be compared: {one_line(others.reason, 300)}")
        return
    by_stage = others.window == "stage"
    times = ("stage window ms", "stage %") if by_stage else ("iteration ms", "schedule %")
    # Most reports compare no other schedules.
    from bubbleviz.model.memory_sizes import memory_text

    in_bytes = any(row.peak_bytes is not None for row in others.rows)
    limit = others.limit_bytes
    fits = _MEMORY if limit is None else f"fits in {memory_text(limit)}"
    columns = (times[0], "speed-up %", times[1], "activations", *(["peak memory"] * in_bytes), fits)
    table = Table("order", *columns, left=("order", fits), wrap=(fits,))
    called = {"measured": "as measured", "no-delay": "the same order, without any delay"}
    ran = report.schedule.name if report.schedule is not None else None
    for row in others.rows:
        name = called.get(row.name, row.name) + (" (this one)" if row.name == ran else "")
        time_ms = row.cost_ms if by_stage else row.makespan_ms
        if time_ms is None:
            gone = ["-"] * (4 + in_bytes)
            table.add_row(name, *gone, shortened(one_line(row.reason, 200), 40))
            continue
        table.add_row(
            name,
            f"{time_ms:,.3f}",
            in_percent(row.speedup),
            in_percent(row.bubble_ratio),
            "-" if row.peak_activations is None else f"{row.peak_activations:.2f}",
            *(["-" if row.peak_bytes is None else memory_text(row.peak_bytes)] * in_bytes),
            "yes" if row.fits else "no",
        )
    yield from titled(
        "Schedules at the measured times: this run as measured, the others without any delay", table
    )
    measured = others.measured
    if by_stage:
        yield Text(
            "Consecutive iterations overlap, so the longest rank's own window (stage) is compared, "
            "below which no period can be; a makespan is that of one iteration alone"
        )
    yield Text(
        f"Times of {counted(measured.stages, 'stage')} and "
        f"{counted(measured.microbatches, 'microbatch', 'microbatches')} are medians; "
        f"a transfer takes {measured.times.transfer_ms:,.3f} ms; activations: the most "
        "microbatches that a stage holds, each from F to W; fits in the same memory: no more "
        "activations than measured, and the weights once. Searched orders are those of the "
        f"shortest {'window' if by_stage else 'iteration'}."
        + (
            ""
            if measured.split
            else " The backward was measured as one operation: half of it counts as W."
        )
    )
