"""Write every known schedule with bubbleviz, load it into PyTorch's runtime, and train with it.

    python -m scripts.proving.known

The script prints the largest gradient difference between each schedule and the undivided model.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.plan import Plan
from scripts.proving.command_line import run_bubbleviz
from scripts.proving.jobs import job_without_times
from scripts.proving.training import MAX_GRADIENT_ERROR, Order, Ranks

_RANKS, _MICROBATCHES = 4, 8


def main() -> int:
    """Train under every unidirectional schedule, and return 1 if a gradient is wrong."""
    plans = [
        schedule.plan(_RANKS, _MICROBATCHES, schedule.chunks)
        for schedule in schedules()
        if schedule.replicas == 1
    ]
    placement_of = attrgetter("placement")
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for placement, group in groupby(sorted(plans, key=placement_of), placement_of):
            with Ranks(job_without_times(placement, _MICROBATCHES)) as ranks:
                for plan in group:
                    errors.append(_train(plan, ranks, Path(folder)))
                    print(f"{plan.name} {errors[-1]:.0e}", flush=True)
    print(f"{len(errors)} of {len(plans)} schedules ran; largest difference {max(errors):.0e}")
    return int(max(errors) > MAX_GRADIENT_ERROR)


def _train(plan: Plan, ranks: Ranks, folder: Path) -> float:
    """Train in the order that bubbleviz writes, and return the error of the gradients."""
    order = folder / f"{plan.name}.csv"
    sizes = ("-p", _RANKS, "-m", _MICROBATCHES, "--tf", 1, "--tb", 1, "--tw", 1)
    run_bubbleviz("simulate", "--schedule", plan.name, *sizes, "--csv", order)
    return ranks.run(Order(str(order), "compute_only", iterations=1)).gradient_error


if __name__ == "__main__":
    sys.exit(main())
