"""Picture captions: a sentence that describes the picture, and a note with definitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.ratios import list_ratios
from bubbleviz.model.collectives import format_number_ranges
from bubbleviz.model.operations import Rank
from bubbleviz.model.texts import capitalize, format_count, to_one_line
from bubbleviz.report.measure import is_idle_elsewhere, name_measure
from bubbleviz.report.methods import format_definition
from bubbleviz.report.profiled_run import list_profiling_sentences
from bubbleviz.report.report import Report
from bubbleviz.report.slow_windows import measure_slow_windows


def write_caption(
    report: Report,
    iterations: Sequence[Iteration],
    drawn_ranks: Sequence[Rank],
    *,
    has_numbers: bool,
) -> tuple[str, str]:
    """Return the caption of a timeline: one sentence, and a note of several sentences.

    Args:
        report: The report.
        iterations: The iterations that are drawn. Must not be empty.
        drawn_ranks: The rank that each row draws.
        has_numbers: Whether boxes contain numbers.
    """
    sentence = "".join(_describe_figure(report, iterations, drawn_ranks))
    return sentence, " ".join(_list_definitions(report, has_numbers=has_numbers))


def _describe_figure(
    report: Report, iterations: Sequence[Iteration], drawn_ranks: Sequence[Rank]
) -> Iterator[str]:
    """Yield the parts of a sentence that describes a figure.

    The sentence contains the iterations, the schedule, the devices, the number of microbatches and
    the share of idle time. Unknown values are left out. If some stages of a pipeline are not drawn,
    the sentence names the stages that are drawn.

    Args:
        report: The report.
        iterations: Iterations that the figure shows.
        drawn_ranks: The rank that each row of the figure draws. If the run is not a pipeline, each
            row is a GPU.
    """
    noun, schedule = report.iteration_noun, report.schedule
    is_single = len(iterations) == 1
    yield f"One {noun}" if is_single else format_count(len(iterations), noun)
    if schedule is not None and schedule.name is not None:
        yield f" of the schedule {to_one_line(schedule.name, 60)}"
    stages = {rank.stage for rank in report.ranks} - {None}
    is_pipeline = report.no_pipeline is None and len(stages) > 1
    if is_pipeline:
        yield f" on {format_count(len(stages), 'pipeline stage')}"
        drawn_stages = sorted({rank.stage for rank in drawn_ranks if rank.stage is not None})
        if drawn_stages and len(drawn_stages) < len(stages):
            plural = "stage" if len(drawn_stages) == 1 else "stages"
            yield f" (drawn: {plural} {format_number_ranges(drawn_stages)})"
    else:
        yield f" on {format_count(len(drawn_ranks), 'GPU')}"
    microbatches = {iteration.microbatches for iteration in iterations} - {None}
    if len(microbatches) == 1:
        yield f" with {format_count(microbatches.pop() or 0, 'microbatch', 'microbatches')}"
    idle_share = _find_idle_share(report, iterations)
    if idle_share is not None:
        idle = "idle between operations" if is_idle_elsewhere(report) else "idle"
        whose = "its" if is_single else "their"
        yield f"; {100 * idle_share:.1f} % of {whose} time is {'bubble' if is_pipeline else idle}"
    yield "."


def _find_idle_share(report: Report, iterations: Sequence[Iteration]) -> float | None:
    """Return the primary ratio for the drawn iterations, or None if it is unknown.

    If a single iteration is drawn and its ratio is known, the result is the ratio of this
    iteration. Otherwise, the result is the mean over the report's averaged iterations.
    """
    if len(iterations) == 1:
        ratio = iterations[0].ratios.get(report.headline)
        if ratio is not None and ratio.value is not None:
            return ratio.value
    mean = report.summary.bubble_ratio.get(report.headline)
    return None if mean is None else mean.mean


def describe_slow_iteration(report: Report, iterations: Sequence[Iteration]) -> str:
    """Return a sentence that says how slow the drawn iteration is, or "" if it is not slow.

    The result is "" as well if several iterations are drawn; see :func:`.measure_slow_windows`.

    Args:
        report: The report.
        iterations: The iterations that are drawn.
    """
    ratios = {
        iteration.index: iteration.ratios.get(report.headline)
        for iteration in report.iterations
        if iteration.averaged
    }
    windows_ns = {
        index: ratio.window_ns for index, ratio in ratios.items() if ratio and ratio.window_ns
    }
    slow = measure_slow_windows(windows_ns)
    if len(iterations) != 1 or iterations[0].index not in slow:
        return ""
    (iteration,) = iterations
    name = to_one_line(iteration.name, 40)
    return f"Iteration {name} takes {slow[iteration.index]:.2f} times as long as usual."


def _list_definitions(report: Report, *, has_numbers: bool) -> Iterator[str]:
    """Yield the sentences of the note: definitions of the ratio and the boxes, then restrictions.

    Args:
        report: The report.
        has_numbers: Whether boxes contain numbers.
    """
    definition = next((d for d in list_ratios() if d.name == report.headline), None)
    if definition is not None:
        name = capitalize(name_measure(report).name)
        yield f"{name}: {format_definition(definition.definition)}."
    numbers = "; the number in a box is its microbatch" if has_numbers else ""
    yield f"Boxes are operations, to scale{numbers}."
    for restriction in report.restrictions:
        yield f"{capitalize(restriction.text)}."
    yield from (f"{sentence}." for sentence in list_profiling_sentences(report))
