"""The report as text: all sections in order, sections of some names, and what files contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bubbleviz.model.texts import capitalize, to_one_line
from bubbleviz.render import document as doc
from bubbleviz.render.markdown import markdown
from bubbleviz.render.text import orders, ranks, ratio_tables, savings, times
from bubbleviz.render.text.bubble_tables import causes, longest, step_time
from bubbleviz.render.text.first_screen import first_sentence, headline_lines
from bubbleviz.render.text.profiles import clocks, coverage
from bubbleviz.render.text.terminal import plain_text
from bubbleviz.report.advice import shown_iteration
from bubbleviz.report.methods import methods
from bubbleviz.report.published_paths import limitation_lines
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps, describe_further_steps
from bubbleviz.report.view import View


def sections(report: Report, view: View) -> Iterator[doc.Block]:
    """Yield the sections of a report."""
    for _, blocks in _sections(report, view):
        yield from blocks


def details(report: Report, view: View, names: Sequence[str]) -> Iterator[doc.Block]:
    """Yield some tables of a report, in the order named.

    Args:
        report: any report.
        view: the iteration and the ranks that are listed.
        names: as in ``--details``.
    """
    for name in names:
        listed = [b for n, blocks in _sections(report, view) if n == name for b in blocks]
        yield from listed or [doc.Sentence(f"\n{name}: this run has nothing to list")]


def _sections(report: Report, view: View) -> Iterator[tuple[str, Iterable[doc.Block]]]:
    """Yield sections in the order in which they are printed, with their names in ``--details``."""
    value, *lines = headline_lines(report)
    yield "", [doc.Sentence("\n".join(lines), lead=capitalize(value))]
    yield "operations", orders.orders(report)
    first = describe_first_steps(report)
    if (advice := first_sentence(report, first)) is not None:
        yield "", [doc.Sentence(f"what to do first: {advice}")]
        further = describe_further_steps(report)
        yield "", [doc.Sentence(f"then: {to_one_line(more, 200)}") for more in further]
    yield "ratios", [ratio_tables.ratios(report)]
    yield "time", step_time(report)
    yield "causes", [table for table in [causes(report)] if table.rows]
    iteration = shown_iteration(report, view.iterations)
    if iteration is not None and iteration.ranks:
        yield "ranks", ranks.ranks(report, view, iteration)
        yield "causes", ranks.by_rank(report, view, iteration)
        yield "communication", ranks.communication(report, view, iteration)
        yield "causes", longest(report)
    yield "operations", times.phase_times(report)
    yield "operations", times.critical_path(report)
    yield "operations", savings.changes(report)
    yield "operations", savings.what_if(report)
    yield "operations", times.memory(report)
    yield "advice", savings.advice_table(report)
    yield "slowdown", savings.slowdowns(report)
    yield "ratios", ratio_tables.not_averaged(report)
    yield "clocks", clocks(report)
    yield "coverage", coverage(report)
    if report.limitations:
        yield "coverage", [doc.heading("Limitations"), doc.bullets(limitation_lines(report))]
    # There is a ratio of a pipeline to quote.
    if report.no_pipeline is None and report.summary.bubble_ratio[report.headline].mean is not None:
        ready = doc.Sentence(to_one_line(methods(report), None))
        yield "ratios", [doc.heading("Methods, ready to paste"), ready]


def as_text(report: Report, view: View) -> str:
    """Return the tables as plain text."""
    return plain_text(sections(report, view))


def summary(report: Report) -> list[doc.Block]:
    """Return the headline, what to do first, the ratios and the causes."""
    value, bounds, run, why = headline_lines(report)
    first = describe_first_steps(report)
    return [
        doc.Sentence(bounds, lead=capitalize(value)),
        doc.Sentence(f"{run}; {why}"),
        *([] if first is None else [doc.Sentence(f"What to do first: {first}")]),
        *(doc.Sentence(f"Then: {text}") for text in describe_further_steps(report)),
        ratio_tables.ratios(report),
        causes(report),
    ]


def as_markdown(report: Report, _: View) -> str:
    """Return a summary of a report, whatever the view."""
    return markdown(summary(report))
