"""Measures the model of a run from a saved report or from profiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.align.run import RunHints, merge
from bubbleviz.analyses.layout import layer_table
from bubbleviz.analyses.layout.layer_memory import measure_layer_bytes
from bubbleviz.conventions.convention_file import find_conventions
from bubbleviz.conventions.layer_names import LayerName
from bubbleviz.count.count import Counts, count
from bubbleviz.count.iterations import choose_typical
from bubbleviz.errors import UsageError
from bubbleviz.explain.explanation import explain
from bubbleviz.explain.stage_layers import measure_links, split_stage_times
from bubbleviz.interpret.fleet.run_recordings import Fleet, record_all, refuse_same_content
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.interpret.recording import Recordings
from bubbleviz.model.columns import Floats
from bubbleviz.model.texts import format_count, to_one_line
from bubbleviz.progress import Progress, Unwatched
from bubbleviz.report import memory_limits, report
from bubbleviz.report.memory import measure_memory
from bubbleviz.report.run_times import measure_run_memory, measure_workload
from bubbleviz.report.saved import read_pipeline
from bubbleviz.schedules.layout.divided_memory import add_layer_memory
from bubbleviz.schedules.layout.layers import LayerKind, Layers, Layout, build_layers, check_enough
from bubbleviz.schedules.measured_times import build_workload
from bubbleviz.schedules.plan import MeasuredMemory
from bubbleviz.schedules.workload import Workload, get_phase_times

_EVEN = "layer times: each stage is assumed to consist of equal layers (--layers-per-stage)"


def read_model_of_report(path: str, layers_per_stage: Sequence[int]) -> layer_table.MeasuredModel:
    """Return the model of the run in a saved report, assuming that all layers of a stage are equal.

    Args:
        path: Path to the report.
        layers_per_stage: Number of layers in each virtual stage, or one number for all stages.

    Raises:
        InputError: The file is not a report of a pipeline.
        MismatchError: The report lacks the times of a virtual stage.
        UsageError: The layer counts do not match the virtual stages of the run.
    """
    run = read_pipeline(path)
    workload = measure_workload(run, forward_only=True)
    layers, layout = divide_evenly(workload, layers_per_stage)
    source = to_one_line(path, 100)
    return _make_model(
        source, layers, layout, workload, (_EVEN,), measure_run_memory(run), ran=run.schedule_name
    )


def _make_model(
    source: str,
    layers: Layers,
    layout: Layout,
    workload: Workload,
    assumptions: tuple[str, ...],
    memory: MeasuredMemory | None,
    allocated: Floats | None = None,
    ran: str | None = None,
    ran_ns: float | None = None,
) -> layer_table.MeasuredModel:
    """Build the measured model of a run, including the memory of its layers if it was measured.

    Args:
        source: Description of the source, used in a table caption.
        layers: Layers and their times.
        layout: Layout of the run.
        workload: Times of the stages in the run.
        assumptions: Assumptions about layer times, one sentence each. Assumptions about memory are
            added. If B and W were not measured separately, an assumption about them is added as
            well.
        memory: Memory of the stages and devices of the run, or None if unknown.
        allocated: Measured bytes of each layer, or None if unknown.
        ran: Name of the schedule that the run used, or None if unknown.
        ran_ns: Measured iteration time of the run, or None if unknown.
    """
    if memory is not None:
        layers, unmeasured = add_layer_memory(layers, layout, memory, allocated)
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
        run_layout=layout,
        links=measure_links(workload),
    )


def measure_model(
    paths: Sequence[str],
    *,
    layers_per_stage: Sequence[int] = (),
    conventions: Sequence[str] = (),
    skip: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> layer_table.MeasuredModel:
    """Measure the model of a run from the run's profiles.

    Args:
        paths: Profiles, as for :func:`bubbleviz.analyze`.
        layers_per_stage: Number of layers in each virtual stage, which are assumed to be equal, or
            empty to measure each layer from its ranges.
        conventions: Names or TOML files of the conventions that the range names follow.
        skip: Number of iterations to leave out at the start.
        jobs: Number of processes used to read profiles.
        progress: Callback that receives the progress of reading files.

    Raises:
        BubblevizError: The profiles cannot be read, or do not contain a pipeline with layers.
    """
    parts, n_profiles = _read_parts(paths, conventions, jobs, progress or Unwatched())
    run = merge(parts, RunHints())
    counts = count(run, skip=skip)
    times = explain(run, counts).phase_times
    microbatches, schedule_ns = _measure_typical(counts)
    workload = build_workload(times.kinds, times.transfer_ns, microbatches, forward_only=True)
    names: tuple[LayerName, ...] = ()
    assumptions: tuple[str, ...] = (_EVEN,)
    if layers_per_stage:
        layers, layout = divide_evenly(workload, layers_per_stage)
    else:
        layers, layout, names, assumptions = split_stage_times(run.layers, workload)
    memory, allocated = None, None
    if (rank_memory := memory_limits.collect_memory(parts.recordings, run)) is not None:
        memory = measure_memory(
            rank_memory, {kind.virtual_stage: kind.stage for kind in times.kinds}
        )
        if names:
            allocated = measure_layer_bytes(parts.recordings, run, names, layout)
    return _make_model(
        f"{format_count(n_profiles, 'profile')} of {format_count(len(run.ranks), 'rank')}",
        layers,
        layout,
        workload,
        assumptions,
        memory,
        allocated,
        report.find_schedule(parts.recordings, run, counts).name,
        schedule_ns,
    )


def _measure_typical(counts: Counts) -> tuple[int | None, float | None]:
    """Return the number of microbatches of the typical iteration, and the length of its schedule.

    The length is that of the window of the ratio ``schedule``, in ns. Each value is None if it is
    unknown.
    """
    typical = choose_typical(counts.iterations, counts.headline)
    if typical is None:
        return None, None
    ratio = typical.ratios.get("schedule")
    if ratio is None or ratio.window_ns is None:
        return typical.microbatches, None
    return typical.microbatches, float(ratio.window_ns)


def _read_parts(
    paths: Sequence[str], conventions: Sequence[str], jobs: int, progress: Progress
) -> tuple[Recordings, int]:
    """Read the profiles of a run with their memory, and return the number of profiles as well.

    Args:
        paths: Profiles, as for :func:`bubbleviz.analyze`.
        conventions: Names or TOML files of the conventions that the range names follow.
        jobs: Number of processes used to read profiles.
        progress: Callback that receives the progress of reading files.

    Raises:
        BubblevizError: The profiles cannot be read.
    """
    fleet = Fleet(jobs)
    files = fleet.find(list(paths))
    progress.files(refuse_same_content(fleet, [file.path for file in files]))
    options = ReadOptions(find_conventions(conventions), memory=True)
    parts, _ = record_all(fleet, files, options, progress)
    return parts, len(files)


def divide_evenly(workload: Workload, layers_per_stage: Sequence[int]) -> tuple[Layers, Layout]:
    """Divide each virtual stage into equal layers, and return the layers and their layout.

    The layer times of a stage add up to the time of the stage, and differ by at most 1 ns.

    Args:
        workload: Times of the virtual stages.
        layers_per_stage: Number of layers in each virtual stage, or one number for all stages.

    Raises:
        UsageError: The layer counts do not match the virtual stages, or are too large.
    """
    stages = workload.virtual_stages
    counts = list(layers_per_stage) * (stages if len(layers_per_stage) == 1 else 1)
    if len(counts) != stages or min(counts) < 1:
        raise UsageError(
            f"--layers-per-stage: {len(counts)} numbers were given for {stages} virtual stages; "
            "pass one number for all stages, or one per stage, each at least 1"
        )
    check_enough(sum(counts), stages)
    bounds = np.concatenate(([0], np.cumsum(counts)))
    columns = []
    for stage_times in get_phase_times(workload).values():
        parts = []
        for ns, n_layers in zip(stage_times, counts, strict=True):
            cuts = ns * np.arange(n_layers + 1, dtype=np.int64) // n_layers
            parts.append(np.diff(cuts))
        columns.append(np.concatenate(parts))
    names = tuple(f"layers.{number}" for number in range(int(bounds[-1])))
    layers = build_layers(columns, names, (LayerKind.TRANSFORMER,) * len(names))
    return layers, Layout(workload.placement, tuple(bounds.tolist()))
