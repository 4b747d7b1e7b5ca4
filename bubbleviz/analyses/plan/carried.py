"""Carried plans: the order that is best with its sends and receives.

On GPUs transfers between two ranks run one after the other on a stream, so that one order may lose
more by them than another. Orders are searched without that, and chosen with it.
"""

from __future__ import annotations

from bubbleviz.errors import MismatchError
from bubbleviz.schedules.communication.lowering import lowered
from bubbleviz.schedules.communication.reordering import Communication, communicated
from bubbleviz.schedules.communication.timing import timing_of
from bubbleviz.schedules.communication.transports import STREAMS
from bubbleviz.schedules.planning import BestPlan, Candidate

#: Up to so many operations messages of each order are moved before orders are compared; else the
#: best few are compared as PyTorch lowers them. Larger ones keep that, unless it deadlocks.
_MOVED, _COMPARED, _LARGE = 800, 3, 5_000
#: Longer than any order.
_DEADLOCKED = 1 << 62


def carried(best: BestPlan, *, queued: bool) -> tuple[Candidate, Communication]:
    """Return the best allowed order, with its communication on streams.

    Args:
        best: orders, compared without their communication.
        queued: whether they are compared with it.
    """
    workload = best.workload
    operations = sum(map(len, best.best.outcome.plan.orders))
    allowed = [each for each in best.candidates if each.allowed]
    if not queued or operations > _MOVED:
        chosen = best.best
        if queued:
            chosen = min(allowed[:_COMPARED], key=lambda each: _usual_ns(best, each))
        usual_ns = _usual_ns(best, chosen) if operations > _LARGE else _DEADLOCKED
        if usual_ns < _DEADLOCKED:
            lines = lowered(chosen.outcome.plan)
            return chosen, Communication(lines, STREAMS, usual_ns, usual_ns)
        return chosen, communicated(chosen.outcome.plan, workload, STREAMS)
    rows: list[tuple[Candidate, Communication]] = []
    for each in allowed:
        # No communication makes an order shorter.
        if all(each.outcome.makespan_ns < found.makespan_ns for _, found in rows):
            rows.append((each, communicated(each.outcome.plan, workload, STREAMS)))
    return min(rows, key=lambda row: row[1].makespan_ns)


def _usual_ns(best: BestPlan, candidate: Candidate) -> int:
    """Return how long an order takes as PyTorch lowers it."""
    try:
        return timing_of(lowered(candidate.outcome.plan), best.workload, STREAMS).makespan_ns
    except MismatchError:
        return _DEADLOCKED
