"""The idle time web page, which has tables and a timeline with one row per device.

A row of the timeline shows when the device was busy. Idle time is drawn in the color of the host's
activity. The pipeline page uses the same timeline component.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from bubbleviz.analyses.idle import outputs, picture
from bubbleviz.analyses.idle.advice import advice, make_title
from bubbleviz.analyses.idle.report import IdleMeasurement, RankIdle, StepIdle
from bubbleviz.analyses.idle.text import list_tables
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_positions
from bubbleviz.model.texts import to_one_line
from bubbleviz.render import document as blocks
from bubbleviz.render.html import render_html
from bubbleviz.render.notebook import wrap_picture
from bubbleviz.render.palette import ACTIVITIES
from bubbleviz.render.web.page import LEVEL, fill_template
from bubbleviz.render.web.shards import compress, encode_tables


def format_output(measurement: IdleMeasurement, name: str, gaps: int) -> str:
    """Return the report in the given format.

    Args:
        measurement: The measured idle time.
        name: Format: ``svg``, ``csv`` or ``json``. Any other name selects the HTML page.
        gaps: Maximum number of gaps per rank in the JSON.
    """
    if name == "json":
        return outputs.as_json(measurement, gaps)
    return {"svg": picture.draw_idle, "csv": outputs.format_gaps_csv}.get(name, render)(measurement)


def render(measurement: IdleMeasurement) -> str:
    """Render the report as an HTML page.

    The page contains the title, the advice, all non-empty tables, the picture, the limitations and
    the timeline data.
    """
    title, *advice_texts = (
        escape(to_one_line(text, 600)) for text in (make_title(measurement), *advice(measurement))
    )
    parts = {
        name: (table.title or name, render_html([replace(table, title="")]))
        for name, table in list_tables(measurement).items()
        if table.rows
    }
    parts["Shares"] = "Shares of time", picture.draw_idle(measurement)
    if limits := [limitation.sentence for limitation in measurement.limitations]:
        parts["Limitations"] = "Limitations", render_html([blocks.make_bullets(limits)])
    replacements = (
        f"<title>{title}</title>",
        f'<h1 class="number"><span id="headline-name">{title}</span></h1>'
        + "".join(f"<p>{text}</p>" for text in advice_texts),
        "".join(f'<li><a href="#{name}">{name}</a></li>' for name in parts),
        "".join(
            f'<section id="{name}" class="whole"><h2>{heading}</h2>'
            f"{wrap_picture('', text, '')}</section>"
            for name, (heading, text) in parts.items()
        ),
    )
    names, columns = _make_timeline(measurement)
    text = json.dumps({"idle": names}).encode()
    return fill_template(compress(text, LEVEL), compress(columns, LEVEL), replacements=replacements)


def _make_timeline(measurement: IdleMeasurement) -> tuple[dict[str, Any], bytes]:
    """Return the data that the page needs to draw the timeline: names, colors and encoded columns.

    The encoded columns form three tables, which ``assets/idle.js`` reads. Each table has a column
    ``code``, whose meaning depends on the table:

    - ``busy``: the first work in the busy period,
    - ``gaps``: the activity,
    - ``spans``: the step, or -1 for the span of a device.

    Times are relative to the earliest start on any device in the same profile.
    """
    first_ns: dict[str, int] = {}
    for rank in measurement.ranks:
        first_ns[rank.path] = min(first_ns.get(rank.path, rank.start_ns), rank.start_ns)
    causes = {total.activity: index for index, total in enumerate(measurement.activities)}
    works: dict[str, int] = {}
    step_names: list[str] = []
    tables: dict[str, list[Ints]] = {"busy": [], "gaps": [], "spans": []}
    for index, rank in enumerate(measurement.ranks):
        steps = [step for step in rank.steps if step.name and step.start_ns is not None]
        step_names += [step.name or "" for step in steps[len(step_names) :]]
        for table, times in (
            ("busy", _list_busy_times(rank, measurement.shortest_ns, works)),
            ("gaps", _list_gap_pieces(rank, measurement.shortest_ns, causes)),
            ("spans", _list_spans(rank, steps)),
        ):
            tables[table].append(_stack_columns(index, first_ns[rank.path], *times))
    return _describe_codes(measurement, step_names, causes, works), _encode_columns(tables)


def _stack_columns(rank: int, origin_ns: int, start_ns: Ints, end_ns: Ints, code: Ints) -> Ints:
    """Return an array of shape (4, entries) whose rows are rank, start, length and code.

    Args:
        rank: Index of the device in the report.
        origin_ns: Time that is subtracted from each start.
        start_ns: Start time of each entry.
        end_ns: End time of each entry.
        code: Code of each entry. Its meaning depends on the table.
    """
    return np.stack((np.full(len(code), rank), start_ns - origin_ns, end_ns - start_ns, code))


def _encode_columns(tables: Mapping[str, Sequence[Ints]]) -> bytes:
    """Encode the timeline's tables for the page.

    Args:
        tables: For each table name, the arrays to concatenate, as returned by
            :func:`_stack_columns`.
    """
    names = "rank", "start_ns", "length_ns", "code"
    return encode_tables(
        {
            table: dict(zip(names, np.concatenate(parts, 1), strict=True))
            for table, parts in tables.items()
        }
    )


def _describe_codes(
    measurement: IdleMeasurement,
    step_names: Sequence[str],
    causes: Mapping[str, int],
    works: Mapping[str, int],
) -> dict[str, Any]:
    """Return the name, meaning and color that each code in the timeline stands for.

    Args:
        measurement: The measured idle time.
        step_names: Names of the steps, in code order.
        causes: Code of each activity, keyed by name, in ascending order of the codes.
        works: Code of each kernel or copy name, in ascending order of the codes.
    """
    colors = picture.choose_colors(measurement)
    return {
        "devices": [(rank.label, rank.idle_ns / rank.span_ns) for rank in measurement.ranks],
        "steps": step_names,
        "activities": [
            (name, measurement.meaning.get(name, ""), colors.get(name, picture.REST_COLOR))
            for name in causes
        ],
        "works": [*works],
        "busy": ACTIVITIES["compute"],
        "rest": picture.REST_COLOR,
    }


def _list_busy_times(
    rank: RankIdle, shortest_ns: int, works: dict[str, int]
) -> tuple[Ints, Ints, Ints]:
    """List the busy periods of a device: the times before, between and after its long gaps.

    Args:
        rank: The device.
        shortest_ns: Minimum length of a long gap.
        works: Integer ids of kernel and copy names. New names are added.

    Returns:
        start_ns: Start time of each period.
        end_ns: End time of each period.
        work: For each period, the id of the work that ended the preceding gap. The first period has
            the id of the work before the first gap, or -1 if there are no long gaps.
    """
    gaps = rank.long_gaps(shortest_ns)
    start_ns, end_ns = np.append(rank.start_ns, gaps.end_ns), np.append(gaps.start_ns, rank.end_ns)
    work = _number_names(rank.works, works)[np.append(gaps.before[:1], gaps.after)]
    return start_ns, end_ns, work if len(gaps) else np.full(1, NONE)


def _list_gap_pieces(
    rank: RankIdle, shortest_ns: int, causes: dict[str, int]
) -> tuple[Ints, Ints, Ints]:
    """Return the start, end and activity id of each piece in the long gaps.

    Args:
        rank: The device.
        shortest_ns: Minimum length of a long gap.
        causes: Integer ids of activity names. New names are added.
    """
    gaps = rank.long_gaps(shortest_ns)
    pieces = rank.idle.take(find_positions(gaps.interval, rank.idle.interval) != NONE)
    cause = _number_names(rank.activity_names, causes)[pieces.activity]
    return pieces.start_ns, pieces.end_ns, cause


def _list_spans(rank: RankIdle, steps: Sequence[StepIdle]) -> tuple[Ints, Ints, Ints]:
    """Return the start, end and code of the device's span and of each step.

    The span comes first, with code -1. The code of a step is its index in ``steps``.
    """
    spans = [(rank.start_ns, rank.end_ns), *((step.start_ns, step.end_ns) for step in steps)]
    start_ns, end_ns = np.array(spans, np.int64).T
    return start_ns, end_ns, np.arange(len(spans)) - 1


def _number_names(names: Sequence[str], numbers: dict[str, int]) -> Ints:
    """Return the integer id of each name. New names get the next id.

    Args:
        names: Names to look up. If there are none, the result is ``[0]``.
        numbers: Integer ids of the names. New names are added.
    """
    short_names = (to_one_line(name, 200) for name in names)
    return np.array(
        [numbers.setdefault(name, len(numbers)) for name in short_names] or [0], np.int64
    )
