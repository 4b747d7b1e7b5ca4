"""Messages and guides name only the output options that the help lists.

Files are written by ``-o FILE`` or, in ``analyze``, by ``--svg``, ``--json``, ``--csv`` and
``--html``. The options for other formats are hidden. They exist to write to standard output
(``-``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bubbleviz.render.formats import list_renderers
from tests.support.places import CHECKOUT

DOCUMENTED = {"svg", "json", "csv", "html"}
HIDDEN_NAMES = [own.name for own in list_renderers() if own.name not in DOCUMENTED]
HIDDEN = re.compile(rf"--(?:{'|'.join(HIDDEN_NAMES)})(?![\w-])(?! -(?:\W|$))")
PACKAGE = CHECKOUT / "bubbleviz"
#: The guide that describes the hidden options.
TOLD = {"outputs.md"}


def messages(path: Path) -> Iterator[str]:
    """Yield the strings of a module, without docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docstring_ids = {
        id(statement.value) for statement in ast.walk(tree) if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstring_ids
        ):
            yield node.value


@pytest.mark.parametrize("guide", sorted(PACKAGE.glob("guides/*.md")), ids=lambda path: path.name)
def test_guides_name_the_option_that_help_lists(guide: Path) -> None:
    if guide.name not in TOLD:
        assert HIDDEN.findall(guide.read_text("utf-8")) == []


def test_messages_name_the_option_that_help_lists() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    offending_messages = [
        f"{path}: {text}" for path in modules for text in messages(path) if HIDDEN.search(text)
    ]

    assert offending_messages == []


def test_pages_name_the_option_that_help_lists() -> None:
    scripts = sorted(PACKAGE.glob("render/web/assets/*.js"))
    lines = [line for path in scripts for line in path.read_text("utf-8").splitlines()]

    assert [
        line for line in lines if HIDDEN.search(line) and not line.strip().startswith("//")
    ] == []
