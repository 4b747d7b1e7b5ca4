"""Plant a run of many ranks: 1F1B in every pipeline, with the bubble ratios that are true of it.

Ranks are numbered as Megatron numbers them: the pipelines of one stage are neighbours, so that a
server holds one stage of eight pipelines. Times are columns over all pipelines at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bubbleviz.model.phases import Phase
from tests.planting.orders import one_forward_one_backward

Ints = NDArray[np.int64]

#: Ranks of a server, whose operations are one file.
SERVER = 8
#: Mean length of an operation, of a transfer and of the gap between two iterations, nanoseconds.
_F_NS, _B_NS, _OPTIMIZER_NS = 10_000_000, 20_000_000, 15_000_000
TRANSFER_NS, _REDUCTION_NS, _BETWEEN_NS = 200_000, 5_000_000, 1_000_000
#: The first nanosecond of the first iteration.
_FIRST_NS = 60_000_000_000
#: Durations differ by as much as this from their mean, in ten-thousandths.
_JITTER = 500


@dataclass(frozen=True)
class Recipe:
    """What a run is made from; the same recipe makes the same bytes.

    Attributes:
        ranks: how many, a multiple of the stages.
        iterations: how many.
        microbatches: of an iteration.
        stages: of a pipeline.
        seed: of durations.
    """

    ranks: int
    iterations: int = 3
    microbatches: int = 32
    stages: int = 16
    seed: int = 1

    @property
    def pipelines(self) -> int:
        """How many pipelines run beside each other."""
        return self.ranks // self.stages

    @property
    def counted(self) -> int:
        """How many F and B all ranks run."""
        return 2 * self.ranks * self.iterations * self.microbatches


@dataclass(frozen=True)
class PlantedRun:
    """All operations; the first axes are (stage, pipeline), so that a rank is ``stage, pipeline``.

    Attributes:
        recipe: what it was made from.
        start_ns: of F and B, shape (stages, pipelines, iterations, 2, microbatches).
        end_ns: likewise.
        step_start_ns: of the optimizer, shape (stages, pipelines, iterations).
        step_end_ns: likewise.
        order: of F and B on each stage, shape (stages, 2 microbatches), as ``phase * microbatches +
            microbatch``.
    """

    recipe: Recipe
    start_ns: Ints
    end_ns: Ints
    step_start_ns: Ints
    step_end_ns: Ints
    order: Ints

    def by_rank(self, times_ns: Ints) -> Ints:
        """Return times with ranks as the first axis."""
        return times_ns.reshape(self.recipe.ranks, *times_ns.shape[2:])

    def ratios(self) -> Mapping[str, float]:
        """Return the true mean of every bubble ratio over the iterations.

        No operations of a rank overlap, so that their lengths add up.
        """
        work = (self.end_ns - self.start_ns).sum(axis=(3, 4))
        step = self.step_end_ns - self.step_start_ns
        first, last = self.start_ns.min(axis=(3, 4)), self.end_ns.max(axis=(3, 4))
        ranks, over = self.recipe.ranks, (0, 1)
        schedule = last.max(axis=over) - first.min(axis=over)
        stage = (last - first).max(axis=over)
        whole = self.step_end_ns.max(axis=over) - first.min(axis=over)
        period = first[..., 1:] - first[..., :-1]
        worked = (work + step)[..., :-1]
        return {
            "schedule": _mean(1 - work.sum(axis=over) / (ranks * schedule)),
            "stage": _mean(1 - work.sum(axis=over) / (ranks * stage)),
            "step": _mean(1 - (work + step).sum(axis=over) / (ranks * whole)),
            "period": _mean(1 - worked.sum(axis=over) / period.sum(axis=over)),
        }


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def order_of(stages: int, microbatches: int) -> Ints:
    """Return 1F1B's order of each stage, an operation as ``phase * microbatches + microbatch``."""
    plan = one_forward_one_backward(stages, microbatches)
    rows = [
        [op.microbatch + microbatches * (op.phase is not Phase.F) for op in order]
        for order in plan.orders
    ]
    return np.array(rows, np.int64)


def plant(recipe: Recipe) -> PlantedRun:
    """Return the operations of a run.

    Raises:
        ValueError: the ranks are no multiple of the stages.
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
    start, order = np.zeros(shape, np.int64), order_of(stages, m)
    step_start = np.zeros(shape[:3], np.int64)
    begin = np.full(pipelines, _FIRST_NS, np.int64)
    for k in range(recipe.iterations):
        _run(start[:, :, k], length[:, :, k], order, begin)
        ended = (start[:, :, k] + length[:, :, k]).max(axis=2)
        # Replicas reduce the gradients of their stage together.
        step_start[:, :, k] = (ended.max(axis=1) + _REDUCTION_NS)[:, None]
        begin = (step_start[:, :, k] + step[:, :, k]).max(axis=0) + _BETWEEN_NS
    whole = (stages, pipelines, recipe.iterations, 2, m)
    return PlantedRun(
        recipe,
        start.reshape(whole),
        (start + length).reshape(whole),
        step_start,
        step_start + step,
        order,
    )


def _run(start: Ints, length: Ints, order: Ints, begin: Ints) -> None:
    """Fill in when the operations of one iteration start, shape (stages, pipelines, 2 m).

    An operation starts when its stage has ended the one before and its input has arrived.
    """
    stages, count = order.shape
    m = count // 2
    free = np.repeat(begin[None, :], stages, axis=0)
    done, place = np.zeros((stages, count), bool), [0] * stages
    while min(place) < count:
        for stage in range(stages):
            while place[stage] < count:
                operation = int(order[stage, place[stage]])
                source = _source(stage, operation, stages, m)
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


def _source(stage: int, operation: int, stages: int, m: int) -> tuple[int, int] | None:
    """Return the stage and number of the operation whose output one takes; None for none."""
    if operation < m:
        return (stage - 1, operation) if stage else None
    return (stage + 1, operation) if stage < stages - 1 else (stage, operation - m)
