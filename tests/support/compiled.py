"""The native library for tests. It is built if the installed library is missing or outdated."""

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
    # A loaded library remains usable after its file is deleted.
    with tempfile.TemporaryDirectory(prefix="bubbleviz-test-") as folder:
        path = Path(folder) / native.FILE
        reason = compile_library(path)
        return (None if reason else native.load(path)), reason


def build_library() -> Library:
    """Return the library built from the current source, or skip the test without a compiler."""
    if compiler() is None:
        pytest.skip("needs a C compiler")
    built, reason = _build()
    assert built is not None, reason
    return built


def read_texts(rows: NamedRows) -> list[str | None]:
    """Return the text in each row, or None for NULL."""
    return [None if number < 0 else rows[2][number] for number in rows[1].tolist()]
