"""Run bubbleviz on the shipped example, where starting is nearly all there is to do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from statistics import median

from scripts.benchmark.processes import ROOT, Cost, sampled, whole

_EXAMPLE = ROOT / "fixtures" / "1f1b"
#: What no Python program does without: the interpreter, and arrays.
_START = [sys.executable, "-c", "import numpy"]


@dataclass(frozen=True)
class ExampleOutcome:
    """What the example costs.

    Attributes:
        starts: the cost of each start of Python with numpy.
        runs: of each run of bubbleviz, in turn with these.
        peak_bytes: memory of bubbleviz.
    """

    starts: tuple[Cost, ...]
    runs: tuple[Cost, ...]
    peak_bytes: int

    @property
    def start_cpu_s(self) -> float:
        """Median processor time of a start."""
        return median(cost.cpu_s for cost in self.starts)

    @property
    def cpu_s(self) -> float:
        """Median processor time of bubbleviz."""
        return median(cost.cpu_s for cost in self.runs)

    @property
    def wall_s(self) -> float:
        """Median wall time of bubbleviz."""
        return median(cost.wall_s for cost in self.runs)


def measure_example(rounds: int) -> ExampleOutcome:
    """Run the example in turn with a bare start of Python.

    Raises:
        BenchmarkError: a command fails.
    """
    command = [sys.executable, "-m", "bubbleviz", "analyze", str(_EXAMPLE)]
    peak = sampled(command).peak_bytes
    costs = [(whole(_START), whole(command)) for _ in range(rounds)]
    starts, runs = zip(*costs, strict=True)
    return ExampleOutcome(starts, runs, peak)
