"""Rules for imports inside functions, and for the modules that small commands import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import run_program
from tests.support.places import CHECKOUT

PACKAGE = CHECKOUT / "bubbleviz"
#: Packages of optional extras, without which everything else works.
EXTRAS = (
    "dask",
    "distributed",
    "duckdb",
    "mcp",
    "mlflow",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "tensorboard",
    "torch",
    "typst",
    "vl_convert",
    "wandb",
)
#: Packages that are slow to import or are optional extras.
#: Functions that need one of these packages import it.
HEAVY = {
    "adbc_driver_manager",
    "adbc_driver_sqlite",
    "drawsvg",
    "intervaltree",
    "scipy",
    "sqlalchemy",
    *EXTRAS,
    "mcp_types",
}
#: Modules that import duckdb at module level.
IMPORTING_HEAVY = ("bubbleviz.sources.nsys.columnar_export",)
#: Modules of the command line, which answer ``--help`` before they import the library, and the
#: plugin that every run of pytest loads.
COMMAND_LINE = ("cli", "__main__.py", "__init__.py", "pytest_plugin.py")


def list_imports_in_functions(source: str) -> Iterator[str]:
    """Yield the modules that functions of a source file import, outside ``try`` statements."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while pending:
        node, is_inside = pending.pop()
        if isinstance(node, ast.Try) and is_inside:
            continue
        if is_inside and isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if is_inside and isinstance(node, ast.ImportFrom):
            yield node.module or ""
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        pending += [(child, is_inside or is_function) for child in ast.iter_child_nodes(node)]


def test_imports_in_functions_are_found() -> None:
    assert list(list_imports_in_functions("")) == []
    assert list(list_imports_in_functions("import a\ndef f():\n  pass")) == []
    source = "def f():\n  import a.b\n  if x:\n    from c import d\n"
    assert sorted(list_imports_in_functions(source)) == ["a.b", "c"]


def library_modules() -> list[Path]:
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in COMMAND_LINE
    ]


@pytest.mark.parametrize("path", library_modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_functions_of_the_library_import_only_what_is_heavy(path: Path) -> None:
    imported = list_imports_in_functions(path.read_text("utf-8"))

    assert [
        name
        for name in imported
        if name.split(".")[0] not in HEAVY and not any(part in name for part in IMPORTING_HEAVY)
    ] == []


#: Program that hides the optional extras and then runs a command.
WITHOUT_EXTRAS = f"""
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from bubbleviz.cli.app import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze", "fixtures/1f1b", "--svg", "-", "--json", "/dev/null", "--force"),
        ("inspect", "fixtures/1f1b"),
        ("idle", "fixtures/1f1b"),
        ("schedules",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_run_without_optional_extras(arguments: tuple[str, ...]) -> None:
    done = run_program(["-c", WITHOUT_EXTRAS, *arguments])

    assert done.returncode == 0, done.stderr
