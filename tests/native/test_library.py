"""The compiled part is loaded where it is of the source beside it, and only there."""

from __future__ import annotations

from pathlib import Path

from bubbleviz.native.library import load
from scripts.build_native import compile_library
from tests.support.compiled import compiled_library


def test_a_library_of_another_source_is_not_loaded(tmp_path: Path) -> None:
    compiled_library()  # skips without a compiler
    own, other = tmp_path / "own.so", tmp_path / "other.so"

    assert compile_library(own) == ""
    assert compile_library(other, ["-UBUBBLEVIZ_SOURCE", "-DBUBBLEVIZ_SOURCE=1"]) == ""

    assert load(own) is not None
    assert load(other) is None
