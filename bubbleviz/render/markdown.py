"""Markdown: tables and texts that a pull request shows as they are meant.

What comes from a profile or a path must not become a link, a mention, a picture or HTML there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bubbleviz.model.texts import one_line
from bubbleviz.render.document import Block, Sentence, Table

#: What means something in the Markdown of GitHub.
_SPECIAL = re.compile(r"[\\`*_\[\]|~!$]")
#: What becomes a mention, an issue or a link, and where an empty comment parts it.
_LINKS = re.compile(r"(?i)(?<=@)|(?<=\#)(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)")
#: What a cell of numbers begins with, if it has anything.
_NUMBER = re.compile(r"(?:[-+<]? ?\d|-?$)")
_TICKS = re.compile(r"`+")
#: Characters of a name in a cell.
_LONGEST = 80


def text(words: str) -> str:
    """Return words on one line that Markdown shows as they are."""
    flat = one_line(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINKS.sub("<!-- -->", _SPECIAL.sub(r"\\\g<0>", flat))


def code(name: str) -> str:
    """Return a name as code, in a table, too; a dash for an empty one."""
    flat = one_line(name, _LONGEST).replace("|", "\\|")
    if not flat:
        return "-"
    fence = "`" * (max(map(len, _TICKS.findall(flat)), default=0) + 1)
    blank = " " if "`" in (flat[0], flat[-1]) else ""
    return f"{fence}{blank}{flat}{blank}{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; columns of numbers stand right.

    Args:
        header: its titles.
        rows: cells that are Markdown.
    """
    cells = [list(row) for row in rows]
    columns = zip(*cells, strict=True) if cells else ((title,) for title in header)
    rule = ["---:" if all(map(_NUMBER.match, column)) else "---" for column in columns]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *cells))


def markdown(blocks: Iterable[Block]) -> str:
    """Return sentences and tables of a document as Markdown, an empty line between two."""
    parts = []
    for block in blocks:
        if isinstance(block, Sentence):
            lead = f"**{text(block.lead)}**{' ' * block.text.startswith(' ')}" if block.lead else ""
            parts.append(f"{lead}{text(block.text)}\n")
        elif isinstance(block, Table) and block.rows:
            rows = [[text(row.get(c, "")) for c in block.columns] for row in block.rows]
            parts += [f"{block.title}\n", table([text(column) for column in block.columns], rows)]
    return "\n".join(parts)
