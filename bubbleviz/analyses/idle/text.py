"""Text: what ``bubbleviz idle`` prints: devices, activities of their hosts, and steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from bubbleviz.analyses.idle.report import (
    BUSY,
    DEFINITIONS,
    ActivityIdle,
    IdleReport,
    RankIdle,
    StepIdle,
    advice,
    title_of,
)
from bubbleviz.conventions.host_activities import SHORT
from bubbleviz.conventions.kinds import plain_name
from bubbleviz.model.texts import one_line
from bubbleviz.render.text.tables import (
    BulletList,
    Table,
    in_percent,
    milliseconds,
    omitted,
    percent,
    shortened,
    titled,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


# Text of waits: what streams and hosts are proved to have waited for.


#: Characters of names.
_WHO, _WORK, _DEVICE = 30, 36, 24


def proved_waits(report: IdleReport, top: int, hint: str) -> Iterator[RenderableType]:
    """Yield who waited for which work, and how much of the time that explains; nothing of none.

    Args:
        report: of some profiles.
        top: rows of the table, at most.
        hint: where to find the others.
    """
    count = sum(len(rank.waits) for rank in report.devices)
    if not count:
        return
    yield from titled("What they waited for, as far as it is proved", wait_table(report, top))
    yield from omitted(count, top, hint)
    yield Text(f"proved: {', '.join(_shares(report))}")


def wait_table(report: IdleReport, top: int) -> Table:
    """Return a row for each of the ``top`` waits of all devices."""
    left = ("device", "waiting", "for", "on")
    table = Table(
        *("device", "waiting", "for", "on", "waits", "blocked ms", "no compute ms", "idle ms"),
        left=left,
        giving_way=("waits", "device", "blocked ms"),
    )
    waits = [(wait, rank) for rank in report.devices for wait in rank.waits]
    # The sort is stable: devices keep their order.
    for wait, rank in sorted(waits, key=lambda pair: pair[0].order())[:top]:
        work = plain_name(one_line(wait.work, None))
        table.add_row(
            shortened(one_line(rank.label, None), _DEVICE),
            shortened(one_line(wait.waiting, None), _WHO),
            shortened(work, _WORK),
            wait.stream,
            f"{wait.waits:,}",
            milliseconds(wait.blocked_ns),
            milliseconds(wait.without_compute_ns),
            milliseconds(wait.idle_ns),
        )
    return table


def _shares(report: IdleReport) -> Iterator[str]:
    """Yield which shares of the time the waits explain."""
    if report.idle_ns:
        yield f"{percent(report.proved_idle_ns / report.idle_ns)} of the idle time"
    devices = [rank for rank in report.devices if not rank.single]
    for what, awaited_ns, exposed_ns in (
        (
            "communication",
            sum(rank.awaited_communication_ns for rank in devices),
            sum(rank.breakdown.exposed_communication_ns for rank in devices),
        ),
        (
            "copies",
            sum(rank.awaited_copy_ns for rank in devices),
            sum(rank.breakdown.exposed_copy_ns for rank in devices),
        ),
    ):
        if awaited_ns:
            yield f"{percent(awaited_ns / exposed_ns)} of exposed {what} held up launched work"


#: Activities of hosts by which devices are compared.
_COMPARED = 5
#: Rows of devices, activities and steps on one screen, with steps and without.
_FEW, _SOME = (3, 5, 3), (5, 8, 0)
#: Rows of waits on one screen.
_FEW_WAITS = 3
#: Characters of names in tables and lists.
_NAME, _KERNEL, _PATH, _HEADER = 40, 44, 160, 24


def sections(report: IdleReport, top: int) -> Iterator[RenderableType]:
    """Yield what to print.

    Args:
        report: of some profiles.
        top: rows of a table, at most.
    """
    yield Text(_headline(report))
    yield from titled("Devices" if report.devices else "Hosts", device_table(report.ranks[:top]))
    yield from _omitted(len(report.ranks), top)
    yield from _side_by_side(report, top)
    if report.activities:
        yield from _activity_sections(report, top)
    steps = [(rank, step) for rank in report.devices for step in rank.steps]
    if any(step.name is not None for _, step in steps):
        by = ", ".join(dict.fromkeys(rank.steps_by for rank in report.ranks))
        yield from titled(f"Steps ({by}), most idle ones", _steps(_most_idle(steps, top)))
        yield from _omitted(len(steps), top)
    yield Text("\n" + "\n".join(advice(report)) + "\n")


def first_screen(report: IdleReport, top: int | None = None) -> Iterator[RenderableType]:
    """Yield what fits one screen.

    Args:
        report: of some profiles.
        top: rows of a table, at most; None for as many as a screen holds.
    """
    steps = [(rank, step) for rank in report.devices for step in rank.steps]
    named = any(step.name is not None for _, step in steps)
    devices, activities, most_steps = (top,) * 3 if top else _FEW if named else _SOME
    yield Text(f"{title_of(report)}\nduty cycle: {DEFINITIONS['busy']}, over the span")
    kind = "Devices" if report.devices else "Hosts"
    yield from titled(kind, device_table(report.ranks[:devices]))
    yield from omitted(len(report.ranks), devices, " (-v)")
    if report.activities:
        title = "What hosts did while devices were idle"
        yield from titled(title, activity_table(report, activities))
        yield from omitted(len(report.activities), activities, " (-v)")
    yield from proved_waits(report, top or _FEW_WAITS, " (-v)")
    if named:
        yield from titled("Steps, most idle ones", _steps(_most_idle(steps, most_steps)))
        yield from omitted(len(steps), most_steps, " (-v)")
    yield Text("\n" + "\n".join(advice(report)))
    yield Text(
        "\nMore: -v (devices side by side, what activities mean, longest gaps); "
        "-o gaps.svg draws it",
        style="dim",
    )


def _headline(report: IdleReport) -> str:
    return f"{title_of(report)}\n" + (
        f"duty cycle: busy / span. busy: {DEFINITIONS['busy']}.\nspan: {DEFINITIONS['span']}.\n"
        "span = compute + exposed communication + exposed copies + idle."
    )


def _omitted(count: int, top: int) -> Iterator[RenderableType]:
    return omitted(count, top, f" (--top {count}, --json)")


def device_table(ranks: Sequence[RankIdle]) -> Table:
    """Return a row a device: its span, and the shares of it."""
    table = Table(
        "device",
        "span ms",
        "duty %",
        "compute %",
        "exp. comm. %",
        "exp. copy %",
        "idle %",
        "idle ms",
        "comm. ms",
        "overlap %",
        left=("device",),
        giving_way=("overlap %", "comm. ms", "exp. copy %", "idle ms", "exp. comm. %", "compute %"),
    )
    for rank in ranks:
        time = rank.breakdown
        parts_ns = (time.compute_ns, time.exposed_communication_ns, time.exposed_copy_ns)
        table.add_row(
            _short_name(rank.label),
            milliseconds(time.span_ns),
            in_percent(rank.duty_cycle),
            *(
                in_percent(None if rank.duty_cycle is None else part_ns / time.span_ns)
                for part_ns in (*parts_ns, time.idle_ns)
            ),
            milliseconds(None if rank.on_host or rank.single else time.idle_ns),
            milliseconds(time.communication_ns),
            in_percent(time.overlap),
        )
    return table


def _side_by_side(report: IdleReport, top: int) -> Iterator[RenderableType]:
    """Yield how far devices differ, and what the hosts of the idlest did; nothing of one alone."""
    ranks, names, shares = report.device_shares(_COMPARED)
    if len(ranks) < 2 or not report.activities:
        return
    shares, names = shares[:, len(BUSY) :], names[len(BUSY) :]
    idle = shares.sum(axis=1)
    # The sort is stable: devices that are equally idle keep their order.
    order = np.argsort(-idle, kind="stable")
    most, least = order[0], order[-1]
    labels = [_short_name(report.ranks[at].label) for at in ranks]
    headers = (_short_name(name, _HEADER) for name in names)
    table = Table("device", "idle", *headers, left=("device",))
    for row in order[:top].tolist():
        cells = (in_percent(share) for share in shares[row].tolist())
        table.add_row(labels[row], in_percent(float(idle[row])), *cells)
    yield from titled("Devices side by side, the idlest first: idle time in % of the span", table)
    yield from _omitted(len(order), top)
    yield Text(
        f"idle: {percent(float(idle[least]))} ({labels[least]}) to "
        f"{percent(float(idle[most]))} ({labels[most]}), median "
        f"{percent(float(np.median(idle)))} of {len(order)} devices"
    )


def _waits(report: IdleReport) -> int:
    return sum(len(rank.waits) for rank in report.devices)


def _short_name(name: str, width: int = _NAME) -> str:
    return shortened(one_line(name, None), width)


def _activity_sections(report: IdleReport, top: int) -> Iterator[RenderableType]:
    """Yield idle time by activity, what activities mean, and the longest gap of each."""
    yield from titled("What hosts did while devices were idle", activity_table(report, top))
    yield from _omitted(len(report.activities), top)
    yield from proved_waits(report, top, f" (--top {_waits(report)}, --json)")
    shown = report.activities[:top]
    if meanings := [text for total in shown if (text := _meaning(report, total))]:
        yield Text("")
        yield BulletList(meanings)
    if examples := [_example(report, total) for total in shown if total.example]:
        yield Text("\nLongest gap by activity", style="bold")
        yield BulletList(examples)


def activity_table(report: IdleReport, top: int) -> Table:
    """Return a row for each of the ``top`` activities of hosts, and one for the sum of all."""
    table = Table(
        "activity", "idle ms", "of idle %", "of span %", "gaps", "longest ms", left=("activity",)
    )
    for total in report.activities[:top]:
        table.add_row(
            _short_name(total.activity),
            milliseconds(total.idle_ns),
            in_percent(total.idle_ns / report.idle_ns),
            in_percent(total.idle_ns / report.span_ns),
            f"{total.gaps:,}",
            milliseconds(total.longest_ns),
        )
    table.add_section()
    table.add_row(
        f"sum of {len(report.activities)}",
        milliseconds(report.idle_ns),
        "100.00",
        in_percent(report.idle_ns / report.span_ns),
        "",
        "",
    )
    return table


def _meaning(report: IdleReport, total: ActivityIdle) -> str:
    if total.activity == SHORT:
        return (
            f"{SHORT}: below {report.shortest_ns / 1000:g} us, too short to be attributed: the "
            "device goes from one kernel to the next"
        )
    meaning = report.meaning.get(total.activity)
    return f"{total.activity}: {meaning}" if meaning else ""


def _example(report: IdleReport, total: ActivityIdle) -> str:
    """Return where the longest gap of an activity is."""
    gap = total.example
    if gap is None:
        return ""
    rank = report.ranks[total.rank]
    at = milliseconds(gap.start_ns - rank.breakdown.start_ns)
    step = "" if gap.step is None else f", in {one_line(gap.step, _NAME)}"
    device = f" of {one_line(rank.label, _NAME)}" if len(report.ranks) > 1 else ""
    where = " > ".join(one_line(name, _NAME) for name in gap.where)
    host = f"; the host in {shortened(where, _PATH)}" if where else ""
    before, after = (_short_name(name, _KERNEL) for name in (gap.before, gap.after))
    return (
        f"{one_line(total.activity, _NAME)}: {milliseconds(total.longest_ns)} ms of the "
        f"{milliseconds(gap.end_ns - gap.start_ns)} ms from {at} ms into the span{device}{step}; "
        f"between {before} and {after}{host}"
    )


def _most_idle(
    steps: Sequence[tuple[RankIdle, StepIdle]], top: int
) -> list[tuple[RankIdle, StepIdle]]:
    """Return the steps with most idle time, in their own order."""
    order = sorted(range(len(steps)), key=lambda at: (-steps[at][1].idle_ns, at))[:top]
    return [steps[at] for at in sorted(order)]


def _steps(steps: Sequence[tuple[RankIdle, StepIdle]]) -> Table:
    left = ("device", "step", "most of it")
    table = Table("device", "step", "length ms", "duty %", "idle ms", "most of it", left=left)
    for rank, step in steps:
        most = (f"{_short_name(name)} {milliseconds(ns)}" for name, ns in step.activities[:2])
        table.add_row(
            _short_name(rank.label),
            _short_name("(outside of steps)" if step.name is None else step.name),
            milliseconds(step.length_ns),
            in_percent(step.duty_cycle),
            milliseconds(step.idle_ns),
            ", ".join(most),
        )
    return table
