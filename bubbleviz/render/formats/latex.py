"""LaTeX: the bubble ratios as a table for a paper, and the methods sentence as a comment.

Plain pdflatex with booktabs takes it, whatever names the profiles hold: all text is printable
ASCII, and characters with a meaning in TeX are spelled out.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from bubbleviz.count.ratios import list_ratios
from bubbleviz.model.texts import capitalize, format_count, format_percent_bounds
from bubbleviz.render.selection import select
from bubbleviz.report.captions import figure_caption
from bubbleviz.report.measure import is_idle_elsewhere
from bubbleviz.report.methods import methods, with_source
from bubbleviz.report.published_paths import with_relative_paths
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Of a text in a comment, characters; and profiles that comments name.
_LONGEST, _NAMED = 600, 16
_SPELLED = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "{}$&%#_"},
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    # In the usual encoding of fonts (OT1) these are other characters.
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    # After the end of a row these are arguments.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}
#: An apostrophe that opens a quotation.
_OPENING = re.compile(r"(?<![^ (])'(?=\w)")


def escaped(text: str) -> str:
    """Return any text as LaTeX that prints it, on one line of ASCII; other characters are ``?``."""
    letters = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    shown = (c if " " <= c <= "~" else "?" if c.isprintable() else " " for c in letters)
    return "".join(_SPELLED.get(c, c) for c in _OPENING.sub("`", "".join(shown)))


def render(report: Report, view: View) -> str:
    """Return the table of the averaged iterations; the view is that of the figure alone."""
    report = with_relative_paths(report)
    # The idle time of no pipeline is no bubble of one.
    place = "between operations" if is_idle_elsewhere(report) else "in iterations"
    measure = "Bubble ratios" if report.no_pipeline is None else f"Idle time {place}"
    lines = (*_comments(report, view, measure), *_table(report, measure))
    return "".join(f"{line}\n" for line in lines)


def _comments(report: Report, view: View, measure: str) -> Iterator[str]:
    yield f"% {measure} by bubbleviz {escaped(report.version)}."
    yield r"% Needs in the preamble: \usepackage{booktabs}"
    for profile in report.profiles[:_NAMED]:
        yield f"% Profile: {_short(Path(profile.path).name)}"
    if len(report.profiles) > _NAMED:
        yield f"% and {format_count(len(report.profiles) - _NAMED, 'more profile')}"
    yield "% Methods, ready to paste:"
    yield f"%   {escaped(methods(report))}"
    selection = select(report, view)
    if selection is not None:
        sentence, note = figure_caption(report, selection.iterations, len(selection.rows))
        yield "% Figure, of -o bubbles.pdf --style paper --width 89mm:"
        yield r"%   \begin{figure}"
        yield r"%     \centering\includegraphics{bubbles.pdf}"
        yield rf"%     \caption{{{escaped(sentence)}}}"
        yield rf"%     \footnotesize\raggedright Note: {escaped(note)}\par"
        yield r"%   \end{figure}"
    if report.limitations:
        yield "% Limitations:"
    for limitation in report.limitations:
        yield f"%   {_short(limitation.what)}: {_short(limitation.reason)}"


def _short(text: str) -> str:
    """Return a text of a profile for a comment."""
    return escaped(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def _table(report: Report, measure: str) -> Iterator[str]:
    names = [s.name for s in list_ratios()]
    ordered = sorted(names, key=lambda name: name != report.headline)
    over = format_count(report.summary.iterations, report.iteration_noun)
    yield r"\begin{table}"
    yield r"  \centering"
    ranks = format_count(len(report.ranks), "rank")
    yield rf"  \caption{{{measure} in \% over {over} on {ranks}.}}"
    yield r"  \label{tab:bubble-ratios}"
    yield r"  \smallskip"  # plain classes leave none below a caption
    # All columns fit into one of two: 229 pt in the article class.
    yield r"  \small"
    yield r"  \setlength{\tabcolsep}{3pt}"
    yield r"  \begin{tabular}{@{}lrrrrrr@{}}"
    yield r"    \toprule"
    yield r"    Ratio & Mean & SD & 95\,\% CI & $n$ & ms & B/C \\"
    yield r"    \midrule"
    for name in ordered:
        yield rf"    {' & '.join(_cells(report, name))} \\"
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    yield ""  # the note is a paragraph of its own
    yield r"  \smallskip"
    yield rf"  \footnotesize\raggedright {_note(report, ordered)}\par"
    yield r"\end{table}"


def _cells(report: Report, name: str) -> tuple[str, ...]:
    summary = report.summary
    ratio = summary.bubble_ratio[name]
    mark = r"\,!" if report.contradicted(name) else ""
    ci95 = _number(ratio.ci95, 100)
    return (
        rf"\textbf{{{escaped(name)}}}" if name == report.headline else escaped(name),
        _number(ratio.mean, 100) + mark,
        _number(ratio.std, 100),
        ci95 if ci95 == "--" else rf"$\pm$\,{ci95}",
        str(ratio.n),
        _number(summary.window_ns[name].mean, 1e-6),
        _number(summary.bubble_overhead[name].mean, 100),
    )


def _number(value: float | None, unit: float) -> str:
    # A zero has no sign.
    return "--" if value is None else f"{round(value * unit, 2) + 0.0:.2f}"


def _formula(definition: str) -> str:
    """Return a definition of a ratio with minus and multiplication signs."""
    text = escaped(with_source(definition))
    return text.replace(" - ", " $-$ ").replace(" x ", r" $\times$ ")


def _note(report: Report, ordered: list[str]) -> str:
    """Return the note below the table: definitions of its rows and columns, and warnings."""
    definitions = {ratio.name: ratio.definition for ratio in list_ratios()}
    primary = {report.headline: " (primary)"}
    meanings = "; ".join(
        rf"\emph{{{escaped(name)}}}{primary.get(name, '')} is {_formula(definitions[name])}"
        for name in ordered
    )
    note = (
        rf"Note: {meanings}. SD: standard deviation. CI: confidence interval of the mean "
        r"(Student's $t$, half width). ms: mean length of the window. B/C: bubble / compute."
    )
    for restriction in report.restrictions:
        note += f" {escaped(capitalize(restriction.text))}."
    interval = report.summary.bubble_interval.get(report.headline)
    if interval is not None and interval[0] < interval[1]:
        low, high = format_percent_bounds(interval, 2, 4)
        note += rf" Clock bounds of \emph{{{escaped(report.headline)}}}: {low} to {high}\,\%."
    if any(report.contradicted(name) for name in report.summary.bubble_ratio):
        note += " A ratio marked ! depends on clocks that contradict each other."
    return note
