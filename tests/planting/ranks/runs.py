"""Plant a run with many ranks, 1F1B in every pipeline, and compute its true bubble ratios.

Ranks are numbered in Megatron's order: ranks of the same stage are adjacent, so a server runs one
stage of eight pipelines. Times are arrays over all pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bubbleviz.model.phases import Phase
from tests.planting.orders import one_forward_one_backward

Ints = NDArray[np.int64]

#: Number of ranks per server.
#: One file contains the operations of one server.
SERVER = 8
#: Mean length of an operation, a transfer and the gap between iterations, in ns.
_F_NS, _B_NS, _OPTIMIZER_NS = 10_000_000, 20_000_000, 15_000_000
TRANSFER_NS, _REDUCTION_NS, _BETWEEN_NS = 200_000, 5_000_000, 1_000_000
#: Start of the first iteration, in ns.
_FIRST_NS = 60_000_000_000
#: Maximum deviation of durations from their mean, in ten-thousandths.
_JITTER = 500


@dataclass(frozen=True)
class Recipe:
    """Parameters of a run. Equal recipes give equal bytes.

    Attributes:
        ranks: Number of ranks, a multiple of the number of stages.
        iterations: Number of iterations.
        microbatches: Number of microbatches per iteration.
        stages: Number of stages per pipeline.
        seed: Seed of the durations.
    """

    ranks: int
    iterations: int = 3
    microbatches: int = 32
    stages: int = 16
    seed: int = 1

    @property
    def pipelines(self) -> int:
        """Number of parallel pipelines."""
        return self.ranks // self.stages

    @property
    def counted(self) -> int:
        """Number of F and B operations on all ranks."""
        return 2 * self.ranks * self.iterations * self.microbatches


@dataclass(frozen=True)
class PlantedRun:
    """All operations of a run. The first two axes of the arrays are (stage, pipeline).

    Attributes:
        recipe: Parameters of the run.
        start_ns: Starts of F and B, shape (stages, pipelines, iterations, 2, microbatches).
        end_ns: Ends of F and B, same shape.
        step_start_ns: Starts of the optimizers, shape (stages, pipelines, iterations).
        step_end_ns: Ends of the optimizers, same shape.
        order: Order of F and B on each stage, shape (stages, 2 microbatches), with operations coded
            as ``phase * microbatches + microbatch``.
    """

    recipe: Recipe
    start_ns: Ints
    end_ns: Ints
    step_start_ns: Ints
    step_end_ns: Ints
    order: Ints

    def by_rank(self, times_ns: Ints) -> Ints:
        """Return the times reshaped to have ranks as the first axis."""
        return times_ns.reshape(self.recipe.ranks, *times_ns.shape[2:])

    def ratios(self) -> Mapping[str, float]:
        """Return the true mean of every bubble ratio over the iterations.

        Operations of a rank never overlap, so busy time is the sum of their lengths.
        """
        work = (self.end_ns - self.start_ns).sum(axis=(3, 4))
        step = self.step_end_ns - self.step_start_ns
        first, last = self.start_ns.min(axis=(3, 4)), self.end_ns.max(axis=(3, 4))
        ranks, over = self.recipe.ranks, (0, 1)
        schedule = last.max(axis=over) - first.min(axis=over)
        stage = (last - first).max(axis=over)
        window_ns = self.step_end_ns.max(axis=over) - first.min(axis=over)
        period = first[..., 1:] - first[..., :-1]
        busy_ns = (work + step)[..., :-1]
        return {
            "schedule": _mean(1 - work.sum(axis=over) / (ranks * schedule)),
            "stage": _mean(1 - work.sum(axis=over) / (ranks * stage)),
            "step": _mean(1 - (work + step).sum(axis=over) / (ranks * window_ns)),
            "period": _mean(1 - busy_ns.sum(axis=over) / period.sum(axis=over)),
        }


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def make_order(stages: int, microbatches: int) -> Ints:
    """Return the 1F1B order of each stage, coded as ``phase * microbatches + microbatch``."""
    plan = one_forward_one_backward(stages, microbatches)
    rows = [
        [op.microbatch + microbatches * (op.phase is not Phase.F) for op in order]
        for order in plan.orders
    ]
    return np.array(rows, np.int64)


def plant(recipe: Recipe) -> PlantedRun:
    """Simulate a run.

    Raises:
        ValueError: The number of ranks is not a multiple of the number of stages.
    """
    if recipe.ranks % recipe.stages:
        raise ValueError(f"{recipe.ranks} ranks are no multiple of {recipe.stages} stages")
    random = np.random.default_rng(recipe.seed)
    stages, pipelines, m = recipe.stages, recipe.pipelines, recipe.microbatches
    shape = (stages, pipelines, recipe.iterations, 2 * m)
    mean = np.repeat(np.array([_F_NS, _B_NS], np.int64), m)
    jitter = 10_000 + random.integers(-_JITTER, _JITTER + 1, shape)
    length = mean * jitter // 10_000 + random.integers(0, 1_000, shape)
    step = _OPTIMIZER_NS + random.integers(0, 100_000, shape[:3])
    start, order = np.zeros(shape, np.int64), make_order(stages, m)
    step_start = np.zeros(shape[:3], np.int64)
    begin_ns = np.full(pipelines, _FIRST_NS, np.int64)
    for k in range(recipe.iterations):
        _fill_starts(start[:, :, k], length[:, :, k], order, begin_ns)
        end_ns = (start[:, :, k] + length[:, :, k]).max(axis=2)
        # Replicas reduce the gradients of their stage together.
        step_start[:, :, k] = (end_ns.max(axis=1) + _REDUCTION_NS)[:, None]
        begin_ns = (step_start[:, :, k] + step[:, :, k]).max(axis=0) + _BETWEEN_NS
    whole = (stages, pipelines, recipe.iterations, 2, m)
    return PlantedRun(
        recipe,
        start.reshape(whole),
        (start + length).reshape(whole),
        step_start,
        step_start + step,
        order,
    )


def _fill_starts(start: Ints, length: Ints, order: Ints, begin_ns: Ints) -> None:
    """Fill in the starts of the operations of one iteration, shape (stages, pipelines, 2 m).

    An operation starts when the previous operation on its stage has ended and its input has
    arrived.
    """
    stages, count = order.shape
    m = count // 2
    free = np.repeat(begin_ns[None, :], stages, axis=0)
    done, place = np.zeros((stages, count), bool), [0] * stages
    while min(place) < count:
        for stage in range(stages):
            while place[stage] < count:
                operation = int(order[stage, place[stage]])
                source = _find_source(stage, operation, stages, m)
                if source is not None and not done[source]:
                    break
                starts = free[stage]
                if source is not None:
                    at, other = source
                    arrival = start[at, :, other] + length[at, :, other]
                    if at != stage:
                        arrival = arrival + TRANSFER_NS
                    starts = np.maximum(starts, arrival)
                start[stage, :, operation] = starts
                free[stage] = starts + length[stage, :, operation]
                done[stage, operation] = True
                place[stage] += 1


def _find_source(stage: int, operation: int, stages: int, m: int) -> tuple[int, int] | None:
    """Return the (stage, code) of the operation that produces the input, or None without input."""
    if operation < m:
        return (stage - 1, operation) if stage else None
    return (stage + 1, operation) if stage < stages - 1 else (stage, operation - m)
