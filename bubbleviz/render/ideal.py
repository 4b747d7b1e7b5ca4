"""Renders one or several simulated schedules as a picture, as JSON, as CSV or as text.

A simulation is converted to a report before it is drawn. The report's bubble ratios are computed in
the same way as those of a measured run. Several simulations are drawn as panels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bubbleviz.errors import UsageError
from bubbleviz.model.memory_sizes import format_memory
from bubbleviz.model.restrictions import Restriction
from bubbleviz.model.texts import format_count, format_document, format_percent, to_one_line
from bubbleviz.render import document as blocks
from bubbleviz.render import simulation_latex
from bubbleviz.render.latex import list_figure_comments
from bubbleviz.render.picture.page import Page
from bubbleviz.render.picture.panels import draw_panel_page, make_simulated_report
from bubbleviz.render.picture.picture import draw_picture
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.report.ideal_run import make_report
from bubbleviz.report.view import View
from bubbleviz.schedules.choices import Choice, sort_by_device_time
from bubbleviz.schedules.communication.torch_csv import write
from bubbleviz.schedules.ideal import Estimate, Ideal
from bubbleviz.schedules.known import FORMULAS, SCHEDULES, Formula, find_formula
from bubbleviz.schedules.plan import Schedule

SCHEMA = "bubbleviz.simulation/1"


def make_document(result: Ideal | Estimate) -> dict[str, Any]:
    """Return a simulated schedule as JSON values.

    If the result was computed by a formula, the makespan, the ``schedule`` ratio, the activations
    and the memory are None.
    """
    ideal = result if isinstance(result, Ideal) else None
    ratios = {"stage": result.stage_ratio, "schedule": ideal and ideal.schedule_ratio}
    return {
        **_make_size_values(result),
        "restrictions": [restriction.entry for restriction in result.restrictions],
        "left_out": result.left_out,
        "cost_ms": result.cost_ms,
        "makespan_ms": ideal and ideal.makespan_ms,
        "carried_makespan_ms": ideal and ideal.carried_ms,
        "bubble_ratio": ratios,
        "peak_activations": ideal and list(ideal.peak_activations),
        "memory": ideal and _make_memory_values(ideal),
    }


def _make_memory_values(ideal: Ideal) -> dict[str, Any]:
    """Return the memory limit, M_B, M_W, their unit, and the peak memory per stage as JSON values.

    M_B is the memory that a microbatch occupies from its forward to its backward pass, and M_W is
    the part that remains occupied until its weight-gradient pass.
    """
    memory = ideal.memory
    return {
        "limit": memory.limit,
        "backward": memory.backward,
        "weight": memory.weight,
        "in_bytes": memory.in_bytes,
        "peak": list(ideal.peak_memory),
    }


def _make_size_values(result: Ideal | Estimate) -> dict[str, Any]:
    """Return the name of the schedule, and its stages, microbatches and chunks, as JSON values."""
    sized = result.plan if isinstance(result, Ideal) else result
    return {
        "schedule": sized.name,
        "stages": sized.stages,
        "microbatches": sized.microbatches,
        "chunks": sized.chunks,
    }


def draw_svg(result: Ideal | Estimate, view: View) -> str:
    """Draw a simulated schedule in the style of a view, and return the SVG document.

    Raises:
        UsageError: The result was computed by a formula, so there are no operations to draw.
    """
    return _draw_page(_check_order(result), view).svg()


def _draw_page(ideal: Ideal, view: View) -> Page:
    """Draw a simulated schedule, and return the page, whose title is a caption."""
    page = draw_picture(make_report(ideal), view)
    page.title = _describe_common_sizes([ideal])
    if ideal.schedule_ratio is not None:
        page.title += f"; {100 * ideal.schedule_ratio:.1f} % of its time is bubble"
    page.title += "."
    return page


def format_latex(result: Ideal | Estimate, view: View) -> str:
    """Return a simulated schedule as a LaTeX table, with its picture as a figure in a comment.

    The cost and the stage ratio are printed if the schedule is defined only by a formula.
    """
    if isinstance(result, Estimate):
        choice = Choice(
            result.name,
            result.stages,
            result.microbatches,
            result.chunks,
            cost_ns=1e6 * result.cost_ms,
            bubble_ratio=result.stage_ratio,
        )
        return simulation_latex.render([choice], result.restrictions, (), result.left_out)
    plan = result.plan
    choice = Choice(
        plan.name,
        plan.stages,
        plan.microbatches,
        plan.chunks,
        makespan_ns=1e6 * result.makespan_ms,
        bubble_ratio=result.schedule_ratio,
        peak_activations=max(result.peak_activations),
    )
    figure = list_figure_comments(view, "schedule.pdf", lambda drawn: _draw_page(result, drawn))
    return simulation_latex.render([choice], result.restrictions, figure, result.left_out)


def _check_order(result: Ideal | Estimate) -> Ideal:
    """Return the result unchanged if it was simulated, which means that it contains an order.

    Raises:
        UsageError: The result was computed by a formula, so it has no order.
    """
    if not isinstance(result, Ideal):
        raise UsageError(explain_no_picture(result.name))
    return result


def explain_no_picture(name: str) -> str:
    """Return the error message for an attempt to draw a schedule that is defined only by a formula.

    The message recommends a similar schedule that can be drawn, if there is one.
    """
    formula = find_formula(name)
    instead = f"; draw {formula.similar_schedule} instead" if formula else ""
    return f"{name} is a formula without an order of operations, so it cannot be drawn{instead}"


#: Functions that render a simulated schedule, keyed by the name of the command-line option.
RENDERINGS: Mapping[str, Callable[[Ideal | Estimate, View], str | bytes]] = {
    "json": lambda result, _: format_document(SCHEMA, make_document(result)),
    "svg": draw_svg,
    "pdf": lambda result, view: as_pdf(draw_svg(result, view)),
    "png": lambda result, view: as_png(draw_svg(result, view)),
    "latex": format_latex,
    "csv": lambda result, _: write(_check_order(result).plan),
}


def _list_rules() -> tuple[Schedule | Formula, ...]:
    return (*SCHEDULES, *FORMULAS)


def list_schedules() -> Iterator[blocks.Block]:
    """Yield the name, summary and source of each known schedule, for the command ``schedules``."""
    for rule in _list_rules():
        yield blocks.Sentence(rule.name, style="bold")
        yield blocks.Sentence(f"  {rule.summary}\n  {rule.source}\n")


def list_sections(result: Ideal | Estimate) -> Iterator[blocks.Block]:
    """Yield the blocks that the ``simulate`` command prints for one schedule.

    The first blocks contain the schedule, its source and sizes, and restrictions on the measured
    times. The results of the simulation follow, or the estimate with its formula.
    """
    sizes = _make_size_values(result)
    name = sizes["schedule"]
    stages = format_count(sizes["stages"], "stage")
    microbatches = format_count(sizes["microbatches"], "microbatch", "microbatches")
    chunks = f", {sizes['chunks']} model chunks per stage" if sizes["chunks"] > 1 else ""
    rules = {rule.name: f"{rule.summary}\n  {rule.source}" for rule in _list_rules()}
    yield blocks.Sentence(f"{name}: {rules.get(name, 'the order in this file')}", style="bold")
    yield blocks.Sentence(f"  {stages}, {microbatches}{chunks}\n")
    if result.restrictions:
        reasons = "; ".join(to_one_line(reason.text, 200) for reason in result.restrictions)
        yield blocks.Sentence(f"! measured times: {reasons}\n", style="bold")
    if isinstance(result, Ideal):
        yield blocks.HangingLines(list(_list_results(result)))
        peaks = result.peak_activations
        if min(peaks) < max(peaks):
            yield blocks.Sentence(f"  by stage: {', '.join(f'{peak:g}' for peak in peaks)}")
    else:
        yield blocks.HangingLines([_describe_cost(result), _describe_stage_ratio(result)])
        formula = find_formula(name)
        yield blocks.Sentence(
            f"  cost = {formula.text if formula else ''}; {explain_no_picture(name)}."
        )
    if result.left_out:
        yield blocks.Sentence(f"  {to_one_line(result.left_out, 200)}")


def _list_results(ideal: Ideal) -> Iterator[tuple[str, str]]:
    """Yield lines with a simulated schedule's duration, ratios and memory.

    The makespan with transfers is included if the schedule was read from a file that contains sends
    and receives. The peak memory is included if the user specified a memory limit, or memory sizes
    other than 1.
    """
    yield _describe_cost(ideal)
    makespan = f"{ideal.makespan_ms:,.3f} ms"
    yield _make_line("makespan", makespan, "start of first F to end of last operation")
    if ideal.carried_ms is not None:
        # ``carried_ms`` is the makespan including the sends and receives in the file.
        carried = f"{ideal.carried_ms:,.3f} ms"
        yield _make_line(
            "with transfers", carried, "makespan with the sends and receives in the file"
        )
    yield _describe_stage_ratio(ideal)
    yield _make_line(
        "schedule ratio", format_percent(ideal.schedule_ratio), "idle share of the makespan"
    )
    peak_activations = f"{max(ideal.peak_activations):g}"
    yield _make_line(
        "peak activations", peak_activations, "microbatches in a stage's memory, F to W"
    )
    memory = ideal.memory
    if memory.limit is not None or memory.backward != 1 or memory.weight != 1:
        format_amount = format_memory if memory.in_bytes else "{:g}".format
        peak = format_amount(max(ideal.peak_memory))
        if memory.limit is not None:
            peak = f"{peak} of {format_amount(memory.limit)}"
        backward, weight = format_amount(memory.backward), format_amount(memory.weight)
        yield _make_line(
            "peak memory",
            peak,
            f"a microbatch takes M_B = {backward} from F to B, and M_W = {weight} until W",
        )


def _describe_cost(result: Ideal | Estimate) -> tuple[str, str]:
    return _make_line("cost", f"{result.cost_ms:,.3f} ms", "the longest stage window")


def _describe_stage_ratio(result: Ideal | Estimate) -> tuple[str, str]:
    ratio = format_percent(result.stage_ratio)
    return _make_line("stage ratio", ratio, "idle share of a window as long as the cost")


@dataclass(frozen=True)
class SimulatedSizes:
    """Several schedules or sizes, simulated with the same times.

    Attributes:
        choices: The predictions, in the order in which the user named the schedules and sizes.
            Must not be empty.
        restrictions: Reasons why the measured times behind the choices may be wrong.
        simulations: The simulations to draw, in the same order. Empty if nothing is drawn.
        left_out: Sentence that names the slow iterations that the measured times leave out, or "".
    """

    choices: tuple[Choice, ...]
    restrictions: tuple[Restriction, ...] = ()
    simulations: tuple[Ideal, ...] = ()
    left_out: str = ""

    @property
    def cheapest_first(self) -> tuple[Choice, ...]:
        """The predictions, sorted by device time per microbatch."""
        return sort_by_device_time(self.choices)


def format_sizes(sizes: SimulatedSizes) -> str:
    """Return the predictions for several schedules or sizes as JSON text."""
    settings = [_make_choice_values(choice) for choice in sizes.cheapest_first]
    entries = [restriction.entry for restriction in sizes.restrictions]
    values = {"restrictions": entries, "left_out": sizes.left_out, "settings": settings}
    return format_document(SCHEMA, values)


def draw_sizes(sizes: SimulatedSizes, view: View) -> str:
    """Draw each simulation as a panel on a common time axis, and return the SVG document.

    Raises:
        UsageError: None of the schedules can be simulated.
    """
    if not sizes.simulations:
        reasons = dict.fromkeys(choice.reason for choice in sizes.choices if choice.reason)
        raise UsageError(f"no schedule can be drawn: {'; '.join(reasons)}")
    return _draw_panel_page(sizes, view).svg()


def _draw_panel_page(sizes: SimulatedSizes, view: View) -> Page:
    """Draw each simulation as a panel, and return the page. There must be a simulation."""
    titles = _make_panel_titles(sizes.simulations)
    panels = [
        (title, make_simulated_report(simulation, "schedule"), view)
        for title, simulation in zip(titles, sizes.simulations, strict=True)
    ]
    not_drawn = [choice for choice in sizes.choices if choice.reason]
    note = "; ".join(f"{choice.schedule} is not drawn: {choice.reason}" for choice in not_drawn)
    return draw_panel_page(panels, _describe_common_sizes(sizes.simulations), note)


def format_sizes_latex(sizes: SimulatedSizes, view: View) -> str:
    """Return the predictions as a LaTeX table, with the panels as a figure in a comment."""
    figure: Iterable[str] = ()
    if sizes.simulations:
        figure = list_figure_comments(
            view, "schedules.pdf", lambda drawn: _draw_panel_page(sizes, drawn)
        )
    return simulation_latex.render(sizes.choices, sizes.restrictions, figure, sizes.left_out)


def _make_panel_titles(simulations: Sequence[Ideal]) -> list[str]:
    """Return the schedule of each simulation, followed by the sizes that are not always the same.

    The number of chunks is part of the title only if a schedule appears with several numbers.
    """
    plans = [simulation.plan for simulation in simulations]
    has_many_stages = len({plan.stages for plan in plans}) > 1
    has_many_microbatches = len({plan.microbatches for plan in plans}) > 1
    has_many_chunks = len({(plan.name, plan.chunks) for plan in plans}) > len(
        {plan.name for plan in plans}
    )
    titles = []
    for plan in plans:
        parts = [plan.name]
        parts += [format_count(plan.stages, "stage")] if has_many_stages else []
        if has_many_microbatches:
            parts.append(format_count(plan.microbatches, "microbatch", "microbatches"))
        parts += [format_count(plan.chunks, "chunk")] if has_many_chunks else []
        titles.append(", ".join(parts))
    return titles


def _describe_common_sizes(simulations: Sequence[Ideal]) -> str:
    """Return a heading with the number of simulations, and the sizes that all of them share."""
    names = {simulation.plan.name for simulation in simulations}
    stages = {simulation.plan.stages for simulation in simulations}
    microbatches = {simulation.plan.microbatches for simulation in simulations}
    heading = format_count(len(simulations), "simulated iteration")
    if len(names) == 1:
        heading += f" of {names.pop()}"
    if len(stages) == 1:
        heading += f" on {format_count(stages.pop(), 'stage')}"
    if len(microbatches) == 1:
        heading += f" with {format_count(microbatches.pop(), 'microbatch', 'microbatches')}"
    return heading


#: Functions that render several simulated schedules, keyed by the name of the command-line option.
SIZE_RENDERINGS: Mapping[str, Callable[[SimulatedSizes, View], str | bytes]] = {
    "json": lambda sizes, _: format_sizes(sizes),
    "latex": format_sizes_latex,
    "svg": draw_sizes,
    "pdf": lambda sizes, view: as_pdf(draw_sizes(sizes, view)),
    "png": lambda sizes, view: as_png(draw_sizes(sizes, view)),
}
#: Formats that contain a picture of the simulations, or describe one.
DRAWN = frozenset({"svg", "pdf", "png", "latex"})


def _make_choice_values(choice: Choice) -> dict[str, Any]:
    """Return a choice's schedule, sizes and predictions as JSON values.

    Unknown predictions are None. In that case, ``reason`` says why.
    """
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


def list_sizes(sizes: SimulatedSizes) -> Iterator[blocks.Block]:
    """Yield a table that compares several schedules or sizes, followed by notes.

    The error column ``±`` is left out if no choice is based on measured times.
    """
    choices = sizes.cheapest_first
    rows = [_make_choice_row(choice) for choice in choices]
    measured = any(choice.error_ns is not None for choice in choices)
    columns = [name for name in rows[0] if measured or name != "±"]
    yield blocks.Table(
        "Settings, cheapest per microbatch first (p: stages, m: microbatches, v: chunks)",
        [{name: row[name] for name in columns} for row in rows],
        left=("schedule",),
        drop_order=("activations", "v"),
    )
    for text in dict.fromkeys(choice.reason for choice in choices if choice.reason):
        yield blocks.Sentence(f"  - {to_one_line(text, 200)}")
    for restriction in sizes.restrictions:
        yield blocks.Sentence(
            f"! measured times: {to_one_line(restriction.text, 200)}", style="bold"
        )
    if measured:
        yield blocks.Sentence(
            "±: 95 % interval, from the spread of the run's times and the error of a simulation of "
            "the run itself. Times are means over random draws, scaled by that error; those of "
            "analyze --what-if are not"
        )
    if sizes.left_out:
        yield blocks.Sentence(to_one_line(sizes.left_out, 200))
    if measured and len({choice.stages for choice in choices}) > 1:
        yield blocks.Sentence(
            "For other numbers of stages, the work is divided evenly among the stages."
        )


def _make_choice_row(choice: Choice) -> dict[str, str]:
    """Return the table cells for a choice: schedule, sizes and predictions, keyed by header.

    Times are in ms, and the bubble ratio is in percent. Unknown predictions are dashes.
    """
    peak = choice.peak_activations
    return {
        "schedule": choice.schedule,
        "p": str(choice.stages),
        "m": str(choice.microbatches),
        "v": str(choice.chunks),
        "iteration ms": blocks.format_ms(choice.makespan_ns),
        "±": blocks.format_ms(choice.error_ns),
        "device ms per microbatch": blocks.format_ms(choice.device_ns),
        "bubble %": blocks.format_percent_cell(choice.bubble_ratio),
        "activations": "-" if peak is None else f"{peak:g}",
    }


def _make_line(name: str, value: str, meaning: str) -> tuple[str, str]:
    """Return a (lead, text) pair.

    The lead is the name and value, padded to columns, and the text is the meaning.
    """
    return f"  {name:<18}{value:>16}  ", meaning
