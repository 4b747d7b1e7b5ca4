"""The yardstick: a bare scan of the columns that any analysis of bubbles needs.

Where a C compiler and SQLite's header are at hand it is ``scan.c``; else the ``sqlite3`` program,
else Python's sqlite3, which then take the largest value of the same columns.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark.failures import BenchmarkError
from scripts.benchmark.processes import output_of

_SOURCE = Path(__file__).with_suffix(".c")
_IMPORTING = str(Path(__file__).with_name("importing.py"))
#: What Python starts with and sqlite3 needs, whatever else a program imports.
_NOTHING = "sqlite3"


@dataclass(frozen=True)
class Columns:
    """Columns of a table, and which rows of it."""

    table: str
    names: tuple[str, ...]
    where: str = ""

    @property
    def rows(self) -> str:
        """The query that gives every row."""
        return self._select([f'"{name}"' for name in self.names])

    @property
    def largest(self) -> str:
        """The query that gives the largest value of each column."""
        return self._select([f'max("{name}")' for name in self.names])

    def _select(self, values: Sequence[str]) -> str:
        where = f" WHERE {self.where}" if self.where else ""
        return f"SELECT {', '.join(values)} FROM {self.table}{where}"


#: What is scanned. sum() would overflow, so that substitutes take max().
NEEDED = (
    Columns(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        ("start", "end", "deviceId", "streamId", "globalPid", "correlationId", "shortName"),
    ),
    Columns("CUPTI_ACTIVITY_KIND_RUNTIME", ("start", "end", "globalTid", "correlationId")),
    Columns(
        "NVTX_EVENTS",
        ("start", "end", "globalTid", "text"),
        "eventType = 59 AND (text GLOB '[FBWR][0-9]*.[0-9]*.[0-9]*' OR text GLOB 'Optimizer*')",
    ),
)


@dataclass(frozen=True)
class Yardstick:
    """A bare scan.

    Attributes:
        name: short, for tables.
        note: what it is, in a sentence.
        program: what stands before the file in its command line.
        queries: what stands behind it.
        imports: whether it first imports what bubbleviz imports.
    """

    name: str
    note: str
    program: tuple[str, ...]
    queries: tuple[str, ...]
    imports: bool = False

    def command(self, profile: Path) -> list[str]:
        """Return the command that scans a profile."""
        return [*self.program, str(profile), *self.queries]


def yardstick_in(folder: Path, wanted: str = "any") -> Yardstick:
    """Return the best yardstick that this machine has.

    Args:
        folder: where what is built may lie.
        wanted: ``c``, ``cli``, ``python``, or ``any``.

    Raises:
        BenchmarkError: the one that is wanted cannot be had.
    """
    makers = {"c": _compiled, "cli": _command_line, "python": _in_python}
    for name, make in makers.items():
        if wanted in (name, "any") and (found := make(folder)):
            return found
    raise BenchmarkError(f"the yardstick {wanted!r} cannot be had on this machine")


def _compiled(folder: Path) -> Yardstick | None:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "scan"
    command = [compiler, "-O2", "-o", str(program), str(_SOURCE), "-lsqlite3"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    note = "C scan: scan.c, compiled with cc -O2: sqlite3_step and every column, nothing kept"
    return Yardstick("C scan", note, (str(program),), tuple(columns.rows for columns in NEEDED))


def _command_line(_: Path) -> Yardstick | None:
    program = shutil.which("sqlite3")
    if program is None:
        return None
    note = "sqlite3 scan: the sqlite3 program, max() of every column (no cc with SQLite's header)"
    return Yardstick("sqlite3 scan", note, (program, "-readonly"), _largest())


def _in_python(_: Path) -> Yardstick:
    note = "Python scan: Python's sqlite3, max() of every column (no cc, no sqlite3 program)"
    return Yardstick("Python scan", note, _importing(_NOTHING), _largest())


def importing_yardstick(analyze: Sequence[str]) -> Yardstick:
    """Return the scan by a Python process that imports what bubbleviz imports.

    Args:
        analyze: the command whose imports count.
    """
    modules = _imports_of(analyze)
    note = (
        f"imports and scan: a Python process that imports the {len(modules)} modules of others "
        "that bubbleviz imports for the same file, then takes max() of every column"
    )
    return Yardstick(
        "imports and scan", note, _importing(",".join(modules)), _largest(), imports=True
    )


def _importing(modules: str) -> tuple[str, ...]:
    return sys.executable, _IMPORTING, modules


def _largest() -> tuple[str, ...]:
    return tuple(columns.largest for columns in NEEDED)


def _imports_of(command: Sequence[str]) -> list[str]:
    """Return the modules that a Python command imports, bubbleviz's own left out, in order."""
    printed = output_of(command, {"PYTHONPROFILEIMPORTTIME": "1"})
    lines = [line for line in printed.splitlines() if line.startswith("import time:")]
    names = [line.rpartition("|")[2].strip() for line in lines[1:]]
    return [name for name in dict.fromkeys(names) if name.partition(".")[0] != "bubbleviz"]
