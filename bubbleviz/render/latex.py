"""Writes LaTeX: escaped text, tables, and figures with their captions as comments to copy.

A table needs only pdflatex and the package booktabs. Names from profiles cannot break a table,
because all text is printable ASCII and TeX special characters are escaped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from bubbleviz.errors import UsageError
from bubbleviz.report.labels import MARK

if TYPE_CHECKING:
    from bubbleviz.render.picture.page import Page
    from bubbleviz.report.view import View

#: Maximum length of text from a profile.
_MAX_LENGTH = 600
#: Style and width, in mm, of the figure that comments describe if no picture is written.
_STYLE, _WIDTH_MM = "paper", 89.0
#: Matches file names that need no escaping in ``\\includegraphics``.
_PLAIN_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: Comment that names the package that a table needs.
PREAMBLE_COMMENT = r"% Required in the preamble: \usepackage{booktabs}"
#: LaTeX for characters that have a special meaning or no ASCII form.
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
    # Symbols in the notes below pictures.
    "±": r"$\pm$",
    "μ": r"$\mu$",
    "·": r"$\cdot$",
    "≥": r"$\geq$",
    MARK: r"$\triangleright$",
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

    Accents are removed, and a few symbols become LaTeX commands. Other characters that have no
    ASCII form become ``?``.
    """
    letters = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    printable = (
        c if " " <= c <= "~" or c in _SPELLED else "?" if c.isprintable() else " " for c in letters
    )
    return "".join(_SPELLED.get(c, c) for c in _OPENING.sub("`", "".join(printable)))


def truncate_latex(text: str) -> str:
    """Truncate text from a profile to ``_MAX_LENGTH`` characters, and escape it for LaTeX."""
    return escape_latex(text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}...")


def format_cell(value: float | None, unit: float = 1.0) -> str:
    """Format ``value * unit`` with two decimals, or ``--`` if the value is unknown."""
    # Adding 0.0 turns -0.0 into 0.0.
    return "--" if value is None else f"{round(value * unit, 2) + 0.0:.2f}"


def format_half_width(value: float | None, unit: float = 1.0) -> str:
    """Format the half-width of an interval after a plus-minus sign, or ``--`` if it is unknown."""
    text = format_cell(value, unit)
    return text if text == "--" else rf"$\pm$\,{text}"


def list_figure_comments(
    view: View, default_file: str, draw: Callable[[View], Page]
) -> Iterator[str]:
    """Draw a figure, and yield comment lines with a figure environment to copy.

    Yields nothing if the figure cannot be drawn, for example because its height is too small.

    The caption describes the picture that is written with the view. If no picture is written, and
    the view has neither style nor width, the figure has the width of one column in a paper.

    Args:
        view: The view of the picture.
        default_file: Name of the file to include if no picture is written.
        draw: Function that draws the picture on a page. The title of the page is the caption, and
            its description is the note.
    """
    origin = "drawn with the same options"
    if not (view.picture_file or view.style or view.width_mm):
        view = replace(view, style=_STYLE, width_mm=_WIDTH_MM)
        origin = f"written by -o {default_file} --style {_STYLE} --width {_WIDTH_MM:g}mm"
    try:
        page = draw(view)
    except UsageError:
        return
    yield f"% Figure, {origin}:"
    yield r"%   \begin{figure}"
    file = name_figure_file(view.picture_file, default_file)
    yield rf"%     \centering\includegraphics{{{file}}}"
    yield rf"%     \caption{{{escape_latex(page.title)}}}"
    yield rf"%     \footnotesize\raggedright Note: {escape_latex(page.description)}\par"
    yield r"%   \end{figure}"


def name_figure_file(path: str, default: str) -> str:
    """Return the name of a picture as pdflatex includes it.

    An SVG has to be converted to PDF first, so its suffix is replaced.

    Args:
        path: Path of the picture, or "" if no picture is written.
        default: Name to return if there is no path, or if its name would have to be escaped.
    """
    name = PurePath(path).name
    if name.lower().endswith(".svg"):
        name = f"{name[:-4]}.pdf"
    return name if _PLAIN_FILE_NAME.fullmatch(name) else default


@dataclass(frozen=True)
class LatexTable:
    """A LaTeX table. All texts are LaTeX.

    Attributes:
        caption: Caption above the table.
        label: Label of the table, without the prefix ``tab:``.
        columns: Alignment of each column, such as ``lrr``.
        header: Heading of each column.
        rows: Cells of each row.
        note: Sentences below the table.
    """

    caption: str
    label: str
    columns: str
    header: Sequence[str]
    rows: Iterable[Sequence[str]]
    note: str


def list_table_lines(table: LatexTable) -> Iterator[str]:
    """Yield the lines of a table that fits into one column of a two-column page if possible."""
    yield r"\begin{table}"
    yield r"  \centering"
    yield rf"  \caption{{{table.caption}}}"
    yield rf"  \label{{tab:{table.label}}}"
    yield r"  \smallskip"  # standard classes do not have space below a caption
    # A column of a two-column page is 229 pt wide in ``article``.
    yield r"  \small"
    yield r"  \setlength{\tabcolsep}{3pt}"
    yield rf"  \begin{{tabular}}{{@{{}}{table.columns}@{{}}}}"
    yield r"    \toprule"
    yield rf"    {' & '.join(table.header)} \\"
    yield r"    \midrule"
    for row in table.rows:
        yield rf"    {' & '.join(row)} \\"
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    yield ""  # the note is a separate paragraph
    yield r"  \smallskip"
    yield rf"  \footnotesize\raggedright Note: {table.note}\par"
    yield r"\end{table}"


def join_lines(lines: Iterable[str]) -> str:
    """Join lines to a document in which every line ends with a line feed."""
    return "".join(f"{line}\n" for line in lines)
