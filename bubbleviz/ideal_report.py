"""An ideal as a report, to be drawn like a measurement; as JSON; and as text.

The ratios of the report are counted as those of a measurement are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.columns import NONE
from bubbleviz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType
    from rich.text import Text

    from bubbleviz.formula import Formula
    from bubbleviz.ideal import Estimate, Ideal
    from bubbleviz.model import BusyIntervals, Operations
    from bubbleviz.plan import Schedule
    from bubbleviz.report import Report

SCHEMA = "bubbleviz.simulation/1"


def document(found: Ideal | Estimate) -> dict[str, Any]:
    """Return what an ideal takes as JSON values; null is what a formula does not know."""
    from bubbleviz.ideal import Ideal

    known = found if isinstance(found, Ideal) else None
    return {
        "schema": SCHEMA,
        "bubbleviz": __version__,
        **_sizes(found),
        "cost_ms": found.cost_ms,
        "makespan_ms": known and known.makespan_ms,
        "bubble_ratio": {
            "stage": found.stage_ratio,
            "schedule": known and known.schedule_ratio,
        },
        "peak_activations": known and list(known.peak_activations),
        "memory": known
        and {
            "limit": known.memory.limit,
            "backward": known.memory.backward,
            "weight": known.memory.weight,
            "peak": list(known.peak_memory),
        },
    }


def _sizes(found: Ideal | Estimate) -> dict[str, Any]:
    from bubbleviz.ideal import Ideal

    if isinstance(found, Ideal):
        plan = found.plan
        name, sizes = plan.name, (plan.stages, plan.microbatches, plan.chunks)
    else:
        name, sizes = found.name, (found.stages, found.microbatches, found.chunks)
    return {"schedule": name, **dict(zip(("stages", "microbatches", "chunks"), sizes, strict=True))}


def as_json(found: Ideal | Estimate) -> str:
    """Return what an ideal takes as JSON text."""
    import json

    return json.dumps(document(found), indent=1, allow_nan=False) + "\n"


def as_svg(found: Ideal | Estimate) -> str:
    """Return the picture of an ideal.

    Raises:
        UsageError: it comes from a formula, which has no order to draw.
    """
    from bubbleviz.ideal import Ideal

    if not isinstance(found, Ideal):
        raise UsageError(undrawn(found.name))
    from bubbleviz.renderers.svg import RENDERER
    from bubbleviz.report import View

    return RENDERER.render(report_of(found), View())


def undrawn(name: str) -> str:
    """Return why there is no picture of that formula."""
    from bubbleviz.formulas import formula_named

    formula = formula_named(name)
    instead = f"; {formula.drawn} is drawn" if formula else ""
    return f"{name} is a formula without an order, so that there is nothing to draw{instead}"


#: The outputs of an ideal, by the names of their options.
RENDERINGS: Mapping[str, Callable[[Ideal | Estimate], str]] = {"json": as_json, "svg": as_svg}


def schedule_parts() -> Iterator[RenderableType]:
    """Yield what ``schedules`` prints: the schedules known, with their sources."""
    from rich.text import Text

    from bubbleviz.formulas import formulas
    from bubbleviz.schedules import schedules

    rules: tuple[Schedule | Formula, ...] = (*schedules(), *formulas())
    for rule in rules:
        yield Text(rule.name, style="bold")
        yield Text(f"  {rule.summary}\n  {rule.source}\n")


def parts(found: Ideal | Estimate) -> Iterator[RenderableType]:
    """Yield what to print, for any rich console."""
    from rich.text import Text

    from bubbleviz.formulas import formula_named
    from bubbleviz.ideal import Ideal
    from bubbleviz.schedules import schedule_named

    sizes = _sizes(found)
    name = sizes["schedule"]
    rule = formula_named(name) or schedule_named(name)
    chunks = f", {sizes['chunks']} model chunks a stage" if sizes["chunks"] > 1 else ""
    yield Text(f"{name}: {rule.summary}\n  {rule.source}", style="bold")
    yield Text(f"  {sizes['stages']} stages, {sizes['microbatches']} microbatches{chunks}\n")
    rows = [("cost", f"{found.cost_ms:,.3f} ms", "the longest of the stages' own windows")]
    ratio = ("stage ratio", _share(found.stage_ratio), "idle time in a window as long as the cost")
    if not isinstance(found, Ideal):
        yield _lines([*rows, ratio])
        formula = formula_named(name)
        yield Text(f"  cost = {formula.text if formula else ''}; {undrawn(name)}.")
        return
    rows += [
        ("makespan", f"{found.makespan_ms:,.3f} ms", "from the first F to the last end"),
        ratio,
        ("schedule ratio", _share(found.schedule_ratio), "idle time in the makespan"),
    ]
    yield _lines([*rows, *_held(found)])
    if min(found.peak_activations) < max(found.peak_activations):
        each = ", ".join(f"{held:g}" for held in found.peak_activations)
        yield Text(f"  by stage: {each}")


def _held(ideal: Ideal) -> list[tuple[str, str, str]]:
    """Return the rows that tell what stages hold; memory where it is no count of microbatches."""
    peak = max(ideal.peak_activations)
    rows = [("peak activations", f"{peak:g}", "microbatches held by a stage, from F to W")]
    memory = ideal.memory
    if memory.limit is not None or memory.backward != 1 or memory.weight != 1:
        limit = "" if memory.limit is None else f", of {memory.limit:g}"
        held = f"M_B {memory.backward:g} from F to B, of it M_W {memory.weight:g} on to W"
        rows.append(("peak memory", f"{max(ideal.peak_memory):g}{limit}", held))
    return rows


def _lines(rows: Sequence[tuple[str, str, str]]) -> Text:
    from rich.text import Text

    return Text("\n".join(f"  {name:<18}{value:>16}  {what}" for name, value, what in rows))


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.4f}"


def report_of(ideal: Ideal) -> Report:
    """Return the report of a run that did exactly this, once."""
    from bubbleviz.align import Run
    from bubbleviz.clocks import Clock
    from bubbleviz.count import count
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
    run = Run(
        ranks=ranks,
        clocks=clocks,
        timebase=Timebase(
            clocks, np.zeros(stages, np.int64), np.ones(1, bool), np.zeros(1, np.int64), False, ()
        ),
        operations=operations,
        busy=busy,
        active_ns=group_sum(operations.rank, stages, operations.busy_ns).reshape(1, stages),
        unattributed=RankIntervals(none, none.copy(), none.copy()),
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
        cut=zero.copy(),
        name_id=zero.copy(),
        names=("",),
    )
    return operations, BusyIntervals(np.arange(count), start_ns.copy(), end_ns.copy())
