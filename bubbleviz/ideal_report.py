"""An ideal as a report, to be drawn like a measurement; as JSON; and as text.

The ratios of the report are counted as those of a measurement are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bubbleviz._version import __version__
from bubbleviz.typesetting import as_pdf, as_png

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import RenderableType

    from bubbleviz.ideal import Ideal

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
    from bubbleviz.ideal_run import report_of
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
