"""Inputs: what is known of a model, from a table of layers, a report, or profiles."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from bubbleviz.align.run import Run, RunHints, merge, stages_of_chunks
from bubbleviz.analyses.layout import layer_table
from bubbleviz.conventions.convention_file import find_conventions
from bubbleviz.conventions.range_names import EMBEDDING, HEAD, LAYER, LayerName
from bubbleviz.count.count import count
from bubbleviz.count.iterations import typical
from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.explain.explanation import explain
from bubbleviz.interpret.fleet.run_recordings import Fleet, record_all, refuse_same_content
from bubbleviz.interpret.layers import LayerTimes
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import counted, one_line
from bubbleviz.progress import Progress, Unwatched
from bubbleviz.report import memory_limits, report
from bubbleviz.report.memory import measured_memory
from bubbleviz.report.saved import read_times
from bubbleviz.schedules.layout.layers import LayerKind, Layers, Layout, check_enough, timed_layers
from bubbleviz.schedules.measured_times import measured_workload
from bubbleviz.schedules.simulation import MeasuredMemory, Workload, phase_times

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


#: What ran on one virtual stage: nanoseconds of kernels by phase and layer, and first launches.
_Stage = tuple[dict[tuple[Phase, LayerName | None], int], dict[LayerName, int]]


def divided_layers(recordings: Sequence[Recording], run: Run, workload: Workload) -> DividedLayers:
    """Return the layers of a run by the ranges of its profiles.

    Args:
        recordings: read with the ranges of layers.
        run: these, merged.
        workload: the times of its virtual stages.

    Raises:
        MismatchError: no range of a layer is in a forward.
    """
    stages: list[_Stage] = [({}, {}) for _ in workload.placement]
    for number, recording in enumerate(recordings):
        if recording.layers is not None:
            _collect(recording.layers, run, run.rank_of_local[number], stages)
    if not any(first for _, first in stages):
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
        (of_kernels, first), name = stages[number], None if layer == NONE else times.layers[layer]
        key = Phase(phase), name
        of_kernels[key] = of_kernels.get(key, 0) + kernel_ns
        if name is not None and phase == Phase.F:
            first[name] = min(first.get(name, first_ns), first_ns)


def _divided(stages: Sequence[_Stage], workload: Workload) -> DividedLayers:
    """Return the layers of all stages, with shares of these stages' times."""
    wholes = list(phase_times(workload).values())
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


def _in_order(stage: _Stage, ends: tuple[bool, bool]) -> list[LayerName]:
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
    stage: _Stage, own: Sequence[LayerName], phases: Sequence[Phase], ends: tuple[bool, bool]
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


_EVEN = "the layers of a stage: each is taken for an equal part of its stage (--layers-per-stage)"


def of_report(path: str, layers_per_stage: Sequence[int]) -> layer_table.MeasuredModel:
    """Return a model by the times of a saved report, a stage's divided among so many layers.

    Args:
        path: of the report.
        layers_per_stage: layers of each virtual stage, or one number for all.

    Raises:
        InputError: it is no report of a pipeline.
        MismatchError: it lacks the times of a virtual stage.
        UsageError: the numbers of layers are not those of its virtual stages.
    """
    saved = read_times(path)
    workload = measured_workload(saved.kinds, saved.transfer_ns, saved.microbatches)
    layers, own = evenly_divided(workload, layers_per_stage)
    source = one_line(path, 100)
    return _model(source, layers, own, workload, (_EVEN,), saved.memory, ran=saved.schedule)


def _model(
    source: str,
    layers: Layers,
    own: Layout,
    workload: Workload,
    assumptions: tuple[str, ...],
    memory: MeasuredMemory | None,
    allocated: Floats | None = None,
    ran: str | None = None,
    ran_ns: float | None = None,
) -> layer_table.MeasuredModel:
    """Return what is known of a model, its memory in bytes where that was measured."""
    if memory is not None:
        layers, unmeasured = layer_table.with_layer_memory(layers, own, memory, allocated)
        assumptions += unmeasured
    return layer_table.MeasuredModel(
        source,
        layers,
        split=workload.split,
        assumptions=assumptions if workload.split else (*assumptions, layer_table.HALVES),
        memory=memory is not None,
        in_bytes=memory is not None,
        ran=ran,
        ran_ns=ran_ns,
        stages=workload.devices,
        microbatches=workload.microbatches,
        own=own,
        links=links_of(workload),
    )


def of_profiles(
    paths: Sequence[str],
    *,
    layers_per_stage: Sequence[int] = (),
    conventions: Sequence[str] = (),
    skip: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> layer_table.MeasuredModel:
    """Return a model by the profiles of one run, with ranges of layers or numbers of these.

    Args:
        paths: profiles, as :func:`bubbleviz.analyze` takes them.
        layers_per_stage: layers of each virtual stage, taken as equal; empty to measure them.
        conventions: of range names.
        skip: how many of the first iterations are left out.
        jobs: processes that read.
        progress: takes the progress of reading.

    Raises:
        BubblevizError: the profiles cannot be read, or are of no pipeline with layers.
    """
    fleet, watched = Fleet(jobs), progress or Unwatched()
    files = fleet.find(list(paths))
    watched.files(refuse_same_content(fleet, [file.path for file in files]))
    options = ReadOptions(find_conventions(conventions), layers=not layers_per_stage, memory=True)
    read, _ = record_all(fleet, files, options, watched)
    recordings, run = read.recordings, merge(read, RunHints())
    counts = count(run, skip=skip)
    times = explain(run, counts).phase_times
    shown = typical(counts.iterations, counts.headline)
    microbatches = None if shown is None else shown.microbatches
    ratio = None if shown is None else shown.ratios.get("schedule")
    workload = measured_workload(times.kinds, times.transfer_ns, microbatches)
    names: tuple[LayerName, ...] = ()
    assumptions: tuple[str, ...] = (_EVEN,)
    if layers_per_stage:
        layers, own = evenly_divided(workload, layers_per_stage)
    else:
        layers, own, names, assumptions = divided_layers(recordings, run, workload)
    memory, allocated = None, None
    if (found := memory_limits.memory_of(recordings, run)) is not None:
        of_stages = {kind.virtual_stage: kind.stage for kind in times.kinds}
        memory = measured_memory(found, of_stages)
        allocated = layer_table.allocated_by_layer(recordings, run, names, own) if names else None
    return _model(
        f"{counted(len(files), 'profile')} of {counted(len(run.ranks), 'rank')}",
        layers,
        own,
        workload,
        assumptions,
        memory,
        allocated,
        report.schedule_ran(recordings, run, counts).name,
        None if ratio is None or ratio.window_ns is None else float(ratio.window_ns),
    )


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


def evenly_divided(workload: Workload, layers_per_stage: Sequence[int]) -> tuple[Layers, Layout]:
    """Return equal layers of each virtual stage, and the layout.

    Raises:
        UsageError: the numbers of layers are not those of the virtual stages, or too large.
    """
    stages = workload.virtual_stages
    counts = list(layers_per_stage) * (stages if len(layers_per_stage) == 1 else 1)
    if len(counts) != stages or min(counts) < 1:
        raise UsageError(
            f"--layers-per-stage: {len(counts)} numbers for {stages} virtual stages; give one for "
            "all, or one each, from 1 on"
        )
    check_enough(sum(counts), stages)
    bounds = np.concatenate(([0], np.cumsum(counts)))
    columns = []
    for whole in phase_times(workload).values():
        parts = []
        for ns, many in zip(whole, counts, strict=True):
            cuts = ns * np.arange(many + 1, dtype=np.int64) // many
            parts.append(np.diff(cuts))
        columns.append(np.concatenate(parts))
    names = tuple(f"layers.{number}" for number in range(int(bounds[-1])))
    layers = timed_layers(columns, names, (LayerKind.TRANSFORMER,) * len(names))
    return layers, Layout(workload.placement, tuple(bounds.tolist()))
