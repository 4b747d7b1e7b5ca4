"""Compiled: the C part for tests, built on the spot where the installed one is older or missing."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest

from bubbleviz.native import library as native
from bubbleviz.native.library import Library
from scripts.build_native import compile_library


@cache
def _built() -> tuple[Library | None, str]:
    folder = Path(tempfile.mkdtemp(prefix="bubbleviz-test-"))
    reason = compile_library(folder / native.FILE)
    return (None if reason else native.load(folder / native.FILE)), reason


def compiled_library() -> Library:
    """Return the C part as its source is now; skips where there is no compiler."""
    built, reason = _built()
    if built is None:
        pytest.skip(f"the C part cannot be built here: {reason}")
    return built
