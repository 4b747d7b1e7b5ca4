"""An ideal as a report, to be drawn like a measurement; as JSON; and as text.

The ratios of the report are counted as those of a measurement are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bubbleviz.errors import UsageError
from bubbleviz.model.limitations import Restriction
from bubbleviz.model.memory_sizes import memory_text
from bubbleviz.model.texts import counted, document_text, one_line, percent
from bubbleviz.render import document as blocks
from bubbleviz.render.picture.picture import picture
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.report.ideal_run import report_of
from bubbleviz.report.view import View
from bubbleviz.schedules.choices import Choice
from bubbleviz.schedules.communication.torch_csv import write
from bubbleviz.schedules.ideal import Estimate, Ideal
from bubbleviz.schedules.known import FORMULAS, SCHEDULES, Formula, formula_named
from bubbleviz.schedules.plan import Schedule

SCHEMA = "bubbleviz.simulation/1"


def document(result: Ideal | Estimate) -> dict[str, Any]:
    """Return an ideal as JSON values; null where a formula has no value."""
    known = result if isinstance(result, Ideal) else None
    return {
        **_sizes(result),
        "restrictions": [restriction.entry for restriction in result.restrictions],
        "cost_ms": result.cost_ms,
        "makespan_ms": known and known.makespan_ms,
        "carried_makespan_ms": known and known.carried_ms,
        "bubble_ratio": {"stage": result.stage_ratio, "schedule": known and known.schedule_ratio},
        "peak_activations": known and list(known.peak_activations),
        "memory": known
        and {
            "limit": known.memory.limit,
            "backward": known.memory.backward,
            "weight": known.memory.weight,
            "in_bytes": known.memory.in_bytes,
            "peak": list(known.peak_memory),
        },
    }


def _sizes(result: Ideal | Estimate) -> dict[str, Any]:
    if isinstance(result, Ideal):
        plan = result.plan
        name, sizes = plan.name, (plan.stages, plan.microbatches, plan.chunks)
    else:
        name, sizes = result.name, (result.stages, result.microbatches, result.chunks)
    return {"schedule": name, **dict(zip(("stages", "microbatches", "chunks"), sizes, strict=True))}


def as_svg(result: Ideal | Estimate, view: View) -> str:
    """Return the picture of an ideal, in the style of a view.

    Raises:
        UsageError: it comes from a formula, which has no order to draw.
    """
    return picture(report_of(_ordered(result)), view)


def _ordered(result: Ideal | Estimate) -> Ideal:
    """Return the ideal, which has an order.

    Raises:
        UsageError: it comes from a formula.
    """
    if not isinstance(result, Ideal):
        raise UsageError(undrawn(result.name))
    return result


def undrawn(name: str) -> str:
    """Return the reason why a formula has no picture."""
    formula = formula_named(name)
    instead = f"; draw {formula.drawn} instead" if formula else ""
    return f"{name} is a formula without an order, so there is nothing to draw{instead}"


#: The outputs of an ideal, by the names of their options.
RENDERINGS: Mapping[str, Callable[[Ideal | Estimate, View], str | bytes]] = {
    "json": lambda result, _: document_text(SCHEMA, document(result)),
    "svg": as_svg,
    "pdf": lambda result, view: as_pdf(as_svg(result, view)),
    "png": lambda result, view: as_png(as_svg(result, view)),
    "csv": lambda result, _: write(_ordered(result).plan),
}


def _rules() -> tuple[Schedule | Formula, ...]:
    return (*SCHEDULES, *FORMULAS)


def schedule_sections() -> Iterator[blocks.Block]:
    """Yield the known schedules with their sources, for ``schedules``."""
    for rule in _rules():
        yield blocks.Sentence(rule.name, style="bold")
        yield blocks.Sentence(f"  {rule.summary}\n  {rule.source}\n")


def sections(result: Ideal | Estimate) -> Iterator[blocks.Block]:
    """Yield the sections of an ideal, for any rich console."""
    sizes = _sizes(result)
    name = sizes["schedule"]
    chunks = f", {sizes['chunks']} model chunks per stage" if sizes["chunks"] > 1 else ""
    known = {rule.name: f"{rule.summary}\n  {rule.source}" for rule in _rules()}
    yield blocks.Sentence(f"{name}: {known.get(name, 'the order in this file')}", style="bold")
    yield blocks.Sentence(
        f"  {counted(sizes['stages'], 'stage')}, "
        f"{counted(sizes['microbatches'], 'microbatch', 'microbatches')}{chunks}\n"
    )
    if result.restrictions:
        reasons = "; ".join(one_line(own.text, 200) for own in result.restrictions)
        yield blocks.Sentence(f"! measured times: {reasons}\n", style="bold")
    rows = [("cost", f"{result.cost_ms:,.3f} ms", "the longest stage window")]
    stage = (
        "stage ratio",
        percent(result.stage_ratio),
        "idle share of a window as long as the cost",
    )
    if not isinstance(result, Ideal):
        yield blocks.HangingLines([_line(*row) for row in (*rows, stage)])
        formula = formula_named(name)
        yield blocks.Sentence(f"  cost = {formula.text if formula else ''}; {undrawn(name)}.")
        return
    rows.append(("makespan", f"{result.makespan_ms:,.3f} ms", "from the first F to the last end"))
    if result.carried_ms is not None:
        # With the file's own sends and receives.
        rows.append(("with transfers", f"{result.carried_ms:,.3f} ms", "in the order of the file"))
    whole = percent(result.schedule_ratio)
    rows += [stage, ("schedule ratio", whole, "idle share of the makespan")]
    peaks, memory = result.peak_activations, result.memory
    held = "microbatches held by a stage, from F to W"
    rows.append(("peak activations", f"{max(peaks):g}", held))
    if memory.limit is not None or memory.backward != 1 or memory.weight != 1:
        amounts = (max(result.peak_memory), memory.limit, memory.backward, memory.weight)
        peak, most, whole, rest = (
            "" if amount is None else f"{amount:g}" if not memory.in_bytes else memory_text(amount)
            for amount in amounts
        )
        units = f"M_B {whole} from F to B, of it M_W {rest} on to W"
        rows.append(("peak memory", f"{peak}, of {most}" if most else peak, units))
    yield blocks.HangingLines([_line(*row) for row in rows])
    if min(peaks) < max(peaks):
        yield blocks.Sentence(f"  by stage: {', '.join(f'{peak:g}' for peak in peaks)}")


def sizes_as_json(choices: Sequence[Choice], restrictions: tuple[Restriction, ...]) -> str:
    """Return several schedules and sizes as JSON.

    Args:
        choices: The schedules and sizes, the cheapest first.
        restrictions: Reasons why their times may be wrong.
    """
    settings = [_choice_values(choice) for choice in choices]
    return document_text(
        SCHEMA, {"restrictions": [own.entry for own in restrictions], "settings": settings}
    )


def _choice_values(choice: Choice) -> dict[str, Any]:
    """Return a choice as JSON values."""
    return {
        "schedule": choice.schedule,
        "stages": choice.stages,
        "microbatches": choice.microbatches,
        "chunks": choice.chunks,
        "iteration_ns": choice.makespan_ns,
        "error_ns": choice.error_ns,
        "bubble_ratio": choice.bubble_ratio,
        "peak_activations": choice.peak_activations,
        "reason": choice.reason,
        "device_ns": choice.device_ns,
    }


def list_sizes(
    choices: Sequence[Choice], restrictions: tuple[Restriction, ...]
) -> Iterator[blocks.Block]:
    """Yield a table of several schedules and sizes.

    Args:
        choices: The schedules and sizes, the cheapest first.
        restrictions: Reasons why their times may be wrong.
    """
    rows = [
        {
            "schedule": choice.schedule,
            "p": str(choice.stages),
            "m": str(choice.microbatches),
            "v": str(choice.chunks),
            "iteration ms": blocks.milliseconds(choice.makespan_ns),
            "±": blocks.milliseconds(choice.error_ns),
            "device ms per microbatch": blocks.milliseconds(choice.device_ns),
            "bubble %": blocks.in_percent(choice.bubble_ratio),
            "activations": _activations(choice.peak_activations),
        }
        for choice in choices
    ]
    measured = any(choice.error_ns is not None for choice in choices)
    columns = [name for name in rows[0] if measured or name != "±"]
    yield blocks.Table(
        "Settings, the cheapest per microbatch first (p stages, m microbatches, v chunks)",
        [{name: row[name] for name in columns} for row in rows],
        left=("schedule",),
        giving_way=("activations", "v"),
    )
    for text in dict.fromkeys(choice.reason for choice in choices if choice.reason):
        yield blocks.Sentence(f"  - {one_line(text, 200)}")
    for restriction in restrictions:
        yield blocks.Sentence(f"! measured times: {one_line(restriction.text, 200)}", style="bold")
    if measured:
        yield blocks.Sentence(
            "±: 95 % interval, from the spread of the run's times and how far it is off its own "
            "simulation"
        )
    if measured and len({choice.stages for choice in choices}) > 1:
        yield blocks.Sentence("stages of another number share the work evenly")


def _activations(peak: float | None) -> str:
    return "-" if peak is None else f"{peak:g}"


def _line(name: str, value: str, what: str) -> tuple[str, str]:
    return f"  {name:<18}{value:>16}  ", what
