"""Long bubbles: the longest of a run, each in a sentence."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.texts import capitalised
from bubbleviz.model.values import frozen
from bubbleviz.report.labels import in_ms, operation_label, rank_label
from bubbleviz.report.late_hosts import host_state
from bubbleviz.report.report import Report

#: Causes that come with the schedule itself.
_INHERENT = (Cause.WARMUP, Cause.DRAIN, Cause.DEPENDENCY)
#: The end of a sentence on a bubble at either end of an iteration of ranks that are no pipeline.
_EDGES = {
    Cause.WARMUP: "another rank has begun the iteration",
    Cause.DRAIN: "another rank has not ended the iteration",
}


@frozen
class LongBubble:
    """One of the longest bubbles, for people.

    Attributes:
        row: of the table of bubbles.
        sentence: what happened.
    """

    row: int
    sentence: str


def longest_bubbles(report: Report, count: int = 5) -> tuple[LongBubble, ...]:
    """Return the longest bubbles of averaged iterations that the schedule does not imply.

    Where there are none, those that it implies. Of the bubbles of one rank with one cause before
    operations of one phase, only the longest is listed.
    """
    bubbles = report.bubbles
    implied, avoidable = _averaged_bubbles(report)
    rows = avoidable if len(avoidable) else implied
    # Of similar bubbles, the longest stands for all.
    after = np.append(report.operations.phase, NONE)[bubbles.after[rows]]
    alike = groups_of(bubbles.rank[rows], bubbles.cause[rows], after)
    times = np.bincount(alike.of_row, minlength=len(alike))
    shown = np.sort(alike.first)[:count]
    return tuple(
        LongBubble(int(rows[at]), _sentence(report, int(rows[at]), int(times[alike.of_row[at]])))
        for at in shown.tolist()
    )


def longest_implied(report: Report) -> LongBubble | None:
    """Return the longest bubble that the schedule implies, where one it does not is listed."""
    implied, avoidable = _averaged_bubbles(report)
    if not len(implied) or not len(avoidable):
        return None
    row = int(implied[0])
    return LongBubble(row, _sentence(report, row, 1))


def _averaged_bubbles(report: Report) -> tuple[Ints, Ints]:
    """Return the bubbles of averaged iterations, longest first: implied by the schedule or not."""
    bubbles = report.bubbles
    averaged = np.array([i.averaged for i in report.iterations] or [False])
    some = (
        np.flatnonzero(averaged[bubbles.iteration]) if averaged.any() else np.arange(len(bubbles))
    )
    length_ns = (bubbles.end_ns - bubbles.start_ns)[some]
    some = some[sorted_rows(-length_ns)]
    inherent = np.isin(bubbles.cause[some], _INHERENT)
    return some[inherent], some[~inherent]


def _sentence(report: Report, row: int, times: int) -> str:
    bubbles, cause = report.bubbles, Cause(int(report.bubbles.cause[row]))
    who = rank_label(report, int(bubbles.rank[row]))
    who = capitalised(who)
    length = in_ms(int(bubbles.end_ns[row] - bubbles.start_ns[row]))
    after, peer_operation = int(bubbles.after[row]), int(bubbles.peer_operation[row])
    upto = f" before {operation_label(report, after)}" if after != NONE else ""
    iteration = report.iterations[int(bubbles.iteration[row])].name
    idle = f"{who} is idle for {length}{upto} in iteration {iteration}: "
    similar = f" (the longest of {times:,})" if times > 1 else ""
    return idle + _reason(report, row, cause, peer_operation) + similar


def _reason(report: Report, row: int, cause: Cause, peer_operation: int) -> str:
    """Return why a rank is idle, given the operation whose result the next one takes."""
    producer = ""
    if peer_operation != NONE:
        peer = rank_label(report, int(report.operations.rank[peer_operation]))
        producer = f"{operation_label(report, peer_operation)} of {peer}"
    if report.bubbles.waits_in_collective[row]:
        return _waits_in_collective(report, row, peer_operation)
    if cause is Cause.DEPENDENCY and producer:
        return f"it waits for {producer}"
    if cause is Cause.COMMUNICATION and producer:
        return f"the result of {producer} is in transfer"
    if report.no_pipeline is not None and cause in _EDGES:
        return _EDGES[cause]
    return cause.sentence + (host_state(report, row) if cause is Cause.HOST else "")


def _waits_in_collective(report: Report, row: int, peer_operation: int) -> str:
    """Return whom a rank waits for in a collective."""
    kind = report.bubbles.kinds[int(report.bubbles.collective[row])] or "a collective"
    if peer_operation == NONE:
        return f"it waits in {kind} for the last rank to enter"
    last = rank_label(report, int(report.operations.rank[peer_operation]))
    after = operation_label(report, peer_operation)
    return f"it waits in {kind} for {last}, which enters it last, after {after}"
