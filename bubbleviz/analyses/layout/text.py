"""Text output of ``bubbleviz layout``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby

from bubbleviz.analyses.layout.report import LayoutReport
from bubbleviz.model.memory_sizes import format_memory
from bubbleviz.model.texts import format_count, format_percent, to_one_line
from bubbleviz.render.document import (
    Block,
    HangingLines,
    Sentence,
    Table,
    format_ms,
    format_percent_cell,
)
from bubbleviz.render.text.layer_moves import list_layer_moves
from bubbleviz.schedules.layout import layers as model
from bubbleviz.schedules.layout.best_layouts import ScheduleLayout, compute_peak_memory
from bubbleviz.schedules.layout.framework_options import (
    format_megatron_layout,
    list_torchtitan_modules,
)

#: Maximum number of layouts to show if the user named schedules.
_MAX_SHOWN = 4


def list_sections(report: LayoutReport) -> Iterator[Block]:
    """Yield the model, the schedule table, the layouts to show in full, and the assumptions."""
    question, measured = report.question, report.measured
    layers = format_count(len(question.layers), "layer")
    devices = format_count(question.stages, "device")
    microbatches = format_count(question.microbatches, "microbatch", "microbatches")
    size = f"{layers} on {devices}, {microbatches}"
    yield Sentence(f"{size}: {measured.source}", style="bold")
    if measured.ran_ns is not None:
        length = f"measured: {format_ms(measured.ran_ns)} ms per iteration"
        yield Sentence(f"{length}, {measured.ran}" if measured.ran else length)
    title = "Best layout for each schedule, simulated"
    if report.best is None:
        title = _explain_no_layout(report)
    rows = [_make_schedule_row(report, row) for row in report.rows]
    yield Table(title, rows, left=("schedule", "best of\nall"))
    yield HangingLines([("", line) for line in _list_legend_lines(report)])
    for row in select_layouts_to_show(report):
        yield from _show_layout(report, row)
    if (moves := report.single_moves) is not None:
        yield from list_layer_moves(moves)
    if measured.assumptions:
        yield Sentence("\nNot measured", style="bold")
        yield HangingLines([("  - ", to_one_line(text, 400)) for text in measured.assumptions])


def select_layouts_to_show(report: LayoutReport) -> list[ScheduleLayout]:
    """Return the layouts to show in full.

    If the user named schedules, the ``_MAX_SHOWN`` fastest layouts are returned. Otherwise, the
    layout of the schedule that ran and the fastest layout are returned.
    """
    if report.are_schedules_named:
        return [row for row in report.rows if row.best is not None][:_MAX_SHOWN]
    rows = {row.schedule: row for row in (report.same, report.best) if row is not None}
    return list(rows.values())


def _explain_no_layout(report: LayoutReport) -> str:
    """Return the table title to use if no schedule has a layout.

    If memory is limited, the title names the schedule whose old layout comes closest to fitting,
    and says by how much that layout exceeds the limit.
    """
    question = report.question
    excesses = []
    for row in report.rows:
        if question.limit and row.plan and row.baseline:
            peaks = compute_peak_memory(
                question.layers, question.recurrence(row.plan), row.baseline
            )
            pairs = zip(peaks, question.limit, strict=True)
            excesses.append((max(peak - limit for peak, limit in pairs), row.schedule))
    if not excesses:
        return "No schedule has a layout"
    excess, schedule = min(excesses)
    size = format_memory(excess, in_bytes=report.measured.in_bytes)
    return (
        f"No layout found fits in memory; the closest is the old layout with {schedule}, which "
        f"exceeds the limit by {size}"
    )


def _make_schedule_row(report: LayoutReport, row: ScheduleLayout) -> dict[str, str]:
    """Return a schedule's row for the schedule table."""
    peak = max(row.peak_memory, default=None)
    memory = "-" if peak is None else format_memory(peak, in_bytes=report.measured.in_bytes)
    best_ns = None if row.best is None else row.best.makespan_ns
    cells = {
        "schedule": row.schedule + (" (ran)" if row.schedule == report.measured.ran else ""),
        "chunks": "" if row.plan is None else str(row.plan.chunks),
        "before\nms": _format_length_before(row),
        "best\nms": format_ms(best_ns),
        "saved\n%": format_percent_cell(row.saving),
        "bubble\n%": format_percent_cell(row.bubble_ratio),
    }
    if report.measured.memory:
        cells["peak\nmemory"] = memory
    return {**cells, "best of\nall": _describe_proof(row)}


def _format_length_before(row: ScheduleLayout) -> str:
    """Return the iteration time with the layout before the change, and marks for that layout.

    The mark ``*`` means that all stages have an equal number of layers. The mark ``!`` means that
    memory is exceeded.
    """
    if row.baseline_ns is None:
        return "-"
    even_mark = "" if row.is_current_layout else "*"
    memory_mark = "" if row.baseline_fits else "!"
    return f"{format_ms(row.baseline_ns)}{even_mark}{memory_mark}"


def _describe_proof(row: ScheduleLayout) -> str:
    """State whether the layout is proved to be the best, or why there is no layout.

    If there is no proof, the text states how much another layout could save at most. For a searched
    schedule, the text states only that nothing was proved.
    """
    if row.best is None:
        return to_one_line(row.reason, 60)
    if row.proven:
        return "yes"
    if not row.exact:
        return "not proved"
    gap = 1 - row.best.least_ns / row.best.makespan_ns
    return f"within {format_percent(gap)}"


def _list_legend_lines(report: LayoutReport) -> Iterator[str]:
    """Yield explanations of the columns and marks in the schedule table."""
    has_own_layout = any(row.is_current_layout for row in report.rows)
    has_even_layout = any(
        not row.is_current_layout and row.baseline_ns is not None for row in report.rows
    )
    parts = []
    if has_own_layout:
        parts.append("before: the run's own layout")
    if has_even_layout:
        parts.append("* equal number of layers per stage")
    if any(not row.baseline_fits for row in report.rows):
        parts.append("! exceeds the memory")
    yield "; ".join(parts)
    if has_own_layout and has_even_layout:
        yield (
            "times move with the layers; analyze --what-if keeps them on their stage, so its times "
            "for schedules with * differ if stages are unequal"
        )
    if report.best:
        yield (
            "best of all: whether this is proved to be the fastest layout of contiguous layers "
            "for the schedule"
        )


def _show_layout(report: LayoutReport, row: ScheduleLayout) -> Iterator[Block]:
    """Yield the stages of a schedule's best layout, and how to set the layout in frameworks."""
    assert row.best is not None
    layers, layout = report.question.layers, row.best.layout
    saved = "" if row.saving is None else f", {format_percent(row.saving)} shorter than before"
    title = f"{row.schedule}: {format_ms(row.best.makespan_ns)} ms{saved}"
    yield Table(title, list(_list_stage_rows(report, row, layout)), left=("",), wrap=("",))
    for framework, setting in _list_settings(layers, layout):
        yield HangingLines([(f"  {framework:<12}", setting)])


def _list_settings(layers: model.Layers, layout: model.Layout) -> Iterator[tuple[str, str]]:
    """Yield (framework, setting) pairs that say how to select a layout in each framework.

    A model that has only forwards gets the settings of inference frameworks. Any other model gets
    the settings of training frameworks. Megatron is left out if it cannot express the layout.
    """
    if layers.forward_only:
        kinds = [[layers.kinds[layer] for layer in stage] for stage in layout.stages]
        counts = [str(stage.count(model.LayerKind.TRANSFORMER)) for stage in kinds]
        partition = ",".join(counts)
        yield "vLLM", f"VLLM_PP_LAYER_PARTITION={partition}"
        yield "SGLang", f"SGLANG_PP_LAYER_PARTITION={partition}"
        return
    megatron = format_megatron_layout(layers, layout)
    if megatron is not None:
        yield "Megatron", f"--pipeline-model-parallel-layout '{megatron}'"
    modules = json.dumps(list_torchtitan_modules(layers, layout))
    yield "torchtitan", f"module_fqns_per_model_part = {modules}"


def _list_stage_rows(
    report: LayoutReport, row: ScheduleLayout, layout: model.Layout
) -> Iterator[dict[str, str]]:
    """Yield a table row for each virtual stage of a layout.

    If devices have several chunks, a row also names the devices that run the stage. A stage runs on
    several devices if the schedule replicates stages.
    """
    work = report.question.workload(layout)
    devices_of_stages = row.list_holders()
    has_chunks = len(devices_of_stages) > report.question.stages
    for number, stage in enumerate(layout.stages):
        times_ns = {
            "F ms": work.forward_ns[number],
            "B ms": work.backward_ns[number],
            "W ms": work.weight_ns[number],
        }
        cells = {"stage": str(number)}
        if has_chunks:
            devices = [str(device) for device, held in devices_of_stages if held == number]
            cells["device"] = ", ".join(devices)
        cells["layers"] = str(len(stage))
        cells[""] = _describe_stage(report.question.layers, stage)
        cells |= {header: format_ms(time_ns) for header, time_ns in times_ns.items()}
        yield {**cells, "sum ms": format_ms(sum(times_ns.values()))}


def _describe_stage(layers: model.Layers, stage: range) -> str:
    """Return the layers of a stage in words.

    A series of consecutive transformer layers is shortened to the names of its first and last
    layer.
    """
    words = []
    for is_transformer, group in groupby(
        stage, key=lambda layer: layers.kinds[layer] is model.LayerKind.TRANSFORMER
    ):
        names = [to_one_line(layers.names[layer], 30) for layer in group]
        if is_transformer and len(names) > 1:
            names = [f"{names[0]} .. {names[-1]}"]
        words += names
    return ", ".join(words)
