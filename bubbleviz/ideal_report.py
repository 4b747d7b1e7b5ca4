"""An ideal as a report, to be drawn like a measurement; as JSON; and as text.

The ratios of the report are counted as those of a measurement are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.columns import NONE
from bubbleviz.typesetting import as_pdf, as_png

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import RenderableType

    from bubbleviz.ideal import Ideal
    from bubbleviz.model import BusyIntervals, Operations
    from bubbleviz.report import Report

SCHEMA = "bubbleviz.simulation/1"


def document(ideal: Ideal) -> dict[str, Any]:
    """Return what an ideal takes as JSON values."""
    plan = ideal.plan
    return {
        "schema": SCHEMA,
        "bubbleviz": __version__,
        "schedule": plan.name,
        "stages": plan.stages,
        "microbatches": plan.microbatches,
        "chunks": plan.chunks,
        "cost_ms": ideal.cost_ms,
        "makespan_ms": ideal.makespan_ms,
        "bubble_ratio": {"stage": ideal.stage_ratio, "schedule": ideal.schedule_ratio},
        "peak_activations": list(ideal.peak_activations),
    }


def as_json(ideal: Ideal) -> str:
    """Return what an ideal takes as JSON text."""
    import json

    return json.dumps(document(ideal), indent=1, allow_nan=False) + "\n"


def as_svg(ideal: Ideal) -> str:
    """Return the picture of an ideal."""
    from bubbleviz.renderers.svg import RENDERER
    from bubbleviz.report import View

    return RENDERER.render(report_of(ideal), View())


def as_csv(ideal: Ideal) -> str:
    """Return the order of an ideal as PyTorch's CSV."""
    from bubbleviz.plan_files.torch_csv import FORMAT

    return FORMAT.write(ideal.plan)


#: The outputs of an ideal, by the names of their options.
RENDERINGS: Mapping[str, Callable[[Ideal], str | bytes]] = {
    "json": as_json,
    "svg": as_svg,
    "pdf": lambda ideal: as_pdf(as_svg(ideal)),
    "png": lambda ideal: as_png(as_svg(ideal)),
    "csv": as_csv,
}


def schedule_parts() -> Iterator[RenderableType]:
    """Yield what ``schedules`` prints: the schedules known, with their sources."""
    from rich.text import Text

    from bubbleviz.schedules import schedules

    for rule in schedules():
        yield Text(rule.name, style="bold")
        yield Text(f"  {rule.summary}\n  {rule.source}\n")


def parts(ideal: Ideal) -> Iterator[RenderableType]:
    """Yield what to print, for any rich console."""
    from rich.text import Text

    from bubbleviz.schedules import schedules

    plan = ideal.plan
    known = {rule.name: f"{rule.summary}\n  {rule.source}" for rule in schedules()}
    chunks = f", {plan.chunks} model chunks a stage" if plan.chunks > 1 else ""
    source = known.get(plan.name, "the order in this file")
    yield Text(f"{plan.name}: {source}", style="bold")
    yield Text(f"  {plan.stages} stages, {plan.microbatches} microbatches{chunks}\n")
    peak = max(ideal.peak_activations)
    rows = (
        ("cost", f"{ideal.cost_ms:,.3f} ms", "the longest of the stages' own windows"),
        ("makespan", f"{ideal.makespan_ms:,.3f} ms", "from the first F to the last end"),
        ("stage ratio", _share(ideal.stage_ratio), "idle time in a window as long as the cost"),
        ("schedule ratio", _share(ideal.schedule_ratio), "idle time in the makespan"),
        ("peak activations", f"{peak:g}", "microbatches held by a stage, from F to W"),
    )
    yield Text("\n".join(f"  {name:<18}{value:>16}  {what}" for name, value, what in rows))
    if min(ideal.peak_activations) < peak:
        each = ", ".join(f"{held:g}" for held in ideal.peak_activations)
        yield Text(f"  by stage: {each}")


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.4f}"


def report_of(ideal: Ideal) -> Report:
    """Return the report of a run that did exactly this, once."""
    from bubbleviz.align import Run
    from bubbleviz.clocks import Clock
    from bubbleviz.count import count
    from bubbleviz.explain import explain
    from bubbleviz.intervals import group_sum
    from bubbleviz.model import ProfileSummary, Rank, RankIntervals
    from bubbleviz.report import Report
    from bubbleviz.timebase import Timebase

    stages = ideal.plan.stages
    ranks = tuple(
        Rank(stage, f"device {stage}", "simulation", 0, stage, 0, stage=stage)
        for stage in range(stages)
    )
    operations, busy = _tables(ideal)
    clocks = (Clock(0, 0),)
    none = np.empty(0, np.int64)
    nothing = RankIntervals(none, none.copy(), none.copy())
    run = Run(
        ranks=ranks,
        clocks=clocks,
        timebase=Timebase(
            clocks, np.zeros(stages, np.int64), np.ones(1, bool), np.zeros(1, np.int64), False, ()
        ),
        operations=operations,
        busy=busy,
        active_ns=group_sum(operations.rank, stages, operations.busy_ns).reshape(1, stages),
        communication_ns=np.zeros((1, stages), np.int64),
        overlapped_ns=np.zeros((1, stages), np.int64),
        unattributed=nothing,
        exposed=nothing,
        overheads=nothing,
        iteration_names=("0",),
        paired=True,
        stages_missing=False,
        limitations=(),
        rank_of_local=(np.arange(stages),),
    )
    counts = count(run, skip=0)
    return Report(
        version=__version__,
        convention=ideal.plan.name,
        headline="schedule",
        headline_reason="A simulated iteration stands alone.",
        profiles=(ProfileSummary("simulation", "simulation", "simulation", None, None, *[0] * 9),),
        ranks=ranks,
        iterations=counts.iterations,
        summary=counts.summary,
        operations=operations,
        busy=busy,
        unattributed=run.unattributed,
        coverage=(),
        unattributed_kernels=(),
        explanation=explain(run, counts),
        limitations=(),
    )


def _tables(ideal: Ideal) -> tuple[Operations, BusyIntervals]:
    """Return the operations of a simulation, and when they were busy."""
    from bubbleviz.model import BusyIntervals, Operations

    plan, ran = ideal.plan, ideal.simulation
    start_ns, end_ns = ran.start_ns // plan.chunks, ran.end_ns // plan.chunks
    count = len(ran)
    chunk = np.array([plan.chunk_of(stage) for stage in range(plan.virtual_stages)], np.int64)
    none, zero = np.full(count, NONE), np.zeros(count, np.int64)
    operations = Operations(
        rank=ran.device.copy(),
        iteration=zero,
        phase=ran.phase.copy(),
        microbatch=ran.microbatch.copy(),
        chunk=chunk[ran.virtual_stage],
        sequence=none,
        second_microbatch=none.copy(),
        second_chunk=none.copy(),
        occurrence=zero.copy(),
        start_ns=start_ns,
        end_ns=end_ns,
        has_span=np.ones(count, np.int64),
        host_start_ns=start_ns.copy(),
        host_end_ns=end_ns.copy(),
        kernels=np.ones(count, np.int64),
        active_ns=end_ns - start_ns,
        busy_ns=end_ns - start_ns,
        received_ns=none.copy(),
        receive_start_ns=none.copy(),
        receive_launched_ns=none.copy(),
        launched_ns=none.copy(),
        host_call_id=none.copy(),
        host_range_id=none.copy(),
        virtual_stage=ran.virtual_stage.copy(),
        cut=zero.copy(),
        name_id=zero.copy(),
        names=("",),
    )
    return operations, BusyIntervals(np.arange(count), start_ns.copy(), end_ns.copy())
