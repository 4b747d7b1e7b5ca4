"""Outputs of idle time: JSON, and gaps as CSV."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.analyses.idle.advice import advice
from bubbleviz.analyses.idle.copies import CopyTotal
from bubbleviz.analyses.idle.report import (
    DEFINITIONS,
    ActivityIdle,
    IdleReport,
    RankIdle,
    StepIdle,
)
from bubbleviz.conventions import host_activities
from bubbleviz.count.statistics import spread
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.model.columns import NONE, Ints, scattered
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.intervals import covering, group_sum
from bubbleviz.model.texts import csv_text, document_text, inert
from bubbleviz.report.summary import (
    IDLE_SCHEMA,
    Average,
    IdleKernels,
    IdleNumbers,
    IdlePart,
    IdleRank,
    IdleSummary,
    RestrictionEntry,
    values_of,
)

#: What compare and gate call the idle share of steps, and of spans.
IDLE_STEPS, IDLE = "idle-steps", "idle"
#: Of ranks, in the JSON: names, times and shares.
_RANK = (
    *("label", "profile", "host", "pid", "device_id", "device", "gpu"),
    *("start_ns", "end_ns", "span_ns", "busy_ns", "idle_ns", "compute_ns", "communication_ns"),
    *("copy_ns", "exposed_communication_ns", "exposed_point_to_point_ns", "exposed_copy_ns"),
    *("overlap", "duty_cycle", "compute_duty"),
)
_STEP = ("name", "start_ns", "end_ns", "length_ns", "busy_ns", "idle_ns")
COLUMNS = (
    *("rank", "host", "pid", "device_id", "step", "start_ns", "end_ns", "idle_ns", "activity"),
    *("before", "after", "chunks"),
)


def as_json(report: IdleReport, top: int) -> str:
    """Return a report as JSON, with the ``top`` longest gaps of each rank."""
    compared = values_of(summary_of_idle(report))
    document = {
        "headline": compared["headline"],
        "iterations": [],
        "summary": compared["summary"],
        "restrictions": compared["restrictions"],
        "definitions": DEFINITIONS,
        "shortest_ns": report.shortest_ns,
        "window": report.window,
        "span_ns": report.span_ns,
        "idle_ns": report.idle_ns,
        "proved_idle_ns": report.proved_idle_ns,
        "what_to_do_first": compared["what_to_do_first"],
        "activities": [
            _activity(total, report.idle_ns, {"rank": total.rank}) for total in report.activities
        ],
        "meanings": dict(report.meaning),
        "kernels": [
            {"name": name, "class": of, "count": count, "time_ns": ns}
            for name, of, count, ns in report.work()
        ],
        "copies": [_copies(total) for total in report.copies()],
        "ranks": [
            {**_rank(index, rank, report.shortest_ns, top), "relative_score": score}
            for index, (rank, score) in enumerate(zip(report.ranks, report.scores(), strict=True))
        ],
        "limitations": [limitation.entry for limitation in report.limitations],
    }
    return document_text(IDLE_SCHEMA, document)


def summary_of_idle(report: IdleReport) -> IdleSummary:
    """Return the part of a report that ``compare`` and ``gate`` read.

    Shares and times are means over the steps of all devices, or over the devices if no steps are
    known.
    """
    devices = [rank for rank in report.devices if rank.measured]
    steps = [step for rank in devices for step in rank.steps if step.name is not None]
    of_steps = [(step.idle_ns, step.length_ns) for step in steps if step.length_ns]
    of_devices = [(rank.idle_ns, rank.span_ns) for rank in devices]
    shares, windows = {}, {}
    for name, times in ((IDLE_STEPS, of_steps), (IDLE, of_devices)):
        shares[name] = _average([idle_ns / length_ns for idle_ns, length_ns in times])
        windows[name] = _average([float(length_ns) for _, length_ns in times])
    headline = IDLE_STEPS if steps else IDLE
    return IdleSummary(
        schema=IDLE_SCHEMA,
        version=__version__,
        headline=headline,
        what_to_do_first=advice(report)[0],
        summary=IdleNumbers(
            iterations=shares[headline].n,
            bubble_ratio=shares,
            window_ns=windows,
            bubble_parts=_idle_parts(devices, steps, shares[headline].mean or 0.0),
        ),
        restrictions=[RestrictionEntry(own.code, own.text) for own in report.restrictions],
        ranks=[IdleRank(index, rank.path) for index, rank in enumerate(report.ranks)],
        kernels=[IdleKernels(name, ns) for name, _, _, ns in report.work()],
    )


def _average(values: Sequence[float]) -> Average:
    return Average(**asdict(spread(values)))


def _idle_parts(
    devices: Sequence[RankIdle], steps: Sequence[StepIdle], idle_share: float
) -> list[IdlePart]:
    """Return the parts of the idle time of steps, or of devices without steps, largest first."""
    idle_ns = Counter[str]()
    for step in steps:
        idle_ns.update(dict(step.activities))
    for rank in () if steps else devices:
        idle_ns.update({total.activity: total.idle_ns for total in rank.activities})
    total_ns = sum(idle_ns.values()) or 1
    return [
        IdlePart(activity, idle_share * ns / total_ns)
        for activity, ns in sorted(idle_ns.items(), key=lambda pair: -pair[1])
    ]


def _rank(index: int, rank: RankIdle, shortest_ns: int, top: int) -> dict[str, Any]:
    renamed, gaps = {"profile": "path", "device": "place"}, rank.long_gaps(shortest_ns)
    longest = gaps.take(np.argsort(gaps.start_ns - gaps.end_ns, kind="stable")[:top])
    return {
        "index": index,
        **{key: getattr(rank, renamed.get(key, key)) for key in _RANK},
        "activities": [_activity(total, rank.idle_ns, {}) for total in rank.activities],
        "copies": [_copies(total) for total in rank.copies],
        "steps_by": rank.steps_by,
        "steps": [
            {
                **{key: getattr(step, key) for key in _STEP},
                "duty_cycle": step.duty_cycle if rank.measured else None,
                "activities": dict(step.activities),
            }
            for step in rank.steps
        ],
        "waits": [asdict(wait) for wait in rank.waits],
        "awaited_communication_ns": rank.awaited_communication_ns,
        "awaited_copy_ns": rank.awaited_copy_ns,
        "launch_queue": None
        if rank.known_queue is None
        else dict(zip(("mean", "most", "empty_ns"), rank.known_queue, strict=True)),
        "gaps": len(gaps),
        "longest_gaps": [
            {
                "start_ns": start,
                "end_ns": end,
                "idle_ns": end - start,
                "step": step,
                "activity": activity,
                "before": before,
                "after": after,
                "chunks": [{"activity": a, "start_ns": b, "end_ns": e} for a, b, e in chunks],
            }
            for step, start, end, activity, before, after, chunks in _list_gaps(rank, longest, str)
        ],
    }


def _copies(total: CopyTotal) -> dict[str, Any]:
    """Return the JSON object for one kind of copies."""
    return {
        "direction": total.direction.label,
        "source": total.source.label,
        "target": total.target.label,
        "count": total.count,
        "bytes": total.size,
        "time_ns": total.time_ns,
        "gb_per_s": total.bytes_per_ns,
    }


def _activity(total: ActivityIdle, idle_ns: int, rank: dict[str, int]) -> dict[str, Any]:
    return {
        "activity": total.activity,
        "idle_ns": total.idle_ns,
        "share": total.idle_ns / idle_ns if idle_ns else None,
        "gaps": total.gaps,
        "longest_ns": total.longest_ns,
        "example": total.example and {**rank, **asdict(total.example)},
    }


def _list_gaps(
    rank: RankIdle, gaps: IdleIntervals, text: Callable[[str], str]
) -> Iterator[tuple[Any, ...]]:
    """Yield step, start, end, main activity, work before and after, and pieces of gaps.

    A piece is (activity, start, end). All names except those of activities in pieces go through
    ``text``.

    Args:
        rank: The device.
        gaps: Some of its gaps, one row each, in any order.
        text: Function that escapes a name.
    """
    idle = rank.idle
    works, activities = ([*map(text, names)] for names in (rank.works, rank.activity_names))
    # The last place is that of no step.
    steps = [*(None if step.name is None else text(step.name) for step in rank.steps), None]
    names = (rank.activity_names[activity] for activity in idle.activity.tolist())
    pieces = [*zip(names, idle.start_ns.tolist(), idle.end_ns.tolist(), strict=True)]
    first, last = (
        np.searchsorted(idle.interval, gaps.interval, side=side) for side in ("left", "right")
    )
    main = _main_activities(idle)[gaps.interval]
    step = _steps_around(rank, gaps.start_ns)
    columns = step, gaps.start_ns, gaps.end_ns, main, gaps.before, gaps.after, first, last
    for row in zip(*(column.tolist() for column in columns), strict=True):
        step_index, start_ns, end_ns, activity, before, after, low, high = row
        described = activities[activity], works[before], works[after], pieces[low:high]
        yield steps[step_index], start_ns, end_ns, *described


def _main_activities(idle: IdleIntervals) -> Ints:
    """Return the activity that takes most of each gap.

    If several take as much, it is the one with the smallest number.
    """
    each = groups_of(idle.activity, idle.interval)
    spent_ns = group_sum(each.of_row, len(each), idle.end_ns - idle.start_ns)
    activity, gap = idle.activity[each.first], idle.interval[each.first]
    order = np.lexsort((-activity, spent_ns, gap))
    return scattered(int(gap.max(initial=NONE)) + 1, gap[order], activity[order])


def _steps_around(rank: RankIdle, time_ns: Ints) -> Ints:
    """Return the index of the step that covers each time, or -1 if none does."""
    bounds = [(step.start_ns, step.end_ns) for step in rank.steps if step.start_ns is not None]
    start_ns, end_ns = np.array(bounds, np.int64).reshape(-1, 2).T
    return covering(start_ns, end_ns, time_ns)


def csv_of_gaps(report: IdleReport) -> str:
    """Return the gaps as CSV: one row per attributed gap, and the sums of short gaps by step.

    A cell holds the idle time by activity as JSON.
    """

    def rows() -> Iterator[tuple[object, ...]]:
        for index, rank in enumerate(report.ranks):
            place = index, inert(rank.host), rank.pid, rank.device_id
            for step, start, end, *names, chunks in _list_gaps(rank, rank.gaps, inert):
                spent_ns: dict[str, int] = {}
                for name, begin, until in chunks:
                    spent_ns[name] = spent_ns.get(name, 0) + until - begin
                yield *place, step, start, end, end - start, *names, json.dumps(spent_ns)
            for own in rank.steps:
                if own.short_ns:
                    short = host_activities.SHORT
                    name = None if own.name is None else inert(own.name)
                    spent = json.dumps({short: own.short_ns})
                    yield *place, name, None, None, own.short_ns, short, None, None, spent

    return csv_text(COLUMNS, rows())
