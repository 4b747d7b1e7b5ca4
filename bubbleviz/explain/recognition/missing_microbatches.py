"""Absence: microbatches that no rank ran, though those with numbers before and behind them ran.

All that ran is held against the schedule with these microbatches taken out, and their operations
are told as missing::

    planned    F0 F1 F2 F3 B0 F4 B1 ...
    measured   F0 F1 F2    B0 F4 B1 ...      F3 is missing, nothing is early
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.explain.recognition import candidates
from bubbleviz.explain.recognition.candidates import Plans, Verdict
from bubbleviz.explain.recognition.order_diff import Difference
from bubbleviz.explain.recognition.orders import alone, microbatch_of
from bubbleviz.explain.recognition.pipeline_orders import Crowd
from bubbleviz.model.columns import Ints
from bubbleviz.schedules.plan import Plan, Schedule


class _Without(Plans):
    """Plans with some microbatches taken out, and the others numbered through."""

    def __init__(self, plans: Plans, absent: Ints, chunks: int) -> None:
        super().__init__()
        self._plans, self._absent, self._chunks = plans, absent, chunks

    def of(
        self, rule: Schedule, devices: int, microbatches: int, chunks: int
    ) -> tuple[tuple[Ints, ...], int] | None:
        """Return the orders of a plan of so many microbatches beside those taken out."""
        ways = self._chunks // chunks
        whole = self._plans.of(rule, devices, microbatches + ways * len(self._absent), chunks)
        if whole is None:
            return None
        kept = (order[~np.isin(microbatch_of(order), self._absent)] for order in whole[0])
        return tuple(_numbered_through(order, self._absent) for order in kept), whole[1]


def verdict(crowd: Crowd, plans: Plans) -> Verdict:
    """Return which schedule a crowd ran, with what no rank ran as missing."""
    absent = crowd.absent
    if not len(absent):
        return candidates.verdict(crowd, plans)
    orders = tuple(_numbered_through(order, absent) for order in crowd.orders)
    through = replace(crowd, orders=orders)
    found = candidates.verdict(through, _Without(plans, absent, through.chunks))
    plain = candidates.verdict(through, plans)
    number = np.setdiff1d(np.arange(through.microbatches + len(absent)), absent)
    better = plain.distance is None or (found.distance or 0.0) <= plain.distance
    if found.distance is not None and better:
        return _with_missing(found, crowd, absent, number)
    return _renumbered(plain, number)


def verdict_of_plan(crowd: Crowd, plan: Plan) -> Verdict | None:
    """Return how a crowd differs from a plan; None where it has other devices or microbatches."""
    absent = crowd.absent
    found = candidates.verdict_of_plan(crowd, plan, crowd.microbatches + len(absent))
    if found is not None or not len(absent):
        return found
    orders = tuple(_numbered_through(order, absent) for order in crowd.orders)
    through = replace(crowd, orders=orders)
    number = np.setdiff1d(np.arange(through.microbatches + len(absent)), absent)
    found = candidates.verdict_of_plan(through, plan, through.microbatches)
    return None if found is None else _renumbered(found, number)


def _numbered_through(order: Ints, absent: Ints) -> Ints:
    """Return an order whose microbatches count without those that are absent."""
    number = microbatch_of(order)
    return order - np.searchsorted(absent, number)


def _renumbered(found: Verdict, number: Ints, missing: Sequence[Ints] = ()) -> Verdict:
    """Return a verdict in the crowd's own numbers, with more that is missing.

    Args:
        found: in numbers without those that are absent.
        number: of each of them, the crowd's own.
        missing: of each of the crowd's orders, what is absent; none if not given.
    """

    def own(codes: Ints) -> Ints:
        through = microbatch_of(codes)
        known = through < len(number)
        more = np.zeros(len(codes), np.int64)
        more[known] = number[through[known]] - through[known]
        return codes + more

    return replace(
        found,
        differences=tuple(
            Difference(
                moved=own(one.moved),
                places=one.places,
                missing=np.append(own(one.missing), missing[n] if missing else ()).astype(np.int64),
                extra=own(one.extra),
                repeated=own(one.repeated),
            )
            for n, one in enumerate(found.differences)
        ),
    )


def _with_missing(found: Verdict, crowd: Crowd, absent: Ints, number: Ints) -> Verdict:
    """Return a verdict in the crowd's own numbers, with what is absent as missing."""
    missing = []
    for order in crowd.orders:
        plain = alone(order)
        kinds = np.unique(plain - microbatch_of(plain))
        missing.append((kinds[:, None] + absent).ravel())
    ran = sum(len(order) * n for order, n in zip(crowd.orders, crowd.copies, strict=True))
    gone = sum(len(own) * n for own, n in zip(missing, crowd.copies, strict=True))
    distance = ((found.distance or 0.0) * ran + gone) / (ran + gone)
    return replace(_renumbered(found, number, missing), distance=distance)
