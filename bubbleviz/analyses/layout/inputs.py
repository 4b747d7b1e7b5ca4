"""Inputs: what is known of a model, from a table of layers, a report, or profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.run import Run, RunHints, merge
from bubbleviz.analyses.layout.layer_table import allocated_by_layer, read_layers, with_layer_memory
from bubbleviz.analyses.layout.measured_layers import divided_layers
from bubbleviz.analyses.layout.report import MeasuredLayers
from bubbleviz.conventions.convention_file import find_conventions
from bubbleviz.conventions.layer_names import LayerName
from bubbleviz.count.count import count
from bubbleviz.count.iterations import typical
from bubbleviz.errors import UsageError
from bubbleviz.explain.explanation import explain
from bubbleviz.explain.phase_times import PhaseTime
from bubbleviz.interpret.fleet.run_recordings import Fleet, record_all, refuse_same_content
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import counted, one_line
from bubbleviz.model.values import frozen
from bubbleviz.progress import Progress, Unwatched
from bubbleviz.report.memory import measured_memory
from bubbleviz.report.memory_limits import memory_of
from bubbleviz.report.report import schedule_ran
from bubbleviz.report.saved import read_times
from bubbleviz.schedules.layout.best_layouts import LayoutQuestion
from bubbleviz.schedules.layout.layers import LayerKind, Layers, Layout, check_enough, timed_layers
from bubbleviz.schedules.measured_times import measured_workload
from bubbleviz.schedules.workload import Workload

_HALVES = "the halves of the backward: half of it is taken for each (schedules with W apart)"
_EVEN = "the layers of a stage: each is taken for an equal part of its stage (--layers-per-stage)"


@frozen
class MeasuredModel:
    """What is known of a model, and of the run it was measured in.

    Attributes:
        layers: of the model.
        measured: where their numbers come from.
        split: whether both halves of the backward were measured.
        stages: devices of the run; None without a run.
        microbatches: of its iterations.
        own: its layout.
        links: nanoseconds from each device to each; None unknown.
        plain_memory: whether memory is in plain numbers, of the unit of the limit.
    """

    layers: Layers
    measured: MeasuredLayers
    split: bool = True
    stages: int | None = None
    microbatches: int | None = None
    own: Layout | None = None
    links: tuple[tuple[int, ...], ...] | None = None
    plain_memory: bool = False

    def question(self, stages: int | None, microbatches: int | None) -> LayoutQuestion:
        """Return what is sought, with sizes in place of those of the run.

        Raises:
            UsageError: a size is neither given nor measured.
        """
        p, m = stages or self.stages, microbatches or self.microbatches
        lacking = [option for option, size in (("-p P", p), ("-m M", m)) if size is None]
        if p is None or m is None:
            raise UsageError(f"give {' and '.join(lacking)}, or the profiles of a run")
        own = self.own if p == self.stages else None
        links = self.links
        if links is not None and p != self.stages:
            usual = int(np.median([ns for row in links for ns in row]))
            links = ((usual,) * p,) * p
        return LayoutQuestion(self.layers, p, m, own=own, links=links, split=self.split)


def of_table(path: str) -> MeasuredModel:
    """Return a model by a table of its layers.

    Raises:
        InputError: it is none.
    """
    table = read_layers(path)
    measured = MeasuredLayers(
        source=one_line(path, 100),
        memory=table.memory,
        in_bytes=bool(table.in_bytes),
        assumptions=() if table.split else (_HALVES,),
    )
    return MeasuredModel(
        table.layers, measured, split=table.split, plain_memory=table.in_bytes is None
    )


def of_report(path: str, layers_per_stage: Sequence[int]) -> MeasuredModel:
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
    measured = MeasuredLayers(one_line(path, 100), ran=saved.schedule, assumptions=(_EVEN,))
    if saved.memory is not None:
        layers, unmeasured = with_layer_memory(layers, own, saved.memory)
        measured = _with_memory(measured, unmeasured)
    return _of_workload(layers, own, workload, measured)


def _with_memory(measured: MeasuredLayers, unmeasured: tuple[str, ...]) -> MeasuredLayers:
    """Return the same with memory in bytes, and what was not measured of it."""
    assumptions = (*measured.assumptions, *unmeasured)
    return replace(measured, memory=True, in_bytes=True, assumptions=assumptions)


def of_profiles(
    paths: Sequence[str],
    *,
    layers_per_stage: Sequence[int] = (),
    conventions: Sequence[str] = (),
    skip: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> MeasuredModel:
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
    if layers_per_stage:
        layers, own = evenly_divided(workload, layers_per_stage)
        assumptions: tuple[str, ...] = (_EVEN,)
        names: tuple[LayerName, ...] = ()
    else:
        divided = divided_layers(recordings, run, workload)
        layers, own, assumptions = divided.layers, divided.own, divided.assumptions
        names = divided.names
    measured = MeasuredLayers(
        source=f"{counted(len(files), 'profile')} of {counted(len(run.ranks), 'rank')}",
        ran=schedule_ran(recordings, run, counts).name,
        ran_ns=None if ratio is None or ratio.window_ns is None else float(ratio.window_ns),
        assumptions=assumptions,
    )
    found = memory_of(recordings, run)
    memory = None if found is None else measured_memory(found, *_stages_of(run, times.kinds))
    if memory is not None:
        allocated = allocated_by_layer(recordings, run, names, own) if names else None
        layers, unmeasured = with_layer_memory(layers, own, memory, allocated)
        measured = _with_memory(measured, unmeasured)
    return _of_workload(layers, own, workload, measured)


def _stages_of(run: Run, kinds: Sequence[PhaseTime]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the stage of each rank, and of the ranks that hold each virtual stage."""
    ranks = {rank.index: NONE if rank.stage is None else rank.stage for rank in run.ranks}
    return ranks, {kind.virtual_stage: kind.stage for kind in kinds}


def _of_workload(
    layers: Layers, own: Layout, workload: Workload, measured: MeasuredLayers
) -> MeasuredModel:
    halves = () if workload.split else (_HALVES,)
    return MeasuredModel(
        layers=layers,
        measured=replace(measured, assumptions=(*measured.assumptions, *halves)),
        split=workload.split,
        stages=workload.devices,
        microbatches=workload.microbatches,
        own=own,
        links=links_of(workload),
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
    wholes = (
        workload.forward_ns,
        workload.backward_ns,
        workload.weight_ns,
        workload.fused_ns,
    )
    bounds = np.concatenate(([0], np.cumsum(counts)))
    columns = []
    for whole in wholes:
        parts = []
        for ns, many in zip(whole, counts, strict=True):
            cuts = ns * np.arange(many + 1, dtype=np.int64) // many
            parts.append(np.diff(cuts))
        columns.append(np.concatenate(parts))
    names = tuple(f"layers.{number}" for number in range(int(bounds[-1])))
    layers = timed_layers(columns, names, (LayerKind.TRANSFORMER,) * len(names))
    return layers, Layout(workload.placement, tuple(bounds.tolist()))
