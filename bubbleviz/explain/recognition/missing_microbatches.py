"""Missing microbatches: those that no rank ran, though earlier and later ones ran.

The orders are compared with the schedule without these microbatches, whose operations count as
missing::

    planned    F0 F1 F2 F3 B0 F4 B1 ...
    measured   F0 F1 F2    B0 F4 B1 ...      F3 is missing, nothing is early
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.explain.recognition import candidates
from bubbleviz.explain.recognition.candidates import Verdict
from bubbleviz.explain.recognition.order_codes import in_microbatch_order, microbatch_of
from bubbleviz.explain.recognition.order_diff import OrderDifference
from bubbleviz.explain.recognition.pipeline_orders import PipelineOrders
from bubbleviz.explain.recognition.plans import Plans
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct, without
from bubbleviz.schedules.plan import Plan, Schedule


class _PlansWithout(Plans):
    """Plans without some microbatches, the others renumbered."""

    def __init__(self, plans: Plans, missing: Ints, chunks: int) -> None:
        super().__init__()
        self._plans, self._missing, self._chunks = plans, missing, chunks

    def of(
        self, rule: Schedule, devices: int, microbatches: int, chunks: int
    ) -> tuple[tuple[Ints, ...], int] | None:
        """Return the orders of a plan of so many microbatches beside the missing ones."""
        directions = self._chunks // chunks
        all_microbatches = microbatches + directions * len(self._missing)
        whole = self._plans.of(rule, devices, all_microbatches, chunks)
        if whole is None:
            return None
        rest = (order[~np.isin(microbatch_of(order), self._missing)] for order in whole[0])
        return tuple(_closed_up(order, self._missing) for order in rest), whole[1]


def verdict(ran: PipelineOrders, plans: Plans) -> Verdict:
    """Return which schedule a pipeline's orders are, with microbatches that no rank ran missing."""
    missing = ran.missing_microbatches
    if not len(missing):
        return candidates.verdict(ran, plans)
    closed_up = replace(ran, orders=tuple(_closed_up(order, missing) for order in ran.orders))
    with_missing = candidates.verdict(closed_up, _PlansWithout(plans, missing, closed_up.chunks))
    plain = candidates.verdict(closed_up, plans)
    numbers = without(np.arange(closed_up.microbatches + len(missing)), missing)
    better = plain.distance is None or (with_missing.distance or 0.0) <= plain.distance
    if with_missing.distance is not None and better:
        return _with_missing(with_missing, ran, missing, numbers)
    return _renumbered(plain, numbers)


def verdict_of_plan(ran: PipelineOrders, plan: Plan) -> Verdict | None:
    """Return how a pipeline's orders differ from a plan; None for a plan of other sizes."""
    missing = ran.missing_microbatches
    result = candidates.verdict_of_plan(ran, plan, ran.microbatches + len(missing))
    if result is not None or not len(missing):
        return result
    closed_up = replace(ran, orders=tuple(_closed_up(order, missing) for order in ran.orders))
    numbers = without(np.arange(closed_up.microbatches + len(missing)), missing)
    result = candidates.verdict_of_plan(closed_up, plan, closed_up.microbatches)
    return None if result is None else _renumbered(result, numbers)


def _closed_up(order: Ints, missing: Ints) -> Ints:
    """Return an order whose microbatches are renumbered without the missing ones."""
    return order - np.searchsorted(missing, microbatch_of(order))


def _renumbered(result: Verdict, numbers: Ints, missing: Sequence[Ints] = ()) -> Verdict:
    """Return a verdict in the pipeline's own numbers, with more operations missing.

    Args:
        result: in numbers without the missing microbatches.
        numbers: of each of these, the pipeline's own.
        missing: of each order, codes of missing operations; empty for none at all.
    """

    def renumber(codes: Ints) -> Ints:
        microbatch = microbatch_of(codes)
        known = microbatch < len(numbers)
        ahead = np.zeros(len(codes), np.int64)
        ahead[known] = numbers[microbatch[known]] - microbatch[known]
        return codes + ahead

    return replace(
        result,
        differences=tuple(
            OrderDifference(
                moved=renumber(diff.moved),
                places=diff.places,
                missing=np.append(renumber(diff.missing), missing[n] if missing else ()).astype(
                    np.int64
                ),
                extra=renumber(diff.extra),
                repeated=renumber(diff.repeated),
            )
            for n, diff in enumerate(result.differences)
        ),
    )


def _with_missing(result: Verdict, ran: PipelineOrders, absent: Ints, numbers: Ints) -> Verdict:
    """Return a verdict in the pipeline's own numbers, with absent microbatches as missing."""
    missing = []
    for order in ran.orders:
        plain = in_microbatch_order(order)
        kinds = distinct(plain - microbatch_of(plain))
        missing.append((kinds[:, None] + absent).ravel())
    done = sum(len(order) * n for order, n in zip(ran.orders, ran.replicas, strict=True))
    lost = sum(len(codes) * n for codes, n in zip(missing, ran.replicas, strict=True))
    distance = ((result.distance or 0.0) * done + lost) / (done + lost)
    return replace(_renumbered(result, numbers, missing), distance=distance)
