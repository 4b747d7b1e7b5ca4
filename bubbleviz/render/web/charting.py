"""The charting script of interactive pages: Vega, Vega-Lite and Vega-Embed in one file.

Bundling the script takes longer than analyzing a small run, so the script is kept in the user's
cache directory. The cache contains one file per version of the package ``vl-convert-python``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from bubbleviz.errors import OutputError
from bubbleviz.render.extras import check_installed
from bubbleviz.render.files import write_outputs

#: JavaScript statement that exports the charting-library function that the page needs.
ENTRY = "window.vegaEmbed = vegaEmbed;"


@cache
def load_charting() -> str:
    """Return one script that contains Vega, Vega-Lite, Vega-Embed and all their dependencies.

    The script contains no text that would end the surrounding ``<script>`` element.

    Raises:
        OutputError: The package vl-convert-python is not installed.
    """
    check_installed("vl_convert")
    path = _find_cached_script()
    with suppress(OSError, UnicodeDecodeError):
        if path is not None:
            return path.read_text("utf-8")
    script = _bundle_script()
    # A page does not need the cache, so a directory that cannot be written is no error.
    with suppress(OSError, OutputError):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_outputs({str(path): script}, force=True)
    return script


def _bundle_script() -> str:
    """Bundle the charting library, and escape text that would end a ``<script>`` element."""
    from vl_convert import javascript_bundle

    return str(javascript_bundle(ENTRY)).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _find_cached_script() -> Path | None:
    """Return the path of the cached script, or None if there is no cache directory.

    The cache directory is ``$XDG_CACHE_HOME/bubbleviz``, by default ``~/.cache/bubbleviz``.
    """
    directory = os.environ.get("XDG_CACHE_HOME", "")
    if not directory:
        with suppress(RuntimeError):
            directory = str(Path.home() / ".cache")
    if not Path(directory).is_absolute():
        return None
    name = f"charting-{version('vl-convert-python')}.js"
    return Path(directory) / "bubbleviz" / name
