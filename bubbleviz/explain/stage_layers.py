"""Layers of stages: what single layers take, and which stages they would better stand on."""

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
from bubbleviz.schedules.layout.best_layouts import FORWARD, LayoutQuestion, best_layouts
from bubbleviz.schedules.layout.layers import LayerKind, Layers, Layout, timed_layers
from bubbleviz.schedules.measured_times import build_workload
from bubbleviz.schedules.workload import Workload, get_phase_times

# Measured layers: the times of stages, divided among their layers as their kernels' time is.
#
# What kernels outside the ranges of layers take is the embedding's on the first stage and the
# head's on the last, where these have no ranges of their own; on other stages each layer takes its
# share of it. So the layers of a stage add up to the stage's own times.


#: A phase whose kernels are known to be of layers for less of their time is divided as forwards.
_KNOWN = 0.5
#: Kernels outside the ranges of layers, on the first and on the last stage.
_FIRST, _LAST = LayerName(EMBEDDING), LayerName(HEAD)
#: Phases whose kernels tell how a time is divided: those of F, B, W and BW.
_DIVIDES = (
    (Phase.F,),
    (Phase.B, Phase.R, Phase.BW),
    (Phase.W, Phase.BW),
    (Phase.BW, Phase.B, Phase.W, Phase.R),
)


#: The layers of a run, with the times of their stages but no transfers and memory; its layout; the
#: names of the layers, as ranges give them; and what was not measured.
DividedLayers = tuple[Layers, Layout, tuple[LayerName, ...], tuple[str, ...]]


def divided_layers(stages: Sequence[StageLayers], workload: Workload) -> DividedLayers:
    """Return the layers of a run by the ranges of its profiles.

    Args:
        stages: what ran on each virtual stage.
        workload: the times of these.

    Raises:
        MismatchError: no range of a layer is in a forward.
    """
    if not stages:
        raise MismatchError(
            "no ranges of layers inside forwards; name them (bubbleviz guide layout), or give "
            "--layers-per-stage, or a table with --layers"
        )
    lacking = [number for number, (_, first) in enumerate(stages) if not first]
    if lacking:
        raise MismatchError(
            f"no ranges of layers in the forwards of virtual stage {lacking[0]}; give the profiles "
            "of all stages, or a table with --layers"
        )
    return _divided(stages, workload)


def _divided(stages: Sequence[StageLayers], workload: Workload) -> DividedLayers:
    """Return the layers of all stages, with shares of these stages' times."""
    wholes = list(get_phase_times(workload).values())
    names: list[LayerName] = []
    columns: list[list[float]] = [[], [], [], []]
    bounds, as_forward = [0], False
    for number, stage in enumerate(stages):
        ends = (number == 0, number == len(stages) - 1)
        own = _in_order(stage, ends)
        forward = _shares(stage, own, _DIVIDES[0], ends)
        assert forward is not None
        for column, whole, phases in zip(columns, wholes, _DIVIDES, strict=True):
            shares = _shares(stage, own, phases, ends) if whole[number] else forward
            as_forward |= shares is None
            own_ns = whole[number] * (forward if shares is None else shares)
            column.extend(own_ns.tolist())
        names += own
        bounds.append(len(names))
    forward_ns, backward_ns, weight_ns, fused_ns = (
        _whole(np.array(column), bounds, whole)
        for column, whole in zip(columns, wholes, strict=True)
    )
    kinds = tuple(LayerKind(name.kind) for name in names)
    numbers = itertools.count()
    texts = tuple(f"layers.{next(numbers)}" if n.kind == LAYER else n.kind for n in names)
    layers = timed_layers((forward_ns, backward_ns, weight_ns, fused_ns), texts, kinds)
    assumptions = (
        ("the backward of each layer: its stage's is divided as the forward is",)
        if as_forward
        else ()
    )
    return layers, Layout(workload.placement, tuple(bounds)), tuple(names), assumptions


def _in_order(stage: StageLayers, ends: tuple[bool, bool]) -> list[LayerName]:
    """Return the layers of a stage in the order of their first launches, ends among them."""
    names = sorted(stage[1], key=lambda name: (stage[1][name], name.number))
    for at_end, kind in zip(ends, (EMBEDDING, HEAD), strict=True):
        # One part each: a norm before the head goes with it, positions with the embedding.
        same = [name for name in names if name.kind == kind]
        names = [name for name in names if name.kind != kind]
        outside = at_end and not same and (Phase.F, None) in stage[0]
        if same or outside:
            part = LayerName(kind)
            names = [part, *names] if kind == EMBEDDING else [*names, part]
    return names


def _shares(
    stage: StageLayers, own: Sequence[LayerName], phases: Sequence[Phase], ends: tuple[bool, bool]
) -> Floats | None:
    """Return the share of each layer in the kernels' time of some phases; None where unknown."""
    spent = dict.fromkeys(own, 0)
    outside = 0
    for (phase, name), kernel_ns in stage[0].items():
        if phase not in phases:
            continue
        part = name if name is None or name in spent else LayerName(name.kind)
        if part in spent and part is not None:
            spent[part] += kernel_ns
        else:
            outside += kernel_ns
    named = sum(spent.values())
    if named == 0 or named < _KNOWN * (named + outside):
        return None
    taker = next(
        (end for at_end, end in zip(ends, (_FIRST, _LAST), strict=True)
         if at_end and end in spent and not spent[end]), None,
    )  # fmt: skip
    if taker is not None:
        spent[taker] = outside
    shares = np.array([spent[name] for name in own], float)
    result: Floats = shares / shares.sum()
    return result


def _whole(values: Floats, bounds: Sequence[int], wholes: Sequence[int]) -> Ints:
    """Return whole nanoseconds that add up to those of each stage."""
    result = np.floor(values).astype(np.int64)
    for low, high, whole in zip(bounds[:-1], bounds[1:], wholes, strict=True):
        result[high - 1] += whole - int(result[low:high].sum())
    return result


def links_of(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """Return how long anything takes from each device to each; unmeasured links take the median."""
    known: dict[tuple[int, int], list[int]] = {}
    place = workload.placement
    for stage in range(len(place) - 1):
        here, there = place[stage], place[stage + 1]
        if here != there:
            known.setdefault((here, there), []).append(workload.down_ns[stage])
            known.setdefault((there, here), []).append(workload.up_ns[stage + 1])
    every = [ns for times in known.values() for ns in times]
    usual = int(np.median(every)) if every else 0
    devices = range(workload.devices)
    return tuple(
        tuple(int(np.median(known.get((here, there), [usual]))) for there in devices)
        for here in devices
    )


# Rearranged: the layers that a run would better have on other stages, as ``bubbleviz layout`` says.


def layout_question(
    stages: Sequence[StageLayers], times: PhaseTimes, microbatches: int | None
) -> LayoutQuestion | None:
    """Return the layers of a run and where they stand; None where that is not known of all stages.

    Args:
        stages: what layers took on each virtual stage.
        times: of the operations.
        microbatches: of an iteration.
    """
    if not stages:
        return None
    with suppress(BubblevizError):
        workload = build_workload(times.kinds, times.transfer_ns, microbatches, forward_only=True)
        layers, own, *_ = divided_layers(stages, workload)
        return LayoutQuestion(
            layers,
            workload.devices,
            workload.microbatches,
            own=own,
            links=links_of(workload),
            split=workload.split,
        )
    return None


def best_layout(question: LayoutQuestion, schedule: str | None) -> Layout | None:
    """Return the best layout for a schedule of one order; None where the run's own is not its.

    Args:
        question: the layers of a run, and where they stand.
        schedule: that ran; None of a run that only goes forward.
    """
    chunks = len(question.own.placement) // question.stages if question.own else 1
    with suppress(BubblevizError):
        own = FORWARD if question.layers.forward_only else ""
        found = best_layouts(question, [schedule or own], chunks)[0]
        if found.own and found.exact and found.best is not None:
            return found.best.layout
    return None


def stage_shares(question: LayoutQuestion, layout: Layout) -> dict[Phase, Floats]:
    """Return what each virtual stage takes in a layout, as a share of what it takes, by phase."""
    assert question.own is not None
    before, after = (get_phase_times(question.workload(own)) for own in (question.own, layout))
    return {phase: np.array(after[phase], float) / np.maximum(before[phase], 1) for phase in before}


def moves_of(question: LayoutQuestion, layout: Layout) -> tuple[str, ...]:
    """Return which layers go where, in words: ``layers.10 to layers.11 from stage 3 to stage 2``.

    Args:
        question: the layers of a run, and where they stand.
        layout: where they go.
    """
    assert question.own is not None
    several = len(layout.placement) > question.stages
    noun = "virtual stage" if several else "stage"
    stages = [
        [number for number, own in enumerate(each.stages) for _ in own]
        for each in (question.own, layout)
    ]
    places = list(zip(*stages, strict=True))
    names, moves = question.layers.names, []
    for (before, after), run in itertools.groupby(range(len(places)), places.__getitem__):
        if before != after:
            first, *others = run
            what = f"{names[first]} to {names[others[-1]]}" if others else names[first]
            moves.append(f"{what} from {noun} {before} to {after}")
    return tuple(moves)
