"""Measure the time of each layer, and prepare the search for the best division into stages.

The time of a stage is divided among its layers in proportion to their kernel time. Some kernels run
outside the ranges of all layers:

- On the first stage, their time goes to the embedding if it has no ranges.
- On the last stage, their time goes to the head if it has no ranges.
- In all other cases, their time is divided among the layers in proportion to kernel time.

So the layer times of a stage add up to the time of the stage::

    stage 0    kernels of   layer 0: 40   layer 1: 40   outside: 20       100 ms busy
               layers       embedding: 20 ms   layer 0: 40 ms   layer 1: 40 ms
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from bubbleviz.align.stage_layers import StageLayers
from bubbleviz.conventions.layer_names import EMBEDDING, HEAD, LAYER, LayerName
from bubbleviz.errors import BubblevizError, MismatchError
from bubbleviz.explain.phase_times import PhaseTimes
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.layout.best_layouts import FORWARD, LayoutQuestion, find_best_layouts
from bubbleviz.schedules.layout.layers import LayerKind, Layers, Layout, build_layers
from bubbleviz.schedules.measured_times import build_workload
from bubbleviz.schedules.workload import Workload, get_phase_times

#: Minimum fraction of a phase's kernel time that must belong to layers.
#: If the fraction is smaller, the time of the phase is divided like the time of the forwards.
_MIN_LAYER_FRACTION = 0.5
#: Layers to which kernels outside all layers are assigned: on the first stage, and on the last
#: stage.
_FIRST, _LAST = LayerName(EMBEDDING), LayerName(HEAD)
#: For each of the times F, B, W and BW, the phases whose kernels determine how the time is divided.
_PHASES_OF_TIME = (
    (Phase.F,),
    (Phase.B, Phase.R, Phase.BW),
    (Phase.W, Phase.BW),
    (Phase.BW, Phase.B, Phase.W, Phase.R),
)


#: Result of :func:`split_stage_times`: layers, layout, layer names and assumptions.
#: The layers have times, but no transfers and no memory.
DividedLayers = tuple[Layers, Layout, tuple[LayerName, ...], tuple[str, ...]]


def split_stage_times(stages: Sequence[StageLayers], workload: Workload) -> DividedLayers:
    """Divide the F, B, W and BW times of each virtual stage among its layers, by kernel time.

    Args:
        stages: Kernel times of each virtual stage.
        workload: Measured times of the stages.

    Returns:
        layers: The layers of all stages in order, with their times.
        layout: The layout of the run.
        names: Name of each layer, from its ranges.
        assumptions: If backward times were divided like forward times because too few of their
            kernels belong to layers, one text that states this. Otherwise empty.

    Raises:
        MismatchError: The forwards of a stage contain no layer ranges.
    """
    if not stages:
        raise MismatchError(
            "the forwards contain no layer ranges: annotate the layers (bubbleviz guide layout), "
            "or pass --layers-per-stage or --layers"
        )
    missing_stages = [number for number, (_, first_launch) in enumerate(stages) if not first_launch]
    if missing_stages:
        raise MismatchError(
            f"the forwards of virtual stage {missing_stages[0]} contain no layer ranges: pass the "
            "profiles of all stages, or pass the layer times in a table with --layers"
        )
    names = [
        _order_layers(stage, is_first=number == 0, is_last=number == len(stages) - 1)
        for number, stage in enumerate(stages)
    ]
    bounds = tuple(itertools.accumulate(map(len, names), initial=0))
    divided = [
        _split_times(stages, names, stage_ns, phases)
        for stage_ns, phases in zip(
            get_phase_times(workload).values(), _PHASES_OF_TIME, strict=True
        )
    ]
    forward_ns, backward_ns, weight_ns, fused_ns = (layer_ns for layer_ns, _ in divided)
    all_names = tuple(itertools.chain.from_iterable(names))
    numbers = itertools.count()
    layers = build_layers(
        (forward_ns, backward_ns, weight_ns, fused_ns),
        tuple(f"layers.{next(numbers)}" if n.kind == LAYER else n.kind for n in all_names),
        tuple(LayerKind(name.kind) for name in all_names),
    )
    assumptions: tuple[str, ...] = ()
    if any(is_like_forward for _, is_like_forward in divided):
        assumptions = (
            "the backward time of each layer: assumed proportional to its forward time, within "
            "each stage",
        )
    return layers, Layout(workload.placement, bounds), all_names, assumptions


def _order_layers(stage: StageLayers, *, is_first: bool, is_last: bool) -> list[LayerName]:
    """Return the layers of a stage, sorted by their first launch, then by their number.

    There are exceptions for the embedding and the head:

    - All embedding ranges, including the position embedding, form one layer, which comes first.
    - All head ranges, including a norm before the head, form one layer, which comes last.
    - If forwards have kernels outside layers, the first stage gets an embedding and the last stage
      gets a head even if no range names them.

    Args:
        stage: Kernel times of the stage, and first launches of its layers.
        is_first: Whether the stage is the first virtual stage.
        is_last: Whether the stage is the last virtual stage.
    """
    kernel_ns, first_launch = stage
    names = sorted(first_launch, key=lambda name: (first_launch[name], name.number))
    for is_end, kind in ((is_first, EMBEDDING), (is_last, HEAD)):
        has_ranges = any(name.kind == kind for name in names)
        names = [name for name in names if name.kind != kind]
        if has_ranges or (is_end and (Phase.F, None) in kernel_ns):
            part = LayerName(kind)
            names = [part, *names] if kind == EMBEDDING else [*names, part]
    return names


def _split_times(
    stages: Sequence[StageLayers],
    names: Sequence[Sequence[LayerName]],
    stage_ns: Sequence[int],
    phases: Sequence[Phase],
) -> tuple[Ints, bool]:
    """Divide the time of each stage among its layers, by their kernel time in the given phases.

    If less than half of a stage's kernel time in these phases belongs to layers, its kernel time in
    the forwards is used instead.

    Args:
        stages: Kernel times of each virtual stage.
        names: Layers of each stage, in order.
        stage_ns: Time of each stage in ns.
        phases: Phases whose kernels determine the division.

    Returns:
        layer_ns: Times of all layers, stage by stage. The layer times of a stage add up to the time
            of the stage.
        is_like_forward: Whether the kernel time in the forwards was used for any stage.
    """
    parts, is_like_forward = [np.empty(0, np.int64)], False
    for number, (stage, layers, total_ns) in enumerate(zip(stages, names, stage_ns, strict=True)):
        is_first_or_last = number == 0, number == len(stages) - 1
        shares = _compute_shares(stage, layers, phases, *is_first_or_last) if total_ns else None
        if shares is None:
            is_like_forward |= bool(total_ns)
            shares = _compute_shares(stage, layers, _PHASES_OF_TIME[0], *is_first_or_last)
            assert shares is not None
        parts.append(_round_to_total(total_ns * shares, total_ns))
    return np.concatenate(parts), is_like_forward


def _compute_shares(
    stage: StageLayers,
    names: Sequence[LayerName],
    phases: Sequence[Phase],
    is_first: bool,
    is_last: bool,
) -> Floats | None:
    """Return the fraction of a stage's time that each of its layers gets, by kernel time.

    Kernels outside layers belong to the embedding on the first stage, and to the head on the last
    stage, if that layer has no other kernels. In all other cases, kernels outside layers are
    ignored.

    Args:
        stage: Kernel times of the stage.
        names: Layers of the stage.
        phases: Phases whose kernels are included.
        is_first: Whether the stage is the first virtual stage.
        is_last: Whether the stage is the last virtual stage.

    Returns:
        Fractions that add up to 1, or None if less than half of the kernel time belongs to layers.
    """
    layer_ns = dict.fromkeys(names, 0)
    outside_ns = 0
    for (phase, name), kernel_ns in stage[0].items():
        if phase not in phases:
            continue
        part = name if name is None or name in layer_ns else LayerName(name.kind)
        if part in layer_ns and part is not None:
            layer_ns[part] += kernel_ns
        else:
            outside_ns += kernel_ns
    inside_ns = sum(layer_ns.values())
    if inside_ns == 0 or inside_ns < _MIN_LAYER_FRACTION * (inside_ns + outside_ns):
        return None
    for is_end, part in ((is_first, _FIRST), (is_last, _LAST)):
        if is_end and part in layer_ns and not layer_ns[part]:
            layer_ns[part] = outside_ns
            break
    times_ns = np.array([layer_ns[name] for name in names], float)
    shares: Floats = times_ns / times_ns.sum()
    return shares


def _round_to_total(values: Floats, total: int) -> Ints:
    """Round values down to integers, then increase the last one so that the sum is ``total``."""
    rounded = np.floor(values).astype(np.int64)
    rounded[-1] += total - int(rounded.sum())
    return rounded


def measure_links(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """Return the transfer time in ns between each pair of devices.

    If there are several transfers between two devices, their median is used. A pair that was not
    measured gets the median of all measured transfers, or 0 if there are none.

    Returns:
        Times indexed by [sender][receiver].
    """
    times_of: dict[tuple[int, int], list[int]] = {}
    placement = workload.placement
    for stage in range(len(placement) - 1):
        device, next_device = placement[stage], placement[stage + 1]
        if device != next_device:
            times_of.setdefault((device, next_device), []).append(workload.down_ns[stage])
            times_of.setdefault((next_device, device), []).append(workload.up_ns[stage + 1])
    all_ns = [ns for times in times_of.values() for ns in times]
    usual_ns = int(np.median(all_ns)) if all_ns else 0
    devices = range(workload.devices)
    return tuple(
        tuple(int(np.median(times_of.get((sender, receiver), [usual_ns]))) for receiver in devices)
        for sender in devices
    )


def build_layout_question(
    stages: Sequence[StageLayers], times: PhaseTimes, microbatches: int | None
) -> LayoutQuestion | None:
    """Build the input of a search for the best layout of the measured layers of a run.

    Args:
        stages: Kernel times of each virtual stage.
        times: Measured times of the operations, by kind.
        microbatches: Number of microbatches in an iteration, or None if it varies.

    Returns:
        The input of the search, or None if the layers or the times of any stage are unknown.
    """
    if not stages:
        return None
    with suppress(BubblevizError):
        workload = build_workload(times.kinds, times.transfer_ns, microbatches, forward_only=True)
        layers, layout, *_ = split_stage_times(stages, workload)
        return LayoutQuestion(
            layers,
            workload.devices,
            workload.microbatches,
            current_layout=layout,
            links=measure_links(workload),
            split=workload.split,
        )
    return None


def find_best_layout(question: LayoutQuestion, schedule: str | None) -> Layout | None:
    """Find the best layout for the schedule that ran.

    Args:
        question: The layers and the layout of a run.
        schedule: Name of the schedule that ran, or None in inference.

    Returns:
        The best layout, or None unless the search found an exact result and the schedule allows the
        layout of the run.
    """
    chunks = (
        len(question.current_layout.placement) // question.stages if question.current_layout else 1
    )
    with suppress(BubblevizError):
        default = FORWARD if question.layers.forward_only else ""
        answer = find_best_layouts(question, [schedule or default], chunks)[0]
        if answer.is_current_layout and answer.exact and answer.best is not None:
            return answer.best.layout
    return None


def compare_stage_times(question: LayoutQuestion, layout: Layout) -> dict[Phase, Floats]:
    """Return the time of each virtual stage in a layout as a multiple of its time in the run.

    The result is keyed by phase. A time of 0 in the run is replaced with 1 ns.
    """
    assert question.current_layout is not None
    measured_ns, changed_ns = (
        get_phase_times(question.workload(candidate))
        for candidate in (question.current_layout, layout)
    )
    return {
        phase: np.array(changed_ns[phase], float) / np.maximum(measured_ns[phase], 1)
        for phase in measured_ns
    }


def describe_moves(question: LayoutQuestion, layout: Layout) -> tuple[str, ...]:
    """Describe which layers change stages.

    Consecutive layers with the same old and new stage share one text, for example ``layers.10
    through layers.11 from stage 3 to stage 2``.

    Args:
        question: The layers and the layout of a run.
        layout: The new layout.
    """
    assert question.current_layout is not None
    has_chunks = len(layout.placement) > question.stages
    noun = "virtual stage" if has_chunks else "stage"
    old_stage, new_stage = (
        [number for number, layers in enumerate(candidate.stages) for _ in layers]
        for candidate in (question.current_layout, layout)
    )
    stage_pairs = list(zip(old_stage, new_stage, strict=True))
    names, moves = question.layers.names, []
    for (old, new), run in itertools.groupby(range(len(stage_pairs)), stage_pairs.__getitem__):
        if old != new:
            layers = _describe_range([names[index] for index in run])
            moves.append(f"{layers} from {noun} {old} to {noun} {new}")
    return tuple(moves)


def _describe_range(names: Sequence[str]) -> str:
    """Return ``<first> through <last>`` for the names, or just the name if there is only one."""
    return f"{names[0]} through {names[-1]}" if len(names) > 1 else names[0]
