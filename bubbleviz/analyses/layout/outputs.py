"""Writes the layouts of a model as JSON, CSV or pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bubbleviz.analyses.layout.layer_table import format_table
from bubbleviz.analyses.layout.picture import draw_layouts
from bubbleviz.analyses.layout.report import UNKNOWN_MEMORY, LayoutReport
from bubbleviz.analyses.layout.text import select_layouts_to_show
from bubbleviz.errors import UsageError
from bubbleviz.model.texts import format_document
from bubbleviz.render.picture.memory_plot import MemoryPlot, MemoryPoint, draw_memory_plot
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.schedules.layout import layers as model
from bubbleviz.schedules.layout.best_layouts import ScheduleLayout
from bubbleviz.schedules.layout.framework_options import (
    format_megatron_layout,
    list_torchtitan_modules,
)

SCHEMA = "bubbleviz.layout/1"


def format_json(report: LayoutReport) -> str:
    """Return layouts as JSON, with null for unknown values."""
    question, measured = report.question, report.measured
    document = {
        "source": measured.source,
        "assumptions": list(measured.assumptions),
        "stages": question.stages,
        "microbatches": question.microbatches,
        "schedule": measured.ran,
        "iteration_ns": measured.ran_ns,
        "memory": {
            "known": measured.memory,
            "in_bytes": measured.in_bytes,
            "limit": None if question.limit is None else list(question.limit),
        },
        "layers": _list_layer_rows(question.layers),
        "schedules": [_list_schedule_values(report, row) for row in report.rows],
        "single_moves": _list_move_values(report),
    }
    return format_document(SCHEMA, document)


def _list_move_values(report: LayoutReport) -> dict[str, Any] | None:
    """Return the JSON object for moves of a single layer, or None if they are not known."""
    run = report.single_moves
    if run is None:
        return None
    single, has_memory, placement = run.single, run.has_memory, run.single.layout.placement
    return {
        "schedule": run.schedule,
        "makespan_ns": single.makespan_ns,
        "peak_memory": list(single.peak_memory) if has_memory else None,
        "moves": [
            {
                "layer": run.layer_names[move.layer],
                "from_stage": move.sender,
                "to_stage": move.receiver,
                "from_device": placement[move.sender],
                "to_device": placement[move.receiver],
                "makespan_ns": move.makespan_ns,
                "peak_memory": list(move.peak_memory) if has_memory else None,
            }
            for move in single.moves
        ],
    }


def _list_layer_rows(layers: model.Layers) -> list[dict[str, Any]]:
    """Return one JSON object per layer that contains the layer's times and memory."""
    columns = {
        "name": layers.names,
        "kind": tuple(kind.value for kind in layers.kinds),
        "forward_ns": layers.forward_ns.tolist(),
        "backward_ns": layers.backward_ns.tolist(),
        "weight_ns": layers.weight_ns.tolist(),
        "memory": layers.activation.tolist(),
        "memory_weight": layers.weight_activation.tolist(),
        "resident": layers.resident.tolist(),
        "transfer_ns": layers.down_ns.tolist(),
    }
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _list_schedule_values(report: LayoutReport, row: ScheduleLayout) -> dict[str, Any]:
    """Return the JSON object for a schedule: its best layout, and its layout before the change."""
    best = row.best
    return {
        "schedule": row.schedule,
        "chunks": row.plan and row.plan.chunks,
        "makespan_ns": best and best.makespan_ns,
        "least_makespan_ns": best and best.least_ns,
        "proven": row.proven,
        "bubble_ratio": row.bubble_ratio,
        "peak_memory": list(row.peak_memory),
        "saving": row.saving,
        "before": None
        if row.baseline is None
        else {
            "own": row.is_current_layout,
            "makespan_ns": row.baseline_ns,
            "fits": row.baseline_fits,
            "first_layers": list(row.baseline.bounds),
        },
        "layout": best and _list_layout_values(report, best.layout),
        "reason": row.reason or None,
    }


def _list_layout_values(report: LayoutReport, layout: model.Layout) -> dict[str, Any]:
    """Return the JSON object for a layout: its stages, and its settings in two frameworks."""
    layers = report.question.layers
    work = report.question.workload(layout)
    return {
        "stages": [
            {
                "virtual_stage": number,
                "device": layout.placement[number],
                "layers": [layers.names[at] for at in stage],
                "forward_ns": work.forward_ns[number],
                "backward_ns": work.backward_ns[number],
                "weight_ns": work.weight_ns[number],
            }
            for number, stage in enumerate(layout.stages)
        ],
        "megatron": format_megatron_layout(layers, layout),
        "torchtitan": list_torchtitan_modules(layers, layout),
    }


def format_csv(report: LayoutReport) -> str:
    """Return the layers as CSV.

    Additional columns contain each layer's virtual stage in the layout that ran (if known) and in
    the best layout for each schedule.
    """
    columns: dict[str, list[int]] = {}
    if report.question.current_layout is not None:
        columns["stage_before"] = _find_stage_of_layers(report.question.current_layout)
    for row in report.rows:
        if row.best is not None:
            columns[f"stage:{row.schedule}"] = _find_stage_of_layers(row.best.layout)
    return format_table(report.question.layers, columns, in_bytes=report.measured.in_bytes)


def _find_stage_of_layers(layout: model.Layout) -> list[int]:
    """Return the index of each layer's virtual stage."""
    return [number for number, stage in enumerate(layout.stages) for _ in stage]


def _draw_svg(report: LayoutReport) -> str:
    reasons = "; ".join(row.reason for row in report.rows if row.reason)
    return draw_layouts(report.question, select_layouts_to_show(report), reasons)


def _draw_memory_plot(report: LayoutReport) -> str:
    """Draw an SVG plot of each schedule's bubble ratio against its memory.

    Raises:
        UsageError: The memory needed by the layers is unknown.
    """
    if not report.measured.memory:
        raise UsageError(f"cannot plot memory: {UNKNOWN_MEMORY}")
    points = tuple(
        MemoryPoint(row.schedule, max(row.peak_memory), row.bubble_ratio)
        for row in report.rows
        if row.peak_memory and row.bubble_ratio is not None
    )
    limit = report.question.limit
    plot = MemoryPlot(
        "Bubble ratio against memory, for each schedule with its best layout",
        points,
        report.measured.in_bytes,
        limit=None if limit is None else max(limit),
    )
    return draw_memory_plot(plot)


RENDERINGS: Mapping[str, Callable[[LayoutReport], str | bytes]] = {
    "json": format_json,
    "csv": format_csv,
    "svg": _draw_svg,
    "memory-plot": _draw_memory_plot,
    "pdf": lambda report: as_pdf(_draw_svg(report)),
    "png": lambda report: as_png(_draw_svg(report)),
}
