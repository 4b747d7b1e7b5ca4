"""Part names: what the files of an output that is written by parts are called."""

from __future__ import annotations

import re
from pathlib import Path

#: The file of a report by parts that names the others, and the schema of these.
INDEX = "index.json"
PART_SCHEMA = "bubbleviz.report-part/1"
#: Files of such folders; no other folder is ever replaced.
NAMES = re.compile(r"index\.json|part-\d{5}\.(json|parquet)")


def part_name(number: int, suffix: str) -> str:
    """Return the name of the file of a part."""
    return f"part-{number:05}.{suffix}"


def whole_of(path: str) -> str:
    """Return what a file is a part of: its folder, by its name; else the file itself."""
    return str(Path(path).parent) if NAMES.fullmatch(Path(path).name) else path
