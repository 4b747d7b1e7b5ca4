"""Plant runs with replicas of unequal speed, and count in how many the stages are right.

    python -m scripts.staging_grid --runs 60

Sizes, schedules, slow ranks, pauses, jitter and hosts are drawn with a fixed seed. Stages and
pipelines of each report are compared with the planted ones.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import bubbleviz
from bubbleviz.errors import BubblevizError
from bubbleviz.report.report import Report
from tests.planting import Planting, Truth, plant

#: Stages, replicas and microbatches.
_SIZES = (
    (4, 2, 8), (2, 4, 4), (4, 4, 4), (8, 2, 8), (4, 3, 6), (8, 2, 4), (4, 2, 4), (2, 2, 6),
    (8, 4, 8), (3, 2, 12), (6, 2, 12), (1, 4, 4),
)  # fmt: skip
_SCHEDULES = ("1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v")


def draw_planting(number: int) -> Planting:
    """Return the run of a number; most runs have one fault."""
    rng = np.random.default_rng((2_026, number))

    def one(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    stages, replicas, microbatches = one(*_SIZES)
    schedule = one(*_SCHEDULES) if stages > 1 else "1f1b"
    if schedule == "interleaved-1f1b":
        microbatches = max(1, round(microbatches / stages)) * stages
    ranks = stages * replicas
    slow_rank = {"slow_rank": one(*range(ranks)), "slow_rank_factor": one(1.15, 1.5, 2.0, 2.4)}
    pause = {"pause_device": one(*range(ranks)), "pause_every": one(1, 2)}
    fault: dict[str, Any] = one(
        {},
        slow_rank,
        slow_rank,
        pause,
        {"slow_microbatch": one(*range(microbatches))},
        {"slow_pipeline": one(*range(replicas))},
        {"slow_stage": one(*range(stages))},
        {"late_stage": one(*range(stages)), "late_ns": 500_000},
        {"slow_iteration": 1},
    )
    return Planting(
        schedule=schedule,
        stages=stages,
        replicas=replicas,
        microbatches=microbatches,
        slow_factor=one(1.15, 1.5, 2.0, 2.4),
        jitter=one(0.0, 0.01, 0.03, 0.1),
        transfer_ns=one(0, 20_000, 200_000),
        servers=one(*(n for n in (1, 1, 2, 4, 8) if n <= ranks)),
        iterations=one(2, 3, 4),
        iteration_ranges=one(True, False),
        barrier=one(True, True, False),
        communication=one(True, True, True, False),
        seed=number,
        **fault,
    )


def compare(report: Report, truth: Truth) -> str:
    """Return how the stages and pipelines of a report compare with the truth."""
    planted = {(rank.host, rank.pid, rank.device_id): rank for rank in truth.ranks}
    pairs = [(rank, planted[rank.host, rank.pid, rank.device_id]) for rank in report.ranks]
    if any(rank.stage is None for rank, _ in pairs):
        return "unknown"
    if any(rank.stage != true.stage for rank, true in pairs):
        return "WRONG stages"
    if any(rank.pipeline is None for rank, _ in pairs):
        return "only stages known"
    # Pipelines may have other numbers than the planted ones.
    numbers = {(rank.pipeline, true.pipeline) for rank, true in pairs}
    return "right" if len(numbers) == truth.planting.replicas else "WRONG pipelines"


def outcome_of(number: int) -> str:
    """Return the outcome of the run of a number."""
    with tempfile.TemporaryDirectory() as folder:
        truth = plant(draw_planting(number), Path(folder))
        try:
            return compare(bubbleviz.analyze(folder), truth)
        except BubblevizError as error:
            return f"refused: {error}"


def main() -> None:
    """Print the outcomes that are wrong, and how often each outcome was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=60)
    numbers = range(parser.parse_args().runs)
    with ProcessPoolExecutor() as pool:
        outcomes = list(pool.map(outcome_of, numbers))
    for number, outcome in zip(numbers, outcomes, strict=True):
        if outcome.startswith(("WRONG", "refused")):
            print(f"{outcome}: {draw_planting(number)}")
    print(dict(Counter(outcomes).most_common()))


if __name__ == "__main__":
    main()
