"""The bare scan: a C program that reads the columns that any analysis of bubbles needs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from scripts.benchmark.costs import BenchmarkError

_SOURCE = Path(__file__).with_suffix(".c")
#: The scanned tables.
TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
_QUERIES = (
    "SELECT start, end, deviceId, streamId, globalPid, correlationId, shortName "
    "FROM CUPTI_ACTIVITY_KIND_KERNEL",
    "SELECT start, end, globalTid, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME",
    "SELECT start, end, globalTid, text FROM NVTX_EVENTS WHERE eventType = 59 "
    "AND (text GLOB '[FBWR][0-9]*.[0-9]*.[0-9]*' OR text GLOB 'Optimizer*')",
)


def compile_scan(folder: Path) -> Path:
    """Compile ``scan.c`` into a folder and return the program.

    Raises:
        BenchmarkError: There is no C compiler, or SQLite's header is missing.
    """
    compiler, program = shutil.which("cc"), folder / "scan"
    if compiler is None:
        raise BenchmarkError("the scan needs a C compiler, cc")
    command = (compiler, "-O2", "-o", str(program), str(_SOURCE), "-lsqlite3")
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    if compiled.returncode:
        raise BenchmarkError(f"the scan needs SQLite's header and library: {compiled.stderr}")
    return program


def scan_command(program: Path, profile: Path) -> list[str]:
    """Return the command that scans a profile."""
    return [str(program), str(profile), *_QUERIES]
