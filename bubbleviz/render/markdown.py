"""Markdown: tables and texts that a pull request shows as they are meant.

What comes from a profile or a path must not become a link, a mention, a picture or HTML there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bubbleviz.model.texts import to_one_line
from bubbleviz.render.document import Block, HangingLines, Sentence

#: What means something in the Markdown of GitHub.
_SPECIAL = re.compile(r"[\\`*_\[\]|~!$]")
#: What becomes a mention, an issue or a link, and where an empty comment parts it.
_LINKS = re.compile(r"(?i)(?<=@)|(?<=\#)(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)")


def text(words: str) -> str:
    """Return words on one line that Markdown shows as they are."""
    flat = to_one_line(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINKS.sub("<!-- -->", _SPECIAL.sub(r"\\\g<0>", flat))


def markdown(blocks: Iterable[Block], title: str = "") -> str:
    """Return a document as Markdown below a title, an empty line between two blocks."""
    head = f"### {title}\n" if title else ""
    return "\n".join(filter(None, (head, *map(_block, blocks))))


def _block(block: Block) -> str:
    if isinstance(block, Sentence):
        lead = f"**{text(block.lead)}**{' ' * block.text.startswith(' ')}" if block.lead else ""
        mark = "**" if block.style == "bold" else ""
        lines = filter(None, map(text, block.text.split("\n")))
        return lead + "".join(f"{mark}{line}{mark}\n" for line in lines)
    if isinstance(block, HangingLines):
        return "".join(f"- {text(entry)}\n" for _, entry in block.lines)
    if not block.rows:
        return ""
    rule = ["---" if column in block.left else "---:" for column in block.columns]
    rows = ([text(row.get(column, "")) for column in block.columns] for row in block.rows)
    table = (f"| {' | '.join(row)} |\n" for row in (map(text, block.columns), rule, *rows))
    return "".join((f"{block.title}\n\n" if block.title else "", *table))
