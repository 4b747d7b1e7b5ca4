"""Documents: a planned run as JSON, as files that runtimes read, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bubbleviz._version import __version__
from bubbleviz.analyses.plan.planned_run import PlannedRun
from bubbleviz.errors import UsageError
from bubbleviz.model.limitations import written
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import json_text
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.schedules.communication.torch_csv import write as write_lowered
from bubbleviz.schedules.files.torch_csv import write
from bubbleviz.schedules.planning import Candidate
from bubbleviz.schedules.workload import Outcome, Workload

if TYPE_CHECKING:
    from bubbleviz.render.picture.memory_plot import MemoryPlot
    from bubbleviz.report.view import View

SCHEMA, _ZERO_BUBBLE = "bubbleviz.plan/1", "bubbleviz.zero-bubble/1"


def as_json(planned: PlannedRun) -> str:
    """Return a planned run as JSON; times in nanoseconds, null for what is unknown."""
    run, best = planned.run, planned.best
    return json_text(
        {
            "schema": SCHEMA,
            "version": __version__,
            **written(run.restrictions),
            "workload": _workload(planned),
            "run": {
                "schedule": run.schedule,
                "makespan_ns": run.ran_ns,
                "simulated": None if planned.own is None else _outcome(planned.own),
            },
            "split": best.split,
            "best": {
                **_candidate(best.best),
                "expected_ns": planned.expected_ns,
                "saving": planned.saving,
                "orders": _orders(best.best.outcome),
            },
            "communication": {
                "transport": planned.communication.transport.name,
                "makespan_ns": planned.communication.makespan_ns,
                "own_makespan_ns": planned.communication.own_ns,
            },
            "lower_bound_ns": best.bound_ns,
            "proven": best.proven,
            "with_split_backward": None if best.other is None else _candidate(best.other),
            "candidates": [_candidate(each) for each in best.candidates],
        }
    )


def _workload(planned: PlannedRun) -> dict[str, Any]:
    work: Workload = planned.memory.workload
    columns = {
        "device": work.placement,
        "forward_ns": work.forward_ns,
        "backward_ns": work.backward_ns,
        "weight_ns": work.weight_ns,
        "fused_ns": work.fused_ns,
        "transfer_down_ns": work.down_ns,
        "transfer_up_ns": work.up_ns,
        "memory": work.activation,
        "memory_weight": work.kept,
    }
    return {
        "stages": work.devices,
        "microbatches": work.microbatches,
        "split_measured": work.split,
        "memory_in_bytes": planned.memory.in_bytes,
        "memory_limit": None if work.limit is None else list(work.limit),
        "memory_limit_of_run": planned.memory.of_run,
        "virtual_stages": [
            dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)
        ],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "schedule": candidate.name,
        "split": candidate.split,
        "allowed": candidate.allowed,
        **_outcome(candidate.outcome),
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "makespan_ns": outcome.makespan_ns,
        "cost_ns": outcome.cost_ns,
        "bubble_ratio": {"stage": outcome.stage_ratio, "schedule": outcome.schedule_ratio},
        "peak_memory": list(outcome.peak_memory),
        "fits": outcome.fits,
    }


def _orders(outcome: Outcome) -> list[list[dict[str, Any]]]:
    """Return what each device runs, and when."""
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


def as_zero_bubble(planned: PlannedRun) -> str:
    """Return the best order as JSON for zero-bubble, in place of those of its own schedulers.

    ``local_order`` holds for each stage the fields of a ``ScheduledNode``, ``config`` those of a
    ``GraphConfig`` that its passes use, times in microseconds
    (sail-sg/zero-bubble-pipeline-parallelism, commit 01537449,
    megatron/core/pipeline_parallel/zerobubble/scheduler/graph.py and passes.py).

    Raises:
        UsageError: some backwards are whole and others split, which its passes do not link.
    """
    plan, workload = planned.best.best.outcome.plan, planned.memory.workload
    phases = {op.phase for order in plan.orders for op in order}
    if {Phase.BW, Phase.W} <= phases:
        raise UsageError(
            "zero-bubble runs the backward whole everywhere or split everywhere, and this order "
            "has both; give --backward split, or fused"
        )
    return json_text(
        {
            "schema": _ZERO_BUBBLE,
            "config": _config(workload, fused=Phase.BW in phases),
            "local_order": [
                [
                    {
                        "type": op.phase.label,
                        "stage": device,
                        "microbatch": op.microbatch,
                        "chunk": plan.chunk_of(op.virtual_stage),
                        "seq_split_idx": 0,
                        "layer_group_idx": op.virtual_stage,
                    }
                    for op in order
                ]
                for device, order in enumerate(plan.orders)
            ],
        }
    )


def _config(workload: Workload, *, fused: bool) -> dict[str, Any]:
    devices = range(workload.devices)

    def mean_us(times_ns: tuple[int, ...], device: int) -> float:
        stages = workload.stages_of(device)
        return sum(times_ns[s] for s in stages) / len(stages) / 1e3

    weight_ns = workload.weight_ns
    backward_ns = workload.backward_ns
    if fused:
        pairs = zip(workload.fused_ns, weight_ns, strict=True)
        backward_ns = tuple(whole - weight for whole, weight in pairs)
    transfers = [ns for ns in (*workload.down_ns, *workload.up_ns) if ns]
    return {
        "n_stages": workload.devices,
        "n_micro": workload.microbatches,
        "max_chunks": workload.chunks,
        "cost_f": [mean_us(workload.forward_ns, device) for device in devices],
        "cost_b": [mean_us(backward_ns, device) for device in devices],
        "cost_w": [mean_us(weight_ns, device) for device in devices],
        "cost_comm": sum(transfers) / len(transfers) / 1e3 if transfers else 0.0,
        "mem_f": [],
        "mem_b": [],
        "mem_w": [],
    }


def as_svg(planned: PlannedRun, view: View) -> str:
    """Return the picture of the best order, in the style of a view."""
    from bubbleviz.render.formats.svg import render
    from bubbleviz.report.ideal_run import report_of_plan

    outcome = planned.best.best.outcome
    return render(report_of_plan(outcome.plan, outcome.simulation), view)


def memory_plot_of(planned: PlannedRun) -> MemoryPlot:
    """Return all orders by their bubble ratio and the memory of their fullest device.

    What devices hold beside activations is part of it where it was measured: they may have
    different amounts left, but all are of the same size.
    """
    from bubbleviz.render.picture.memory_plot import MemoryPlot, MemoryPoint

    limit, resident = planned.memory.workload.limit, planned.memory.resident
    always = resident or (0.0,) * planned.memory.workload.devices
    points = tuple(
        MemoryPoint(
            candidate.name,
            max(map(sum, zip(candidate.outcome.peak_memory, always, strict=True))),
            candidate.outcome.schedule_ratio,
            candidate.outcome.fits,
        )
        for candidate in planned.best.candidates
        if candidate.outcome.schedule_ratio is not None
    )
    taken = "memory" if resident else "activations"
    return MemoryPlot(
        f"Bubble ratio of orders against the {taken} of their fullest device",
        points,
        planned.memory.in_bytes,
        limit=None if limit is None else max(map(sum, zip(limit, always, strict=True))),
    )


def _as_memory_plot(planned: PlannedRun) -> str:
    # drawsvg is loaded for pictures alone.
    from bubbleviz.render.picture.memory_plot import draw_memory_plot

    return draw_memory_plot(memory_plot_of(planned))


#: The outputs of a planned run, by name.
RENDERINGS: Mapping[str, Callable[[PlannedRun, View], str | bytes]] = {
    "json": lambda planned, _: as_json(planned),
    "csv": lambda planned, _: write(planned.best.best.outcome.plan),
    "comms": lambda planned, _: write_lowered(planned.communication.lowered),
    "zero-bubble": lambda planned, _: as_zero_bubble(planned),
    "memory-plot": lambda planned, _: _as_memory_plot(planned),
    "svg": as_svg,
    "pdf": lambda planned, view: as_pdf(as_svg(planned, view)),
    "png": lambda planned, view: as_png(as_svg(planned, view)),
}
#: Endings of files of this analysis' own.
