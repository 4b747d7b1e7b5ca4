"""Plant jobs of several hosts whose clocks are wrong, and count how their reports come out."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from tests.planting.options import Planting
from tests.support.host_clocks import grid, outcome_of

KINDS: dict[str, Callable[[Planting], bool]] = {
    "all": lambda planting: planting.servers > 0,
    "jitter 0": lambda planting: planting.jitter == 0,
    "jitter up to 0.2 %": lambda planting: 0 < planting.jitter <= 0.002,
    "jitter 2 to 10 %": lambda planting: planting.jitter > 0.01,
    "a step": lambda planting: any(planting.step_ns),
    "replicas": lambda planting: planting.replicas > 1,
}


def main() -> None:
    """Print how the jobs of the grid come out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="jobs to plant")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn from")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of some of them")
    parser.add_argument("-v", action="store_true", help="print every job, not only wrong ones")
    arguments = parser.parse_args()
    jobs = list(grid(arguments.count, arguments.seed))
    if arguments.only:
        jobs = [job for job in jobs if job.planting.seed in arguments.only]
    with ProcessPoolExecutor() as pool:
        outcomes = list(pool.map(outcome_of, jobs))
    for job, outcome in zip(jobs, outcomes, strict=True):
        if outcome.kind == "wrong" or arguments.v:
            print(f"{outcome.kind}: {outcome.reason}: {job.name}")
    for title, chosen in KINDS.items():
        kinds = Counter(o.kind for j, o in zip(jobs, outcomes, strict=True) if chosen(j.planting))
        print(f"{title:20} {dict(sorted(kinds.items()))}")


if __name__ == "__main__":
    main()
