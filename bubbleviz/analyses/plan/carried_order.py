"""The order that is best with its sends and receives.

On GPUs, transfers between two ranks run one after the other on a stream, so one order may lose more
time by them than another order does. Orders are searched without communication, and the best one is
chosen with it.
"""

from __future__ import annotations

from bubbleviz.errors import MismatchError
from bubbleviz.schedules import planning
from bubbleviz.schedules.communication.deadlocks import makespan_of
from bubbleviz.schedules.communication.lowering import lowered
from bubbleviz.schedules.communication.reordering import Communication, communicated
from bubbleviz.schedules.communication.transports import STREAMS
from bubbleviz.schedules.simulation import Outcome

#: Up to so many operations messages of each order are moved before orders are compared; else the
#: best few are compared as PyTorch lowers them. Larger ones keep that, unless it deadlocks.
_MOVED, _COMPARED, _LARGE = 800, 3, 5_000
#: Longer than any order.
_DEADLOCKED = 1 << 62


def carried(best: planning.BestPlan, *, queued: bool) -> tuple[Outcome, Communication]:
    """Return the best allowed order, with its communication on streams.

    Args:
        best: orders, compared without their communication.
        queued: whether they are compared with it.
    """
    workload = best.workload
    operations = sum(map(len, best.best.plan.orders))
    allowed = [each for each in best.candidates if each.allowed]
    if not queued or not best.makespan or operations > _MOVED:
        chosen = best.best
        if queued and best.makespan:
            chosen = min(allowed[:_COMPARED], key=lambda each: _usual_ns(best, each))
        usual_ns = _usual_ns(best, chosen) if operations > _LARGE else _DEADLOCKED
        if usual_ns < _DEADLOCKED:
            lines = lowered(chosen.plan)
            return chosen, (lines, usual_ns, usual_ns)
        return chosen, communicated(chosen.plan, workload, STREAMS)
    rows: list[tuple[Outcome, Communication]] = []
    for each in allowed:
        # No communication makes an order shorter.
        if all(each.makespan_ns < carried_ns for _, (_, carried_ns, _) in rows):
            rows.append((each, communicated(each.plan, workload, STREAMS)))
    return min(rows, key=lambda row: row[1][1])


def _usual_ns(best: planning.BestPlan, candidate: Outcome) -> int:
    """Return how long an order takes as PyTorch lowers it."""
    try:
        return makespan_of(lowered(candidate.plan), best.workload, STREAMS)
    except MismatchError:
        return _DEADLOCKED
