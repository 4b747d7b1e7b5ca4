"""LaTeX: the bubble ratios as a table for a paper, and the methods sentence as a comment.

Plain pdflatex with booktabs takes it, whatever names the profiles hold: all text is printable
ASCII, and characters with a meaning in TeX are spelled out.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubbleviz.count.count import Spread
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View

#: Of a text in a comment, characters; and profiles that comments name.
_LONGEST, _NAMED = 600, 16
_SPELLED = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
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
_HEADER = (
    r"Ratio & Mean & SD & 95\,\% CI & $n$ & ms & B/C \\",
    r"\midrule",
)


def escaped(text: str) -> str:
    """Return any text as LaTeX that prints it, on one line of ASCII; other characters are ``?``."""
    letters = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    plain = _OPENING.sub("`", "".join(_in_ascii(c) for c in letters))
    return "".join(_SPELLED.get(c, c) for c in plain)


def _in_ascii(character: str) -> str:
    if " " <= character <= "~":
        return character
    return "?" if character.isprintable() else " "


def render(report: Report, view: View) -> str:
    """Return the table of the averaged iterations; the view is that of the figure alone."""
    from bubbleviz.report.labels import with_relative_paths

    report = with_relative_paths(report)
    return "".join(f"{line}\n" for line in (*_comments(report, view), *_table(report)))


def _comments(report: Report, view: View) -> Iterator[str]:
    from pathlib import Path

    from bubbleviz.model.texts import counted
    from bubbleviz.report.methods import methods

    yield f"% {_measure(report)} by bubbleviz {escaped(report.version)}."
    yield r"% Needs in the preamble: \usepackage{booktabs}"
    for profile in report.profiles[:_NAMED]:
        yield f"% Profile: {_short(Path(profile.path).name)}"
    if len(report.profiles) > _NAMED:
        yield f"% and {counted(len(report.profiles) - _NAMED, 'more profile')}"
    yield "% Methods, ready to paste:"
    yield f"%   {escaped(methods(report))}"
    yield from _figure(report, view)
    if report.limitations:
        yield "% Limitations:"
    for limitation in report.limitations:
        yield f"%   {_short(limitation.what)}: {_short(limitation.reason)}"


def _figure(report: Report, view: View) -> Iterator[str]:
    """Yield how the picture stands in a paper, with its caption, as comments."""
    from bubbleviz.render.rows import select
    from bubbleviz.report.labels import figure_caption

    selection = select(report, view)
    if selection is None:
        return
    caption = figure_caption(report, selection.iterations, len(selection.rows))
    yield "% Figure, of --pdf bubbles.pdf --style paper --width 89mm:"
    yield r"%   \begin{figure}"
    yield r"%     \centering\includegraphics{bubbles.pdf}"
    yield rf"%     \caption{{{escaped(caption.sentence)}}}"
    yield rf"%     \footnotesize\raggedright Note: {escaped(caption.note)}\par"
    yield r"%   \end{figure}"


def _short(text: str) -> str:
    """Return a text of a profile for a comment."""
    return escaped(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def _table(report: Report) -> Iterator[str]:
    from bubbleviz.count.ratios import ratio_definitions

    names = [s.name for s in ratio_definitions()]
    ordered = sorted(names, key=lambda name: name != report.headline)
    yield r"\begin{table}"
    yield r"  \centering"
    yield rf"  \caption{{{_caption(report)}}}"
    yield r"  \label{tab:bubble-ratios}"
    yield r"  \smallskip"  # plain classes leave none below a caption
    # All columns fit into one of two: 229 pt in the article class.
    yield r"  \small"
    yield r"  \setlength{\tabcolsep}{3pt}"
    yield r"  \begin{tabular}{@{}lrrrrrr@{}}"
    yield r"    \toprule"
    yield from (f"    {line}" for line in _HEADER)
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
    ratio = summary.bubble_ratio.get(name)
    mark = r"\,!" if report.contradicted(name) else ""
    ci95 = _number(None if ratio is None else ratio.ci95, 100)
    return (
        rf"\textbf{{{escaped(name)}}}" if name == report.headline else escaped(name),
        _mean(ratio, 100) + mark,
        _number(None if ratio is None else ratio.std, 100),
        ci95 if ci95 == "--" else rf"$\pm$\,{ci95}",
        "0" if ratio is None else str(ratio.n),
        _mean(summary.window_ns.get(name), 1e-6),
        _mean(summary.bubble_overhead.get(name), 100),
    )


def _mean(spread: Spread | None, unit: float) -> str:
    return _number(None if spread is None else spread.mean, unit)


def _number(value: float | None, unit: float) -> str:
    # A zero has no sign.
    return "--" if value is None else f"{round(value * unit, 2) + 0.0:.2f}"


def _measure(report: Report) -> str:
    """Return what is measured; the idle time of no pipeline is no bubble of one."""
    return "Bubble ratios" if report.no_pipeline is None else "Idle time in iterations"


def _caption(report: Report) -> str:
    """Return the caption of the table: one sentence."""
    from bubbleviz.model.texts import counted

    return (
        rf"{_measure(report)} in \% over "
        f"{counted(report.summary.iterations, report.iteration_noun)} on "
        f"{counted(len(report.ranks), 'rank')}."
    )


def _note(report: Report, ordered: list[str]) -> str:
    """Return the note below the table: definitions of its rows and columns, and warnings."""
    from bubbleviz.count.ratios import ratio_definitions

    definitions = {s.name: s.definition for s in ratio_definitions()}
    meanings = "; ".join(
        rf"\emph{{{escaped(name)}}}{' (primary)' if name == report.headline else ''} is "
        f"{_formula(definitions[name])}"
        for name in ordered
    )
    columns = (
        r" SD: standard deviation. CI: confidence interval of the mean (Student's $t$, half "
        r"width). ms: mean length of the window. B/C: bubble / compute."
    )
    return f"Note: {meanings}.{columns}{''.join(_warnings(report))}"


def _formula(definition: str) -> str:
    from bubbleviz.report.methods import with_source

    return escaped(with_source(definition)).replace(" - ", " $-$ ").replace(" x ", r" $\times$ ")


def _warnings(report: Report) -> Iterator[str]:
    from bubbleviz.model.texts import capitalised
    from bubbleviz.report.report import distinct_percents

    for restriction in report.restrictions:
        yield f" {escaped(capitalised(restriction.text))}."
    interval = report.summary.bubble_interval.get(report.headline)
    if interval is not None and interval[0] < interval[1]:
        low, high = distinct_percents(interval, 2, 4)
        yield rf" Clock bounds of \emph{{{escaped(report.headline)}}}: {low} to {high}\,\%."
    if any(report.contradicted(name) for name in report.summary.bubble_ratio):
        yield " A ratio marked ! depends on clocks that contradict each other."


RENDERER = Renderer(
    name="latex",
    summary="table of the ratios for LaTeX with booktabs",
    suffixes=(".tex",),
    render=render,
    order=5,
)
