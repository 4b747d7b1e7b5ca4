"""The idle time web page, which has tables and a timeline with four rows per device.

The rows of a device are its lanes: compute, communication, copies, and idle time in the color of
the host's activity. The pipeline page uses the same timeline component.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from bubbleviz.analyses.idle import outputs, picture
from bubbleviz.analyses.idle.advice import advice, describe_division, make_title
from bubbleviz.analyses.idle.profiled_steps import describe_cost
from bubbleviz.analyses.idle.report import BUSY, IdleMeasurement, RankIdle
from bubbleviz.analyses.idle.text import TERMS, list_all, list_summary, list_tables
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_positions
from bubbleviz.model.texts import to_one_line
from bubbleviz.render import document as blocks
from bubbleviz.render.html import render_html
from bubbleviz.render.markdown import render_markdown
from bubbleviz.render.notebook import wrap_picture
from bubbleviz.render.palette import ACTIVITIES
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.render.text.terminal import render_plain_text
from bubbleviz.render.web.page import LEVEL, fill_template
from bubbleviz.render.web.shards import compress, encode_tables

#: Number of rows per device in the timeline: one per kind of work, and one for idle time.
_N_LANES = len(BUSY) + 1
#: Reason why the lanes' shares exceed the exposed shares in the division.
_HIDDEN_WORK = (
    "The timeline's lane of communication also contains communication that compute hides, so its "
    "share exceeds the share of exposed communication."
)


def format_output(measurement: IdleMeasurement, name: str, gaps: int) -> str | bytes:
    """Return the report in the given format.

    Args:
        measurement: The measured idle time.
        name: Format: ``json``, ``csv``, ``markdown``, ``text``, ``svg``, ``pdf`` or ``png``. Any
            other name selects the HTML page.
        gaps: Maximum number of gaps per rank in the JSON, and of table rows in the text.

    Raises:
        OutputError: The format is PDF or PNG, and Typst is not installed.
    """
    formats: dict[str, Callable[[], str | bytes]] = {
        "json": lambda: outputs.as_json(measurement, gaps),
        "csv": lambda: outputs.format_gaps_csv(measurement),
        "markdown": lambda: render_markdown(list_summary(measurement)),
        "text": lambda: render_plain_text(list_all(measurement, gaps)),
        "svg": lambda: picture.draw_idle(measurement),
        "pdf": lambda: as_pdf(picture.draw_idle(measurement)),
        "png": lambda: as_png(picture.draw_idle(measurement)),
    }
    return formats.get(name, lambda: render(measurement))()


def render(measurement: IdleMeasurement) -> str:
    """Render the report as an HTML page.

    The page contains the title, the advice, all non-empty tables, the picture, the limitations and
    the timeline data.
    """
    lines = [f"Late: {measurement.late_sentence}"] if measurement.late_sentence else []
    if measurement.span_ns:
        lines.append(describe_division(measurement))
    if cost := describe_cost(measurement):
        lines.append(f"! {cost}")
    if any(rank.overlap for rank in measurement.devices):
        lines.append(_HIDDEN_WORK)
    title, *sentences = (
        escape(to_one_line(text, 600))
        for text in (make_title(measurement), *lines, *advice(measurement))
    )
    parts = {
        name: (table.title or name, render_html([replace(table, title="")]))
        for name, table in list_tables(measurement).items()
        if table.rows
    }
    if "Devices" in parts:
        heading, table = parts["Devices"]
        parts["Devices"] = heading, table + render_html([blocks.make_bullets(TERMS)])
    parts["Shares"] = "Shares of time", picture.draw_idle(measurement)
    if limits := [limitation.sentence for limitation in measurement.limitations]:
        parts["Limitations"] = "Limitations", render_html([blocks.make_bullets(limits)])
    replacements = (
        f"<title>{title}</title>",
        f'<h1 class="number"><span id="headline-name">{title}</span></h1>'
        + "".join(f"<p>{text}</p>" for text in sentences),
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

    The encoded columns form three tables, which ``assets/idle.js`` reads. Row ``4 * d + n`` of the
    timeline is lane n of device d. Each table has a column ``code``, whose meaning depends on the
    table:

    - ``busy``: the first work in a period during which one kind of work ran,
    - ``gaps``: the activity,
    - ``spans``: the step, or -1 for the span of a device.

    Times are relative to the earliest start on any device in the same profile.
    """
    first_ns: dict[str, int] = {}
    for rank in measurement.shown_ranks:
        first_ns[rank.path] = min(first_ns.get(rank.path, rank.start_ns), rank.start_ns)
    causes = {total.activity: index for index, total in enumerate(measurement.activities)}
    works: dict[str, int] = {}
    step_codes: dict[tuple[str, int], int] = {}
    tables: dict[str, list[Ints]] = {"busy": [], "gaps": [], "spans": []}
    for index, rank in enumerate(measurement.shown_ranks):
        idle_row = _N_LANES * (index + 1) - 1
        rows = [
            *(("busy", lane, times) for lane, times in _list_lane_times(rank, index, works)),
            ("gaps", idle_row, _list_gap_pieces(rank, measurement.shortest_ns, causes)),
            ("spans", idle_row, _list_spans(rank, step_codes)),
        ]
        for table, row, times in rows:
            tables[table].append(_stack_columns(row, first_ns[rank.path], *times))
    step_names = [name for name, _ in step_codes]
    return _describe_codes(measurement, step_names, causes, works), _encode_columns(tables)


def _stack_columns(row: int, origin_ns: int, start_ns: Ints, end_ns: Ints, code: Ints) -> Ints:
    """Return an array of shape (4, entries) whose rows are rank, start, length and code.

    Args:
        row: Row of the timeline.
        origin_ns: Time that is subtracted from each start.
        start_ns: Start time of each entry.
        end_ns: End time of each entry.
        code: Code of each entry. Its meaning depends on the table.
    """
    return np.stack((np.full(len(code), row), start_ns - origin_ns, end_ns - start_ns, code))


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
        "devices": [
            (
                rank.label,
                [time_ns / rank.span_ns for time_ns in _list_lane_lengths(rank)],
            )
            for rank in measurement.shown_ranks
        ],
        "steps": step_names,
        "activities": [
            (name, measurement.meaning.get(name, ""), colors.get(name, picture.REST_COLOR))
            for name in causes
        ],
        "works": [*works],
        "lanes": [(name, ACTIVITIES[name]) for name in BUSY],
        "rest": picture.REST_COLOR,
    }


def _list_lane_lengths(rank: RankIdle) -> tuple[int, int, int, int]:
    """Return the time of compute, communication, copies and idle time on a device, in ns."""
    return rank.compute_ns, rank.communication_ns, rank.copy_ns, rank.idle_ns


def _list_lane_times(
    rank: RankIdle, index: int, works: dict[str, int]
) -> Iterator[tuple[int, tuple[Ints, Ints, Ints]]]:
    """Yield the row of each lane of a device, and the start, end and first work of its intervals.

    Args:
        rank: The device.
        index: Index of the device in the timeline.
        works: Integer ids of kernel and copy names. New names are added.
    """
    work_ids = _number_names(rank.works, works)
    for lane, times in enumerate(rank.lanes):
        yield _N_LANES * index + lane, (times.start_ns, times.end_ns, work_ids[times.work])


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


def _list_spans(rank: RankIdle, codes: dict[tuple[str, int], int]) -> tuple[Ints, Ints, Ints]:
    """Return the start, end and code of the device's span and of each named step.

    The span comes first, with code -1. Steps of several devices have the same code if they have the
    same name, because profiles can start at different steps. If a device has several steps of a
    name, the n-th one has the code of the n-th one on other devices.

    Args:
        rank: The device.
        codes: Codes of steps, keyed by name and number of earlier steps with this name. New steps
            are added.
    """
    spans, span_codes = [(rank.start_ns, rank.end_ns)], [-1]
    counts = Counter[str]()
    for step in rank.steps:
        if step.name and step.start_ns is not None and step.end_ns is not None:
            key = (step.name, counts[step.name])
            counts[step.name] += 1
            spans.append((step.start_ns, step.end_ns))
            span_codes.append(codes.setdefault(key, len(codes)))
    start_ns, end_ns = np.array(spans, np.int64).T
    return start_ns, end_ns, np.array(span_codes, np.int64)


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
