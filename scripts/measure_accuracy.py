"""Plant runs whose truth is known, analyse them, and print how far what is measured is from it.

``python -m scripts.measure_accuracy``: the runs are those of the tests, schedules from GPipe to
DualPipe with jitter, several hosts, threads, streams, lost calls and cut captures among them.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import bubbleviz
from tests.planting import plant
from tests.support.planted_runs import RUNS, found_rows, true_rows


@dataclass
class Compared:
    """What was compared, over all runs."""

    operations: int = 0
    equal: int = 0
    iterations: int = 0
    errors: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str) -> None:
        """Plant a run and compare its operations and ratios."""
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            truth = plant(RUNS[name], folder)
            report = bubbleviz.analyze([folder / file.path for file in truth.files])
        found, true = found_rows(report), true_rows(report, truth, truth.operations)
        self.operations += len(true)
        self.equal += sum(a == b for a, b in zip(found, true, strict=True))
        for own, planted in zip(report.iterations, truth.iterations, strict=True):
            if not own.complete:
                continue
            self.iterations += 1
            for ratio, value in planted.bubble_ratio.items():
                measured = own.ratios[ratio].value
                if measured is not None and value is not None:
                    self.errors.setdefault(ratio, []).append(abs(measured - value))


def main() -> None:
    """Print what was compared, and the largest error of each ratio."""
    compared = Compared()
    for name in RUNS:
        compared.add(name)
    print(f"{len(RUNS)} planted runs, {compared.iterations} complete iterations")
    print(
        f"operations with start, end, phase, microbatch, kernels and iteration as planted: "
        f"{compared.equal:,} of {compared.operations:,}"
    )
    for ratio, errors in compared.errors.items():
        print(f"{ratio:<9} largest error {100 * max(errors):.1e} % points, n = {len(errors)}")


if __name__ == "__main__":
    main()
