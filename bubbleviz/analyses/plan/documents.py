"""Documents: a planned run as JSON, as files that PyTorch reads, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bubbleviz.analyses.plan.planned_run import PlannedRun
from bubbleviz.model import memory_sizes
from bubbleviz.model.texts import counted, document_text, one_line, percent
from bubbleviz.render.document import Block, HangingLines, Sentence, Table, in_percent, milliseconds
from bubbleviz.render.picture.memory_plot import MemoryPlot, MemoryPoint, draw_memory_plot
from bubbleviz.render.picture.picture import picture
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.report.ideal_run import report_of_plan
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.communication.transports import STREAMS
from bubbleviz.schedules.simulation import Outcome
from bubbleviz.schedules.workload import Workload

if TYPE_CHECKING:
    from bubbleviz.report.view import View


SCHEMA = "bubbleviz.plan/1"


def as_json(planned: PlannedRun) -> str:
    """Return a planned run as JSON; times in nanoseconds, null for what is unknown."""
    run, best = planned.run, planned.best
    _, carried_ns, own_ns = planned.communication
    return document_text(
        SCHEMA,
        {
            "restrictions": [restriction.entry for restriction in run.restrictions],
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
                "orders": _orders(best.best),
            },
            "communication": {
                "transport": STREAMS.name,
                "makespan_ns": carried_ns,
                "own_makespan_ns": own_ns,
            },
            "window": "schedule" if best.makespan else "stage",
            "lower_bound_ns": best.bound_ns,
            "proven": best.proven,
            "with_split_backward": None if best.other is None else _candidate(best.other),
            "candidates": [_candidate(each) for each in best.candidates],
        },
    )


def _workload(planned: PlannedRun) -> dict[str, Any]:
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
        "memory_weight": work.kept,
    }
    return {
        "stages": work.devices,
        "microbatches": work.microbatches,
        "split_measured": work.split,
        "memory_in_bytes": planned.in_bytes,
        "memory_limit": None if work.limit is None else list(work.limit),
        "memory_limit_of_run": planned.of_run,
        "virtual_stages": [
            dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)
        ],
    }


def _candidate(candidate: Outcome) -> dict[str, Any]:
    return {
        "schedule": candidate.plan.name,
        "split": candidate.plan.splits,
        "allowed": candidate.allowed,
        **_outcome(candidate),
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
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


def as_svg(planned: PlannedRun, view: View) -> str:
    """Return the picture of the best order, in the style of a view."""
    outcome = planned.best.best
    return picture(report_of_plan(outcome.plan, outcome.simulation), view)


def memory_plot_of(planned: PlannedRun) -> MemoryPlot:
    """Return all orders by their bubble ratio and the memory of their fullest device.

    What devices hold beside activations is part of it where it was measured: they may have
    different amounts left, but all are of the same size.
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
    taken = "memory" if resident else "activations"
    return MemoryPlot(
        f"Bubble ratio of orders against the {taken} of their fullest device",
        points,
        planned.in_bytes,
        limit=None if limit is None else max(map(sum, zip(limit, always, strict=True))),
    )


def _as_memory_plot(planned: PlannedRun) -> str:
    return draw_memory_plot(memory_plot_of(planned))


#: The outputs of a planned run, by name.
RENDERINGS: Mapping[str, Callable[[PlannedRun, View], str | bytes]] = {
    "json": lambda planned, _: as_json(planned),
    "csv": lambda planned, _: torch_csv.write(planned.best.best.plan),
    "memory-plot": lambda planned, _: _as_memory_plot(planned),
    "svg": as_svg,
    "pdf": lambda planned, view: as_pdf(as_svg(planned, view)),
    "png": lambda planned, view: as_png(as_svg(planned, view)),
}


# Text: what ``bubbleviz plan`` prints: the orders that were considered, the best, what is left.


#: A saving that is smaller is none.
_SAME = 5e-5
#: Transfers that wait for each other are mentioned where they cost more than this share.
_QUEUED = 2e-3


def sections(planned: PlannedRun) -> Iterator[Block]:
    """Yield what to print."""
    work, best = planned.workload, planned.best.best
    length = milliseconds(planned.best.length_ns(best))
    saving = planned.saving
    won = "" if saving is None else f", {_than(saving)} the order that ran"
    yield Sentence(f"Best order: {best.plan.name}, {length} ms{won}", style="bold")
    chunks = f", {work.chunks} model chunks per stage" if work.chunks > 1 else ""
    yield Sentence(
        f"  {counted(work.devices, 'stage')}, "
        f"{counted(work.microbatches, 'microbatch', 'microbatches')}{chunks}; times of "
        f"{one_line(planned.run.source, 100)}"
    )
    if planned.run.restrictions:
        reasons = "; ".join(one_line(each.text, 200) for each in planned.run.restrictions)
        yield Sentence(f"! measured times: {reasons}", style="bold")
    yield Table(
        "Orders, simulated at the measured times", list(_order_rows(planned)), left=("order", "")
    )
    yield HangingLines([("  ", line) for line in _notes(planned)])


def _than(saving: float) -> str:
    if abs(saving) < _SAME:
        return "as long as"
    return f"{percent(abs(saving))} {'shorter' if saving > 0 else 'longer'} than"


def _order_rows(planned: PlannedRun) -> Iterator[dict[str, str]]:
    own, best = planned.own, planned.best

    def row(name: str, outcome: Outcome, note: str) -> dict[str, str]:
        length_ns, own_ns = best.length_ns(outcome), 0 if own is None else best.length_ns(own)
        saved = 1 - length_ns / own_ns if own_ns else None
        peak = memory_sizes.memory_text(max(outcome.peak_memory), in_bytes=planned.in_bytes)
        return {
            "order": name,
            "ms": milliseconds(length_ns),
            "saved\n%": in_percent(saved),
            "bubble\n%": in_percent(best.bubble_ratio(outcome)),
            "peak\nmemory": peak,
            "": note,
        }

    if own is not None:
        yield row(f"{planned.run.schedule or 'its order'} (ran)", own, "")
    for candidate in planned.best.candidates:
        yield row(candidate.plan.name, candidate, _why_not(planned, candidate))


def _why_not(planned: PlannedRun, candidate: Outcome) -> str:
    if candidate.allowed:
        return "best" if candidate.plan.name == planned.best.best.plan.name else ""
    reasons = [] if candidate.fits else ["more memory"]
    if candidate.plan.splits and not planned.best.split:
        reasons.append("splits the backward")
    return ", ".join(reasons)


def _notes(planned: PlannedRun) -> Iterator[str]:
    best = planned.best
    if best.proven:
        yield "no order within the memory is shorter: proven"
    else:
        yield (
            f"no order within the memory is shorter than {milliseconds(best.bound_ns)} ms: at most "
            f"{percent(best.left)} is left"
        )
    yield _memory_note(planned)
    yield from _communication_note(planned)
    if planned.run.overlaps:
        yield (
            "iterations of the run overlap, so the longest window of a device is compared: no "
            "period is shorter"
        )
    if planned.own is not None and planned.run.ran_ns is not None and planned.off is not None:
        yield (
            f"the run took {milliseconds(planned.run.ran_ns)} ms, its order simulated "
            f"{milliseconds(planned.own.makespan_ns)} ms ({planned.off:+.1%}); with the same error "
            f"{'the plan' if best.makespan else 'the longest window of the plan'} would take "
            f"{milliseconds(planned.expected_ns)} ms"
        )
    if best.other is not None:
        other_ns = best.length_ns(best.other)
        saved = other_ns / best.length_ns(best.best)
        yield (
            f"the run's backward is one operation; split in halves, {best.other.plan.name} would "
            f"take {milliseconds(other_ns)} ms ({saved - 1:+.1%}), if both halves "
            "are equally long: --backward split plans that"
        )


def _communication_note(planned: PlannedRun) -> Iterator[str]:
    """Yield what the order takes where transfers wait for each other, if that is more."""
    free_ns = planned.best.best.makespan_ns
    shortest = planned.best.candidates[0]
    if shortest.makespan_ns < free_ns:
        yield (
            f"chosen with its transfers: without them, {shortest.plan.name} takes "
            f"{milliseconds(shortest.makespan_ns)} ms"
        )
    _, carried_ns, own_ns = planned.communication
    if max(carried_ns, own_ns) <= free_ns * (1 + _QUEUED):
        return
    own = ""
    if carried_ns < own_ns:
        own = f"; in PyTorch's own order of sends and receives, {milliseconds(own_ns)} ms"
    yield (
        "where transfers of two ranks run one after the other (NCCL): "
        f"{milliseconds(carried_ns)} ms{own}"
    )


def _memory_note(planned: PlannedRun) -> str:
    limit = planned.workload.limit
    if limit is None:
        return "memory: no limit; give --memory-limit"
    least, most = (
        memory_sizes.memory_text(each, in_bytes=planned.in_bytes)
        for each in (min(limit), max(limit))
    )
    unit = "" if planned.in_bytes else " M_B (a microbatch on a stage)"
    amount = f"at most {most}{unit}" if least == most else f"{least} to {most}{unit}"
    if planned.of_run:
        return (
            f"memory: {amount} of activations per device, as in the order that ran; "
            "--memory-limit sets another"
        )
    rest = ", beside what it always holds" if any(planned.resident) else ""
    return f"memory: {amount} of activations per device{rest}"
