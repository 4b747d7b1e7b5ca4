"""The layouts of a model: what they were sought for, what they win, and what is assumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bubbleviz.analyses.layout.layer_table import MeasuredModel, table_text
from bubbleviz.analyses.layout.picture import draw_layouts
from bubbleviz.errors import UsageError
from bubbleviz.model.memory_sizes import MemorySize, memory_text
from bubbleviz.model.texts import counted, document_text, one_line, percent
from bubbleviz.progress import Watch, unwatched
from bubbleviz.render.document import Block, HangingLines, Sentence, Table, in_percent, milliseconds
from bubbleviz.render.picture.memory_plot import MemoryPlot, MemoryPoint, draw_memory_plot
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.schedules.layout import layers as model
from bubbleviz.schedules.layout.best_layouts import (
    LayoutQuestion,
    ScheduleLayout,
    best_layouts,
    peak_memory,
)
from bubbleviz.schedules.layout.framework_options import megatron_layout, torchtitan_layout


@dataclass(frozen=True)
class LayoutReport:
    """Layouts of a model.

    Attributes:
        question: what was sought.
        measured: where its numbers come from.
        rows: a schedule each, the shortest iteration first.
        asked: whether they were named, rather than all of one order.
    """

    question: LayoutQuestion
    measured: MeasuredModel
    rows: tuple[ScheduleLayout, ...]
    asked: bool = False

    @property
    def best(self) -> ScheduleLayout | None:
        """The schedule and the layout with the shortest iteration; None where none fits."""
        return next((row for row in self.rows if row.best is not None), None)

    @property
    def same(self) -> ScheduleLayout | None:
        """The schedule that ran, with its best layout; None where it is unknown."""
        ran = self.measured.ran
        return next((row for row in self.rows if row.schedule == ran and row.best), None)


_UNKNOWN_MEMORY = (
    "the memory of layers is unknown; give it in the column memory of --layers, or profiles with "
    "memory events (bubbleviz guide layout)"
)


def layouts_of(
    measured: MeasuredModel,
    sizes: tuple[int | None, int | None, int | None] = (None, None, None),
    schedules: Sequence[str] = (),
    limit: MemorySize | None = None,
    watch: Watch = unwatched,
) -> LayoutReport:
    """Return the best layouts for some schedules; for all of one order, if none is named.

    Args:
        measured: what is known of the model.
        sizes: devices, microbatches and chunks of a device; None for those of the run.
        schedules: names.
        limit: memory of a device.
        watch: called with the share of the search that is done.

    Raises:
        UsageError: a schedule that was named is unknown, or does not allow the sizes; or the memory
            of layers is unknown, or in another unit than the limit.
    """
    stages, microbatches, chunks = sizes
    question = measured.question(stages, microbatches)
    if len(question.layers) < question.stages:
        few, devices = len(question.layers), counted(question.stages, "device")
        raise UsageError(
            f"{counted(few, 'layer')} for {devices}: each needs one; give fewer devices with -p"
        )
    if limit is not None:
        if not measured.memory:
            raise UsageError(f"--memory-limit: {_UNKNOWN_MEMORY}")
        if measured.in_bytes and not limit.in_bytes:
            raise UsageError(
                f"--memory-limit {limit.amount:g}: memory is measured in bytes; give a limit such "
                "as 80GB"
            )
        if measured.plain_memory:
            measured = replace(measured, in_bytes=limit.in_bytes)
        question = replace(question, limit=(limit.amount,) * question.stages)
    rows = best_layouts(question, schedules, chunks, watch)
    return LayoutReport(question, measured, rows, asked=bool(schedules))


# Text: what ``bubbleviz layout`` prints: schedules, the layouts worth a look, and how to set.


#: Layouts of schedules that were named are shown, so many of them.
_SHOWN = 4


def sections(report: LayoutReport) -> Iterator[Block]:
    """Yield what to print."""
    question, measured = report.question, report.measured
    yield Sentence(
        f"{counted(len(question.layers), 'layer')} on {counted(question.stages, 'device')}, "
        f"{counted(question.microbatches, 'microbatch', 'microbatches')}: {measured.source}",
        style="bold",
    )
    if measured.ran_ns is not None:
        yield Sentence(
            f"measured: {milliseconds(measured.ran_ns)} ms per iteration"
            f"{f', {measured.ran}' if measured.ran else ''}"
        )
    title = "Best layout for each schedule, simulated" if report.best else _none_fits(report)
    rows = [_schedule(report, row) for row in report.rows]
    yield Table(title, rows, left=("schedule", "best of\nall"))
    yield HangingLines([("", line) for line in _legend(report)])
    for row in shown(report):
        yield from _layout(report, row)
    if measured.assumptions:
        yield Sentence("\nNot measured", style="bold")
        yield HangingLines([("  - ", one_line(text, 400)) for text in measured.assumptions])


def shown(report: LayoutReport) -> list[ScheduleLayout]:
    """Return the layouts that are shown whole: of the schedule that ran, and of the fastest.

    Of schedules that were named, the first few.
    """
    if report.asked:
        return [row for row in report.rows if row.best is not None][:_SHOWN]
    rows = {row.schedule: row for row in (report.same, report.best) if row is not None}
    return list(rows.values())


def _none_fits(report: LayoutReport) -> str:
    """Return that there is no layout, and how far the nearest before is above the memory."""
    question, over = report.question, []
    for row in report.rows:
        if question.limit and row.plan and row.before:
            peaks = peak_memory(question.layers, question.recurrence(row.plan), row.before)
            more = max(own - most for own, most in zip(peaks, question.limit, strict=True))
            over.append((more, row.schedule))
    if not over:
        return "No schedule has a layout"
    more, schedule = min(over)
    size = memory_text(more, in_bytes=report.measured.in_bytes)
    return f"No layout found fits the memory; nearest before: {schedule}, by {size} too large"


def _schedule(report: LayoutReport, row: ScheduleLayout) -> dict[str, str]:
    before = "-"
    if row.before_ns is not None:
        mark = ("" if row.own else "*") + ("" if row.before_fits else "!")
        before = milliseconds(row.before_ns) + mark
    peak = max(row.peak_memory, default=None)
    memory = "-" if peak is None else memory_text(peak, in_bytes=report.measured.in_bytes)
    return {
        "schedule": row.schedule + (" (ran)" if row.schedule == report.measured.ran else ""),
        "chunks": "" if row.plan is None else str(row.plan.chunks),
        "before\nms": before,
        "best\nms": milliseconds(None if row.best is None else row.best.makespan_ns),
        "saved\n%": in_percent(row.saving),
        "bubble\n%": in_percent(row.bubble_ratio),
        **({"peak\nmemory": memory} if report.measured.memory else {}),
        "best of\nall": _proof(row),
    }


def _proof(row: ScheduleLayout) -> str:
    if row.best is None:
        return one_line(row.reason, 60)
    if row.proven:
        return "yes"
    if not row.exact:
        return "no: order and layout in turn"
    gap = 1 - row.best.least_ns / row.best.makespan_ns
    return f"within {percent(gap)}"


def _legend(report: LayoutReport) -> Iterator[str]:
    own = any(row.own for row in report.rows)
    even = any(not row.own and row.before_ns is not None for row in report.rows)
    parts = ["before: the run's own layout"] if own else []
    parts += ["* equal number of layers per stage"] if even else []
    if any(not row.before_fits for row in report.rows):
        parts.append("! exceeds the memory")
    yield "; ".join(parts)
    if report.best:
        yield "best of all: no layout of contiguous layers is faster under that schedule"


def _layout(report: LayoutReport, row: ScheduleLayout) -> Iterator[Block]:
    assert row.best is not None
    layers, layout = report.question.layers, row.best.layout
    saved = "" if row.saving is None else f", {percent(row.saving)} shorter than before"
    title = f"{row.schedule}: {milliseconds(row.best.makespan_ns)} ms{saved}"
    yield Table(title, list(_stages(report, row, layout)), left=("",), wrap=("",))
    if layers.forward_only:
        of_kind = [[layers.kinds[at] for at in stage] for stage in layout.stages]
        counts = [str(stage.count(model.LayerKind.TRANSFORMER)) for stage in of_kind]
        yield HangingLines([("  vLLM        ", f"VLLM_PP_LAYER_PARTITION={','.join(counts)}")])
        yield HangingLines([("  SGLang      ", f"SGLANG_PP_LAYER_PARTITION={','.join(counts)}")])
        return
    megatron = megatron_layout(layers, layout)
    if megatron is not None:
        yield HangingLines([("  Megatron    ", f"--pipeline-model-parallel-layout '{megatron}'")])
    text = f"module_fqns_per_model_part = {json.dumps(torchtitan_layout(layers, layout))}"
    yield HangingLines([("  torchtitan  ", text)])


def _stages(
    report: LayoutReport, row: ScheduleLayout, layout: model.Layout
) -> Iterator[dict[str, str]]:
    work, holders = report.question.workload(layout), row.holders()
    several = len(holders) > report.question.stages
    for number, stage in enumerate(layout.stages):
        times = {
            "F ms": work.forward_ns[number],
            "B ms": work.backward_ns[number],
            "W ms": work.weight_ns[number],
        }
        yield {
            "stage": str(number),
            **(
                {"device": ", ".join(str(at) for at, its in holders if its == number)}
                if several
                else {}
            ),
            "layers": str(len(stage)),
            "": _names_of(report.question.layers, stage),
            **{header: milliseconds(ns) for header, ns in times.items()},
            "sum ms": milliseconds(sum(times.values())),
        }


def _names_of(layers: model.Layers, stage: range) -> str:
    """Return the layers of a stage in words: the first and the last transformer layer as a run."""
    words: list[str] = []
    run: list[int] = []
    for at in (*stage, None):
        if at is not None and layers.kinds[at] is model.LayerKind.TRANSFORMER:
            run.append(at)
            continue
        if run:
            first, last = one_line(layers.names[run[0]], 30), one_line(layers.names[run[-1]], 30)
            words.append(first if len(run) == 1 else f"{first} .. {last}")
            run = []
        if at is not None:
            words.append(one_line(layers.names[at], 30))
    return ", ".join(words)


# Documents: layouts as JSON, and layers with their stages as CSV, which ``--layers`` reads.


SCHEMA = "bubbleviz.layout/1"


def as_json(report: LayoutReport) -> str:
    """Return layouts as JSON; null for what is unknown."""
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
        "layers": _layer_rows(question.layers),
        "schedules": [_schedule_values(report, row) for row in report.rows],
    }
    return document_text(SCHEMA, document)


def _layer_rows(layers: model.Layers) -> list[dict[str, Any]]:
    columns = {
        "name": layers.names,
        "kind": tuple(kind.value for kind in layers.kinds),
        "forward_ns": layers.forward_ns.tolist(),
        "backward_ns": layers.backward_ns.tolist(),
        "weight_ns": layers.weight_ns.tolist(),
        "memory": layers.held.tolist(),
        "memory_weight": layers.kept.tolist(),
        "resident": layers.resident.tolist(),
        "transfer_ns": layers.down_ns.tolist(),
    }
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _schedule_values(report: LayoutReport, row: ScheduleLayout) -> dict[str, Any]:
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
        if row.before is None
        else {
            "own": row.own,
            "makespan_ns": row.before_ns,
            "fits": row.before_fits,
            "first_layers": list(row.before.bounds),
        },
        "layout": best and _layout_values(report, best.layout),
        "reason": row.reason or None,
    }


def _layout_values(report: LayoutReport, layout: model.Layout) -> dict[str, Any]:
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
        "megatron": megatron_layout(layers, layout),
        "torchtitan": torchtitan_layout(layers, layout),
    }


def as_csv(report: LayoutReport) -> str:
    """Return the layers, with the virtual stage of each before, and in the best layouts."""
    columns: dict[str, list[int]] = {}
    if report.question.own is not None:
        columns["stage_before"] = _stage_of_layers(report.question.own)
    for row in report.rows:
        if row.best is not None:
            columns[f"stage:{row.schedule}"] = _stage_of_layers(row.best.layout)
    return table_text(report.question.layers, columns, in_bytes=report.measured.in_bytes)


def _stage_of_layers(layout: model.Layout) -> list[int]:
    return [number for number, stage in enumerate(layout.stages) for _ in stage]


# The outputs of layouts, by the names of their options.


def _as_svg(report: LayoutReport) -> str:
    reasons = "; ".join(row.reason for row in report.rows if row.reason)
    return draw_layouts(report.question, shown(report), reasons)


def _as_memory_plot(report: LayoutReport) -> str:
    if not report.measured.memory:
        raise UsageError(f"a plot of memory: {_UNKNOWN_MEMORY}")
    points = tuple(
        MemoryPoint(row.schedule, max(row.peak_memory), row.bubble_ratio)
        for row in report.rows
        if row.peak_memory and row.bubble_ratio is not None
    )
    limit = report.question.limit
    plot = MemoryPlot(
        "Bubble ratio of schedules against memory, each with its best layout",
        points,
        report.measured.in_bytes,
        limit=None if limit is None else max(limit),
    )
    return draw_memory_plot(plot)


RENDERINGS: Mapping[str, Callable[[LayoutReport], str | bytes]] = {
    "json": as_json,
    "csv": as_csv,
    "svg": _as_svg,
    "memory-plot": _as_memory_plot,
    "pdf": lambda report: as_pdf(_as_svg(report)),
    "png": lambda report: as_png(_as_svg(report)),
}
