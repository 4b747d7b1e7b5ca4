"""Plans: orders of known schedules by size, and those that a pipeline's orders could be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.explain.recognition.order_codes import BACKWARD, WEIGHTS, kind_of
from bubbleviz.explain.recognition.orders import planned_orders
from bubbleviz.explain.recognition.pipeline_orders import PipelineOrders
from bubbleviz.explain.recognition.plan_distance import NEAR, begins_alike
from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen
from bubbleviz.schedules.plan import Schedule

#: More operations than this take seconds to plan.
_MOST_PLANNED = 2_000_000


class Plans:
    """Orders of plans by size, each planned once."""

    def __init__(self) -> None:
        self._planned: dict[tuple[str, int, int, int], tuple[tuple[Ints, ...], int] | None] = {}

    def of(
        self, rule: Schedule, devices: int, microbatches: int, chunks: int
    ) -> tuple[tuple[Ints, ...], int] | None:
        """Return a schedule's orders and its directions; None where it allows no such size."""
        key = rule.name, devices, microbatches, chunks
        if key not in self._planned:
            try:
                plan = rule.plan(devices, microbatches, chunks)
            except UsageError:
                self._planned[key] = None
            else:
                self._planned[key] = planned_orders(plan), plan.replicas
        return self._planned[key]


@frozen
class PlanSizes:
    """Sizes to plan: chunks of a device, microbatches of each, and possible directions."""

    chunks: int
    microbatches: int
    directions: tuple[int, ...]


def plans_like(
    ran: PipelineOrders, plans: Plans, rules: Sequence[Schedule], sizes: PlanSizes
) -> Iterator[tuple[str, tuple[Ints, ...]]]:
    """Yield name and orders of the plans of these sizes that begin as a pipeline's orders do."""
    chunks, microbatches = sizes.chunks, sizes.microbatches
    if 3 * ran.devices * chunks * _shortened(microbatches, ran.devices) > _MOST_PLANNED:
        return
    split = split_share(ran.orders)
    for rule in rules:
        for directions in sizes.directions:
            if chunks % directions:
                continue
            all_microbatches, chunks_each = microbatches * directions, chunks // directions
            short = _shortened(all_microbatches, ran.devices)
            beginning = plans.of(rule, ran.devices, short, chunks_each)
            if beginning is None or beginning[1] != directions:
                continue
            planned_split = split_share(beginning[0])
            if (planned_split > 0 and split == 0) or (split > NEAR and planned_split == 0):
                continue
            if not begins_alike(ran, beginning[0], short // directions):
                continue
            if ran.devices * 3 * chunks * microbatches > _MOST_PLANNED:
                continue
            whole = plans.of(rule, ran.devices, all_microbatches, chunks_each)
            if whole is not None:
                name = rule.with_one_chunk if chunks_each == 1 else None
                yield name or rule.name, whole[0]


def _shortened(microbatches: int, devices: int) -> int:
    """Return so few microbatches that a plan of them is cheap, and begins as a longer one does.

    The difference is a multiple of two for each device, so that groups still divide it.
    """
    few = 2 * devices
    return microbatches if microbatches <= 2 * few else few + microbatches % few


def split_share(orders: Sequence[Ints]) -> float:
    """Return the number of weight gradients for each backward."""
    counts = [np.bincount(kind_of(order), minlength=3) for order in orders]
    backwards = sum(int(count[BACKWARD]) for count in counts)
    weights = sum(int(count[WEIGHTS]) for count in counts)
    return weights / max(backwards, 1)
