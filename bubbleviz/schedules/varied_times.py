"""Makespans of a plan whose operation times vary, computed for many random draws at once.

Operation times vary, and a device always waits for the last of its inputs. A simulation with mean
times therefore ends too early. This module replays a plan with random times that have the measured
spread::

    means     F0 ███  F1 ███  BW0 ██████           -> T
    draws     F0 ██·  F1 ███▌ BW0 █████▌           -> T of each draw
              F0 ███▌ F1 ██·  BW0 ███████
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import Floats
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.ideal import build_plan_workload
from bubbleviz.schedules.measured_times import MeasuredTimes, StageTimes
from bubbleviz.schedules.operation_graph import OperationGraph, build_operation_graph
from bubbleviz.schedules.plan import Plan, PlannedOperation
from bubbleviz.schedules.simulation import list_lags, list_lengths
from bubbleviz.schedules.timing import compute_ends_of_scenarios

#: Number of random draws.
#: The standard error of the mean is about a sixth of the standard deviation of a single draw.
_DRAWS = 40


@dataclass(frozen=True, eq=False)
class Variation:
    """How much the operation times and the microbatch lengths vary.

    Attributes:
        spread: For each phase, the standard deviation of the operation times divided by their mean.
            Variance caused by unequal microbatch lengths is excluded.
        lengths: Each microbatch's length divided by the mean length, shape (iterations,
            microbatches).
    """

    spread: Mapping[Phase, float]
    lengths: Floats


def make_no_variation() -> Variation:
    """Return the variation for operations that always take their mean time."""
    return Variation({}, np.ones((1, 1)))


def measure_variation(run: MeasuredTimes) -> Variation:
    """Return how much a run's operation times vary.

    The variance of the microbatch lengths is subtracted from the variance of the operation times,
    because the lengths are drawn separately. The difference is at least 0. If the run has no
    microbatch lengths, all microbatches are assumed to be equally long.
    """
    lengths = np.array(run.lengths or [[1.0]])
    variance = lengths.var(ddof=1) if run.lengths else 0.0
    spread = {phase: max(std**2 - variance, 0) ** 0.5 for phase, std in run.spread.items()}
    return Variation(spread, lengths)


def draw_makespans(plan: Plan, times: StageTimes, variation: Variation) -> Floats:
    """Return the makespans of a plan, in ns, for random draws of the operation times.

    The time of an operation in a draw is the product of three numbers:

    - its mean time;
    - the length of its microbatch in a random measured iteration (or in several random iterations,
      if the plan has more microbatches);
    - a normally distributed factor with mean 1. Negative factors become 0.

    The draws are the same in every call.

    Args:
        plan: Operations of each device, in order.
        times: Mean times of the stages.
        variation: How much the operations and the microbatches vary.
    """
    random, lengths = np.random.default_rng(0), variation.lengths
    iterations_per_draw = -(-plan.microbatches // lengths.shape[1])
    iterations = random.integers(0, len(lengths), (_DRAWS, iterations_per_draw))
    drawn_lengths = lengths[iterations].reshape(_DRAWS, -1).T

    def get_factor(operation: PlannedOperation) -> Floats:
        spread = variation.spread.get(operation.phase, 0.0)
        operation_factor = np.maximum(1 + spread * random.standard_normal(_DRAWS), 0.0)
        return np.asarray(operation_factor * drawn_lengths[operation.microbatch], np.float64)

    return compute_makespans(plan, build_operation_graph(plan), times, get_factor)


def compute_makespans(
    plan: Plan,
    graph: OperationGraph,
    times: StageTimes,
    factor: Callable[[PlannedOperation], Floats],
) -> Floats:
    """Return the makespans of a plan in ns, as an array of shape (draws,).

    Args:
        plan: Operations of each device, in order.
        graph: Dependency graph of the plan.
        times: Mean times of the stages.
        factor: Function that returns an operation's time in each draw divided by its mean time,
            shape (draws,).
    """
    work = build_plan_workload(plan, times)
    means_ns = list_lengths(graph, work)
    lengths_ns = [
        mean_ns * factor(operation)
        for mean_ns, operation in zip(means_ns, graph.operations, strict=True)
    ]
    lags_ns = [np.full(1, lag_ns, np.float64) for lag_ns in list_lags(work)]
    ends_ns = compute_ends_of_scenarios(graph.edges, lengths_ns, lags_ns)
    makespans_ns = ends_ns[list(graph.last)].max(axis=0)
    return np.asarray(makespans_ns / plan.chunks, np.float64)
