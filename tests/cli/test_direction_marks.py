"""Marks that reverse what people read are in no output, whatever the names of a profile hold."""

from __future__ import annotations

import base64
import re
import zlib
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from tests.support.edited_databases import change
from tests.support.places import EXAMPLE

MARKS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
MARK = re.compile(f"[{MARKS}]")


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """Return a profile whose file, host, ranges and kernels have direction marks in their names."""
    tables = {"StringIds": "value", "TARGET_INFO_SYSTEM_ENV": "value", "TARGET_INFO_GPU": "name"}
    marks = (f"UPDATE {t} SET {column} = {column} || ' {MARKS}'" for t, column in tables.items())
    return change(tmp_path / "no\u202ede\u2067.sqlite", *marks, source=EXAMPLE)


def data_of(page: str) -> str:
    """Return the data in a page."""
    packed = re.search(r'id="document">([^<]+)<', page)
    assert packed is not None
    return zlib.decompress(base64.b64decode(packed[1])).decode()


@pytest.mark.parametrize("output", ["svg", "text", "latex", "csv", "bubbles", "html", "json"])
def test_no_mark_in_reports(output: str, marked: Path, tmp_path: Path) -> None:
    file = tmp_path / "out"

    assert main(["analyze", str(marked), f"--{output}", str(file)]) == 0

    written = file.read_text()
    assert not MARK.search(written + (data_of(written) if output == "html" else ""))
