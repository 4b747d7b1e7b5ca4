"""Inputs: what is known of a model, from a table of layers, a report, or profiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.align.run import RunHints, merge
from bubbleviz.analyses.layout import layer_table
from bubbleviz.analyses.layout.layer_memory import allocated_by_layer, with_layer_memory
from bubbleviz.conventions.convention_file import find_conventions
from bubbleviz.conventions.layer_names import LayerName
from bubbleviz.count.count import count
from bubbleviz.count.iterations import choose_typical
from bubbleviz.errors import UsageError
from bubbleviz.explain.explanation import explain
from bubbleviz.explain.stage_layers import divide_layers, measure_links
from bubbleviz.interpret.fleet.run_recordings import Fleet, record_all, refuse_same_content
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.model.columns import Floats
from bubbleviz.model.texts import format_count, to_one_line
from bubbleviz.progress import Progress, Unwatched
from bubbleviz.report import memory_limits, report
from bubbleviz.report.memory import measure_memory
from bubbleviz.report.run_times import measure_run_memory, measure_workload
from bubbleviz.report.saved import read_pipeline
from bubbleviz.schedules.layout.layers import LayerKind, Layers, Layout, check_enough, timed_layers
from bubbleviz.schedules.measured_times import build_workload
from bubbleviz.schedules.plan import MeasuredMemory
from bubbleviz.schedules.workload import Workload, get_phase_times

_EVEN = "layers: assumed equal parts of their stage (--layers-per-stage)"


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
    run = read_pipeline(path)
    workload = measure_workload(run, forward_only=True)
    layers, own = evenly_divided(workload, layers_per_stage)
    source = to_one_line(path, 100)
    return _model(
        source, layers, own, workload, (_EVEN,), measure_run_memory(run), ran=run.schedule_name
    )


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
        layers, unmeasured = with_layer_memory(layers, own, memory, allocated)
        assumptions += unmeasured
    return layer_table.MeasuredModel(
        source,
        layers,
        split=workload.split,
        assumptions=assumptions
        if workload.split or layers.forward_only
        else (*assumptions, layer_table.HALVES),
        memory=memory is not None,
        in_bytes=memory is not None,
        ran=ran,
        ran_ns=ran_ns,
        stages=workload.devices,
        microbatches=workload.microbatches,
        own=own,
        links=measure_links(workload),
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
    options = ReadOptions(find_conventions(conventions), memory=True)
    read, _ = record_all(fleet, files, options, watched)
    recordings, run = read.recordings, merge(read, RunHints())
    counts = count(run, skip=skip)
    times = explain(run, counts).phase_times
    shown = choose_typical(counts.iterations, counts.headline)
    microbatches = None if shown is None else shown.microbatches
    ratio = None if shown is None else shown.ratios.get("schedule")
    workload = build_workload(times.kinds, times.transfer_ns, microbatches, forward_only=True)
    names: tuple[LayerName, ...] = ()
    assumptions: tuple[str, ...] = (_EVEN,)
    if layers_per_stage:
        layers, own = evenly_divided(workload, layers_per_stage)
    else:
        layers, own, names, assumptions = divide_layers(run.layers, workload)
    memory, allocated = None, None
    if (found := memory_limits.collect_memory(recordings, run)) is not None:
        of_stages = {kind.virtual_stage: kind.stage for kind in times.kinds}
        memory = measure_memory(found, of_stages)
        allocated = allocated_by_layer(recordings, run, names, own) if names else None
    return _model(
        f"{format_count(len(files), 'profile')} of {format_count(len(run.ranks), 'rank')}",
        layers,
        own,
        workload,
        assumptions,
        memory,
        allocated,
        report.find_schedule(recordings, run, counts).name,
        None if ratio is None or ratio.window_ns is None else float(ratio.window_ns),
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
    for whole in get_phase_times(workload).values():
        parts = []
        for ns, many in zip(whole, counts, strict=True):
            cuts = ns * np.arange(many + 1, dtype=np.int64) // many
            parts.append(np.diff(cuts))
        columns.append(np.concatenate(parts))
    names = tuple(f"layers.{number}" for number in range(int(bounds[-1])))
    layers = timed_layers(columns, names, (LayerKind.TRANSFORMER,) * len(names))
    return layers, Layout(workload.placement, tuple(bounds.tolist()))
