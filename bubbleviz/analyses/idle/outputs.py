"""Outputs of idle time: JSON, gaps as CSV, and what ``bubbleviz idle`` prints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.analyses.idle import report as idle_report
from bubbleviz.analyses.idle.copies import CopyTotal, written_size
from bubbleviz.analyses.idle.report import (
    BUSY,
    DEFINITIONS,
    ActivityIdle,
    IdleReport,
    RankIdle,
    StepIdle,
)
from bubbleviz.conventions import host_activities, kinds
from bubbleviz.count.count import spread
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.model.columns import NONE, Ints, scattered
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.intervals import covering, group_sum
from bubbleviz.model.texts import csv_text, document_text, inert, one_line, percent
from bubbleviz.render import document as blocks
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
        what_to_do_first=idle_report.advice(report)[0],
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


# Text: devices, activities of their hosts, and steps.


#: Activities of hosts by which devices are compared.
_COMPARED = 5
#: Rows of devices, activities, steps, waits and kernels on one screen, with steps and without.
_FEW, _SOME = (3, 3, 3, 1, 2), (4, 4, 0, 1, 3)
#: Maximum number of kinds of copies on one screen.
_FEW_COPIES = 2
#: Columns of devices on one screen.
_FIRST = (*("device", "span ms", "duty %", "compute %", "idle %", "queued", "empty %"),)
#: Characters of names in tables and lists.
_NAME, _KERNEL, _PATH, _HEADER = 40, 44, 160, 24
#: Shares of the span by header.
_SHARES = {
    "duty %": "busy_ns",
    "compute %": "compute_ns",
    "exp. comm. %": "exposed_communication_ns",
    "exp. copy %": "exposed_copy_ns",
    "idle %": "idle_ns",
}
#: Characters of names in the table of waits.
_DEVICE, _WHO, _WORK = 24, 30, 36
#: Characters of a whole name; sentences of advice on one screen.
_LONGEST, _ADVICE = 600, 2
#: Waits that explain less than this share of the idle time are not on the first screen.
_PROVED = 0.1


def sections(
    report: IdleReport, top: int | None = None, *, everything: bool = True
) -> Iterator[blocks.Block]:
    """Yield what to print.

    Args:
        report: of some profiles.
        top: rows of a table, at most; None for as many as a screen holds.
        everything: whether to print all tables rather than what fits one screen.
    """
    few = _FEW if _named(report) else _SOME
    devices, activities, steps, waits, kernels = (top,) * 5 if top else few
    hint, by = "; -v", ""
    if everything:
        hint, by = "", f" ({', '.join(dict.fromkeys(rank.steps_by for rank in report.ranks))})"
    yield blocks.Sentence(idle_report.title_of(report), style="" if everything else "bold")
    table = device_table(report, devices, hint)
    if everything:
        yield blocks.Sentence(
            f"duty cycle: busy / span. busy: {DEFINITIONS['busy']}.\n"
            f"span: {DEFINITIONS['span']}.\n"
            "span = compute + exposed communication + exposed copies + idle.\n"
            f"queued: {DEFINITIONS['queued']}; empty: the share of the span with none."
        )
        yield table
        yield from _side_by_side(report, devices)
    else:
        first = [{name: row[name] for name in _FIRST} for row in table.rows]
        yield replace(table, title=table.title if len(report.ranks) > devices else "", rows=first)
    yield from _kernels(report, kernels, hint, everything=everything)
    exposed_ns = report.summed("exposed_copy_ns")
    if report.copies() and (everything or exposed_ns >= idle_report.SHARE * report.span_ns > 0):
        yield copy_table(report, kernels if everything else _FEW_COPIES, hint)
    if report.activities:
        table = activity_table(report, activities, hint)
        # The sum of all, below an empty row, is for those that want all of it.
        yield table if everything else replace(table, rows=table.rows[:-2])
    if everything or report.proved_idle_ns >= _PROVED * report.idle_ns > 0:
        yield from _waits(report, waits, hint)
    if everything:
        yield from _explained(report, activities)
    if everything or top:
        yield from _steps(report, f"Steps{by}, most idle ones", steps, hint)
    elif idlest := _idlest(report):
        yield blocks.Sentence(idlest)
    advice = "\n".join(idle_report.advice(report)[: None if everything else _ADVICE])
    yield blocks.Sentence(f"\n{advice}\n" if everything else f"\n{advice}")
    if not everything:
        yield blocks.Sentence(
            "More: -v (whole names, devices side by side); -o idle.html, -o idle.svg", style="dim"
        )


def _kernels(
    report: IdleReport, top: int, hint: str = "", *, everything: bool = True
) -> Iterator[blocks.Block]:
    """Yield what kernels ran longest, by class and by name; nothing without a device."""
    work = report.work()
    whole_ns = sum(ns for *_, ns in work)
    if not whole_ns or not report.span_ns:
        return
    classes: dict[str, int] = {}
    for _, of, _, ns in work:
        classes[of] = classes.get(of, 0) + ns
    largest = sorted(classes.items(), key=lambda pair: -pair[1])
    shares = [f"{of} {percent(ns / whole_ns)}" for of, ns in largest]
    table = kernel_table(report, top, hint, whole=everything)
    yield replace(table, title=f"{table.title}: {', '.join(shares[: None if everything else 2])}")


def kernel_table(
    report: IdleReport, top: int, hint: str = "", *, whole: bool = True
) -> blocks.Table:
    """Return a row for each of the ``top`` kernels that ran longest, with whole names if wanted."""
    work = report.work()
    whole_ns = sum(ns for *_, ns in work) or 1
    rows = [
        {
            "kernel": one_line(name, _LONGEST)
            if whole
            else blocks.short_name(kinds.plain_name(name), _KERNEL),
            "class": of,
            "ms": blocks.milliseconds(ns),
            "%": blocks.in_percent(ns / whole_ns),
            "calls": f"{count:,}",
            "mean us": f"{ns / count / 1e3:,.1f}",
        }
        for name, of, count, ns in work[:top]
    ]
    left, giving_way = ("kernel", "class"), ("calls", "mean us", "class")
    has_copies = any(of == idle_report.COPIES for _, of, _, _ in work)
    title = "Longest kernels and copies" if has_copies else "Longest kernels"
    table = _table(title, rows, len(work), top, hint, left, giving_way)
    return replace(table, wrap=("kernel",)) if whole else table


def copy_table(report: IdleReport, top: int, hint: str = "") -> blocks.Table:
    """Return a table of the ``top`` kinds of copies with the longest total, one row each."""
    totals = report.copies()
    sum_ns = sum(total.time_ns for total in totals) or 1
    rows = [
        {
            "direction": total.direction.label,
            "from": total.source.label,
            "to": total.target.label,
            "ms": blocks.milliseconds(total.time_ns),
            "%": blocks.in_percent(total.time_ns / sum_ns),
            "copies": f"{total.count:,}",
            "moved": "-" if total.size is None else written_size(total.size),
            "GB/s": "-" if total.bytes_per_ns is None else f"{total.bytes_per_ns:,.2f}",
        }
        for total in totals[:top]
    ]
    left, giving_way = ("direction", "from", "to"), ("%", "copies", "ms")
    title = "Copies by direction and memory"
    return _table(title, rows, len(totals), top, hint, left, giving_way)


def _explained(report: IdleReport, top: int) -> Iterator[blocks.Block]:
    """Yield what the main activities mean, and where the longest gap of each is."""
    short = (
        f"below {report.shortest_ns / 1000:g} us, too short to be attributed: the device goes "
        "from one kernel to the next"
    )
    meaning = {**report.meaning, host_activities.SHORT: short}
    shown = report.activities[:top]
    known = [total.activity for total in shown if total.activity in meaning]
    if known:
        yield blocks.Sentence("")
        yield blocks.bullets([f"{activity}: {meaning[activity]}" for activity in known])
    if examples := [_example(report, own, own.example) for own in shown if own.example]:
        yield blocks.heading("Longest gap by activity")
        yield blocks.bullets(examples)


def tables(report: IdleReport) -> dict[str, blocks.Table]:
    """Return the tables of devices, kernels, activities of hosts and waits by short names."""
    from bubbleviz.analyses.idle.picture import MOST

    kernels = kernel_table(report, MOST)
    # Names, which are long, stand behind numbers.
    columns = sorted(kernels.columns, key=lambda column: column in kernels.left)
    rows = [{name: row[name] for name in columns} for row in kernels.rows if row]
    return {
        "Devices": replace(device_table(report, MOST), title="Devices"),
        "Kernels": replace(kernels, rows=rows),
        **({"Copies": copy_table(report, MOST)} if report.copies() else {}),
        **({"Hosts": activity_table(report, MOST)} if report.activities else {}),
        "Waits": wait_table(report, MOST),
    }


def notebook(report: IdleReport) -> str:
    """Return shares of devices, activities of hosts, picture and advice as HTML."""
    from bubbleviz.analyses.idle.picture import draw_idle
    from bubbleviz.render.notebook import framed

    lines = (idle_report.title_of(report), *idle_report.advice(report))
    below = (blocks.Sentence(limitation.sentence) for limitation in report.limitations)
    above = blocks.html([*map(blocks.Sentence, lines), *tables(report).values()])
    return framed(above, draw_idle(report), blocks.html(below))


def _table(
    title: str,
    rows: list[dict[str, str]],
    count: int,
    top: int,
    hint: str,
    left: Sequence[str],
    giving_way: Sequence[str] = (),
) -> blocks.Table:
    """Return a table of the ``top`` rows of so many, with a hint where to find the others.

    On one screen the hint is part of the title, which saves a line.
    """
    if hint and count > top:
        return blocks.Table(
            f"{title} ({top} of {count:,}{hint})", rows, left, giving_way=giving_way
        )
    hint = f" (--top {count}, -o idle.json)"
    return blocks.Table(title, rows, left, giving_way=giving_way, omitted=count - top, hint=hint)


def device_table(report: IdleReport, top: int, hint: str = "") -> blocks.Table:
    """Return one row per device: its span, and the shares of it."""
    rows = []
    for rank in report.ranks[:top]:
        mean, _, empty_ns = rank.known_queue or (None, 0, None)
        empty = None if empty_ns is None else empty_ns / rank.span_ns
        shares = {
            header: blocks.in_percent(getattr(rank, name) / rank.span_ns if rank.measured else None)
            for header, name in _SHARES.items()
        }
        rows.append(
            {
                "device": blocks.short_name(rank.label),
                "span ms": blocks.milliseconds(rank.span_ns),
                **shares,
                "idle ms": blocks.milliseconds(rank.idle_ns if rank.measured else None),
                "comm. ms": blocks.milliseconds(rank.communication_ns),
                "overlap %": blocks.in_percent(rank.overlap),
                "queued": "-" if mean is None else f"{mean:,.1f}",
                "empty %": blocks.in_percent(empty),
            }
        )
    giving_way = ("overlap %", "comm. ms", "exp. copy %", "idle ms", "exp. comm. %", "compute %")
    title = "Devices" if report.devices else "Hosts"
    return _table(title, rows, len(report.ranks), top, hint, ("device",), giving_way)


def _side_by_side(report: IdleReport, top: int) -> Iterator[blocks.Block]:
    """Yield how far devices differ, and what the hosts of the idlest did; nothing of one alone."""
    ranks, names, shares = report.device_shares(_COMPARED)
    if len(ranks) < 2 or not report.activities:
        return
    shares, names = shares[:, len(BUSY) :], names[len(BUSY) :]
    idle = shares.sum(axis=1)
    # The sort is stable: devices that are equally idle keep their order.
    order = np.argsort(-idle, kind="stable").tolist()
    labels = [blocks.short_name(report.ranks[at].label) for at in ranks]
    headers = [blocks.short_name(name, _HEADER) for name in names]
    scores = ["-" if score is None else f"{score:.2f}" for score in report.scores()]
    rows = [
        {
            "device": labels[row],
            "score": scores[ranks[row]],
            "idle": blocks.in_percent(float(idle[row])),
        }
        | dict(zip(headers, map(blocks.in_percent, shares[row].tolist()), strict=True))
        for row in order[:top]
    ]
    title = "Devices side by side, the idlest first: speed of kernels, idle time in % of the span"
    yield _table(title, rows, len(order), top, "", ("device",))
    most, least = order[0], order[-1]
    yield blocks.Sentence(
        f"idle: {percent(float(idle[least]))} ({labels[least]}) to {percent(float(idle[most]))} "
        f"({labels[most]}), median {percent(float(np.median(idle)))} of {len(order)} devices"
    )


def activity_table(report: IdleReport, top: int, hint: str = "") -> blocks.Table:
    """Return a row for each of the ``top`` activities of hosts, and one for the sum of all."""
    rows = [
        {
            "activity": blocks.short_name(total.activity),
            "idle ms": blocks.milliseconds(total.idle_ns),
            "of idle %": blocks.in_percent(total.idle_ns / report.idle_ns),
            "of span %": blocks.in_percent(total.idle_ns / report.span_ns),
            "gaps": f"{total.gaps:,}",
            "longest ms": blocks.milliseconds(total.longest_ns),
        }
        for total in report.activities[:top]
    ]
    whole = {
        "activity": f"sum of {len(report.activities)}",
        "idle ms": blocks.milliseconds(report.idle_ns),
        "of idle %": "100.00",
        "of span %": blocks.in_percent(report.idle_ns / report.span_ns),
    }
    title = "What hosts did while devices were idle"
    every = [*rows, {}, whole]
    return _table(title, every, len(report.activities), top, hint, ("activity",))


def wait_table(report: IdleReport, top: int, hint: str = "") -> blocks.Table:
    """Return a row for each of the ``top`` waits of all devices."""
    waits = [(wait, rank) for rank in report.devices for wait in rank.waits]
    # The sort is stable: devices keep their order.
    waits.sort(key=lambda pair: pair[0].order())
    rows = [
        {
            "device": blocks.short_name(rank.label, _DEVICE),
            "waiting": blocks.short_name(wait.waiting, _WHO),
            "for": blocks.shortened(kinds.plain_name(one_line(wait.work, None)), _WORK),
            "on": wait.stream,
            "waits": f"{wait.waits:,}",
            "blocked ms": blocks.milliseconds(wait.blocked_ns),
            "no compute ms": blocks.milliseconds(wait.without_compute_ns),
            "idle ms": blocks.milliseconds(wait.idle_ns),
        }
        for wait, rank in waits[:top]
    ]
    left, giving_way = ("device", "waiting", "for", "on"), ("waits", "device", "blocked ms")
    title = "What they waited for, as far as it is proved"
    return _table(title, rows, len(waits), top, hint, left, giving_way)


def _waits(report: IdleReport, top: int, hint: str = "") -> Iterator[blocks.Block]:
    """Yield who waited for which work, and how much of the time that explains; nothing of none."""
    if not any(rank.waits for rank in report.devices):
        return
    yield wait_table(report, top, hint)
    parts = []
    if report.idle_ns:
        parts.append(f"{percent(report.proved_idle_ns / report.idle_ns)} of the idle time")
    for what, name in (("communication", "communication_ns"), ("copies", "copy_ns")):
        awaited_ns = report.summed(f"awaited_{name}")
        if awaited_ns:
            share = awaited_ns / report.summed(f"exposed_{name}")
            parts.append(f"{percent(share)} of exposed {what} held up launched work")
    yield blocks.Sentence(f"proved: {', '.join(parts)}")


def _example(report: IdleReport, total: ActivityIdle, gap: idle_report.Example) -> str:
    """Return where the longest gap of an activity is."""
    rank = report.ranks[total.rank]
    at = blocks.milliseconds(gap.start_ns - rank.start_ns)
    step = "" if gap.step is None else f", in {one_line(gap.step, _NAME)}"
    device = f" of {one_line(rank.label, _NAME)}" if len(report.ranks) > 1 else ""
    where = " > ".join(one_line(name, _NAME) for name in gap.where)
    host = f"; the host in {blocks.shortened(where, _PATH)}" if where else ""
    return (
        f"{one_line(total.activity, _NAME)}: {blocks.milliseconds(total.longest_ns)} ms of the "
        f"{blocks.milliseconds(gap.end_ns - gap.start_ns)} ms from {at} ms into the span"
        f"{device}{step}; between {blocks.short_name(gap.before, _KERNEL)} and "
        f"{blocks.short_name(gap.after, _KERNEL)}{host}"
    )


def _idlest(report: IdleReport) -> str:
    """Return the step that was idle longest, in a sentence; "" where none has a name."""
    steps = [step for rank in report.devices for step in rank.steps if step.name is not None]
    if not steps:
        return ""
    step = max(steps, key=lambda own: own.idle_ns)
    return (
        f"the idlest of {len(steps):,} steps: {one_line(step.name or '', _NAME)}, "
        f"{blocks.milliseconds(step.idle_ns)} of {blocks.milliseconds(step.length_ns)} ms"
    )


def _named(report: IdleReport) -> bool:
    return any(step.name is not None for rank in report.devices for step in rank.steps)


def _steps(report: IdleReport, title: str, top: int, hint: str = "") -> Iterator[blocks.Block]:
    """Yield the steps with most idle time, in their own order; nothing where none has a name."""
    if not _named(report):
        return
    steps = [(rank, step) for rank in report.devices for step in rank.steps]
    most_idle = sorted(range(len(steps)), key=lambda at: (-steps[at][1].idle_ns, at))[:top]
    rows = [
        {
            "device": blocks.short_name(rank.label),
            "step": blocks.short_name("(outside of steps)" if step.name is None else step.name),
            "length ms": blocks.milliseconds(step.length_ns),
            "duty %": blocks.in_percent(step.duty_cycle),
            "idle ms": blocks.milliseconds(step.idle_ns),
            "most of it": blocks.short_name(step.activities[0][0]) if step.activities else "",
            "ms": blocks.milliseconds(step.activities[0][1] if step.activities else None),
        }
        for rank, step in (steps[at] for at in sorted(most_idle))
    ]
    yield _table(title, rows, len(steps), top, hint, ("device", "step", "most of it"))
