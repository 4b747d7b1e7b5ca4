"""The text report on idle time: devices, host activities, and steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bubbleviz.analyses.idle.advice import (
    advice,
    describe_device_recording,
    describe_division,
    get_proved_held_back_ns,
    make_title,
)
from bubbleviz.analyses.idle.copies import CopyTotal, format_size
from bubbleviz.analyses.idle.picture import draw_idle
from bubbleviz.analyses.idle.profiled_steps import describe_cost
from bubbleviz.analyses.idle.report import (
    BUSY,
    COPIES,
    DEFINITIONS,
    MAX_SHOWN_DEVICES,
    MIN_IDLE_SHARE,
    ActivityIdle,
    IdleMeasurement,
    RankIdle,
    StepIdle,
)
from bubbleviz.conventions import host_activities, kinds
from bubbleviz.model.texts import format_count, format_percent, to_one_line
from bubbleviz.render import document as blocks
from bubbleviz.render.html import render_html
from bubbleviz.render.idle_causes import ACTIVITY_TITLE, list_activity_rows
from bubbleviz.render.notebook import wrap_picture
from bubbleviz.render.text.late_ranks import list_late_ranks, list_late_sentence
from bubbleviz.render.text.terminal import Display, render_lines
from bubbleviz.report.bubble_parts import divide_whole
from bubbleviz.report.idle_summary import GapExample, StepParts


class _Rows(NamedTuple):
    """Maximum number of rows in the tables of a screen."""

    devices: int
    activities: int
    waits: int
    kernels: int


#: Maximum number of host activities in the device comparison.
_MAX_COMPARED = 5
#: Number of rows on a screen of 24 lines, if the profiles contain named steps and otherwise.
_FEW_ROWS_WITH_STEPS = _Rows(devices=3, activities=3, waits=1, kernels=2)
_FEW_ROWS = _Rows(devices=4, activities=4, waits=1, kernels=3)
#: Number of rows on a screen or in a file with enough space.
_MANY_ROWS = _Rows(devices=8, activities=6, waits=3, kernels=10)
#: Maximum number of rows on a very large screen.
_MAX_ROWS = _Rows(devices=16, activities=12, waits=6, kernels=25)
#: Tables that get the free lines of a screen, most important first.
_FILLED_FIRST = ("kernels", "activities", "devices", "waits")
#: Maximum number of rows for copies on one screen.
_MAX_COPY_ROWS = 2
#: The first screen lists copies if they are exposed for at least this fraction of the span.
_MIN_EXPOSED_COPIES = 0.01
#: Columns of the device table on the first screen.
_FIRST_SCREEN_COLUMNS = (
    "device",
    "span ms",
    "compute %",
    "exp. comm. %",
    "exp. copy %",
    "idle %",
)
#: Columns of the copy table on the first screen, which fit on a terminal with 80 columns.
_FIRST_SCREEN_COPY_COLUMNS = ("direction", "from", "to", "ms", "exposed ms", "moved", "GB/s")
#: Maximum number of characters in names, activities, kernel names, paths and headers.
_NAME, _ACTIVITY, _KERNEL, _PATH, _HEADER = 40, 60, 56, 160, 24
#: Minimum width of kernel names. Narrower terminals drop other columns first.
_MIN_KERNEL = 28
#: Parts of a device's span: for each column header, the field of :class:`.report.RankIdle`.
_PARTS = {
    "compute %": "compute_ns",
    "exp. comm. %": "exposed_communication_ns",
    "exp. copy %": "exposed_copy_ns",
    "idle %": "idle_ns",
}
#: Parts of a step: for each column header, the field of :class:`.StepParts`.
_STEP_PARTS = {
    "preparing": "preparing_ns",
    "compute": "compute_ns",
    "exp. comm.": "exposed_communication_ns",
    "exp. copies": "exposed_copy_ns",
    "idle": "idle_ns",
}
#: Minimum share of the steps' time that preparing must take to appear on the first screen.
_MIN_PREPARING = 0.05
#: Maximum number of characters in the wait table's columns: device, waiting stream and work.
_DEVICE, _WHO, _WORK = 24, 30, 36
#: Maximum number of characters in a full name.
_MAX_FULL_NAME = 600
#: Maximum number of sentences of advice on the first screen.
_MAX_ADVICE = 2
#: Minimum fraction of the idle time that waits must explain to appear on the first screen.
_MIN_PROVED = 0.1
#: Minimum share of a device's span that named steps cover, for times per step to be shown.
_MIN_COVERED = 0.9


#: Definitions of the columns in the device table, one per line.
TERMS = (
    f"busy: {DEFINITIONS['busy']}. duty cycle: busy / span.",
    f"span: {DEFINITIONS['span']}.",
    "exposed: while no compute kernel runs. exposed copies: while no kernel runs.",
    f"queued: {DEFINITIONS['queued']}.",
    "empty: share of the span in which nothing is queued.",
)


def sections(measurement: IdleMeasurement, top: int) -> Iterator[blocks.Block]:
    """Yield all blocks of the text report on idle time.

    Args:
        measurement: The measured idle time.
        top: Maximum number of rows per table.
    """
    steps_by = ", ".join(dict.fromkeys(rank.steps_by for rank in measurement.ranks))
    yield from list_late_sentence(measurement.late_sentence)
    yield blocks.Sentence(make_title(measurement))
    if measurement.span_ns:
        yield blocks.Sentence(describe_division(measurement))
    if cost := describe_cost(measurement):
        yield blocks.Sentence(f"! {cost}")
    if measurement.devices:
        yield blocks.Sentence("\n".join(TERMS))
        yield make_device_table(measurement, top)
        yield from _compare_devices(measurement, top)
    yield from _list_kernels(measurement, top)
    yield from _list_copies(measurement, top)
    if measurement.activities:
        yield make_activity_table(measurement, top)
    yield from _list_waits(measurement, top)
    yield from _list_held_back(measurement, top)
    yield from list_late_ranks(measurement.lateness, measurement.gpu_names.__getitem__)
    yield from _explain_activities(measurement, top)
    yield from _list_steps(measurement, f"Most idle steps ({steps_by})", top)
    yield from _list_step_parts(measurement, top)
    yield blocks.Sentence("\n" + "\n".join(advice(measurement)) + "\n")


def list_all(measurement: IdleMeasurement, top: int) -> Iterator[blocks.Block]:
    """Yield the text report on idle time, followed by its limitations, for a file."""
    yield from sections(measurement, top)
    yield from _list_limitations(measurement)


def list_summary(measurement: IdleMeasurement) -> Iterator[blocks.Block]:
    """Yield a summary for a pull request or a wiki: the division of time, tables and advice."""
    yield from list_late_sentence(measurement.late_sentence)
    yield blocks.Sentence(make_title(measurement), style="bold")
    if measurement.span_ns:
        yield blocks.Sentence(describe_division(measurement))
    if cost := describe_cost(measurement):
        yield blocks.Sentence(f"! {cost}")
    if measurement.devices:
        yield make_device_table(measurement, _MANY_ROWS.devices)
        yield blocks.make_bullets(TERMS)
    tables = [make_kernel_table(measurement, _MANY_ROWS.kernels)]
    tables += _list_copies(measurement, _MANY_ROWS.devices)
    if measurement.activities:
        tables.append(make_activity_table(measurement, _MANY_ROWS.activities))
    for table in tables:
        yield replace(table, rows=[row for row in table.rows if row])
    yield blocks.make_bullets(advice(measurement))
    yield from _list_limitations(measurement)


def _list_limitations(measurement: IdleMeasurement) -> Iterator[blocks.Block]:
    if measurement.limitations:
        yield blocks.make_heading("Limitations")
        yield blocks.make_bullets(note.sentence for note in measurement.limitations)


def first_screen(
    measurement: IdleMeasurement, top: int | None = None, display: Display | None = None
) -> Iterator[blocks.Block]:
    """Yield the blocks of the text report that fit on one screen.

    Args:
        measurement: The measured idle time.
        top: Maximum number of rows per table, or None for as many rows as fit on the screen.
        display: The terminal, or None for a file. A file or a display of unknown height shows up
            to ten kernels.
    """
    if not measurement.devices:
        yield blocks.Sentence(
            f"{make_title(measurement)}, so idle time is unknown: "
            f"{describe_device_recording(measurement)}"
        )
        return
    if top is not None:
        rows = _Rows(top, top, top, top)
    elif display is None or not display.has_height:
        rows = _MANY_ROWS
    else:
        rows = _choose_rows(measurement, display)
    # On a terminal, the width of the table limits the names.
    max_name = _KERNEL if display is None else _MAX_FULL_NAME
    yield from _list_first_blocks(measurement, rows, max_name, has_all_steps=top is not None)


def _choose_rows(measurement: IdleMeasurement, display: Display) -> _Rows:
    """Return the number of rows that fit on a terminal.

    A terminal with 24 lines gets a few rows per table. Further lines are given to kernels first, as
    described by ``_FILLED_FIRST``.
    """
    rows = _FEW_ROWS_WITH_STEPS if _has_named_steps(measurement) else _FEW_ROWS
    few_blocks = _list_first_blocks(measurement, rows, _MAX_FULL_NAME, has_all_steps=False)
    # The prompt below the screen takes one line.
    n_free = display.height - 1 - sum(1 for _ in render_lines(few_blocks, display))
    available = _Rows(
        devices=len(measurement.devices),
        activities=len(measurement.activities),
        waits=sum(len(rank.waits) for rank in measurement.devices),
        kernels=len(measurement.work()),
    )
    for limit in (_MANY_ROWS, _MAX_ROWS):
        for name in _FILLED_FIRST:
            shown = getattr(rows, name)
            wanted = min(getattr(limit, name), getattr(available, name))
            n_more = max(min(wanted - shown, n_free), 0)
            n_free -= n_more
            rows = rows._replace(**{name: shown + n_more})
    return rows


def _list_first_blocks(
    measurement: IdleMeasurement, rows: _Rows, max_name: int, *, has_all_steps: bool
) -> Iterator[blocks.Block]:
    """Yield the blocks of the first screen.

    Args:
        measurement: The measured idle time of at least one device.
        rows: Maximum number of rows per table.
        max_name: Maximum number of characters in a kernel name.
        has_all_steps: Whether to list steps in a table instead of naming the most idle step.
    """
    hint = "; -v"
    yield from list_late_sentence(measurement.late_sentence)
    yield blocks.Sentence(make_title(measurement), style="bold")
    if measurement.span_ns:
        yield blocks.Sentence(describe_division(measurement))
    if cost := describe_cost(measurement):
        yield blocks.Sentence(f"! {cost}")
    if len(measurement.devices) == 1:
        # A table would repeat the division.
        (device,) = measurement.devices
        yield blocks.Sentence(f"{device.label}, {blocks.format_ms(device.span_ns)} ms")
    else:
        table = make_device_table(measurement, rows.devices, hint)
        yield replace(table, rows=_select_columns(table, _FIRST_SCREEN_COLUMNS))
    yield from _list_kernels(measurement, rows.kernels, hint, max_name)
    exposed_ns = sum(total.exposed_ns for total in measurement.copies())
    if exposed_ns >= _MIN_EXPOSED_COPIES * measurement.span_ns > 0:
        copy_table = make_copy_table(measurement, _MAX_COPY_ROWS, hint)
        yield replace(copy_table, rows=_select_columns(copy_table, _FIRST_SCREEN_COPY_COLUMNS))
    if measurement.activities:
        table = make_activity_table(measurement, rows.activities, hint)
        # The first screen leaves out the last two rows: an empty row and the sum.
        yield replace(table, rows=table.rows[:-2])
    if measurement.proved_idle_ns >= _MIN_PROVED * measurement.idle_ns > 0:
        yield from _list_waits(measurement, rows.waits, hint)
    if get_proved_held_back_ns(measurement) >= MIN_IDLE_SHARE * measurement.span_ns > 0:
        yield from _list_held_back(measurement, rows.waits, hint)
    else:
        yield from _note_possible_delays(measurement)
    if has_all_steps:
        yield from _list_steps(measurement, "Most idle steps", rows.kernels, hint)
    else:
        yield from _describe_steps(measurement)
    yield blocks.Sentence("\n" + "\n".join(advice(measurement)[:_MAX_ADVICE]))
    yield blocks.Sentence(
        "More: -v (all tables, full kernel names); -o idle.html, -o idle.svg", style="dim"
    )


def _select_columns(table: blocks.Table, names: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table with only the named columns."""
    return [{name: row[name] for name in names} for row in table.rows]


def _list_kernels(
    measurement: IdleMeasurement, top: int, hint: str = "", max_name: int = _KERNEL
) -> Iterator[blocks.Block]:
    """Yield a table of the longest kernels. Its title shows each kernel class's share of the time.

    Without a hint, a list of full names follows, which are never shortened and refer to numbered
    rows. Nothing is yielded if no device was measured.

    Args:
        measurement: The measured idle time.
        top: Maximum number of rows.
        hint: Hint for the title, or "" if the table is not on the first screen.
        max_name: Maximum number of characters in a kernel name.
    """
    work = measurement.work()
    total_ns = sum(total.time_ns for total in work)
    if not total_ns or not measurement.span_ns:
        return
    class_ns = Counter[str]()
    for total in work:
        class_ns[total.work_class] += total.time_ns
    shares = [f"{name} {format_percent(ns / total_ns)}" for name, ns in class_ns.most_common()]
    table = make_kernel_table(measurement, top, hint, max_name=max_name)
    title = f"{table.title}: {', '.join(shares[: 2 if hint else None])}"
    names = [] if hint else [to_one_line(total.name, None) for total in work[:top]]
    full_names = [
        (f"{number:>4}  ", name)
        for number, (row, name) in enumerate(zip(table.rows, names, strict=False), 1)
        if name != row["kernel"] or len(name) > _MIN_KERNEL
    ]
    if not full_names:
        yield replace(table, title=title)
        return
    # Numbers identify the rows, because a narrow terminal shortens the names in the table further.
    rows = [{"#": str(number), **row} for number, row in enumerate(table.rows, 1)]
    yield replace(table, title=title, rows=rows)
    yield blocks.make_heading("Full kernel names, by number in the table")
    yield blocks.HangingLines(full_names)


def make_kernel_table(
    measurement: IdleMeasurement,
    top: int,
    hint: str = "",
    *,
    full_names: bool = False,
    max_name: int = _KERNEL,
) -> blocks.Table:
    """Make a table of the ``top`` kernels and copies that have the longest total time.

    Args:
        measurement: The measured idle time.
        top: Maximum number of rows.
        hint: Hint for the title, or "" if the table is not on the first screen.
        full_names: Whether to add a column of full names. The first column contains shortened
            names, which differ for different kernels.
        max_name: Maximum number of characters in a shortened name.
    """
    work = measurement.work()
    total_ns = sum(total.time_ns for total in work) or 1
    short_names = kinds.list_short_names([total.name for total in work[:top]])
    names = blocks.truncate_all([to_one_line(name, None) for name in short_names], max_name)
    rows = [
        {
            "kernel": name,
            "class": total.work_class,
            "ms": blocks.format_ms(total.time_ns),
            "%": blocks.format_percent_cell(total.time_ns / total_ns),
            "calls": f"{total.count:,}",
            "mean us": f"{total.time_ns / total.count / 1e3:,.1f}",
            **({"full name": to_one_line(total.name, _MAX_FULL_NAME)} if full_names else {}),
        }
        for name, total in zip(names, work, strict=False)
    ]
    # The mean is dropped first, because it follows from the time and the number of calls.
    left, drop_order = ("kernel", "class", "full name"), ("mean us", "calls", "class")
    has_copies = any(total.work_class == COPIES for total in work)
    title = "Longest kernels and copies" if has_copies else "Longest kernels"
    table = _make_table(title, rows, len(work), top, hint, left, drop_order)
    return replace(table, min_widths={"kernel": _MIN_KERNEL})


def _list_copies(measurement: IdleMeasurement, top: int) -> Iterator[blocks.Table]:
    """Yield the table of copies, and the copies of each device if several devices made copies.

    No table is yielded if the profiles record no details of copies.
    """
    if measurement.copies():
        yield make_copy_table(measurement, top)
    if sum(bool(rank.copies) for rank in measurement.devices) > 1:
        yield _make_device_copy_table(measurement, top)


def make_copy_table(measurement: IdleMeasurement, top: int, hint: str = "") -> blocks.Table:
    """Make a table of the ``top`` longest copy totals, by direction and memory."""
    totals = measurement.copies()
    sum_ns = sum(total.time_ns for total in totals) or 1
    rows = [
        {
            **_describe_ends(total),
            "ms": blocks.format_ms(total.time_ns),
            "exposed ms": blocks.format_ms(total.exposed_ns),
            "%": blocks.format_percent_cell(total.time_ns / sum_ns),
            "copies": f"{total.count:,}",
            **_describe_throughput(total),
        }
        for total in totals[:top]
    ]
    left, drop_order = ("direction", "from", "to"), ("%", "copies", "ms")
    title = "Copies by direction and memory"
    return _make_table(title, rows, len(totals), top, hint, left, drop_order)


def _make_device_copy_table(measurement: IdleMeasurement, top: int) -> blocks.Table:
    """Make a table of the ``top`` longest copy totals of single devices, most exposed first."""
    totals = [(rank.label, total) for rank in measurement.devices for total in rank.copies]
    # The sort is stable, so the order of the devices is preserved.
    totals.sort(key=lambda pair: (-pair[1].exposed_ns, -pair[1].time_ns))
    rows = [
        {
            "device": blocks.truncate_name(label),
            **_describe_ends(total),
            "ms": blocks.format_ms(total.time_ns),
            "exposed ms": blocks.format_ms(total.exposed_ns),
            **_describe_throughput(total),
        }
        for label, total in totals[:top]
    ]
    left, drop_order = ("device", "direction", "from", "to"), ("ms", "moved")
    title = "Copies by device, most exposed first"
    return _make_table(title, rows, len(totals), top, "", left, drop_order)


def _describe_ends(total: CopyTotal) -> dict[str, str]:
    """Return the cells for the direction and the memory kinds of copies."""
    return {
        "direction": total.direction.label,
        "from": total.source.label,
        "to": total.target.label,
    }


def _describe_throughput(total: CopyTotal) -> dict[str, str]:
    """Return the cells for the size and the transfer rate of copies."""
    rate = total.bytes_per_ns
    return {
        "moved": "-" if total.size is None else format_size(total.size),
        "GB/s": "-" if rate is None else f"{rate:,.2f}",
    }


def _explain_activities(measurement: IdleMeasurement, top: int) -> Iterator[blocks.Block]:
    """Yield two lists about the longest activities: what each means, and its longest gap.

    Activities whose meaning is unknown are left out of the first list. Activities that have no
    example gap are left out of the second list.

    Args:
        measurement: The measured idle time, whose activities are sorted longest first.
        top: Maximum number of activities.
    """
    short = (
        f"shorter than {measurement.shortest_ns / 1000:g} us, too short to attribute: the device "
        "goes from one kernel to the next"
    )
    meaning = {**measurement.meaning, host_activities.SHORT: short}
    totals = measurement.activities[:top]
    # All functions of Python have the same meaning, which is listed once.
    explained = {
        host_activities.get_listed_name(total.activity): meaning[total.activity]
        for total in totals
        if total.activity in meaning
    }
    if explained:
        yield blocks.Sentence("")
        yield blocks.make_bullets([f"{activity}: {text}" for activity, text in explained.items()])
    examples = [
        _describe_example(measurement, total, total.example) for total in totals if total.example
    ]
    if examples:
        yield blocks.make_heading("Longest gap by activity")
        yield blocks.make_bullets(examples)


def list_tables(measurement: IdleMeasurement) -> dict[str, blocks.Table]:
    """Return the tables of devices, kernels, copies, activities, waits and late ranks, by title.

    The tables of copies, host activities, held-back communication and late ranks are left out if
    they have no rows. Copies by device are left out if only one device made copies. The number of
    rows per table is limited to ``MAX_SHOWN_DEVICES``.
    """
    kernels = make_kernel_table(measurement, MAX_SHOWN_DEVICES, full_names=True)
    # Long names go to the right of the numbers.
    columns = sorted(kernels.columns, key=lambda column: column in kernels.left)
    rows = [{name: row[name] for name in columns} for row in kernels.rows if row]
    tables = {
        "Devices": replace(make_device_table(measurement, MAX_SHOWN_DEVICES), title="Devices"),
        "Kernels": replace(kernels, rows=rows),
    }
    copy_tables = _list_copies(measurement, MAX_SHOWN_DEVICES)
    tables |= zip(("Copies", "Copies by device"), copy_tables, strict=False)
    if measurement.activities:
        tables["Hosts"] = make_activity_table(measurement, MAX_SHOWN_DEVICES)
    tables["Waits"] = make_wait_table(measurement, MAX_SHOWN_DEVICES)
    if any(rank.held_back for rank in measurement.devices):
        tables["Held back"] = make_held_back_table(measurement, MAX_SHOWN_DEVICES)
    for table in list_late_ranks(measurement.lateness, measurement.gpu_names.__getitem__):
        tables["Late"] = table
    return tables


def render_notebook(measurement: IdleMeasurement) -> str:
    """Render advice, tables and the picture as HTML for a notebook."""
    division = [describe_division(measurement)] if measurement.span_ns else []
    lines = (make_title(measurement), *division, *advice(measurement))
    below = (blocks.Sentence(limitation.sentence) for limitation in measurement.limitations)
    above = render_html([*map(blocks.Sentence, lines), *list_tables(measurement).values()])
    return wrap_picture(above, draw_idle(measurement), render_html(below))


def _make_table(
    title: str,
    rows: list[dict[str, str]],
    count: int,
    top: int,
    hint: str,
    left: Sequence[str],
    drop_order: Sequence[str] = (),
) -> blocks.Table:
    """Make a table, with a hint on how to see the omitted rows.

    On the first screen, the title contains this hint, which saves a line. Otherwise, the hint is a
    line below the table.

    Args:
        title: Title of the table.
        rows: The rows to show.
        count: Number of rows, including the omitted rows.
        top: Maximum number of rows.
        hint: Hint for the title, or "" if the table is not on the first screen.
        left: Columns to left-align.
        drop_order: Columns to drop when the terminal is narrow, in this order.
    """
    if hint and count > top:
        return blocks.Table(
            f"{title} ({top} of {count:,}{hint})", rows, left, drop_order=drop_order
        )
    hint = f" (--top {count}, -o idle.json)"
    return blocks.Table(title, rows, left, drop_order=drop_order, n_omitted=count - top, hint=hint)


def _format_shares(rank: RankIdle) -> dict[str, str]:
    """Return the duty cycle and the parts of a device's span in percent, keyed by column header.

    The parts add up to exactly 100 %. All cells are dashes if the device is not measured.
    """
    if not rank.is_measured:
        return dict.fromkeys(("duty %", *_PARTS), "-")
    *busy_shares, idle_share = (getattr(rank, name) / rank.span_ns for name in _PARTS.values())
    parts = divide_whole(busy_shares, idle_share)
    duty_cycle = blocks.format_percent_cell(rank.duty_cycle)
    return {"duty %": duty_cycle, **dict(zip(_PARTS, parts, strict=True))}


def make_device_table(measurement: IdleMeasurement, top: int, hint: str = "") -> blocks.Table:
    """Make a table of the first ``top`` devices, showing their spans and how the spans divide.

    Args:
        measurement: The measured idle time.
        top: Maximum number of rows.
        hint: Hint for the title, or "" if the table is not on the first screen.
    """
    rows = []
    for rank in measurement.devices[:top]:
        queue = rank.launch_queue
        empty = None if queue is None else queue.empty_ns / rank.span_ns
        shares = _format_shares(rank)
        rows.append(
            {
                "device": blocks.truncate_name(rank.label),
                "span ms": blocks.format_ms(rank.span_ns),
                **shares,
                "idle ms": blocks.format_ms(rank.idle_ns if rank.is_measured else None),
                "comm. ms": blocks.format_ms(rank.communication_ns),
                "overlap %": blocks.format_percent_cell(rank.overlap),
                "queued": "-" if queue is None else f"{queue.mean:,.1f}",
                "empty %": blocks.format_percent_cell(empty),
            }
        )
    drop_order = ("overlap %", "comm. ms", "exp. copy %", "idle ms", "exp. comm. %", "compute %")
    return _make_table(
        "Devices", rows, len(measurement.devices), top, hint, ("device",), drop_order
    )


def _compare_devices(measurement: IdleMeasurement, top: int) -> Iterator[blocks.Block]:
    """Yield a table of the most idle devices, and a sentence giving the range of idle shares.

    Only devices that ran more than a single kernel or copy are compared. No block is yielded if
    there are fewer than two such devices.
    """
    ranks, names, shares = measurement.device_shares(_MAX_COMPARED)
    if len(ranks) < 2 or not measurement.activities:
        return
    shares, names = shares[:, len(BUSY) :], names[len(BUSY) :]
    idle = shares.sum(axis=1)
    # The sort is stable, so the order of equally idle devices is preserved.
    order = np.argsort(-idle, kind="stable").tolist()
    labels = [blocks.truncate_name(measurement.ranks[rank].label) for rank in ranks]
    headers = [blocks.truncate_name(name, _HEADER) for name in names]
    scores = ["-" if score is None else f"{score:.2f}" for score in measurement.scores()]
    rows = [
        {
            "device": labels[row],
            "score": scores[ranks[row]],
            "idle": blocks.format_percent_cell(float(idle[row])),
        }
        | dict(zip(headers, map(blocks.format_percent_cell, shares[row].tolist()), strict=True))
        for row in order[:top]
    ]
    title = (
        "Devices side by side, most idle first: kernel speed (score), idle time in % of the span"
    )
    yield _make_table(title, rows, len(order), top, "", ("device",))
    most_idle, least_idle = order[0], order[-1]
    is_repeated = any(rank.capture is not None for rank in measurement.devices)
    compared = format_count(len(order), "capture" if is_repeated else "device")
    yield blocks.Sentence(
        f"idle time of {compared}: {format_percent(float(idle[least_idle]))} "
        f"({labels[least_idle]}) to {format_percent(float(idle[most_idle]))} "
        f"({labels[most_idle]}), median {format_percent(float(np.median(idle)))}"
    )


def make_activity_table(measurement: IdleMeasurement, top: int, hint: str = "") -> blocks.Table:
    """Make a table of the ``top`` longest host activities; see :func:`.list_activity_rows`."""
    rows = list_activity_rows(measurement, top)
    return _make_table(ACTIVITY_TITLE, rows, len(measurement.activities), top, hint, ("activity",))


def make_wait_table(measurement: IdleMeasurement, top: int, hint: str = "") -> blocks.Table:
    """Make a table of the ``top`` proved waits that have the longest time without compute."""
    waits = [(wait, rank) for rank in measurement.devices for wait in rank.waits]
    # The sort is stable, so the order of the devices is preserved.
    waits.sort(key=lambda pair: pair[0].order())
    rows = [
        {
            "device": blocks.truncate_name(rank.label, _DEVICE),
            "waiting": blocks.truncate_name(wait.waiting, _WHO),
            "for": _shorten_work(wait.work),
            "on": wait.stream,
            "waits": f"{wait.waits:,}",
            "blocked ms": blocks.format_ms(wait.blocked_ns),
            "no compute ms": blocks.format_ms(wait.without_compute_ns),
            "idle ms": blocks.format_ms(wait.idle_ns),
        }
        for wait, rank in waits[:top]
    ]
    left, drop_order = ("device", "waiting", "for", "on"), ("waits", "device", "blocked ms")
    title = "What they waited for (proved waits only)"
    return _make_table(title, rows, len(waits), top, hint, left, drop_order)


def _list_waits(measurement: IdleMeasurement, top: int, hint: str = "") -> Iterator[blocks.Block]:
    """Yield a table of proved waits, and a sentence on how much idle and exposed time they explain.

    If there are no proved waits, no block is yielded.
    """
    if not any(rank.waits for rank in measurement.devices):
        return
    yield make_wait_table(measurement, top, hint)
    parts = []
    if measurement.idle_ns:
        parts.append(
            f"waits account for {format_percent(measurement.proved_idle_ns / measurement.idle_ns)} "
            "of the idle time"
        )
    for kind, name in (("communication", "communication_ns"), ("copies", "copy_ns")):
        awaited_ns = measurement.summed(f"awaited_{name}")
        if awaited_ns:
            awaited_share = awaited_ns / measurement.summed(f"exposed_{name}")
            parts.append(
                f"{format_percent(awaited_share)} of exposed {kind} delayed work that was launched"
            )
    if parts:
        yield blocks.Sentence(f"proved: {', '.join(parts)}")


def make_held_back_table(measurement: IdleMeasurement, top: int, hint: str = "") -> blocks.Table:
    """Make a table of the ``top`` longest kinds of communication that another kernel held back."""
    held = [(entry, rank) for rank in measurement.devices for entry in rank.held_back]
    # The sort is stable, so the order of the devices is preserved.
    held.sort(key=lambda pair: pair[0].order())
    rows = [
        {
            "device": blocks.truncate_name(rank.label, _DEVICE),
            "communication": _shorten_work(entry.communication),
            "on": entry.stream,
            "started at": f"{entry.moment} of {_shorten_work(entry.behind)}",
            "behind": entry.behind_stream,
            "times": f"{entry.count:,}",
            "ms": blocks.format_ms(entry.held_ns),
            "ms/step": _format_per_step(entry.held_ns, rank),
        }
        for entry, rank in held[:top]
    ]
    left = ("device", "communication", "on", "started at", "behind")
    drop_order = ("behind", "on", "device", "times")
    title = "Communication that was ready, but started only with another kernel"
    if not all(rank.are_events_recorded for _, rank in held):
        title += " (upper bound)"
    return _make_table(title, rows, len(held), top, hint, left, drop_order)


def _shorten_work(name: str) -> str:
    """Shorten the name of a kernel for a table cell."""
    return blocks.truncate_middle(kinds.trim_signature(to_one_line(name, None)), _WORK)


def _format_per_step(time_ns: int, rank: RankIdle) -> str:
    """Format a time in ms per named step of a device.

    A dash is returned if named steps cover less than ``_MIN_COVERED`` of the device's span, because
    much of the time may then lie outside of them.
    """
    lengths_ns = [step.length_ns for step in rank.steps if step.name is not None]
    is_covered = lengths_ns and sum(lengths_ns) >= _MIN_COVERED * rank.span_ns
    return blocks.format_ms(time_ns / len(lengths_ns) if is_covered else None)


def _list_held_back(
    measurement: IdleMeasurement, top: int, hint: str = ""
) -> Iterator[blocks.Block]:
    """Yield a table of communication that another kernel held back, and what limits the finding.

    If there is none, no block is yielded.
    """
    held = [rank for rank in measurement.devices if rank.held_back]
    if not held:
        return
    yield make_held_back_table(measurement, top, hint)
    if not all(rank.are_events_recorded for rank in held):
        yield blocks.Sentence(
            "upper bound: CUDA events were not recorded, so communication may have waited for an "
            "event instead (bubbleviz guide idle)"
        )


def _note_possible_delays(measurement: IdleMeasurement) -> Iterator[blocks.Block]:
    """Yield a sentence if much communication may have been held back, but no events prove it."""
    held_ns, span_ns = measurement.summed("held_back_ns"), measurement.span_ns
    if held_ns >= MIN_IDLE_SHARE * span_ns > 0:
        yield blocks.Sentence(
            f"for up to {format_percent(held_ns / span_ns)} of the time, communication may have "
            "been ready but not started (-v); to check this, record CUDA events "
            "(bubbleviz guide idle)"
        )


def _describe_example(measurement: IdleMeasurement, total: ActivityIdle, gap: GapExample) -> str:
    """Describe the longest gap of an activity: its length, its position, and the work around it."""
    rank = measurement.ranks[total.rank]
    offset_ms = blocks.format_ms(gap.start_ns - rank.start_ns)
    step = "" if gap.step is None else f", in {to_one_line(gap.step, _NAME)}"
    device = f" of {to_one_line(rank.label, _NAME)}" if len(measurement.ranks) > 1 else ""
    where = " > ".join(to_one_line(name, _NAME) for name in gap.where)
    host = f"; the host was in {blocks.truncate_middle(where, _PATH)}" if where else ""
    return (
        f"{to_one_line(total.activity, _NAME)}: {blocks.format_ms(total.longest_ns)} ms of a "
        f"{blocks.format_ms(gap.end_ns - gap.start_ns)} ms gap, {offset_ms} ms into the span"
        f"{device}{step}, between {blocks.truncate_name(gap.before, _KERNEL)} and "
        f"{blocks.truncate_name(gap.after, _KERNEL)}{host}"
    )


def _describe_steps(measurement: IdleMeasurement) -> Iterator[blocks.Block]:
    """Yield a line on the most idle step, and a line that divides the mean step, if known."""
    for line in (_describe_idlest_step(measurement), _describe_step_division(measurement)):
        if line:
            yield blocks.Sentence(line)


def _describe_idlest_step(measurement: IdleMeasurement) -> str:
    """Describe the named step with the most idle time, or return "" if no step has a name."""
    steps = [step for rank in measurement.devices for step in rank.steps if step.name is not None]
    if not steps:
        return ""
    step = max(steps, key=lambda candidate: candidate.idle_ns)
    return (
        f"most idle of {format_count(len(steps), 'step')}: {to_one_line(step.name or '', _NAME)}, "
        f"{blocks.format_ms(step.idle_ns)} of {blocks.format_ms(step.length_ns)} ms"
    )


def _list_divided_steps(measurement: IdleMeasurement) -> list[tuple[RankIdle, StepIdle, StepParts]]:
    """Return the steps on devices whose parts are known, with their parts."""
    return [
        (rank, step, step.parts)
        for rank in measurement.devices
        for step in rank.steps
        if step.parts is not None
    ]


def _describe_step_division(measurement: IdleMeasurement) -> str:
    """Return a line that divides the mean step, or "" if preparing takes little of its time.

    The spans of devices do not contain the preparation of the first step. Parts of length 0 are
    left out.
    """
    divided = [parts for _, _, parts in _list_divided_steps(measurement)]
    sums_ns = {
        label: sum(getattr(parts, name) for parts in divided) for label, name in _STEP_PARTS.items()
    }
    total_ns = sum(sums_ns.values())
    if not total_ns or sums_ns["preparing"] < _MIN_PREPARING * total_ns:
        return ""
    means_ns = {label: ns / len(divided) for label, ns in sums_ns.items() if ns}
    terms = (f"{label} {blocks.format_ms(mean_ns)}" for label, mean_ns in means_ns.items())
    mean_ms = blocks.format_ms(total_ns / len(divided))
    steps = "step" if len(divided) == 1 else f"mean of {len(divided):,} steps"
    return f"{steps}: {' + '.join(terms)} = {mean_ms} ms"


def _list_step_parts(measurement: IdleMeasurement, top: int) -> Iterator[blocks.Block]:
    """Yield a table of the first ``top`` steps with their parts, if any parts are known."""
    divided = _list_divided_steps(measurement)
    rows = [
        {
            "device": blocks.truncate_name(rank.label),
            "step": blocks.truncate_name(step.name or ""),
            **{
                label: blocks.format_ms(getattr(parts, name)) for label, name in _STEP_PARTS.items()
            },
            "sum": blocks.format_ms(parts.total_ns),
        }
        for rank, step, parts in divided[:top]
    ]
    if rows:
        title = "Steps from their start on the host to their last work, in ms"
        yield _make_table(title, rows, len(divided), top, "", ("device", "step"))


def _has_named_steps(measurement: IdleMeasurement) -> bool:
    return any(step.name is not None for rank in measurement.devices for step in rank.steps)


def _list_steps(
    measurement: IdleMeasurement, title: str, top: int, hint: str = ""
) -> Iterator[blocks.Block]:
    """Yield a table of the ``top`` steps that have the most idle time, if any step has a name.

    The rows are sorted by device and step. The time outside of all steps is treated as one more
    step of its device.
    """
    if not _has_named_steps(measurement):
        return
    steps = [(rank, step) for rank in measurement.devices for step in rank.steps]
    most_idle = sorted(range(len(steps)), key=lambda index: (-steps[index][1].idle_ns, index))[:top]
    rows = [
        {
            "device": blocks.truncate_name(rank.label),
            "step": blocks.truncate_name("(outside of steps)" if step.name is None else step.name),
            "length ms": blocks.format_ms(step.length_ns),
            "duty %": blocks.format_percent_cell(step.duty_cycle),
            "idle ms": blocks.format_ms(step.idle_ns),
            "main activity": blocks.truncate_name(step.activities[0][0], _ACTIVITY)
            if step.activities
            else "",
            "ms": blocks.format_ms(step.activities[0][1] if step.activities else None),
        }
        for rank, step in (steps[index] for index in sorted(most_idle))
    ]
    yield _make_table(title, rows, len(steps), top, hint, ("device", "step", "main activity"))
