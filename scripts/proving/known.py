"""Write every known schedule as bubbleviz does, load it into PyTorch's runtime, and train.

    python -m scripts.proving.known

Prints the largest difference of a gradient to that of the model in one piece.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import groupby
from pathlib import Path

from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.plan import Plan
from scripts.proving.jobs import Job
from scripts.proving.predicting import bubbleviz
from scripts.proving.training import Order, Ranks

_RANKS, _MICROBATCHES = 4, 8
_EQUAL = 1e-12


def main() -> int:
    """Train under every schedule that has one direction; fail where a gradient differs."""
    plans = [
        schedule.plan(_RANKS, _MICROBATCHES, schedule.chunks)
        for schedule in schedules()
        if schedule.replicas == 1
    ]
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for placement, each in groupby(sorted(plans, key=_placement), _placement):
            with Ranks(_job(placement)) as ranks:
                for plan in each:
                    error = _train(plan, ranks, Path(folder))
                    print(f"{plan.name} {error:.0e}", flush=True)
                    worst = max(worst, error)
    print(f"{len(plans)} of {len(plans)} schedules ran; largest difference {worst:.0e}")
    return 0 if worst <= _EQUAL else 1


def _placement(plan: Plan) -> tuple[int, ...]:
    return plan.placement


def _job(placement: tuple[int, ...]) -> Job:
    none = (0.0,) * len(placement)
    return Job("known", placement, _MICROBATCHES, none, none, none)


def _train(plan: Plan, ranks: Ranks, folder: Path) -> float:
    """Return the error of gradients under the order that bubbleviz writes."""
    order = folder / f"{plan.name}.csv"
    sizes = ("-p", _RANKS, "-m", _MICROBATCHES, "--tf", 1, "--tb", 1, "--tw", 1)
    bubbleviz("simulate", "--schedule", plan.name, *sizes, "--csv", order)
    return ranks.run(Order(str(order), "compute_only", iterations=1)).gradient_error


if __name__ == "__main__":
    sys.exit(main())
