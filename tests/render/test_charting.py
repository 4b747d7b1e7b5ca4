"""The charting script of pages is bundled once and then read from the user's cache directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import vl_convert

from bubbleviz.render.web import charting


@pytest.fixture(autouse=True)
def bundled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Replace the slow bundling, and yield the entries that were bundled."""
    entries: list[str] = []

    def bundle(entry: str) -> str:
        entries.append(entry)
        return f"<script>{entry}</script><!-- -->"

    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    yield entries
    charting.load_charting.cache_clear()


SCRIPT = "<script>window.vegaEmbed = vegaEmbed;<\\/script><\\!-- -->"


def _load() -> str:
    charting.load_charting.cache_clear()
    return charting.load_charting()


def test_the_script_is_bundled_once_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundled: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [_load(), _load()] == [SCRIPT, SCRIPT]
    assert bundled == [charting.ENTRY]
    assert [path.parent.name for path in tmp_path.rglob("*.js")] == ["bubbleviz"]


@pytest.mark.parametrize("directory", ["relative", "/dev/null/none"])
def test_a_page_needs_no_cache_directory(
    directory: str, monkeypatch: pytest.MonkeyPatch, bundled: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", directory)
    assert [_load(), _load()] == [SCRIPT, SCRIPT]
    assert len(bundled) == 2
