"""Count how often reports on synthetic runs infer the right clocks, or stages and pipelines.

    python -m scripts.score_inference clocks
    python -m scripts.score_inference stages

``clocks`` simulates runs of several hosts with wrong clocks. The hosts' captures may contain
different iterations. ``stages`` simulates runs with slow ranks and replicas. All properties are
drawn with a fixed seed. The script prints each wrong result, and the number of right, unknown and
wrong results.
"""

from __future__ import annotations

import argparse
import sys
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
from tests.support import host_clocks

#: (stages, replicas, microbatches) of the runs.
_SIZES = (
    (4, 2, 8), (2, 4, 4), (4, 4, 4), (8, 2, 8), (4, 3, 6), (8, 2, 4), (4, 2, 4), (2, 2, 6),
    (8, 4, 8), (3, 2, 12), (6, 2, 12), (1, 4, 4),
)  # fmt: skip
_SCHEDULES = ("1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v")


def draw_planting(number: int) -> Planting:
    """Draw the properties of a run for ``stages``. Most runs have a single fault."""
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


def compare_stages(report: Report, truth: Truth) -> str:
    """Compare the stages and pipelines in a report with the true ones."""
    true_ranks = {(rank.host, rank.pid, rank.device_id): rank for rank in truth.ranks}
    pairs = [(rank, true_ranks[rank.host, rank.pid, rank.device_id]) for rank in report.ranks]
    if any(rank.stage is None for rank, _ in pairs):
        return "unknown"
    if any(rank.stage != true.stage for rank, true in pairs):
        return "wrong: stages"
    if any(rank.pipeline is None for rank, _ in pairs):
        return "only stages known"
    # Pipelines may be numbered differently.
    numbers = {(rank.pipeline, true.pipeline) for rank, true in pairs}
    return "right" if len(numbers) == truth.planting.replicas else "wrong: pipelines"


def score_stages(number: int) -> str:
    """Simulate and analyze one run of ``stages``, and return the result."""
    with tempfile.TemporaryDirectory() as folder:
        truth = plant(draw_planting(number), Path(folder))
        try:
            return compare_stages(bubbleviz.analyze(folder), truth)
        except BubblevizError as error:
            return f"wrong: refused, {error}"


def score_clocks(job: host_clocks.Job) -> str:
    """Simulate and analyze one run of ``clocks``, and return the result."""
    outcome = host_clocks.find_outcome(job)
    return f"wrong: {outcome.reason}" if outcome.kind == "wrong" else outcome.kind


def main() -> int:
    """Print the results, and return 1 if any result is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("subject", choices=("clocks", "stages"))
    parser.add_argument("--runs", type=int, default=60, help="number of runs (default: 60)")
    options = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        if options.subject == "clocks":
            jobs = list(host_clocks.generate_jobs(options.runs, 0))
            names = [job.name for job in jobs]
            results = list(pool.map(score_clocks, jobs))
        else:
            names = [str(draw_planting(number)) for number in range(options.runs)]
            results = list(pool.map(score_stages, range(options.runs)))
    wrong = [
        f"{result}: {name}"
        for name, result in zip(names, results, strict=True)
        if result.startswith("wrong")
    ]
    print(*wrong, dict(Counter(results).most_common()), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
