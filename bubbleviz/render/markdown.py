"""Renders document blocks as GitHub Markdown, for pull requests and wikis.

Text from profiles and paths is escaped, so it never turns into a link, a mention, an image or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bubbleviz.model.texts import to_one_line
from bubbleviz.render.document import Block, HangingLines, Sentence

#: Characters that have a special meaning in GitHub Markdown.
_SPECIAL = re.compile(r"[\\`*_\[\]|~!$]")
#: Matches positions inside mentions, issue numbers and URLs.
#: Inserting an empty HTML comment there prevents GitHub from turning the text into a link.
_LINKS = re.compile(r"(?i)(?<=@)|(?<=\#)(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)")


def escape_markdown(words: str) -> str:
    """Escape text for GitHub Markdown, and put it on one line."""
    flat = to_one_line(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINKS.sub("<!-- -->", _SPECIAL.sub(r"\\\g<0>", flat))


def render_markdown(blocks: Iterable[Block], title: str = "") -> str:
    """Return blocks as Markdown text, with an empty line between blocks.

    Args:
        blocks: Blocks of the document.
        title: Title above the blocks, or "" for no title.
    """
    head = f"### {title}\n" if title else ""
    return "\n".join(filter(None, (head, *map(_render_block, blocks))))


def _render_block(block: Block) -> str:
    """Return a block as Markdown text.

    Each line of a sentence becomes one line, which is bold if the style is ``bold``. The lead of a
    sentence is always bold. Lines with leads become a bulleted list without the leads. A table
    without rows becomes "".
    """
    if isinstance(block, Sentence):
        lead = (
            f"**{escape_markdown(block.lead)}**{' ' * block.text.startswith(' ')}"
            if block.lead
            else ""
        )
        mark = "**" if block.style == "bold" else ""
        lines = filter(None, map(escape_markdown, block.text.split("\n")))
        return lead + "".join(f"{mark}{line}{mark}\n" for line in lines)
    if isinstance(block, HangingLines):
        return "".join(f"- {escape_markdown(entry)}\n" for _, entry in block.lines)
    if not block.rows:
        return ""
    rule = ["---" if column in block.left else "---:" for column in block.columns]
    rows = (
        [escape_markdown(row.get(column, "")) for column in block.columns] for row in block.rows
    )
    table = (
        f"| {' | '.join(row)} |\n" for row in (map(escape_markdown, block.columns), rule, *rows)
    )
    return "".join((f"{block.title}\n\n" if block.title else "", *table))
