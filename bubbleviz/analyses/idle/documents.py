"""Documents: the report on idle time as JSON, and its gaps as CSV."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.analyses.idle.report import (
    DEFINITIONS,
    ActivityIdle,
    IdleReport,
    RankIdle,
    StepIdle,
    advice,
)
from bubbleviz.model.texts import csv_text, inert, json_text

SCHEMA = "bubbleviz.idle/1"
#: Of breakdowns, in the JSON.
_BREAKDOWN = (
    *("start_ns", "end_ns", "span_ns", "busy_ns", "idle_ns", "compute_ns", "communication_ns"),
    *("copy_ns", "exposed_communication_ns", "exposed_point_to_point_ns", "exposed_copy_ns"),
    "overlap",
)
COLUMNS = (
    "rank",
    "host",
    "pid",
    "device_id",
    "step",
    "start_ns",
    "end_ns",
    "idle_ns",
    "activity",
    "before",
    "after",
    "chunks",
)


def as_json(report: IdleReport, top: int) -> str:
    """Return a report as JSON, with the ``top`` longest gaps of each rank."""
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "definitions": DEFINITIONS,
        "shortest_ns": report.shortest_ns,
        "window": report.window,
        "span_ns": report.span_ns,
        "idle_ns": report.idle_ns,
        "proved_idle_ns": report.proved_idle_ns,
        "advice": advice(report)[0],
        "activities": [
            _activity(total, report.idle_ns, with_rank=True) for total in report.activities
        ],
        "meanings": dict(report.meaning),
        "ranks": [_rank(index, rank, top) for index, rank in enumerate(report.ranks)],
        "limitations": [limitation.entry for limitation in report.limitations],
    }
    return json_text(document)


def _rank(index: int, rank: RankIdle, top: int) -> dict[str, Any]:
    return {
        "index": index,
        "label": rank.label,
        "profile": rank.path,
        "host": rank.host,
        "pid": rank.pid,
        "device_id": rank.device_id,
        "device": rank.place,
        "gpu": rank.gpu,
        **{name: getattr(rank.breakdown, name) for name in _BREAKDOWN},
        "duty_cycle": rank.duty_cycle,
        "compute_duty": rank.compute_duty,
        "activities": [_activity(total, rank.breakdown.idle_ns) for total in rank.activities],
        "steps_by": rank.steps_by,
        "steps": [_step(step, rank) for step in rank.steps],
        "waits": [asdict(wait) for wait in rank.waits],
        "awaited_communication_ns": rank.awaited_communication_ns,
        "awaited_copy_ns": rank.awaited_copy_ns,
        "gaps": len(rank.gaps),
        "longest_gaps": _longest_gaps(rank, top),
    }


def _activity(total: ActivityIdle, idle_ns: int, *, with_rank: bool = False) -> dict[str, Any]:
    rank = {"rank": total.rank} if with_rank else {}
    return {
        "activity": total.activity,
        "idle_ns": total.idle_ns,
        "share": total.idle_ns / idle_ns if idle_ns else None,
        "gaps": total.gaps,
        "longest_ns": total.longest_ns,
        "example": total.example and {**rank, **asdict(total.example)},
    }


def _step(step: StepIdle, rank: RankIdle) -> dict[str, Any]:
    inside = step.name is not None
    return {
        "name": step.name,
        "start_ns": step.start_ns if inside else None,
        "end_ns": step.end_ns if inside else None,
        "length_ns": step.length_ns,
        "busy_ns": step.busy_ns,
        "idle_ns": step.idle_ns,
        "duty_cycle": None if rank.duty_cycle is None else step.duty_cycle,
        "activities": dict(step.activities),
    }


def _longest_gaps(rank: RankIdle, top: int) -> list[dict[str, Any]]:
    gaps = rank.gaps
    length_ns = gaps.end_ns - gaps.start_ns
    rows = np.argsort(-length_ns, kind="stable")[:top]
    first = np.searchsorted(rank.chunks.gap, rows)
    last = np.searchsorted(rank.chunks.gap, rows, side="right")
    return [
        {
            "start_ns": int(gaps.start_ns[row]),
            "end_ns": int(gaps.end_ns[row]),
            "idle_ns": int(length_ns[row]),
            "step": None if gaps.step[row] < 0 else rank.steps[int(gaps.step[row])].name,
            "activity": gaps.activities[int(gaps.activity[row])],
            "before": gaps.works[int(gaps.before[row])],
            "after": gaps.works[int(gaps.after[row])],
            "chunks": [
                {"activity": gaps.activities[activity], "start_ns": start, "end_ns": end}
                for activity, start, end in zip(
                    rank.chunks.activity[low:high].tolist(),
                    rank.chunks.start_ns[low:high].tolist(),
                    rank.chunks.end_ns[low:high].tolist(),
                    strict=True,
                )
            ],
        }
        for row, low, high in zip(rows.tolist(), first.tolist(), last.tolist(), strict=True)
    ]


def csv_of_gaps(report: IdleReport) -> str:
    """Return the attributed gaps as CSV, one row a gap; a cell holds its chunks as JSON."""
    return csv_text(
        COLUMNS, (row for index, rank in enumerate(report.ranks) for row in _rows(index, rank))
    )


def _rows(index: int, rank: RankIdle) -> Iterator[tuple[object, ...]]:
    gaps, chunks = rank.gaps, rank.chunks
    works = [inert(name) for name in gaps.works]
    activities = [inert(name) for name in gaps.activities]
    steps = ["" if step.name is None else inert(step.name) for step in rank.steps]
    bounds = np.searchsorted(chunks.gap, np.arange(len(gaps) + 1)).tolist()
    activity, spent = chunks.activity.tolist(), (chunks.end_ns - chunks.start_ns).tolist()
    columns = (gaps.start_ns, gaps.end_ns, gaps.activity, gaps.before, gaps.after, gaps.step)
    cells = zip(*(column.tolist() for column in columns), strict=True)
    for row, (start, end, main, before, after, step) in enumerate(cells):
        spent_ns: dict[str, int] = {}
        for at in range(bounds[row], bounds[row + 1]):
            name = gaps.activities[activity[at]]
            spent_ns[name] = spent_ns.get(name, 0) + spent[at]
        yield (
            index,
            inert(rank.host),
            rank.pid,
            rank.device_id,
            "" if step < 0 else steps[step],
            start,
            end,
            end - start,
            activities[main],
            works[before],
            works[after],
            json.dumps(spent_ns, ensure_ascii=True),
        )
