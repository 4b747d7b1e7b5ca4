"""List the sentences that users read, from the code: ``python -m scripts.messages [PACKAGE...]``.

A line is ``file:line: sentence``, in the order of the files, so that all words of bubbleviz can be
read from top to bottom. Values that a sentence is made of are ``{}``.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Two words of letters beside each other make a sentence.
_WORDS = re.compile(r"[A-Za-z]{2,},? [a-z(]{2,}")
#: A text in quotes in a script or a page.
_QUOTED = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'|`([^`]+)`|>([^<>\n]+)<")


def messages(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of the sentences in a file of Python, JavaScript or HTML."""
    source = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        for number, line in enumerate(source.splitlines(), 1):
            texts = ("".join(filter(None, found)) for found in _QUOTED.findall(line))
            yield from ((number, text) for text in texts if not line.lstrip().startswith("//"))
        return
    tree = ast.parse(source)
    passed = {
        id(node.value)
        for node in ast.walk(tree)
        # Docstrings are for programmers.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) in passed:
            continue
        if isinstance(node, ast.JoinedStr):
            passed.update(map(id, ast.walk(node)))
            parts = (v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
            yield node.lineno, "".join(map(str, parts))
            # Values may be sentences of their own.
            for value in node.values:
                if isinstance(value, ast.FormattedValue):
                    passed.difference_update(map(id, ast.walk(value)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def main(arguments: list[str] | None = None) -> None:
    """Print the sentences of some packages, of all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=["."], help="below bubbleviz/")
    for package in parser.parse_args(arguments).packages:
        top = ROOT / "bubbleviz" / package
        files = [top] if top.is_file() else sorted(top.rglob("*"))
        for file in files:
            if file.suffix in {".py", ".js", ".html"}:
                for number, text in sorted(set(messages(file))):
                    if _WORDS.search(text):
                        print(f"{file.relative_to(ROOT)}:{number}: {' '.join(text.split())}")


if __name__ == "__main__":
    main()
