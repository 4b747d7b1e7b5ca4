"""Renders document blocks as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from bubbleviz.model import texts
from bubbleviz.render.document import Block, HangingLines, Sentence, Table

#: Maximum text length, and length above which a table cell has a tooltip. The style sheet may clip
#: long text in table cells.
_MAX_LENGTH, _MIN_CUT = 800, 20


def render_html(blocks: Iterable[Block]) -> str:
    """Return blocks as an HTML fragment that is also well-formed XML."""
    return "".join(element for block in blocks for element in _render_block(block))


def _render_block(block: Block) -> Iterator[str]:
    """Yield the HTML elements for a block.

    A sentence becomes a paragraph, with bold text for the lead and for the style ``bold``. Lines
    with leads become a bulleted list without the leads. A table without rows yields nothing.
    """
    if isinstance(block, Sentence):
        lead = f"<b>{_escape_text(block.lead)}</b>" if block.lead else ""
        text = _escape_text(block.text)
        yield f"<p>{lead}{f'<b>{text}</b>' if block.style == 'bold' else text}</p>"
    elif isinstance(block, HangingLines):
        entries = (f"<li>{_escape_text(entry)}</li>" for _, entry in block.lines)
        yield f"<ul>{''.join(entries)}</ul>"
    elif block.rows:
        yield from _render_table(block)


def _render_table(table: Table) -> Iterator[str]:
    """Yield the HTML of a table in pieces.

    The title becomes the caption. Blank rows are skipped, and missing cells are empty.
    """
    header_cells = (_render_cell(table, "th", column, column) for column in table.columns)
    yield f"<div><table><caption>{_escape_text(table.title)}</caption>"
    yield f"<thead><tr>{''.join(header_cells)}</tr></thead><tbody>"
    for row in filter(None, table.rows):
        cells = (_render_cell(table, "td", column, row.get(column, "")) for column in table.columns)
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _render_cell(table: Table, tag: str, column: str, text: str) -> str:
    look = ' class="bubbleviz-words"' if column in table.left else ""
    if column in table.left and len(text) > _MIN_CUT:
        # The style sheet clips long words to leave space for numbers.
        look += f' title="{_escape_text(text)}"'
    return f"<{tag}{look}>{_escape_text(text)}</{tag}>"


def _escape_text(text: str) -> str:
    """Escape text for HTML, on one line, truncated and without invisible characters."""
    return escape(texts.to_one_line(text, _MAX_LENGTH))
