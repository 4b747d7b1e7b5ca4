"""Times: how long operations take, and the path that bounds an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted, listed, one_line
from bubbleviz.render.document import (
    MOST_ROWS,
    Bullets,
    Heading,
    Sentence,
    Table,
    in_percent,
    milliseconds,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubbleviz.explain.critical_path import PathCollective
    from bubbleviz.render.document import Block
    from bubbleviz.report.report import Report


#: So many parts of the critical path, and stragglers, are listed.
_PARTS = 5
#: What transfers are called beside operations.
_TRANSFERS = {"RECV_F": "F transfer", "RECV_B": "B transfer"}


def phase_times(report: Report) -> Iterator[Block]:
    """Yield the busy times of operations and transfers, with imbalance and stragglers."""
    from bubbleviz.report.labels import operation_label, rank_label

    times = report.explanation.phase_times
    if not times.kinds:
        return
    rows = [
        {
            "stage": "-" if kind.stage < 0 else str(kind.stage),
            "chunk": "-" if kind.chunk < 0 else str(kind.chunk),
            "phase": _TRANSFERS.get(kind.phase.label, kind.phase.label),
            "median": milliseconds(kind.median_ns),
            "SD": milliseconds(kind.std_ns),
            "min": milliseconds(kind.min_ns),
            "max": milliseconds(kind.max_ns),
            "first": milliseconds(kind.first_ns),
            "last": milliseconds(kind.last_ns),
            "n": str(kind.n),
        }
        for kind in times.kinds[:MOST_ROWS]
    ]
    if len(times.kinds) > MOST_ROWS:
        rows.append({"phase": f"… {len(times.kinds) - MOST_ROWS} more"})
    yield Table(
        "Busy time of operations and transfers, ms (first, last: medians of those microbatches)",
        rows,
        left=("phase",),
        giving_way=("first", "last", "min", "n", "SD", "max"),
    )
    lines = []
    if times.imbalance:
        shares = (f"{phase} +{100 * share:.1f} %" for phase, share in times.imbalance)
        lines.append(f"slowest stage over the mean: {', '.join(shares)}")
    if times.transfer_ns is not None:
        lines.append(f"a transfer takes {milliseconds(times.transfer_ns)} ms (median)")
    lines.extend(
        f"straggler: {operation_label(report, s.operation)} of "
        f"{rank_label(report, int(report.operations.rank[s.operation]))} in iteration "
        f"{report.iterations[int(report.operations.iteration[s.operation])].name} took "
        f"{s.times:.2f} times the median of its kind"
        for s in times.stragglers[:_PARTS]
    )
    yield Bullets([one_line(line, 300) for line in lines]) if lines else Sentence("")
    yield from chunk_costs(report)


def chunk_costs(report: Report) -> Iterator[Block]:
    """Yield the fitted time of a chunk by its tokens, a row a stage."""
    from bubbleviz.report.report import cost_in_words

    costs = report.explanation.chunk_costs
    if not costs:
        return
    rows = [
        {
            "stage": "-" if cost.virtual_stage < 0 else str(cost.virtual_stage),
            "tokens": f"{cost.least_tokens:,}-{cost.most_tokens:,}",
            "time of a chunk": cost_in_words(cost),
            "residual ms": milliseconds(cost.residual_ns),
            "explained %": in_percent(cost.explained),
            "n": str(cost.n),
        }
        for cost in costs[:MOST_ROWS]
    ]
    yield Table(
        "Time of a chunk by its tokens: the fit with the least squares",
        rows,
        left=("time of a chunk",),
        giving_way=("n", "tokens", "explained %"),
    )


def critical_path(report: Report) -> Iterator[Block]:
    """Yield the critical path of the typical iteration."""
    import numpy as np

    from bubbleviz.report.labels import rank_label

    path = report.explanation.path
    if path is None or len(path.operations) == 0:
        return
    name = one_line(report.iterations[path.iteration].name, 60)
    yield Heading(
        f"Critical path of iteration {name}: {milliseconds(path.length_ns)} ms, "
        f"{counted(len(path.operations), 'operation')}"
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
    yield Bullets(lines)


def _passed(collective: PathCollective) -> str:
    """Return a collective with the rank that entered last, and the one that the path goes on to."""
    what, last, rank = collective.what, collective.last_rank, collective.rank
    return f"{what} (rank {last} entered last" + (f", on to rank {rank})" if rank != last else ")")


# What-if: the iteration without each delay, and other schedules at the measured times.


_MEMORY = "fits in the same memory"


def what_if(report: Report) -> Iterator[Block]:
    """Yield the length of the typical iteration without each delay."""
    changes = report.explanation.what_if
    if not changes:
        return
    whole = changes[0].makespan_ns
    rows = [
        {
            "what if": change.change,
            "iteration ms": milliseconds(change.makespan_ns),
            "speed-up %": in_percent(1 - change.makespan_ns / whole if whole else None),
            "schedule %": in_percent(change.bubble_ratio),
        }
        for change in changes
    ]
    yield Table(
        "Typical iteration without each delay, all else as measured",
        rows,
        left=("what if",),
        wrap=("what if",),
        giving_way=("schedule %",),
    )
    if report.headline == "period":
        yield Sentence(
            "The iteration as if alone: consecutive iterations overlap, so training waits for the "
            "period, which may change less"
        )


def alternatives(report: Report) -> Iterator[Block]:
    """Yield what other schedules would take, where the report has them."""
    others = report.alternatives
    if others is None:
        return
    if others.measured is None:
        yield Sentence(f"\nOther schedules cannot be compared: {one_line(others.reason, 300)}")
        return
    by_stage = others.window == "stage"
    # Most reports compare no other schedules.
    from bubbleviz.model.memory_sizes import memory_text

    in_bytes = any(row.peak_bytes is not None for row in others.rows)
    limit = others.limit_bytes
    fits = _MEMORY if limit is None else f"fits in {memory_text(limit)}"
    called = {"measured": "as measured", "no-delay": "the same order, without any delay"}
    ran = report.schedule.name if report.schedule is not None else None
    rows = []
    for row in others.rows:
        time_ms = row.cost_ms if by_stage else row.makespan_ms
        peak = "-" if row.peak_bytes is None else memory_text(row.peak_bytes)
        activations = "-" if row.peak_activations is None else f"{row.peak_activations:.2f}"
        known = time_ms is not None
        cells = {
            "stage window ms" if by_stage else "iteration ms": f"{time_ms or 0:,.3f}",
            "speed-up %": in_percent(row.speedup),
            "stage %" if by_stage else "schedule %": in_percent(row.bubble_ratio),
            "activations": activations,
            **({"peak memory": peak} if in_bytes else {}),
        }
        why = shortened(one_line(row.reason, 200), 40)
        rows.append(
            {
                "order": called.get(row.name, row.name) + (" (this one)" * (row.name == ran)),
                **(cells if known else dict.fromkeys(cells, "-")),
                fits: why if not known else "yes" if row.fits else "no",
            }
        )
    yield Table(
        "Schedules at the measured times: this run as measured, the others without any delay",
        rows,
        left=("order", fits),
        wrap=(fits,),
    )
    measured = others.measured
    if by_stage:
        yield Sentence(
            "Consecutive iterations overlap, so the longest rank's own window (stage) is compared, "
            "below which no period can be; a makespan is that of one iteration alone"
        )
    yield Sentence(
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
