"""The page of idle time: the timeline of a pipeline's page with a row a device, and tables.

A row is busy where anything ran, and elsewhere has the colour of what the host did meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from bubbleviz.analyses.idle import outputs, picture
from bubbleviz.analyses.idle.advice import advice, title_of
from bubbleviz.analyses.idle.report import IdleMeasurement
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


def written(measurement: IdleMeasurement, name: str, gaps: int) -> str:
    """Return an output: ``svg``, ``csv``, ``json`` with so many gaps of a rank, or the page."""
    if name == "json":
        return outputs.as_json(measurement, gaps)
    return {"svg": picture.draw_idle, "csv": outputs.csv_of_gaps}.get(name, render)(measurement)


def render(measurement: IdleMeasurement) -> str:
    """Return a report as a page of HTML, for any browser."""
    title, *told = (
        escape(to_one_line(text, 600)) for text in (title_of(measurement), *advice(measurement))
    )
    parts = {
        name: (table.title or name, render_html([replace(table, title="")]))
        for name, table in list_tables(measurement).items()
        if table.rows
    }
    parts["Shares"] = "Shares of time", picture.draw_idle(measurement)
    if limits := [own.sentence for own in measurement.limitations]:
        parts["Limitations"] = "Limitations", render_html([blocks.make_bullets(limits)])
    own = (
        f"<title>{title}</title>",
        f'<h1 class="number"><span id="headline-name">{title}</span></h1>'
        + "".join(f"<p>{text}</p>" for text in told),
        "".join(f'<li><a href="#{name}">{name}</a></li>' for name in parts),
        "".join(
            f'<section id="{name}" class="whole"><h2>{heading}</h2>'
            f"{wrap_picture('', text, '')}</section>"
            for name, (heading, text) in parts.items()
        ),
    )
    names, columns = _timeline(measurement)
    text = json.dumps({"idle": names}).encode()
    return fill_template(compress(text, LEVEL), compress(columns, LEVEL), replacements=own)


def _timeline(measurement: IdleMeasurement) -> tuple[dict[str, Any], bytes]:
    """Return what the timeline is drawn from, names and columns (see ``assets/idle.js``)."""
    first_ns: dict[str, int] = {}
    for rank in measurement.ranks:
        first_ns[rank.path] = min(first_ns.get(rank.path, rank.start_ns), rank.start_ns)
    causes = {own.activity: at for at, own in enumerate(measurement.activities)}
    works: dict[str, int] = {}
    names: list[str] = []
    tables: dict[str, list[Ints]] = {"busy": [], "gaps": [], "spans": []}
    for at, rank in enumerate(measurement.ranks):
        long = rank.long_gaps(measurement.shortest_ns)
        pieces = rank.idle.take(find_positions(long.interval, rank.idle.interval) != NONE)
        stretches = np.append(rank.start_ns, long.end_ns), np.append(long.start_ns, rank.end_ns)
        work = _numbers(rank.works, works)[np.append(long.before[:1], long.after)]
        cause = _numbers(rank.activity_names, causes)[pieces.activity]
        of_steps = [own for own in rank.steps if own.name and own.start_ns is not None]
        names += [own.name or "" for own in of_steps[len(names) :]]
        spans = [(rank.start_ns, rank.end_ns), *((own.start_ns, own.end_ns) for own in of_steps)]
        for table, start_ns, end_ns, code in (
            ("busy", *stretches, work if len(long) else np.full(1, NONE)),
            ("gaps", pieces.start_ns, pieces.end_ns, cause),
            ("spans", *np.array(spans, np.int64).T, np.arange(len(spans)) - 1),
        ):
            place = np.full(len(code), at), start_ns - first_ns[rank.path]
            tables[table].append(np.stack((*place, end_ns - start_ns, code)))
    columns = {
        name: dict(
            zip(("rank", "start_ns", "length_ns", "code"), np.concatenate(own, 1), strict=True)
        )
        for name, own in tables.items()
    }
    colours = picture.colours_of(measurement)
    devices = [(rank.label, rank.idle_ns / rank.span_ns) for rank in measurement.ranks]
    activities = [
        (name, measurement.meaning.get(name, ""), colours.get(name, picture.REST_COLOUR))
        for name in causes
    ]
    names_of = {"devices": devices, "steps": names, "activities": activities, "works": [*works]}
    inks = {"busy": ACTIVITIES["compute"], "rest": picture.REST_COLOUR}
    return names_of | inks, encode_tables(columns)


def _numbers(names: Sequence[str], known: dict[str, int]) -> Ints:
    """Return the number of each name, new ones behind those that are known; 0 without any."""
    shown = (to_one_line(name, 200) for name in names)
    return np.array([known.setdefault(name, len(known)) for name in shown] or [0], np.int64)
