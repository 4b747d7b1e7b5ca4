"""Measured layers: the times of stages, divided among their layers as their kernels' time is.

What kernels outside the ranges of layers take is the embedding's on the first stage and the head's
on the last, where these have no ranges of their own; on other stages each layer takes its share of
it. So the layers of a stage add up to the stage's own times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.align.local_stages import stages_of_chunks
from bubbleviz.align.run import Run
from bubbleviz.analyses.layout.layer_table import KINDS
from bubbleviz.conventions.layer_names import EMBEDDING, HEAD, LAYER, LayerName
from bubbleviz.errors import MismatchError
from bubbleviz.interpret.layers import LayerTimes
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.schedules.layout.layers import Layers, Layout, timed_layers
from bubbleviz.schedules.workload import Workload

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


@frozen
class DividedLayers:
    """Layers of a run, and its layout.

    Attributes:
        layers: with the times of their stages; transfers and memory are 0.
        own: which virtual stage holds which.
        names: of the layers, as ranges give them.
        assumptions: what was not measured.
    """

    layers: Layers
    own: Layout
    names: tuple[LayerName, ...]
    assumptions: tuple[str, ...]


@dataclass
class _Stage:
    """What ran on one virtual stage: nanoseconds of kernels by phase, and first launches."""

    kernel_ns: dict[tuple[Phase, LayerName | None], int] = field(default_factory=dict)
    first_ns: dict[LayerName, int] = field(default_factory=dict)


def divided_layers(recordings: Sequence[Recording], run: Run, workload: Workload) -> DividedLayers:
    """Return the layers of a run by the ranges of its profiles.

    Args:
        recordings: read with the ranges of layers.
        run: these, merged.
        workload: the times of its virtual stages.

    Raises:
        MismatchError: no range of a layer is in a forward.
    """
    stages = [_Stage() for _ in workload.placement]
    for number, recording in enumerate(recordings):
        if recording.layers is not None:
            _collect(recording.layers, run, run.rank_of_local[number], stages)
    if not any(stage.first_ns for stage in stages):
        raise MismatchError(
            "no ranges of layers inside forwards; name them (bubbleviz guide layout), or give "
            "--layers-per-stage, or a table with --layers"
        )
    lacking = [number for number, stage in enumerate(stages) if not stage.first_ns]
    if lacking:
        raise MismatchError(
            f"no ranges of layers in the forwards of virtual stage {lacking[0]}; give the profiles "
            "of all stages, or a table with --layers"
        )
    return _divided(stages, workload)


def _collect(times: LayerTimes, run: Run, rank_of_local: Ints, stages: list[_Stage]) -> None:
    """Add what kernels of layers took on the ranks of a profile."""
    stage_of = stages_of_chunks(times.rank, times.chunk, run, rank_of_local)
    columns = zip(
        *(getattr(times, name).tolist() for name in ("rank", "chunk", "phase", "layer")),
        times.kernel_ns.tolist(),
        times.first_ns.tolist(),
        strict=True,
    )
    # A row a layer, chunk and phase: a few hundred a rank.
    for rank, chunk, phase, layer, kernel_ns, first_ns in columns:
        number = stage_of.get((rank, chunk), NONE)
        if not 0 <= number < len(stages):
            continue
        stage, name = stages[number], None if layer == NONE else times.layers[layer]
        key = Phase(phase), name
        stage.kernel_ns[key] = stage.kernel_ns.get(key, 0) + kernel_ns
        if name is not None and phase == Phase.F:
            stage.first_ns[name] = min(stage.first_ns.get(name, first_ns), first_ns)


def _divided(stages: Sequence[_Stage], workload: Workload) -> DividedLayers:
    """Return the layers of all stages, with shares of these stages' times."""
    wholes = (
        workload.forward_ns,
        workload.backward_ns,
        workload.weight_ns,
        workload.fused_ns,
    )
    names: list[LayerName] = []
    columns: list[list[float]] = [[], [], [], []]
    bounds, as_forward = [0], False
    for number, stage in enumerate(stages):
        ends = (number == 0, number == len(stages) - 1)
        own = _in_order(stage, ends)
        forward = _shares(stage, own, _DIVIDES[0], ends)
        assert forward is not None
        for column, whole, phases in zip(columns, wholes, _DIVIDES, strict=True):
            shares = _shares(stage, own, phases, ends)
            as_forward |= shares is None
            own_ns = whole[number] * (forward if shares is None else shares)
            column.extend(own_ns.tolist())
        names += own
        bounds.append(len(names))
    forward_ns, backward_ns, weight_ns, fused_ns = (
        _whole(np.array(column), bounds, whole)
        for column, whole in zip(columns, wholes, strict=True)
    )
    kinds = tuple(KINDS[name.kind] for name in names)
    layers = timed_layers((forward_ns, backward_ns, weight_ns, fused_ns), _numbered(names), kinds)
    assumptions = (
        ("the backward of each layer: its stage's is divided as the forward is",)
        if as_forward
        else ()
    )
    own_layout = Layout(workload.placement, tuple(bounds))
    return DividedLayers(layers, own_layout, tuple(names), assumptions)


def _in_order(stage: _Stage, ends: tuple[bool, bool]) -> list[LayerName]:
    """Return the layers of a stage in the order of their first launches, ends among them."""
    names = sorted(stage.first_ns, key=lambda name: (stage.first_ns[name], name.number))
    for at_end, kind in zip(ends, (EMBEDDING, HEAD), strict=True):
        # One part each: a norm before the head goes with it, positions with the embedding.
        same = [name for name in names if name.kind == kind]
        names = [name for name in names if name.kind != kind]
        outside = at_end and not same and (Phase.F, None) in stage.kernel_ns
        if same or outside:
            part = LayerName(kind)
            names = [part, *names] if kind == EMBEDDING else [*names, part]
    return names


def _shares(
    stage: _Stage, own: Sequence[LayerName], phases: Sequence[Phase], ends: tuple[bool, bool]
) -> Floats | None:
    """Return the share of each layer in the kernels' time of some phases; None where unknown."""
    spent = dict.fromkeys(own, 0)
    outside = 0
    for (phase, name), kernel_ns in stage.kernel_ns.items():
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


def _numbered(names: Sequence[LayerName]) -> tuple[str, ...]:
    """Return names of layers, transformer layers numbered through the model."""
    texts, number = [], 0
    for name in names:
        if name.kind == LAYER:
            texts.append(f"layers.{number}")
            number += 1
        else:
            texts.append(name.kind)
    return tuple(texts)
