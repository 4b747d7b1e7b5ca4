"""Chooses the best order of operations, taking sends and receives into account.

The search for orders ignores communication. On GPUs, the transfers between two ranks run one after
the other on a stream, which delays some orders more than others. The best order is therefore the
candidate that has the shortest makespan including communication.
"""

from __future__ import annotations

from bubbleviz.errors import MismatchError
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules import planning
from bubbleviz.schedules.communication.deadlocks import compute_makespan
from bubbleviz.schedules.communication.lowering import lower_plan
from bubbleviz.schedules.communication.reordering import Communication, order_messages
from bubbleviz.schedules.communication.transports import STREAMS
from bubbleviz.schedules.simulation import Outcome

#: Maximum number of operations in a plan for which the messages of all candidates are reordered.
_MAX_REORDERED = 800
#: For larger plans, only this many candidates are compared, using PyTorch's messages.
_N_COMPARED = 3
#: Maximum number of operations in a plan whose messages are reordered after the comparison. Larger
#: plans keep PyTorch's messages unless those messages deadlock.
_MAX_OPTIMIZED = 5_000
#: Makespan assigned to an order that deadlocks, longer than any real makespan.
_DEADLOCKED = 1 << 62


def choose_with_communication(
    best: planning.BestPlan, *, queued: bool, watch: Watch = unwatched
) -> tuple[Outcome, Communication]:
    """Choose the allowed order that has the shortest makespan when messages are simulated as well.

    Reordering messages can shorten the makespan, but takes time. The effort therefore depends on
    the number of operations in the plan:

    - Up to ``_MAX_REORDERED``, the messages of every candidate that can still win are reordered,
      and the results are compared.
    - Above ``_MAX_REORDERED``, the ``_N_COMPARED`` best candidates are compared using PyTorch's
      message order. Only the messages of the chosen order are reordered.
    - Above ``_MAX_OPTIMIZED``, even the chosen order keeps PyTorch's messages unless they deadlock.

    Args:
        best: Candidate orders, sorted by makespan without communication.
        queued: Whether transfers between two ranks run one after the other. If ``queued`` is false,
            or if orders are not compared by makespan, ``best.best`` is kept.
        watch: Callback that receives the completed fraction of the work.

    Returns:
        outcome: The chosen order.
        communication: The messages of the chosen order, and its makespan including transfers.
    """
    workload = best.workload
    n_operations = sum(map(len, best.best.plan.orders))
    allowed = [candidate for candidate in best.candidates if candidate.allowed]
    if not queued or not best.by_makespan or n_operations > _MAX_REORDERED:
        outcome = best.best
        if queued and best.by_makespan:
            outcome = min(
                allowed[:_N_COMPARED],
                key=lambda candidate: _compute_lowered_makespan(best, candidate),
            )
        if n_operations > _MAX_OPTIMIZED:
            makespan_ns = _compute_lowered_makespan(best, outcome)
            if makespan_ns < _DEADLOCKED:
                return outcome, (lower_plan(outcome.plan), makespan_ns, makespan_ns)
        return outcome, order_messages(outcome.plan, workload, STREAMS, watch)
    rows: list[tuple[Outcome, Communication]] = []
    for n_done, candidate in enumerate(allowed):
        watch(n_done / len(allowed))
        # Communication never makes an order shorter, so longer candidates need not be lowered.
        if all(candidate.makespan_ns < carried_ns for _, (_, carried_ns, _) in rows):
            rows.append((candidate, order_messages(candidate.plan, workload, STREAMS)))
    return min(rows, key=lambda row: row[1][1])


def _compute_lowered_makespan(best: planning.BestPlan, candidate: Outcome) -> int:
    """Return the makespan of an order with PyTorch's messages, or ``_DEADLOCKED`` on a deadlock."""
    try:
        return compute_makespan(lower_plan(candidate.plan), best.workload, STREAMS)
    except MismatchError:
        return _DEADLOCKED
