"""Renders bubble ratios as a LaTeX table for a paper, with the methods sentence as a comment.

The table needs only pdflatex and the package booktabs. Names from profiles cannot break the table,
because all text is printable ASCII and TeX special characters are escaped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from bubbleviz.count.ratios import list_ratios
from bubbleviz.model.texts import capitalize, format_count, format_percent_bounds
from bubbleviz.render.selection import select
from bubbleviz.report.captions import write_caption
from bubbleviz.report.measure import is_idle_elsewhere
from bubbleviz.report.methods import format_definition, write_methods
from bubbleviz.report.published_paths import make_paths_relative
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Maximum length of text from a profile, and maximum number of listed profiles.
_MAX_LENGTH, _MAX_PROFILES = 600, 16
_SPELLED = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "{}$&%#_"},
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    # In the default font encoding (OT1), the following characters would be printed as different
    # ones.
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    # At the start of a table row, TeX would read the following characters as arguments of the
    # preceding ``\\``.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}
#: Matches an apostrophe used as an opening quotation mark.
_OPENING = re.compile(r"(?<![^ (])'(?=\w)")


def escape_latex(text: str) -> str:
    """Escape text for LaTeX, and return it as one line of ASCII.

    Accents are removed. Other characters that have no ASCII form become ``?``.
    """
    letters = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    printable = (c if " " <= c <= "~" else "?" if c.isprintable() else " " for c in letters)
    return "".join(_SPELLED.get(c, c) for c in _OPENING.sub("`", "".join(printable)))


def render(report: Report, view: View) -> str:
    """Return the LaTeX table of the bubble ratios over the averaged iterations.

    The view only affects the figure caption, which is a comment above the table.
    """
    report = make_paths_relative(report)
    # Idle time is called "bubble" only if the run has a pipeline.
    where = "between operations" if is_idle_elsewhere(report) else "in iterations"
    measure = "Bubble ratios" if report.no_pipeline is None else f"Idle time {where}"
    lines = (*_list_comments(report, view, measure), *_make_table(report, measure))
    return "".join(f"{line}\n" for line in lines)


def _list_comments(report: Report, view: View, measure: str) -> Iterator[str]:
    """Yield the LaTeX comment lines above the table.

    The comments list the profiles, the methods sentence, a figure environment to copy, and the
    limitations of the measurement. The figure environment is left out if the view selects nothing.

    Args:
        report: The report.
        view: The iterations and ranks of the figure.
        measure: Name of the measured quantity.
    """
    yield f"% {measure} by bubbleviz {escape_latex(report.version)}."
    yield r"% Required in the preamble: \usepackage{booktabs}"
    for profile in report.profiles[:_MAX_PROFILES]:
        yield f"% Profile: {_truncate(Path(profile.path).name)}"
    if len(report.profiles) > _MAX_PROFILES:
        yield f"% and {format_count(len(report.profiles) - _MAX_PROFILES, 'more profile')}"
    yield "% Methods, ready to paste:"
    yield f"%   {escape_latex(write_methods(report))}"
    selection = select(report, view)
    if selection is not None:
        sentence, note = write_caption(report, selection.iterations, len(selection.rows))
        yield "% Figure, written by -o bubbles.pdf --style paper --width 89mm:"
        yield r"%   \begin{figure}"
        yield r"%     \centering\includegraphics{bubbles.pdf}"
        yield rf"%     \caption{{{escape_latex(sentence)}}}"
        yield rf"%     \footnotesize\raggedright Note: {escape_latex(note)}\par"
        yield r"%   \end{figure}"
    if report.limitations:
        yield "% Limitations:"
    for limitation in report.limitations:
        yield f"%   {_truncate(limitation.what)}: {_truncate(limitation.reason)}"


def _truncate(text: str) -> str:
    """Truncate text from a profile to ``_MAX_LENGTH`` characters, and escape it for LaTeX."""
    return escape_latex(text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}...")


def _make_table(report: Report, measure: str) -> Iterator[str]:
    """Yield the lines of the LaTeX table, with one row per bubble ratio and a note below.

    The primary ratio is the first row.

    Args:
        report: The report.
        measure: Name of the measured quantity, for the caption.
    """
    names = [s.name for s in list_ratios()]
    ordered = sorted(names, key=lambda name: name != report.headline)
    over = format_count(report.summary.iterations, report.iteration_noun)
    yield r"\begin{table}"
    yield r"  \centering"
    ranks = format_count(len(report.ranks), "rank")
    yield rf"  \caption{{{measure} in \% over {over} on {ranks}.}}"
    yield r"  \label{tab:bubble-ratios}"
    yield r"  \smallskip"  # standard classes do not have space below a caption
    # Make the table fit into one column of a two-column page, which is 229 pt wide in ``article``.
    yield r"  \small"
    yield r"  \setlength{\tabcolsep}{3pt}"
    yield r"  \begin{tabular}{@{}lrrrrrr@{}}"
    yield r"    \toprule"
    yield r"    Ratio & Mean & SD & 95\,\% CI & $n$ & ms & B/C \\"
    yield r"    \midrule"
    for name in ordered:
        yield rf"    {' & '.join(_list_cells(report, name))} \\"
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    yield ""  # the note is a separate paragraph
    yield r"  \smallskip"
    yield rf"  \footnotesize\raggedright {_make_note(report, ordered)}\par"
    yield r"\end{table}"


def _list_cells(report: Report, name: str) -> tuple[str, ...]:
    """Return the LaTeX cells for a bubble ratio, in column order.

    The primary ratio's name is in bold. The mean is marked with ``!`` if the ratio depends on
    clocks that contradict each other. Unknown values are ``--``.
    """
    summary = report.summary
    ratio = summary.bubble_ratio[name]
    mark = r"\,!" if report.contradicted(name) else ""
    ci95 = _format_number(ratio.ci95, 100)
    return (
        rf"\textbf{{{escape_latex(name)}}}" if name == report.headline else escape_latex(name),
        _format_number(ratio.mean, 100) + mark,
        _format_number(ratio.std, 100),
        ci95 if ci95 == "--" else rf"$\pm$\,{ci95}",
        str(ratio.n),
        _format_number(summary.window_ns[name].mean, 1e-6),
        _format_number(summary.bubble_overhead[name].mean, 100),
    )


def _format_number(value: float | None, unit: float) -> str:
    # Adding 0.0 turns -0.0 into 0.0.
    return "--" if value is None else f"{round(value * unit, 2) + 0.0:.2f}"


def _format_formula(definition: str) -> str:
    """Return a ratio's definition in LaTeX, with proper minus and multiplication signs."""
    text = escape_latex(format_definition(definition))
    return text.replace(" - ", " $-$ ").replace(" x ", r" $\times$ ")


def _make_note(report: Report, ordered: list[str]) -> str:
    """Return the note below the table, which defines the rows and columns.

    The note also contains the report's restrictions, and the primary ratio's clock bounds if they
    are known and differ. If any ratio is marked with ``!``, the note explains the mark.

    Args:
        report: The report.
        ordered: Names of the ratios, in row order.
    """
    definitions = {ratio.name: ratio.definition for ratio in list_ratios()}
    primary = {report.headline: " (primary)"}
    formulas = {name: _format_formula(definition) for name, definition in definitions.items()}
    meanings = "; ".join(
        rf"\emph{{{escape_latex(name)}}}{primary.get(name, '')} is {formulas[name]}"
        for name in ordered
    )
    note = (
        rf"Note: {meanings}. SD: standard deviation. CI: confidence interval of the mean "
        r"(Student's $t$, half width). ms: mean length of the window. B/C: bubble / compute."
    )
    for restriction in report.restrictions:
        note += f" {escape_latex(capitalize(restriction.text))}."
    interval = report.summary.bubble_interval.get(report.headline)
    if interval is not None and interval[0] < interval[1]:
        low, high = format_percent_bounds(interval, 2, 4)
        note += rf" Clock bounds of \emph{{{escape_latex(report.headline)}}}: {low} to {high}\,\%."
    if any(report.contradicted(name) for name in report.summary.bubble_ratio):
        note += " A ratio marked ! depends on clocks that contradict each other."
    return note
