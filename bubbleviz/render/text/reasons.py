"""Reasons: the part of the terminal's table that tells why ranks were idle, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import one_line
from bubbleviz.render.text.cells import in_percent, listed, milliseconds, ruled, titled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.count.count import Iteration
    from bubbleviz.report.report import Report

#: So many ranks and kinds of operations are listed.
_ROWS = 64
#: So many parts of the critical path are.
_PARTS = 5
#: What transfers are called beside operations.
_TRANSFERS = {"RECV_F": "F transfer", "RECV_B": "B transfer"}
#: What the columns of communication mean.
_COMMUNICATION = (
    "wait: a receive runs, its input is not ready on the peer; transfer: from then to its end; "
    "exposed: transfer while the rank runs nothing; overlap: share of communication kernels' time "
    "in which compute kernels run"
)


def advice(report: Report) -> Iterator[RenderableType]:
    """Yield what to do first, and what it would win."""
    from rich.text import Text

    from bubbleviz.report.advice import first_thing

    sentence = first_thing(report)
    if sentence is not None:
        yield Text(f"what to do first: {one_line(sentence, 600)}")


def causes(report: Report) -> Iterator[RenderableType]:
    """Yield what the bubble of averaged iterations is made of."""
    rows = cause_cells(report)
    if not rows:
        return
    table = ruled(*rows[0], left=("cause", "meaning"))
    for row in rows:
        table.add_row(*row.values())
    yield from titled(causes_title(report), table)


def causes_title(report: Report) -> str:
    """Return what stands above the causes."""
    return (
        f"What the bubble is made of ({report.bubbles.ratio} window), mean of ranks and averaged "
        "iterations"
    )


def cause_cells(report: Report) -> list[dict[str, str]]:
    """Return a row of cells by column for each cause and all of them; none without a bubble."""
    import numpy as np

    from bubbleviz.explain.idle import MEANINGS, Cause

    name = report.bubbles.ratio
    shown = [i for i in report.iterations if i.averaged and i.ratios[name].value is not None]
    if not shown:
        return []
    number = np.array([i.index for i in shown], np.int64)
    idle = report.explanation.causes.of_iterations(name, number)
    total = sum(idle.values())
    spans = [own.accounts[name].window_ns for i in shown for own in i.ranks if name in own.accounts]
    if total == 0 or not spans:
        return []
    found = [(c.label, idle[c.label], MEANINGS[c]) for c in Cause if idle[c.label]]
    return [
        {
            "cause": label,
            "% of window": in_percent(own / sum(spans)),
            "% of bubble": in_percent(own / total),
            "ms": milliseconds(own / len(spans)),
            "meaning": meaning,
        }
        for label, own, meaning in (*found, ("all", total, ""))
    ]


def reasons(report: Report, iteration: Iteration) -> Iterator[RenderableType]:
    """Yield why each rank was idle in an iteration, and the longest gaps."""
    from rich.text import Text

    from bubbleviz.report.advice import longest_bubbles

    yield from _by_rank(report, iteration)
    yield from _communication(report, iteration)
    bubbles = longest_bubbles(report)
    if bubbles:
        yield Text("\nLongest idle intervals (all of them: --bubbles FILE)", style="bold")
        yield listed(one_line(bubble.sentence, 400) for bubble in bubbles)


def _by_rank(report: Report, iteration: Iteration) -> Iterator[RenderableType]:
    from bubbleviz.explain.idle import Cause

    name = report.bubbles.ratio
    idle = {
        own.rank: report.explanation.causes.of_rank(name, iteration.index, own.rank)
        for own in iteration.ranks
    }
    kept = [c.label for c in Cause if any(causes[c.label] for causes in idle.values())]
    if not kept:
        return
    table = ruled("#", "stage", *kept)
    for rank, own in list(idle.items())[:_ROWS]:
        stage = report.ranks[rank].stage
        cells = (milliseconds(own[cause]) for cause in kept)
        table.add_row(str(rank), "-" if stage is None else str(stage), *cells)
    if len(idle) > _ROWS:
        table.add_row("", f"… {len(idle) - _ROWS} more")
    title = f"Iteration {one_line(iteration.name, 60)}: idle time by cause, ms ({name} window)"
    yield from titled(title, table)


def _communication(report: Report, iteration: Iteration) -> Iterator[RenderableType]:
    from rich.text import Text

    own = report.explanation.communication
    ranks = [entry.rank for entry in iteration.ranks]
    at = iteration.index
    if not own.communication_ns[at, ranks].any() and not own.wait_ns[at, ranks].any():
        return
    columns = ("wait", "transfer", "exposed", "kernels", "overlap %")
    table = ruled("#", "stage", *columns)
    for rank in ranks[:_ROWS]:
        stage, whole = report.ranks[rank].stage, int(own.communication_ns[at, rank])
        table.add_row(
            str(rank),
            "-" if stage is None else str(stage),
            *(
                milliseconds(int(column[at, rank]))
                for column in (own.wait_ns, own.transfer_ns, own.exposed_ns, own.communication_ns)
            ),
            in_percent(int(own.overlapped_ns[at, rank]) / whole if whole else None),
        )
    if len(ranks) > _ROWS:
        table.add_row("", f"… {len(ranks) - _ROWS} more")
    yield from titled(f"Iteration {one_line(iteration.name, 60)}: communication, ms", table)
    yield Text(_COMMUNICATION)


def times(report: Report) -> Iterator[RenderableType]:
    """Yield how long operations take, what bounds an iteration, and what could be won."""
    yield from _phase_times(report)
    yield from _path(report)
    yield from _what_if(report)
    yield from _alternatives(report)


def _phase_times(report: Report) -> Iterator[RenderableType]:
    from rich.text import Text

    from bubbleviz.report.advice import operation_label, rank_label

    own = report.explanation.phase_times
    if not own.kinds:
        return
    columns = ("median", "std", "min", "max", "first", "last", "n")
    table = ruled("stage", "chunk", "phase", *columns, left=("phase",))
    for kind in own.kinds[:_ROWS]:
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
    if len(own.kinds) > _ROWS:
        table.add_row("", "", f"… {len(own.kinds) - _ROWS} more")
    title = "Busy time of operations and transfers, ms (first, last: those microbatches' medians)"
    yield from titled(title, table)
    lines = [f"slowest stage against the mean: {_imbalance(report)}"] if own.imbalance else []
    if own.transfer_ns is not None:
        lines.append(f"a transfer takes {milliseconds(own.transfer_ns)} ms (median)")
    lines.extend(
        f"straggler: {operation_label(report, s.operation)} of "
        f"{rank_label(report, int(report.operations.rank[s.operation]))} in iteration "
        f"{report.iterations[int(report.operations.iteration[s.operation])].name} took "
        f"{s.times:.2f} times the median of its kind"
        for s in own.stragglers[:_PARTS]
    )
    yield listed(one_line(line, 300) for line in lines) if lines else Text("")


def _imbalance(report: Report) -> str:
    pairs = report.explanation.phase_times.imbalance
    return ", ".join(f"{phase} +{100 * share:.1f} %" for phase, share in pairs)


def _path(report: Report) -> Iterator[RenderableType]:
    import numpy as np
    from rich.text import Text

    from bubbleviz.report.advice import rank_label

    path = report.explanation.path
    if path is None or len(path.operations) == 0:
        return
    name = one_line(report.iterations[path.iteration].name, 60)
    yield Text(
        f"\nCritical path of iteration {name}: {milliseconds(path.length_ns)} ms, "
        f"{len(path.operations)} operations",
        style="bold",
    )
    lines = [
        f"{milliseconds(part.time_ns)} ms: {part.what} on "
        f"{one_line(rank_label(report, part.rank), 60)} ({part.count})"
        for part in path.parts[:_PARTS]
    ]
    spare = np.sort(path.slack_ns[path.slack_ns > 0])
    if len(spare):
        lines.append(
            f"{len(spare):,} other operations could end later without a longer iteration: by "
            f"{milliseconds(float(np.median(spare)))} ms (median), the least by "
            f"{milliseconds(int(spare[0]))} ms"
        )
    yield listed(lines)


def _what_if(report: Report) -> Iterator[RenderableType]:
    changes = report.explanation.what_if
    if not changes:
        return
    table = ruled("what if", "iteration ms", "won %", "schedule %", left=("what if",))
    whole = changes[0].makespan_ns
    for change in changes:
        table.add_row(
            change.change,
            milliseconds(change.makespan_ns),
            in_percent(1 - change.makespan_ns / whole if whole else None),
            in_percent(change.bubble_ratio),
        )
    yield from titled("What the typical iteration would be, all else as measured", table)


def _alternatives(report: Report) -> Iterator[RenderableType]:
    from rich.text import Text

    from bubbleviz.render.text.cells import shortened

    others = report.alternatives
    if others is None:
        return
    if others.measured is None:
        yield Text(f"\nOther schedules cannot be compared: {one_line(others.reason, 300)}")
        return
    columns = ("iteration ms", "won %", "schedule %", "activations", "as much memory")
    table = ruled("order", *columns, left=("order", "as much memory"))
    called = {"measured": "as measured", "no-delay": "the same order, without any delay"}
    ran = report.schedule.name if report.schedule is not None else None
    for row in others.rows:
        name = called.get(row.name, row.name) + (" (this one)" if row.name == ran else "")
        if row.makespan_ms is None:
            table.add_row(name, "-", "-", "-", "-", shortened(one_line(row.reason, 200), 40))
            continue
        table.add_row(
            name,
            f"{row.makespan_ms:,.3f}",
            in_percent(row.won),
            in_percent(row.bubble_ratio),
            "-" if row.peak_activations is None else f"{row.peak_activations:.2f}",
            "yes" if row.fits else "no, more",
        )
    yield from titled("Other schedules at the measured times, without any delay", table)
    own = others.measured
    yield Text(
        f"Times of {own.stages} stages and {own.microbatches} microbatches are medians; "
        f"a transfer takes {own.times.transfer_ms:,.3f} ms; activations: the most microbatches "
        "that a stage holds, each from F to W; as much memory: no more of them than as measured, "
        "and the weights once. Searched orders are those of the shortest iteration."
        + (
            ""
            if own.split
            else " The backward was measured as one: half of it is taken for the weights."
        )
    )
