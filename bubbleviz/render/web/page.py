"""Renders interactive reports as single HTML files with styles, scripts, libraries and data.

The source files of the page are in ``assets/``. Vega-Lite draws the charts; it is an optional
dependency (extra ``html``, see :mod:`bubbleviz.render.web.charting`). The timeline is drawn by our
own script: Vega would need one mark per operation, and a run can have more than a million
operations.

The page contains the numbers of the report as compressed JSON, and its timeline as compact columns;
see :mod:`bubbleviz.render.web.shards`.

Times in the page are in nanoseconds after ``base_ns``. All times are less than 2**53, so they can
be represented exactly as JavaScript numbers.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from bubbleviz.count.ratios import list_ratios
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import find_distinct, group_rows
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.texts import replace_control_characters
from bubbleviz.render import palette
from bubbleviz.render.rows import select_ranks
from bubbleviz.render.web.charting import load_charting
from bubbleviz.render.web.shards import compress, encode_tables, make_shards
from bubbleviz.render.web.unsaved import UnsavedNumbers, collect_unsaved_numbers
from bubbleviz.report.measure import name_saved_measure
from bubbleviz.report.published_paths import make_paths_relative
from bubbleviz.report.rank_means import RankMeans, compute_rank_means, is_many_ranks
from bubbleviz.report.report import Report
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.summary import RunSummary, to_values
from bubbleviz.report.timeline import Timeline, build_timeline, read_timeline
from bubbleviz.report.view import View

#: Names of the page's scripts. Each script depends only on earlier ones.
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
    "extra_work",
    "first_step",
    "parts",
    "details",
    "overview",
    "idle",
    "main",
)
#: Matches the parts of the template that are replaced in pages without a pipeline.
_REPLACEABLE = re.compile("<!--replaceable-->.*?<!--/replaceable-->", re.DOTALL)
_FALLBACK = (
    "This report needs JavaScript, which this browser does not run. "
    "For the tables as text, run: bubbleviz analyze RUN -o FILE.txt. "
    "For the picture, use -o FILE.svg."
)


def render(report: Report, view: View) -> str:
    """Return the interactive report as an HTML document.

    The page opens at the first iteration that the view selects. If the view selects no iteration,
    the page opens at the iteration that :func:`_choose_initial_iteration` returns.

    Raises:
        OutputError: The charting library is not installed.
    """
    report = make_paths_relative(report)
    is_many = is_many_ranks(len(report.ranks))
    summary = summarize(report, by_rank=not is_many, slowdown=not is_many)
    initial = view.iterations[0] if view.iterations else _choose_initial_iteration(summary)
    means = compute_rank_means(report) if is_many else None
    data = pack_report(
        summary,
        build_timeline(report),
        initial,
        report.command,
        collect_unsaved_numbers(report),
        means,
        [rank.index for rank in select_ranks(report, view)] if view.ranks else [],
    )
    return fill_template(*data)


def render_saved(path: str, summary: RunSummary) -> str:
    """Return the interactive page for a saved report as an HTML document.

    Args:
        path: Path of the saved report, for error messages.
        summary: The saved report's content.

    Raises:
        InputError: The timeline in the report is inconsistent.
        OutputError: The charting library is not installed.
    """
    timeline = read_timeline(path, summary)
    return fill_template(
        *pack_report(summary, timeline, _choose_initial_iteration(summary), "", UnsavedNumbers())
    )


def _choose_initial_iteration(summary: RunSummary) -> int | None:
    """Return the index of the iteration to show first, or None for the entire run.

    If the first advice has an example iteration, the page shows that iteration. Otherwise, it shows
    the typical iteration.
    """
    advice = [summary.advice[step.advice] for step in summary.first if step.advice is not None]
    examples = [entry.example_iteration for entry in advice]
    return next((example for example in examples if example is not None), summary.typical_iteration)


def fill_template(
    document: str, columns: str, blocks: Iterable[str] = (), replacements: Sequence[str] = ()
) -> str:
    """Fill the page template, and return a self-contained HTML document.

    Args:
        document: Compressed JSON of the report, as returned by :func:`pack_report`.
        columns: Compressed columns of the timeline, as returned by :func:`pack_report`.
        blocks: HTML elements that contain the timeline shards, for runs with many ranks.
        replacements: HTML for the replaceable parts of the template (title, header, table of
            contents and sections), for a page without a pipeline and without charts. Empty for a
            pipeline page.

    Raises:
        OutputError: The charting library is not installed.
    """
    remaining = iter(replacements)
    template = _read_asset("page.html")
    if replacements:
        template = _REPLACEABLE.sub(lambda _: next(remaining).replace("$", "$$"), template)
    return Template(template).substitute(
        fallback=html.escape(_FALLBACK),
        style=_fill_style(),
        document=document,
        columns=columns,
        blocks="".join(f"{block}\n" for block in blocks),
        charting="" if replacements else _load_licensed_charting(),
        script="\n".join(_read_asset(f"{name}.js") for name in _SCRIPTS),
    )


def _read_asset(name: str) -> str:
    return (Path(__file__).with_name("assets") / name).read_text("utf-8")


def _fill_style() -> str:
    """Return the page's style sheet, with the light-mode and dark-mode colors filled in."""
    inks = (("light", palette.LIGHT), ("dark", palette.DARK))
    colors = {f"{mode}_{name}": color for mode, ink in inks for name, color in asdict(ink).items()}
    return Template(_read_asset("page.css")).substitute(colors)


def _load_licensed_charting() -> str:
    """Return the charting script, preceded by the licenses of its libraries.

    Raises:
        OutputError: The package vl-convert-python is not installed.
    """
    return f"/*\n{_read_asset('licenses.txt')}*/\n{load_charting()}"


#: zlib compression level. It is twice as fast as the default, and makes columns only 3 % larger.
LEVEL = 4
#: Placeholder for unknown means; see means.js.
_UNKNOWN = -2_000_000_000
_EMPTY = np.zeros(0, np.int64)


def pack_report(
    summary: RunSummary,
    timeline: Timeline,
    initial: int | None,
    command: str,
    unsaved: UnsavedNumbers,
    means: RankMeans | None = None,
    first_ranks: Sequence[int] = (),
) -> tuple[str, str, list[str]]:
    """Encode a report for the interactive page.

    Args:
        summary: The report.
        timeline: The timeline of the report.
        initial: Index of the iteration to show first, or None for the entire run.
        command: Command line that produced the report, or "" if unknown.
        unsaved: Numbers on the page that the JSON report does not contain.
        means: Mean values of each rank if the run has very many ranks, otherwise None. If given,
            the timeline is encoded as shards.
        first_ranks: Indices of the ranks selected by the user. The page opens at the first of them,
            and their shards have the highest priority.

    Returns:
        document: JSON of the report, compressed and base64-encoded.
        columns: Columns of the timeline (or of ``means``), compressed and base64-encoded.
        blocks: HTML elements that contain the shards. Empty if ``means`` is None.
    """
    operations = timeline.tables["operations"]
    paints, paint_of = _list_paints(operations)
    tables: dict[str, Mapping[str, Ints]] = {
        **timeline.tables,
        "operations": {**operations, "paint": paint_of},
    }
    blocks: list[str] = []
    shards = None
    if means is not None:
        pipelines = [rank.pipeline for rank in summary.ranks]
        shards, blocks = make_shards(timeline, paint_of, pipelines, means.bubble_ratio, first_ranks)
        tables = {
            **{table: dict.fromkeys(columns, _EMPTY) for table, columns in tables.items()},
            "means": _convert_means(means),
        }
    document = {
        "report": _list_shown_values(summary),
        "base_ns": str(timeline.base_ns),
        "shown": initial,
        "command": command,
        "unsaved": asdict(unsaved),
        "shown_rank": next(iter(first_ranks), None),
        "many": is_many_ranks(len(summary.ranks)),
        "shards": shards,
        "measure": asdict(name_saved_measure(summary)),
        "names": timeline.names,
        "paints": [{"bands": list(map(list, p.bands)), "number": p.number} for p in paints],
        **_list_definitions(summary),
    }
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # JSON escapes line breaks, so all characters replaced here are inside strings.
    packed_document = compress(replace_control_characters(text).encode("utf-8"), LEVEL)
    return packed_document, compress(encode_tables(tables), LEVEL), blocks


def _list_definitions(summary: RunSummary) -> dict[str, Any]:
    """Return the definitions that the page needs, as JSON values.

    The definitions contain the phase names, the codes of compute phases, the causes of idle time
    with their meanings and colors, the colors of bubble parts, and the ratios.
    """
    return {
        "unattributed_color": palette.UNATTRIBUTED,
        "part_colors": palette.BUBBLE_PARTS,
        "phases": [phase.label for phase in Phase],
        "compute_phases": [int(phase) for phase in COMPUTE],
        "causes": [
            {"name": cause.label, "meaning": cause.meaning, "color": palette.CAUSES[cause.label]}
            for cause in Cause
        ],
        "ratios": [
            {
                "name": ratio.name,
                "summary": ratio.summary,
                "definition": ratio.definition,
                "words": ratio.get_words(summary.kind),
                "work": ratio.work.name.lower(),
            }
            for ratio in list_ratios()
        ],
    }


def _list_shown_values(summary: RunSummary) -> dict[str, Any]:
    """Return a report as JSON values, without its timeline and without slack times.

    The page contains the timeline as columns, and does not show slack times.
    """
    values = to_values(summary)
    values["timeline"] = None
    if values["critical_path"] is not None:
        values["critical_path"]["slack"] = None
    return values


def _convert_means(means: RankMeans) -> dict[str, Ints]:
    """Convert the rank means to integer columns, keyed by column name.

    Times are in ns, and ratios in parts per billion. NaN becomes ``_UNKNOWN``.
    """
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


def _list_paints(operations: Mapping[str, Ints]) -> tuple[list[palette.Paint], Ints]:
    """Return the distinct paints of the operations, and the paint index of each operation.

    Operations with the same phase, chunk and second chunk share a paint.

    Args:
        operations: Columns of the timeline's operations, keyed by name.
    """
    phase, chunk, second = (operations[name] for name in ("phase", "chunk", "second_chunk"))
    chunks = find_distinct(chunk[np.isin(phase, COMPUTE) & (chunk >= 0)]).tolist()
    groups = group_rows(phase, chunk, second)
    distinct_keys = np.stack((phase, chunk, second), axis=1)[groups.first].tolist()
    paints = [palette.make_chunk_paint(Phase(p), c, s, chunks) for p, c, s in distinct_keys]
    return paints, groups.of_row
