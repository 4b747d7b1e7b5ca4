"""What moving a single layer to the next stage does to the time and memory of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bubbleviz.report.memory import measure_memory
from bubbleviz.schedules.layout.divided_memory import add_layer_memory
from bubbleviz.schedules.layout.single_moves import SingleMoves, find_single_moves

if TYPE_CHECKING:
    from bubbleviz.report.report import Report


@dataclass(frozen=True)
class RunMoves:
    """The moves of a single layer in the layout of a run.

    Attributes:
        single: The moves.
        layer_names: Names of the layers.
        schedule: Name of the schedule that the run used.
        has_memory: Whether the memory of the layers is known.
        in_bytes: Whether memory is in bytes, rather than in a unit of the user's choice.
    """

    single: SingleMoves
    layer_names: tuple[str, ...]
    schedule: str
    has_memory: bool
    in_bytes: bool = True


def find_layer_moves(report: Report) -> RunMoves | None:
    """Simulate every move of a single layer, or return None if layers or schedule are unknown.

    The activations of a stage are divided among its layers like their forward times, and the
    resident memory of a device is divided equally.
    """
    question, schedule = report.explanation.layout, report.explanation.ran
    if question is None or question.current_layout is None or schedule is None:
        return None
    memory = None
    if report.memory is not None:
        kinds = report.explanation.phase_times.kinds
        memory = measure_memory(report.memory, {kind.virtual_stage: kind.stage for kind in kinds})
    if memory is not None:
        layers, _ = add_layer_memory(question.layers, question.current_layout, memory)
        question = replace(question, layers=layers)
    single = find_single_moves(question, schedule)
    if single is None:
        return None
    return RunMoves(single, question.layers.names, schedule, has_memory=memory is not None)
