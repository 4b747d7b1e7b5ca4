"""Times of the operations in a benchmark profile: 1F1B, simulated iteration by iteration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.model.phases import Phase
from tests.planting.orders import one_forward_one_backward
from tests.planting.programs import Simulation, Task, make_barrier, simulate

DEVICES, MICROBATCHES = 8, 16
#: Number of operations per iteration.
#: Each device has an F and a B of every microbatch, and one Optimizer.
OPERATIONS = DEVICES * (2 * MICROBATCHES + 1)
#: Compute kernels per operation in profiles that are large enough for two iterations.
USUAL_KERNELS = 179
#: Mean time from the start of one kernel to the start of the next, in ns.
_PERIOD_NS = {Phase.F: 8_000, Phase.BW: 12_000, Phase.OPTIMIZER: 8_000}
#: Delay from the arrival of an operation's input to its start, and length of a transfer, in ns.
_DELAY_NS, _TRANSFER_NS = 20_000, 100_000
#: Time before the first iteration and between iterations, in ns.
#: Captures rarely start with training.
_FIRST_NS, _BETWEEN_NS = 60_000_000_000, 300_000
#: Maximum deviation of durations from their mean, in thousandths.
_JITTER = 50
KINDS = ("light", "deep")


@dataclass(frozen=True)
class Recipe:
    """Parameters of a profile. Equal recipes give equal bytes.

    Attributes:
        kernels: Requested number of compute kernels; the profile has the closest possible number.
        kind: ``light`` (phases, transfers, iterations) or ``deep`` (library ranges as well).
        seed: Seed of the durations.
    """

    kernels: int
    kind: str
    seed: int = 1

    @property
    def iterations(self) -> int:
        """Number of iterations, at least two."""
        return max(2, round(self.kernels / (OPERATIONS * USUAL_KERNELS)))

    @property
    def kernels_per_operation(self) -> int:
        """Number of compute kernels per operation."""
        return max(2, round(self.kernels / (OPERATIONS * self.iterations)))

    @property
    def deep(self) -> bool:
        """Whether every launch is inside two library ranges."""
        return self.kind == "deep"


@dataclass(frozen=True)
class Timetable:
    """All iterations of a profile.

    Attributes:
        recipe: Parameters of the profile.
        iterations: One simulation per iteration, each starting at time 0.
        starts_ns: Start of each iteration on the profile's clock.
    """

    recipe: Recipe
    iterations: tuple[Simulation, ...]
    starts_ns: tuple[int, ...]

    @property
    def bubble_ratio(self) -> float:
        """Mean bubble ratio over the iterations.

        The window of an iteration lasts from the first start to the last end, without Optimizers.
        """
        ratios = []
        for iteration in self.iterations:
            work = iteration.take(iteration.phase != Phase.OPTIMIZER)
            window_ns = int(work.end_ns.max() - work.start_ns.min())
            ratios.append(1 - int((work.end_ns - work.start_ns).sum()) / (DEVICES * window_ns))
        return float(np.mean(ratios))

    @property
    def operations(self) -> int:
        """Number of operations, including Optimizers."""
        return sum(len(iteration) for iteration in self.iterations)


def simulate_timetable(recipe: Recipe) -> Timetable:
    """Simulate the iterations of a recipe, each starting at time 0.

    Every device finishes its work in an iteration before any device starts its optimizer.
    """
    plan = one_forward_one_backward(DEVICES, MICROBATCHES)
    iterations, starts, start_ns = [], [], _FIRST_NS
    for number in range(recipe.iterations):
        iteration = simulate(
            [plan],
            _Durations(recipe, number),
            optimizer=True,
            transfer_ns=_TRANSFER_NS,
            gate=make_barrier(DEVICES),
            delay=lambda _: _DELAY_NS,
        )
        iterations.append(iteration)
        starts.append(start_ns)
        start_ns += int(iteration.end_ns.max()) + _BETWEEN_NS
    return Timetable(recipe, tuple(iterations), tuple(starts))


class _Durations:
    """Durations of the operations of one iteration, in nanoseconds."""

    def __init__(self, recipe: Recipe, iteration: int) -> None:
        self.kernels = recipe.kernels_per_operation
        random = np.random.default_rng([recipe.seed, iteration])
        shape = (DEVICES, max(Phase) + 1, MICROBATCHES)
        self.thousandths = 1_000 + random.integers(-_JITTER, _JITTER + 1, shape)

    def __call__(self, task: Task) -> int:
        """Return the duration of one operation."""
        operation = task.operation
        jitter = self.thousandths[operation.virtual_stage, operation.phase, operation.microbatch]
        return self.kernels * _PERIOD_NS[operation.phase] * int(jitter) // 1_000
