"""Measure what a range of bubbleviz.annotate costs while nothing records.

python -m scripts.measure_annotations
"""

from __future__ import annotations

import sys
import time
import timeit

from bubbleviz import annotate

_CALLS, _ROUNDS = 20_000, 7


def main() -> None:
    """Print the CPU time of a range in the best round."""

    def open_range() -> None:
        with annotate.phase("F", microbatch=3, chunk=0):
            pass

    rounds = timeit.repeat(open_range, timer=time.process_time, number=_CALLS, repeat=_ROUNDS)
    seconds = min(rounds) / _CALLS
    print(f"Python {sys.version.split()[0]}: {seconds * 1e6:.2f} us of CPU time per range")


if __name__ == "__main__":
    main()
