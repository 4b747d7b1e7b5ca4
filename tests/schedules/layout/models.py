"""Models with times and memory of their layers, and the plain search of all their layouts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from bubbleviz.schedules.layout.layers import LayerKind, Layers, Layout, layout_workload
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.workload import outcome_of


def model(
    forward_ns: Sequence[int],
    *,
    backward_ns: Sequence[int] | None = None,
    weight_ns: Sequence[int] | None = None,
    fused_ns: Sequence[int] | None = None,
    down_ns: int | Sequence[int] = 0,
    up_ns: int | Sequence[int] = 0,
    held: Sequence[float] | None = None,
    kept: Sequence[float] | None = None,
    resident: Sequence[float] | None = None,
) -> Layers:
    """Return layers of these times; what is not given is as the forward, or 1, or 0."""
    count = len(forward_ns)
    forward = np.array(forward_ns, np.int64)
    backward = forward if backward_ns is None else np.array(backward_ns, np.int64)
    weight = forward if weight_ns is None else np.array(weight_ns, np.int64)
    fused = backward + weight if fused_ns is None else np.array(fused_ns, np.int64)
    full = np.ones(count) if held is None else np.array(held, float)
    return Layers(
        forward.copy(),
        backward.copy(),
        weight.copy(),
        fused.copy(),
        np.broadcast_to(np.array(down_ns, np.int64), count).copy(),
        np.broadcast_to(np.array(up_ns, np.int64), count).copy(),
        full,
        full.copy() if kept is None else np.array(kept, float),
        np.zeros(count) if resident is None else np.array(resident, float),
        tuple(f"layers.{at}" for at in range(count)),
        (LayerKind.TRANSFORMER,) * count,
    )


def all_layouts(layers: int, placement: tuple[int, ...]) -> list[Layout]:
    """Return every layout with at least a layer a virtual stage."""
    cuts = combinations(range(1, layers), len(placement) - 1)
    return [Layout(placement, (0, *each, layers)) for each in cuts]


def simulated(
    plan: Plan, layers: Layers, layout: Layout, limit: Sequence[float] | None = None
) -> tuple[int, bool]:
    """Return the makespan of a plan with a layout by the simulator, and whether it fits."""
    outcome = outcome_of(plan, layout_workload(layers, layout, plan.microbatches, limit))
    return outcome.makespan_ns, outcome.fits


def brute_force(plan: Plan, layers: Layers, limit: Sequence[float] | None = None) -> int | None:
    """Return the shortest makespan of any layout that fits; None where none does."""
    every = [
        simulated(plan, layers, layout, limit)
        for layout in all_layouts(len(layers), plan.placement)
    ]
    return min((makespan_ns for makespan_ns, fits in every if fits), default=None)
