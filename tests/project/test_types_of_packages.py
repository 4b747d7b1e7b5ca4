"""The guide for contributors lists every class that one package imports from another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.places import CHECKOUT

PACKAGE = CHECKOUT / "bubbleviz"
GUIDE = PACKAGE / "guides/contributing.md"
#: Pattern of a row in a table of types: name and module.
ROW = re.compile(r"^\| `(\w+)` \| `([\w.]+)` \| \S", re.MULTILINE)
#: Pattern of a file in the tables of paths, relative to the package.
FILE = re.compile(r"`((?:\w+/)+\w+\.(?:py|c|js|csv|toml|json|sql)|api\.py)`")


@cache
def read_modules() -> dict[str, ast.Module]:
    """Return the syntax trees of all modules, keyed by module name within the package."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text("utf-8"))
    return trees


def list_crossing_types(trees: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Yield the (name, module) of each class that a module of another package uses.

    Both forms are found: ``from a.b import C``, and ``from a import b`` with ``b.C``.
    """
    classes = {
        (node.name, module)
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    for module, tree in trees.items():
        imported = read_imports(tree)
        attributes = (
            (node.attr, ".".join(reversed(imported[node.value.id])))
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in imported
        )
        for name, source in (*imported.values(), *attributes):
            is_other_package = source.split(".")[0] != module.split(".")[0]
            if is_other_package and (name, source) in classes:
                yield name, source


def read_imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return the module and name of each import, keyed by local name."""
    return {
        alias.asname or alias.name: (alias.name, node.module.removeprefix("bubbleviz."))
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def test_crossing_types_are_found() -> None:
    assert list(list_crossing_types({})) == []
    trees = {
        "a.b": ast.parse("class C: ...\ndef f(): ..."),
        "a.d": ast.parse("from bubbleviz.a.b import C"),
        "e": ast.parse("from bubbleviz.a.b import C, f"),
        "g": ast.parse("from bubbleviz.a import b as h\ndef i(c: h.C) -> None: h.f()"),
    }
    assert list(list_crossing_types(trees)) == [("C", "a.b"), ("C", "a.b")]


def test_every_type_that_crosses_packages_has_one_line() -> None:
    matches = ROW.findall(GUIDE.read_text("utf-8"))

    assert len(matches) == len(set(matches))
    assert set(matches) == set(list_crossing_types(read_modules()))


def test_the_files_on_the_paths_exist() -> None:
    section = GUIDE.read_text("utf-8").partition("## Three paths")[2].partition("\n## ")[0]
    files = set(FILE.findall(section))

    assert len(files) > 20
    assert [file for file in sorted(files) if not find_file(file)] == []


def find_file(file: str) -> list[Path]:
    folder = CHECKOUT if file.startswith("sql/") else PACKAGE
    return list(folder.glob(file))
