"""The interactive report as one file: markup, style, script, charting library and data.

The parts lie in ``assets/``. Charts are drawn by Vega-Lite, which the package vl-convert-python
carries; it is imported when used, for it is an extra: ``pip install 'bubbleviz[html]'``. The
timeline is our own: Vega takes a mark an operation, and runs have more than a million.

A page carries a report's numbers, and its timeline as columns, in as few bytes as hold them: see
:mod:`bubbleviz.render.web.shards`.

Times are nanoseconds since ``base_ns``, which a browser holds exactly (below 2**53).
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from bubbleviz.count.ratios import list_ratios
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.standouts import Standout
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import find_distinct, group_rows
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.texts import replace_control_characters
from bubbleviz.render import palette
from bubbleviz.render.formats import check_installed
from bubbleviz.render.rows import chosen_ranks
from bubbleviz.render.web.shards import bytes_of, deflated, sharded
from bubbleviz.render.web.unsaved import UnsavedNumbers, unsaved_numbers
from bubbleviz.report.measure import name_saved_measure
from bubbleviz.report.published_paths import with_relative_paths
from bubbleviz.report.rank_means import RankMeans, many_ranks, rank_means, standouts
from bubbleviz.report.report import Report
from bubbleviz.report.summarizing import summary_of
from bubbleviz.report.summary import RunSummary, values_of
from bubbleviz.report.timeline import Timeline, restored, timeline_of
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
    "minimap",
    "painter",
    "gestures",
    "timeline",
    "charts",
    "tables",
    "slowdown",
    "chunks",
    "memory",
    "parts",
    "details",
    "overview",
    "idle",
    "main",
)
#: What is of pipelines alone.
_OWN = re.compile("<!--own-->.*?<!--/own-->", re.DOTALL)
#: What the page calls of the charting library.
ENTRY = "window.vegaEmbed = vegaEmbed;"
_FALLBACK = (
    "This report is drawn by a script, which this browser does not run. "
    "bubbleviz analyze -o FILE.txt writes its tables, and -o FILE.svg its picture."
)


def render(report: Report, view: View) -> str:
    """Return the report as an HTML document that opens at the iteration of the view.

    Raises:
        OutputError: the charting library is not installed.
    """
    report = with_relative_paths(report)
    many = many_ranks(len(report.ranks))
    summary = summary_of(report, by_rank=not many, slowdown=not many)
    shown = view.iterations[0] if view.iterations else _opening(summary)
    means = rank_means(report) if many else None
    found = () if means is None else standouts(report, means)
    asked = [rank.index for rank in chosen_ranks(report, view)] if view.ranks else []
    unsaved = unsaved_numbers(report)
    own = packed(summary, timeline_of(report), shown, report.command, unsaved, means, found, asked)
    return page(*own)


def page_of_saved(path: str, summary: RunSummary) -> str:
    """Return a saved report as an HTML document.

    Args:
        path: Path of the report.
        summary: The report.

    Raises:
        InputError: its timeline contradicts itself.
        OutputError: the charting library is not installed.
    """
    timeline = restored(path, summary)
    return page(*packed(summary, timeline, _opening(summary), "", UnsavedNumbers()))


def _opening(summary: RunSummary) -> int | None:
    """Return the index of the iteration at which a page opens; see :func:`.shown_iteration`."""
    marked = next((step.advice for step in summary.first if step.is_marked), None)
    example = None if marked is None else summary.advice[marked].example_iteration
    return summary.typical_iteration if example is None else example


def page(document: str, columns: str, blocks: Iterable[str] = (), own: Sequence[str] = ()) -> str:
    """Return the page as an HTML document that needs nothing else.

    Args:
        document: deflated JSON in base64, as :func:`packed` makes it.
        columns: the columns that it describes, likewise.
        blocks: elements with the timeline of runs of many ranks.
        own: title, head, contents and sections of a page that is not of a pipeline, and has no
            charts; those of a pipeline without.

    Raises:
        OutputError: the charting library is not installed.
    """
    parts = iter(own)
    whole = _part("page.html")
    if own:
        whole = _OWN.sub(lambda _: next(parts).replace("$", "$$"), whole)
    return Template(whole).substitute(
        fallback=html.escape(_FALLBACK),
        style=_style(),
        document=document,
        columns=columns,
        blocks="".join(f"{block}\n" for block in blocks),
        charting="" if own else _charting(),
        script="\n".join(_part(f"{name}.js") for name in _SCRIPTS),
    )


def _part(name: str) -> str:
    return (Path(__file__).with_name("assets") / name).read_text("utf-8")


def _style() -> str:
    """Return the style sheet with the colours of pictures."""
    inks = (("light", palette.LIGHT), ("dark", palette.DARK))
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
    from vl_convert import javascript_bundle

    script = javascript_bundle(ENTRY).replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return f"/*\n{_part('licences.txt')}*/\n{script}"


# Data: what the page carries.


#: A page is made once and opened often, but made while somebody waits: in half the time of
#: zlib's own level, the columns are 3 % larger.
LEVEL = 4
#: What stands for an unknown number in a column of means; see means.js.
_UNKNOWN = -2_000_000_000
#: So much of what stands out is listed.
_MOST_STANDOUTS = 50
_EMPTY = np.zeros(0, np.int64)


def packed(
    summary: RunSummary,
    timeline: Timeline,
    shown: int | None,
    command: str,
    unsaved: UnsavedNumbers,
    means: RankMeans | None = None,
    found: Sequence[Standout] = (),
    wanted: Sequence[int] = (),
) -> tuple[str, str, list[str]]:
    """Return a report for a page: deflated JSON in base64, the columns that it describes, shards.

    Args:
        summary: The report.
        timeline: its operations.
        shown: index of the iteration to begin with; None for the whole run.
        command: the command line that made it; empty for none.
        unsaved: Numbers that the JSON values lack.
        means: of the ranks of a run of many; its timeline is packed in shards then.
        found: what of these stands out.
        wanted: indices of ranks that were asked for: of many, the first is shown, and they find
            room first.
    """
    operations = timeline.tables["operations"]
    paints, paint_of = _paints_of(operations)
    tables: dict[str, Mapping[str, Ints]] = {
        **timeline.tables,
        "operations": {**operations, "paint": paint_of},
    }
    blocks: list[str] = []
    shards = standing_out = None
    if means is not None:
        pipelines = [rank.pipeline for rank in summary.ranks]
        shards, blocks = sharded(timeline, paint_of, pipelines, means.bubble_ratio, wanted)
        tables = {
            **{table: dict.fromkeys(own, _EMPTY) for table, own in tables.items()},
            "means": _mean_columns(means),
        }
        standing_out = [
            {
                "name": own.name,
                "rank": own.ranks[0],
                "count": len(own.ranks),
                "ratio": own.ratio,
                "above": own.above,
                "why": own.why,
            }
            for own in found[:_MOST_STANDOUTS]
        ]
    columns = bytes_of(tables)
    whole = {
        "report": _shown_values(summary),
        "base_ns": str(timeline.base_ns),
        "shown": shown,
        "command": command,
        "unsaved": asdict(unsaved),
        "shown_rank": next(iter(wanted), None),
        "many": many_ranks(len(summary.ranks)),
        "standouts": standing_out,
        "shards": shards,
        "measure": asdict(name_saved_measure(summary)),
        "names": timeline.names,
        "paints": [
            {"bands": [list(band) for band in each.bands], "number": each.number} for each in paints
        ],
        "unattributed_colour": palette.UNATTRIBUTED,
        "part_colours": palette.BUBBLE_PARTS,
        "phases": [phase.label for phase in Phase],
        "compute_phases": [int(phase) for phase in COMPUTE],
        "causes": [
            {"name": cause.label, "meaning": cause.meaning, "colour": palette.CAUSES[cause.label]}
            for cause in Cause
        ],
        "ratios": [
            {
                "name": ratio.name,
                "summary": ratio.summary,
                "definition": ratio.definition,
                "words": ratio.words_for(summary.kind),
                "work": ratio.work.name.lower(),
            }
            for ratio in list_ratios()
        ],
    }
    text = json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # JSON escapes line ends, so none of the marks that are left belongs to its syntax.
    packed_text = deflated(replace_control_characters(text).encode("utf-8"), LEVEL)
    return packed_text, deflated(columns, LEVEL), blocks


def _shown_values(summary: RunSummary) -> dict[str, Any]:
    """Return a report as JSON values, without the timeline and without slack.

    The page has the timeline as columns, and does not show slack.
    """
    values = values_of(summary)
    values["timeline"] = None
    if values["critical_path"] is not None:
        values["critical_path"]["slack"] = None
    return values


def _mean_columns(means: RankMeans) -> dict[str, Ints]:
    """Return the means of ranks as whole numbers: ratios in parts of a billion."""
    columns = {
        "ratio_ppb": 1e9 * means.bubble_ratio,
        "gap_ppb": 1e9 * means.launch_gap,
        "bubble_ns": means.bubble_ns,
        **{f"busy_{phase}_ns": column for phase, column in means.busy_ns.items()},
        **{f"idle_{cause.label}_ns": means.idle_ns[:, cause] for cause in Cause},
        **{f"communication_{name}": column for name, column in means.communication_ns.items()},
    }
    return {
        name: np.where(np.isnan(column), _UNKNOWN, np.round(np.nan_to_num(column))).astype(np.int64)
        for name, column in columns.items()
    }


def _paints_of(operations: Mapping[str, Ints]) -> tuple[list[palette.Paint], Ints]:
    """Return how operations are filled: few paints, and for each operation which."""
    phase, chunk, second = (operations[name] for name in ("phase", "chunk", "second_chunk"))
    chunks = find_distinct(chunk[np.isin(phase, COMPUTE) & (chunk >= 0)]).tolist()
    kinds = group_rows(phase, chunk, second)
    seen = np.stack((phase, chunk, second), axis=1)[kinds.first].tolist()
    return [
        palette.chunk_paint(Phase(p), own, other, chunks) for p, own, other in seen
    ], kinds.of_row
