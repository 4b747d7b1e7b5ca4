"""An ideal as a report, to be drawn like a measurement; as JSON; and as text.

The ratios of the report are counted as those of a measurement are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bubbleviz._version import __version__
from bubbleviz.errors import UsageError
from bubbleviz.render.picture.typesetting import as_pdf, as_png

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType
    from rich.text import Text

    from bubbleviz.schedules.formulas import Formula
    from bubbleviz.schedules.ideal import Estimate, Ideal
    from bubbleviz.schedules.plan import Schedule

SCHEMA = "bubbleviz.simulation/1"


def document(found: Ideal | Estimate) -> dict[str, Any]:
    """Return what an ideal takes as JSON values; null is what a formula does not know."""
    from bubbleviz.schedules.ideal import Ideal

    known = found if isinstance(found, Ideal) else None
    return {
        "schema": SCHEMA,
        "version": __version__,
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
    from bubbleviz.schedules.ideal import Ideal

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
    from bubbleviz.render.formats.svg import RENDERER
    from bubbleviz.report.ideal_run import report_of
    from bubbleviz.report.report import View

    return RENDERER.render(report_of(_ordered(found)), View())


def _ordered(found: Ideal | Estimate) -> Ideal:
    """Return what has an order.

    Raises:
        UsageError: it comes from a formula.
    """
    from bubbleviz.schedules.ideal import Ideal

    if not isinstance(found, Ideal):
        raise UsageError(undrawn(found.name))
    return found


def undrawn(name: str) -> str:
    """Return why there is no picture of that formula."""
    from bubbleviz.schedules.formulas import formula_named

    formula = formula_named(name)
    instead = f"; {formula.drawn} is drawn" if formula else ""
    return f"{name} is a formula without an order, so that there is nothing to draw{instead}"


def as_csv(found: Ideal | Estimate) -> str:
    """Return the order of an ideal as PyTorch's CSV.

    Raises:
        UsageError: it comes from a formula, which has no order.
    """
    from bubbleviz.schedules.files.torch_csv import FORMAT

    return FORMAT.write(_ordered(found).plan)


#: The outputs of an ideal, by the names of their options.
RENDERINGS: Mapping[str, Callable[[Ideal | Estimate], str | bytes]] = {
    "json": as_json,
    "svg": as_svg,
    "pdf": lambda found: as_pdf(as_svg(found)),
    "png": lambda found: as_png(as_svg(found)),
    "csv": as_csv,
}


def schedule_sections() -> Iterator[RenderableType]:
    """Yield what ``schedules`` prints: the schedules known, with their sources."""
    from rich.text import Text

    from bubbleviz.schedules.formulas import formulas
    from bubbleviz.schedules.known import schedules

    rules: tuple[Schedule | Formula, ...] = (*schedules(), *formulas())
    for rule in rules:
        yield Text(rule.name, style="bold")
        yield Text(f"  {rule.summary}\n  {rule.source}\n")


def sections(found: Ideal | Estimate) -> Iterator[RenderableType]:
    """Yield what to print, for any rich console."""
    from rich.text import Text

    from bubbleviz.schedules.ideal import Ideal

    sizes = _sizes(found)
    name = sizes["schedule"]
    chunks = f", {sizes['chunks']} model chunks a stage" if sizes["chunks"] > 1 else ""
    yield Text(f"{name}: {_told(name)}", style="bold")
    yield Text(f"  {sizes['stages']} stages, {sizes['microbatches']} microbatches{chunks}\n")
    rows = [("cost", f"{found.cost_ms:,.3f} ms", "the longest of the stages' own windows")]
    ratio = ("stage ratio", _share(found.stage_ratio), "idle time in a window as long as the cost")
    if not isinstance(found, Ideal):
        from bubbleviz.schedules.formulas import formula_named

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


def _told(name: str) -> str:
    """Return what a schedule or a formula is, and its source."""
    from bubbleviz.schedules.formulas import formulas
    from bubbleviz.schedules.known import schedules

    rules: tuple[Schedule | Formula, ...] = (*schedules(), *formulas())
    known = {rule.name: f"{rule.summary}\n  {rule.source}" for rule in rules}
    return known.get(name, "the order in this file")


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
