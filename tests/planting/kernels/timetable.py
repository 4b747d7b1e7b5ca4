"""When each operation of a benchmark profile runs: 1F1B, simulated one iteration at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.model.phases import Phase
from tests.planting.orders import one_forward_one_backward
from tests.planting.programs import Simulation, Task, all_done, simulate

DEVICES, MICROBATCHES = 8, 16
#: F and B of every microbatch, and one Optimizer, on every device.
OPERATIONS = DEVICES * (2 * MICROBATCHES + 1)
#: Compute kernels of an operation in a profile large enough for two iterations of them.
USUAL_KERNELS = 179
#: Mean time from one kernel to the next, in nanoseconds.
_PERIOD_NS = {Phase.F: 8_000, Phase.BW: 12_000, Phase.OPTIMIZER: 8_000}
#: How long after its input an operation starts (the host posts transfers), and the transfer.
_DELAY_NS, _TRANSFER_NS = 20_000, 100_000
#: Before the first iteration (a capture seldom begins with the training), and between two.
_FIRST_NS, _BETWEEN_NS = 60_000_000_000, 300_000
#: Durations differ by as much as this from their mean, in thousandths.
_JITTER = 50
KINDS = ("light", "deep")


@dataclass(frozen=True)
class Recipe:
    """What a profile is made from; the same recipe makes the same bytes.

    Attributes:
        kernels: compute kernels asked for; what is made is as near as whole operations allow.
        kind: ``light`` (phases, transfers, iterations) or ``deep`` (library ranges as well).
        seed: of durations.
    """

    kernels: int
    kind: str
    seed: int = 1

    @property
    def iterations(self) -> int:
        """How many iterations the profile holds: two at least."""
        return max(2, round(self.kernels / (OPERATIONS * USUAL_KERNELS)))

    @property
    def kernels_per_operation(self) -> int:
        """How many compute kernels each operation launches."""
        return max(2, round(self.kernels / (OPERATIONS * self.iterations)))

    @property
    def deep(self) -> bool:
        """Whether two library ranges lie around every launch."""
        return self.kind == "deep"


@dataclass(frozen=True)
class Timetable:
    """All iterations of a profile.

    Attributes:
        recipe: what it was made from.
        iterations: one simulation each, from time 0.
        starts_ns: where on the profile's clock each begins.
    """

    recipe: Recipe
    iterations: tuple[Simulation, ...]
    starts_ns: tuple[int, ...]

    @property
    def bubble_ratio(self) -> float:
        """Mean over iterations of the bubble ratio in the window of all devices."""
        ratios = []
        for iteration in self.iterations:
            work = iteration.take(iteration.phase != Phase.OPTIMIZER)
            window_ns = int(work.end_ns.max() - work.start_ns.min())
            ratios.append(1 - int((work.end_ns - work.start_ns).sum()) / (DEVICES * window_ns))
        return float(np.mean(ratios))

    @property
    def operations(self) -> int:
        """How many operations it holds, Optimizers included."""
        return sum(len(iteration) for iteration in self.iterations)


def timetable_of(recipe: Recipe) -> Timetable:
    """Simulate the iterations of a recipe, one after the other."""
    plan = one_forward_one_backward(DEVICES, MICROBATCHES)
    iterations, starts, at = [], [], _FIRST_NS
    for number in range(recipe.iterations):
        iteration = simulate(
            [plan],
            _Durations(recipe, number),
            optimizer=True,
            transfer_ns=_TRANSFER_NS,
            gate=all_done(DEVICES),
            delay=lambda _: _DELAY_NS,
        )
        iterations.append(iteration)
        starts.append(at)
        at += int(iteration.end_ns.max()) + _BETWEEN_NS
    return Timetable(recipe, tuple(iterations), tuple(starts))


class _Durations:
    """How long the operations of one iteration take, in nanoseconds."""

    def __init__(self, recipe: Recipe, iteration: int) -> None:
        self.kernels = recipe.kernels_per_operation
        random = np.random.default_rng([recipe.seed, iteration])
        shape = (DEVICES, max(Phase) + 1, MICROBATCHES)
        self.thousandths = 1_000 + random.integers(-_JITTER, _JITTER + 1, shape)

    def __call__(self, task: Task) -> int:
        """Return the length of one operation."""
        operation = task.operation
        jitter = self.thousandths[operation.virtual_stage, operation.phase, operation.microbatch]
        return self.kernels * _PERIOD_NS[operation.phase] * int(jitter) // 1_000
