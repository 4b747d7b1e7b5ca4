"""Plant jobs of several hosts whose clocks are wrong, and count how their reports come out.

python -m scripts.measure_pairing --count 60
"""

from __future__ import annotations

import argparse
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.support.host_clocks import grid, outcome_of


def main() -> None:
    """Print how many jobs are right, unknown and wrong, and which are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="number of jobs")
    jobs = list(grid(parser.parse_args().count, 0))
    with ProcessPoolExecutor() as pool:
        outcomes = list(pool.map(outcome_of, jobs))
    for job, outcome in zip(jobs, outcomes, strict=True):
        if outcome.kind == "wrong":
            print(f"wrong: {outcome.reason}: {job.name}")
    print(dict(sorted(Counter(outcome.kind for outcome in outcomes).items())))


if __name__ == "__main__":
    main()
