"""Renders reports as text: all sections in order, selected sections, or a summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from bubbleviz.model.texts import capitalize, to_one_line
from bubbleviz.render import document as doc
from bubbleviz.render.markdown import render_markdown
from bubbleviz.render.text import extra_work, orders, ranks, ratio_tables, savings, times
from bubbleviz.render.text.bubble_tables import (
    list_longest_bubbles,
    list_step_parts,
    make_cause_table,
)
from bubbleviz.render.text.first_screen import choose_first_sentence, describe_headline
from bubbleviz.render.text.late_ranks import list_late_ranks
from bubbleviz.render.text.profiles import list_clocks, list_coverage
from bubbleviz.render.text.terminal import render_plain_text
from bubbleviz.report.advice import choose_shown_iteration
from bubbleviz.report.labels import name_rank
from bubbleviz.report.marked_ranks import choose_marked_ranks
from bubbleviz.report.methods import write_methods
from bubbleviz.report.published_paths import list_limitation_lines
from bubbleviz.report.report import Report
from bubbleviz.report.run_lateness import describe_late_rank, find_lateness
from bubbleviz.report.sentences import describe_first_steps, describe_further_steps
from bubbleviz.report.view import View
from bubbleviz.report.warm_up import describe_warm_up


def list_sections(report: Report, view: View) -> Iterator[doc.Block]:
    """Yield the blocks of all report sections."""
    for _, blocks in _list_named_sections(report, view):
        yield from blocks


def select_sections(report: Report, view: View, names: Sequence[str]) -> Iterator[doc.Block]:
    """Yield the blocks of selected report sections.

    If a section has no blocks, a sentence says that there is nothing to list. For the section
    ``advice``, it is the same first step as on the first screen, if there is one.

    Args:
        report: The report.
        view: The iterations and ranks to list.
        names: Names of the sections (values of ``--details``), in output order.
    """
    for name in names:
        blocks_of_name = [
            b for n, blocks in _list_named_sections(report, view) if n == name for b in blocks
        ]
        yield from blocks_of_name or [_describe_empty_section(report, name)]


def _describe_empty_section(report: Report, name: str) -> doc.Sentence:
    """Return the sentence for a section without blocks; see :func:`select_sections`."""
    if name == "advice":
        first = choose_first_sentence(report, describe_first_steps(report))
        if first is not None:
            return doc.Sentence(f"\nFirst: {first}")
    return doc.Sentence(f"\n{name}: this run has nothing to list")


def _list_named_sections(report: Report, view: View) -> Iterator[tuple[str, Iterable[doc.Block]]]:
    """Yield the (name, blocks) of each section, in output order.

    Sections may share a name. The headline and the first advice have the name "", because they
    cannot be selected by name.
    """
    late = describe_late_rank(report)
    yield "", [doc.Sentence(f"{late}\n", lead="Late: ")] if late else []
    value, *lines = describe_headline(report)
    yield "", [doc.Sentence("\n".join(lines), lead=capitalize(value))]
    yield "operations", orders.list_orders(report)
    first = describe_first_steps(report)
    if (advice := choose_first_sentence(report, first)) is not None:
        yield "", [doc.Sentence(f"what to do first: {advice}")]
        further = describe_further_steps(report)
        yield "", [doc.Sentence(f"then: {to_one_line(more, 200)}") for more in further]
    yield "ratios", [ratio_tables.make_ratio_table(report)]
    yield "time", list_step_parts(report)
    yield "causes", [table for table in [make_cause_table(report)] if table.rows]
    iteration = choose_shown_iteration(report, view.iterations)
    if iteration is not None and iteration.ranks:
        yield "ranks", ranks.list_ranks(report, view, iteration)
        yield "causes", ranks.list_idle_causes(report, view, iteration)
        yield "communication", ranks.list_communication(report, view, iteration)
        yield "causes", list_longest_bubbles(report)
    yield "operations", times.list_phase_times(report)
    yield "operations", times.list_warm_up(report)
    yield "operations", times.list_critical_path(report)
    yield "operations", savings.list_changes(report)
    yield "operations", savings.list_schedules(report)
    yield "operations", times.list_peaks(report)
    yield "operations", times.list_memory(report)
    yield "operations", extra_work.list_extra_work(report)
    yield "advice", savings.list_advice(report)
    yield "slowdown", savings.list_slowdowns(report)
    lateness = report.derive(find_lateness)
    yield "slowdown", list_late_ranks(lateness, partial(name_rank, report))
    yield "ratios", ratio_tables.list_not_averaged(report)
    yield "clocks", list_clocks(report)
    yield "coverage", list_coverage(report)
    if report.limitations:
        yield (
            "coverage",
            [doc.make_heading("Limitations"), doc.make_bullets(list_limitation_lines(report))],
        )
    # The methods sentence is about the bubble ratio of a pipeline.
    if report.no_pipeline is None and report.summary.bubble_ratio[report.headline].mean is not None:
        ready = doc.Sentence(to_one_line(write_methods(report), None))
        yield "ratios", [doc.make_heading("Methods, ready to paste"), ready]


def render_text(report: Report, view: View) -> str:
    """Return all sections of a report as plain text."""
    return render_plain_text(list_sections(report, view))


def summarize(report: Report) -> list[doc.Block]:
    """Return the blocks of a summary: headline, advice, outliers, ratios and causes.

    If extra work was given, the table of what fits into bubbles comes last.
    """
    value, bounds, run, reason = describe_headline(report)
    first, warm_up = describe_first_steps(report), describe_warm_up(report)
    outliers = choose_marked_ranks(report).sentence
    late = describe_late_rank(report)
    return [
        *([doc.Sentence(f"Late: {late}")] if late else []),
        doc.Sentence(bounds, lead=capitalize(value)),
        doc.Sentence(f"{run}; {reason}"),
        *([] if first is None else [doc.Sentence(f"What to do first: {first}")]),
        *(doc.Sentence(f"Then: {text}") for text in describe_further_steps(report)),
        *([] if warm_up is None else [doc.Sentence(f"First iteration: {warm_up}")]),
        *([doc.Sentence(outliers)] if outliers else []),
        ratio_tables.make_ratio_table(report),
        make_cause_table(report),
        *extra_work.list_extra_work(report),
    ]


def render_summary(report: Report, _: View) -> str:
    """Return a report summary as Markdown text. The view is ignored."""
    return render_markdown(summarize(report))
