"""Text: the tables of the terminal without colours, and ratios and causes as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return the tables as plain text."""
    from bubbleviz.render.text.report import sections
    from bubbleviz.render.text.terminal import plain_text

    return plain_text(sections(report, view))


def as_markdown(report: Report, view: View) -> str:
    """Return the headline, the ratios and the causes of a report, whatever the view."""
    del view
    from dataclasses import replace

    from bubbleviz.render.document import Sentence
    from bubbleviz.render.markdown import markdown
    from bubbleviz.render.text.headline import headline_lines
    from bubbleviz.render.text.report import causes
    from bubbleviz.render.text.sections import ratios
    from bubbleviz.report.advice import first_thing

    value, bounds, run, why = headline_lines(report)
    first = first_thing(report)
    advice = [] if first is None else [Sentence(f"What to do first: {first}")]
    return markdown(
        [
            Sentence(bounds, lead=value),
            Sentence(f"{run}; {why}"),
            *advice,
            replace(ratios(report), title="Bubble ratios, in %"),
            causes(report),
        ]
    )


RENDERER = (
    Renderer("text", "the table as plain text", render, (".txt",), order=4),
    Renderer(
        "markdown",
        "ratios and causes as Markdown, for a wiki",
        as_markdown,
        (".md", ".markdown"),
        order=4,
    ),
)
