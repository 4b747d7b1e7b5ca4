"""Where and when a benchmark ran."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from scripts.benchmark.processes import ROOT

#: Packages whose versions bear on the result.
_PACKAGES = ("numpy", "adbc-driver-sqlite", "sqlalchemy")


def commit_note() -> str:
    """Return which commit is measured, and whether the checkout differs from it."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=10", "--dirty=, changed"]
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return "commit unknown"
    return f"commit {run.stdout.strip() or 'unknown'}"


def machine_note() -> str:
    """Return the processor, its cores, the memory, the load and the date."""
    date = datetime.now(timezone.utc).date().isoformat()
    parts = [f"{os.cpu_count()} cores of {_processor()}"]
    if "SC_PHYS_PAGES" in os.sysconf_names:
        gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        parts.append(f"{gigabytes:.0f} GB of memory")
    parts.append(f"load {os.getloadavg()[0]:.1f} before it began")
    return f"{date}: {', '.join(parts)}"


def versions_note() -> str:
    """Return the versions of what took part."""
    parts = [
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        f"its SQLite {sqlite3.sqlite_version}",
    ]
    for package in _PACKAGES:
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(parts)


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
