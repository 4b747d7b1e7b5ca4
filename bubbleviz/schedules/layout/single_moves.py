"""What happens to time and memory if a single layer moves to a neighboring virtual stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.errors import BubblevizError
from bubbleviz.schedules import known
from bubbleviz.schedules.layout.best_layouts import LayoutQuestion, compute_peak_memory
from bubbleviz.schedules.layout.layers import Layout
from bubbleviz.schedules.plan import Plan


@dataclass(frozen=True)
class LayerMove:
    """The effect of moving one layer between neighboring virtual stages.

    Attributes:
        layer: Index of the layer.
        sender: Virtual stage that has the layer before the move.
        receiver: Virtual stage that has the layer after the move.
        makespan_ns: Makespan after the move.
        peak_memory: Peak memory of each device after the move, in the same unit as the layer sizes.
    """

    layer: int
    sender: int
    receiver: int
    makespan_ns: int
    peak_memory: tuple[float, ...]


@dataclass(frozen=True)
class SingleMoves:
    """All moves of a single layer that a layout allows.

    Attributes:
        layout: The layout before the moves.
        makespan_ns: Makespan of that layout.
        peak_memory: Peak memory of each device with that layout.
        moves: The moves, sorted by stage boundary. At each boundary, the move toward the later
            stage comes first.
    """

    layout: Layout
    makespan_ns: int
    peak_memory: tuple[float, ...]
    moves: tuple[LayerMove, ...]


def find_single_moves(question: LayoutQuestion, schedule: str) -> SingleMoves | None:
    """Simulate every move of one layer in the current layout of a run.

    Args:
        question: The model and the run.
        schedule: Name of the schedule that the run used.

    Returns:
        The moves, or None if the current layout is unknown, or if the schedule is unknown, has no
        fixed order, or does not allow the sizes or the layout of the run.
    """
    layout = question.current_layout
    if layout is None:
        return None
    with suppress(BubblevizError):
        rule = known.find_schedule(schedule)
        if rule.has_one_order:
            chunks = 1 if rule.chunks == 1 else len(layout.placement) // question.stages
            plan = rule.plan(question.stages, question.microbatches, chunks)
            if question.recurrence(plan).placement == layout.placement:
                return list_single_moves(question, plan, layout)
    return None


def list_single_moves(question: LayoutQuestion, plan: Plan, layout: Layout) -> SingleMoves:
    """Simulate every move of one layer across a stage boundary, with the order of a plan.

    A stage with a single layer keeps its layer.

    Args:
        question: The model and the run.
        plan: The order of operations, which does not depend on the layout.
        layout: The layout before the moves.
    """
    recurrence, layers = question.recurrence(plan), question.layers
    moved = list(_list_neighbors(layout))
    bounds = [layout.bounds, *(bounds for *_, bounds in moved)]
    makespans = recurrence.compute_makespans(layers, np.array(bounds, np.int64)).tolist()
    peaks = [
        compute_peak_memory(layers, recurrence, replace(layout, bounds=each)) for each in bounds
    ]
    return SingleMoves(
        layout,
        makespans[0],
        peaks[0],
        tuple(
            LayerMove(layer, sender, receiver, makespan_ns, peak)
            for (layer, sender, receiver, _), makespan_ns, peak in zip(
                moved, makespans[1:], peaks[1:], strict=True
            )
        ),
    )


def _list_neighbors(layout: Layout) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
    """Yield the layer, sender, receiver and new bounds of every possible move of one layer."""
    bounds, stages = layout.bounds, layout.stages
    for stage in range(len(stages) - 1):
        boundary = bounds[stage + 1]
        for layer, sender, receiver, new in (
            (boundary - 1, stage, stage + 1, boundary - 1),
            (boundary, stage + 1, stage, boundary + 1),
        ):
            if len(stages[sender]) > 1:
                yield layer, sender, receiver, (*bounds[: stage + 1], new, *bounds[stage + 2 :])
