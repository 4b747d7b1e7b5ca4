"""Writes a planned run as JSON, as a schedule file for PyTorch, and as pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bubbleviz.analyses.plan.planned_run import PlannedRun
from bubbleviz.model.texts import format_document
from bubbleviz.render.picture.memory_plot import MemoryPlot, MemoryPoint, draw_memory_plot
from bubbleviz.render.picture.picture import picture
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.report.ideal_run import make_plan_report
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.communication.transports import STREAMS
from bubbleviz.schedules.simulation import Outcome
from bubbleviz.schedules.workload import Workload

if TYPE_CHECKING:
    from bubbleviz.report.view import View

SCHEMA = "bubbleviz.plan/1"


def as_json(planned: PlannedRun) -> str:
    """Return a planned run as JSON. Times are in nanoseconds, and unknown values are null."""
    run, best = planned.run, planned.best
    _, carried_ns, own_ns = planned.communication
    return format_document(
        SCHEMA,
        {
            "restrictions": [restriction.entry for restriction in run.restrictions],
            "workload": _make_workload_entry(planned),
            "run": {
                "schedule": run.schedule,
                "makespan_ns": run.makespan_ns,
                "cost_ns": run.cost_ns,
                "simulated": None
                if planned.executed is None
                else _make_outcome_entry(planned.executed),
            },
            "split": best.split,
            "best": {
                **_make_candidate_entry(best.best),
                "expected_ns": planned.expected_ns,
                "saving": planned.saving,
                "orders": _list_orders(best.best),
            },
            "communication": {
                "transport": STREAMS.name,
                "makespan_ns": carried_ns,
                "own_makespan_ns": own_ns,
            },
            "window": "schedule" if best.by_makespan else "stage",
            "lower_bound_ns": best.lower_bound_ns,
            "proven": best.is_proven,
            "with_split_backward": (
                None if best.best_split is None else _make_candidate_entry(best.best_split)
            ),
            "candidates": [_make_candidate_entry(candidate) for candidate in best.candidates],
        },
    )


def _make_workload_entry(planned: PlannedRun) -> dict[str, Any]:
    """Return the JSON entry for the planned workload, with one object per virtual stage."""
    work: Workload = planned.workload
    columns = {
        "device": work.placement,
        "forward_ns": work.forward_ns,
        "backward_ns": work.backward_ns,
        "weight_ns": work.weight_ns,
        "fused_ns": work.fused_ns,
        "transfer_down_ns": work.down_ns,
        "transfer_up_ns": work.up_ns,
        "memory": work.activation,
        "memory_weight": work.weight_activation,
    }
    return {
        "stages": work.devices,
        "microbatches": work.microbatches,
        "split_measured": work.split,
        "memory_in_bytes": planned.in_bytes,
        "memory_limit": None if work.limit is None else list(work.limit),
        "memory_limit_of_run": planned.limit_is_from_run,
        "virtual_stages": [
            dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)
        ],
    }


def _make_candidate_entry(candidate: Outcome) -> dict[str, Any]:
    """Return the JSON entry for an order that was considered."""
    return {
        "schedule": candidate.plan.name,
        "split": candidate.plan.splits,
        "allowed": candidate.allowed,
        **_make_outcome_entry(candidate),
    }


def _make_outcome_entry(outcome: Outcome) -> dict[str, Any]:
    """Return an order's simulated time, bubble ratios and peak memory as a JSON entry."""
    return {
        "makespan_ns": outcome.makespan_ns,
        "cost_ns": outcome.simulation.cost_ns,
        "bubble_ratio": {
            "stage": outcome.simulation.stage_ratio,
            "schedule": outcome.simulation.schedule_ratio,
        },
        "peak_memory": list(outcome.peak_memory),
        "fits": outcome.fits,
    }


def _list_orders(outcome: Outcome) -> list[list[dict[str, Any]]]:
    """Return one list per device with its operations in planned order, including start and end."""
    ran = outcome.simulation
    times = iter(zip(ran.start_ns.tolist(), ran.end_ns.tolist(), strict=True))
    keys = "virtual_stage", "phase", "microbatch", "start_ns", "end_ns"
    return [
        [
            dict(zip(keys, (op.virtual_stage, op.phase.label, op.microbatch, *ns), strict=True))
            for op, ns in zip(order, times, strict=False)
        ]
        for order in outcome.plan.orders
    ]


def as_svg(planned: PlannedRun, view: View) -> str:
    """Draw the best order as SVG in the style of a given view."""
    outcome = planned.best.best
    return picture(make_plan_report(outcome.plan, outcome.simulation), view)


def build_memory_plot(planned: PlannedRun) -> MemoryPlot:
    """Build a plot of the bubble ratio of each order against its peak memory.

    The peak memory of an order is the maximum over all devices. If the resident memory of the
    devices was measured, it is added to the peaks and limits, which otherwise only cover
    activations. Orders whose bubble ratio is unknown are left out.
    """
    limit, resident = planned.workload.limit, planned.resident
    always = resident or (0.0,) * planned.workload.devices
    points = tuple(
        MemoryPoint(
            candidate.plan.name,
            max(map(sum, zip(candidate.peak_memory, always, strict=True))),
            ratio,
            candidate.fits,
        )
        for candidate in planned.best.candidates
        if (ratio := planned.best.bubble_ratio(candidate)) is not None
    )
    quantity = "memory" if resident else "activations"
    return MemoryPlot(
        f"Bubble ratio of each order against the {quantity} of its fullest device",
        points,
        planned.in_bytes,
        limit=None if limit is None else max(map(sum, zip(limit, always, strict=True))),
    )


def _render_memory_plot(planned: PlannedRun) -> str:
    return draw_memory_plot(build_memory_plot(planned))


#: Functions that render a planned run, keyed by the name of the output.
RENDERINGS: Mapping[str, Callable[[PlannedRun, View], str | bytes]] = {
    "json": lambda planned, _: as_json(planned),
    "csv": lambda planned, _: torch_csv.write(planned.best.best.plan),
    "memory-plot": lambda planned, _: _render_memory_plot(planned),
    "svg": as_svg,
    "pdf": lambda planned, view: as_pdf(as_svg(planned, view)),
    "png": lambda planned, view: as_png(as_svg(planned, view)),
}
