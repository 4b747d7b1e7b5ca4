"""A stage whose order of operations differs from the schedule is named with its cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.model.phases import Phase
from bubbleviz.report.sentences import write_all_advice
from bubbleviz.schedules.plan import Order, Plan
from tests.support.pipeline_jobs import Job, simulate_job


@dataclass(frozen=True)
class WarmUpJob(Job):
    """A 1F1B job in which one stage has an unusual number of forwards before its first backward.

    Attributes:
        odd_stage: The stage whose number of forwards is unusual.
        n_more: Number of additional forwards of this stage, or of missing forwards if negative.
    """

    odd_stage: int = 1
    n_more: int = -1

    @property
    def plan(self) -> Plan:
        plan = super().plan
        orders = list(plan.orders)
        orders[self.odd_stage] = self._shift_warm_up(orders[self.odd_stage])
        return replace(plan, orders=tuple(orders))

    def _shift_warm_up(self, order: Order) -> Order:
        forwards = [planned for planned in order if planned.phase is Phase.F]
        backwards = [planned for planned in order if planned.phase is not Phase.F]
        n_warm_up = self.stages - self.odd_stage + self.n_more
        shifted = forwards[:n_warm_up]
        for number, backward in enumerate(backwards):
            shifted += [backward, *forwards[n_warm_up + number : n_warm_up + number + 1]]
        return tuple(shifted)


@pytest.mark.parametrize(
    ("odd_stage", "n_more", "microbatches", "iterations"),
    [(1, -1, 12, 8), (0, -1, 8, 3), (2, -1, 8, 3), (2, 1, 8, 3), (1, -1, 64, 30)],
)
def test_a_stage_that_warms_up_with_too_few_or_too_many_microbatches_is_named_with_its_cost(
    odd_stage: int, n_more: int, microbatches: int, iterations: int, tmp_path: Path
) -> None:
    base = Job(replicas=1, noise=0.002, microbatches=microbatches, iterations=iterations)
    faulty = simulate_job(WarmUpJob(**vars(base), odd_stage=odd_stage, n_more=n_more))
    saved = 1 - simulate_job(base).length_ns / faulty.length_ns
    first = write_all_advice(bubbleviz.analyze(faulty.written(tmp_path / "operations.csv")))[0]

    assert (first.kind, first.place, first.ranks) == ("order", "order-1f1b", (odd_stage,))
    assert first.saving_ratio == pytest.approx(saved, abs=0.01)
