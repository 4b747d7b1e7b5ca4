"""The interactive report as one file: markup, style, script, charting library and data.

The parts lie in ``assets/``. Charts are drawn by Vega-Lite, which the package vl-convert-python
carries; it is imported when used, for it is an extra: ``pip install 'bubbleviz[html]'``. The
timeline is our own: Vega takes a mark an operation, and runs have more than a million.
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from string import Template

from bubbleviz.render.formats import check_installed
from bubbleviz.render.json_document import document
from bubbleviz.render.palette import DARK, LIGHT
from bubbleviz.render.web.data import packed
from bubbleviz.report.labels import with_relative_paths
from bubbleviz.report.rank_means import many_ranks, rank_means, standouts
from bubbleviz.report.report import Report
from bubbleviz.report.saved import SavedDocument
from bubbleviz.report.timeline import restored, timeline_of
from bubbleviz.report.view import View

#: In the order in which they build on each other.
_SCRIPTS = (
    "columns",
    "shards",
    "meanings",
    "words",
    "means",
    "run",
    "spent",
    "raster",
    "marks",
    "painter",
    "gestures",
    "timeline",
    "charts",
    "tables",
    "parts",
    "details",
    "overview",
    "main",
)
#: What the page calls of the charting library.
ENTRY = "window.vegaEmbed = vegaEmbed;"
#: Writes the bundle of its argument, and that it is whole.
_BUNDLING = """
import sys
from vl_convert import javascript_bundle
sys.stdout.buffer.write(javascript_bundle(sys.argv[1]).encode() + b"// whole")
"""
_WHOLE = b"// whole"
_FALLBACK = (
    "This report is drawn by a script, which this browser does not run. "
    "bubbleviz analyze --text FILE writes its tables, and --svg FILE its picture."
)


def render(report: Report, view: View) -> str:
    """Return the report as an HTML document that opens at the iteration of the view.

    Raises:
        OutputError: the charting library is not installed.
    """
    report = with_relative_paths(report)
    many = many_ranks(len(report.ranks))
    numbers = document(report, by_rank=not many, slowdown=not many)
    shown = view.iterations[0] if view.iterations else numbers["typical_iteration"]
    means = rank_means(report) if many else None
    found = () if means is None else standouts(report, means)
    own = packed(numbers, timeline_of(report), shown, report.command, means, found, view.ranks)
    return page(*own)


def page_of_saved(path: str, saved: SavedDocument) -> str:
    """Return a report that was saved as JSON as an HTML document.

    Raises:
        InputError: its timeline contradicts itself.
        OutputError: the charting library is not installed.
    """
    shown = saved.document["typical_iteration"]
    return page(*packed(saved.document, restored(path, saved), shown, ""))


def page(document: str, columns: str, blocks: Iterable[str] = ()) -> str:
    """Return the page as an HTML document that needs nothing else.

    Args:
        document: deflated JSON in base64, as ``web_data`` makes it.
        columns: the columns that it describes, likewise.
        blocks: elements with the timeline of runs of many ranks.

    Raises:
        OutputError: the charting library is not installed.
    """
    return Template(_part("page.html")).substitute(
        fallback=html.escape(_FALLBACK),
        style=_style(),
        document=document,
        columns=columns,
        blocks="".join(f"{block}\n" for block in blocks),
        charting=_charting(),
        script="\n".join(_part(f"{name}.js") for name in _SCRIPTS),
    )


def _part(name: str) -> str:
    return (files("bubbleviz.render.web") / "assets" / name).read_text("utf-8")


def _style() -> str:
    """Return the style sheet with the colours of pictures."""
    inks = (("light", LIGHT), ("dark", DARK))
    colours = {
        f"{mode}_{name}": colour for mode, ink in inks for name, colour in asdict(ink).items()
    }
    return Template(_part("page.css")).substitute(colours)


@cache
def _charting() -> str:
    """Return Vega, Vega-Lite, Vega-Embed and what they import as one script, with its licences.

    Raises:
        OutputError: they are not installed.
    """
    check_installed("vl_convert")
    # Nothing in it may end the element that holds it.
    script = bundle().replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return f"/*\n{_part('licences.txt')}*/\n{script}"


def bundle() -> str:
    """Return Vega, Vega-Lite, Vega-Embed and what they import as one script.

    Another process makes it, where there can be one: it takes seconds, in which the library lets
    no signal through.
    """
    made = b""
    with suppress(OSError, subprocess.CalledProcessError):
        made = subprocess.run(
            # None where Python is part of another program.
            [sys.executable or os.devnull, "-c", _BUNDLING, ENTRY],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        ).stdout
    if made.endswith(_WHOLE):
        return made[: -len(_WHOLE)].decode()
    from vl_convert import javascript_bundle

    script: str = javascript_bundle(ENTRY)
    return script
