"""Compiled: the C part for tests, built on the spot where the installed one is older or missing."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest

from bubbleviz.native import library as native
from bubbleviz.native.library import Library
from bubbleviz.sources.sqlite.pages import NamedRows
from scripts.build_native import compile_library, compiler


@cache
def _build() -> tuple[Library | None, str]:
    # What is loaded stays so without its file.
    with tempfile.TemporaryDirectory(prefix="bubbleviz-test-") as folder:
        path = Path(folder) / native.FILE
        reason = compile_library(path)
        return (None if reason else native.load(path)), reason


def build_library() -> Library:
    """Return the C part as its source is now; skips where there is no compiler."""
    if compiler() is None:
        pytest.skip("needs a C compiler")
    built, reason = _build()
    assert built is not None, reason
    return built


def read_texts(rows: NamedRows) -> list[str | None]:
    """Return the text of each row, None for NULL."""
    return [None if number < 0 else rows[2][number] for number in rows[1].tolist()]
