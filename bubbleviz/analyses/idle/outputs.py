"""Writes the idle time report as JSON, and its gaps as CSV."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.analyses.idle.advice import advice
from bubbleviz.analyses.idle.copies import CopyTotal
from bubbleviz.analyses.idle.profiled_steps import IDLE_NOUN
from bubbleviz.analyses.idle.report import (
    DEFINITIONS,
    ActivityIdle,
    IdleMeasurement,
    RankIdle,
    StepIdle,
)
from bubbleviz.conventions import host_activities
from bubbleviz.count.statistics import measure_spread
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.model.columns import NONE, Ints, scatter
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.intervals import find_covering, group_sum
from bubbleviz.model.texts import format_csv, format_json, quote_formula
from bubbleviz.report.idle_summary import (
    IDLE,
    IDLE_SCHEMA,
    IDLE_STEPS,
    ActivityEntry,
    CopyEntry,
    GapChunk,
    GapEntry,
    GapExample,
    IdleNumbers,
    IdlePart,
    IdleRank,
    IdleStep,
    IdleSummary,
)
from bubbleviz.report.summary import (
    Average,
    LatenessEntry,
    LimitationEntry,
    ProfilingCostEntry,
    RestrictionEntry,
    to_values,
)

#: Columns of the CSV file of gaps.
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


def as_json(measurement: IdleMeasurement, top: int) -> str:
    """Return a report as JSON, including the ``top`` longest gaps of each rank."""
    return format_json(to_values(summarize_idle(measurement, top)))


def summarize_idle(measurement: IdleMeasurement, top: int = 0) -> IdleSummary:
    """Return the summary of a report, including the ``top`` longest gaps of each rank."""
    headline, numbers = _measure_numbers(measurement)
    ranks = zip(measurement.ranks, measurement.scores(), strict=True)
    return IdleSummary(
        schema=IDLE_SCHEMA,
        version=__version__,
        headline=headline,
        iterations=(),
        summary=numbers,
        restrictions=RestrictionEntry.list_of(measurement.restrictions),
        definitions=DEFINITIONS,
        shortest_ns=measurement.shortest_ns,
        window=measurement.window,
        span_ns=measurement.span_ns,
        idle_ns=measurement.idle_ns,
        proved_idle_ns=measurement.proved_idle_ns,
        what_to_do_first=advice(measurement)[0],
        activities=[
            _make_activity_entry(
                total, measurement.idle_ns, total.example and total.example.of_rank(total.rank)
            )
            for total in measurement.activities
        ],
        meanings=dict(measurement.meaning),
        kernels=measurement.work(),
        copies=[_make_copy_entry(total) for total in measurement.copies()],
        ranks=[
            _make_rank_entry(
                index, rank, score, _list_longest_gaps(rank, measurement.shortest_ns, top)
            )
            for index, (rank, score) in enumerate(ranks)
        ],
        limitations=LimitationEntry.list_of(measurement.limitations),
        profiling_cost=_make_cost(measurement),
        gpu_names=measurement.gpu_names,
        lateness=None
        if measurement.lateness is None
        else LatenessEntry.of(measurement.lateness, measurement.late_sentence),
    )


def _make_cost(measurement: IdleMeasurement) -> ProfilingCostEntry | None:
    """Return the comparison with an unprofiled step. The ratio is the idle share."""
    cost, span_ns = measurement.profiling_cost, measurement.span_ns
    if cost is None:
        return None
    share = measurement.idle_ns / span_ns if span_ns else None
    return ProfilingCostEntry.of(cost, share, cost.profiled_ns, IDLE_NOUN)


def _measure_numbers(measurement: IdleMeasurement) -> tuple[str, IdleNumbers]:
    """Compute the mean idle share over named steps and over devices, and say which to show first.

    The mean over steps is shown first, or the mean over devices if no step has a name.

    Returns the name of the share to show first, and the statistics of idle shares and window
    lengths.
    """
    devices = [rank for rank in measurement.devices if rank.is_measured]
    steps = [step for rank in devices for step in rank.steps if step.name is not None]
    step_times = [(step.idle_ns, step.length_ns) for step in steps if step.length_ns]
    device_times = [(rank.idle_ns, rank.span_ns) for rank in devices]
    shares, windows = {}, {}
    for name, times in ((IDLE_STEPS, step_times), (IDLE, device_times)):
        shares[name] = _make_average([idle_ns / length_ns for idle_ns, length_ns in times])
        windows[name] = _make_average([float(length_ns) for _, length_ns in times])
    headline = IDLE_STEPS if steps else IDLE
    numbers = IdleNumbers(
        iterations=shares[headline].n,
        bubble_ratio=shares,
        window_ns=windows,
        bubble_parts=_list_idle_parts(devices, steps, shares[headline].mean or 0.0),
    )
    return headline, numbers


def _make_average(values: Sequence[float]) -> Average:
    return Average(**asdict(measure_spread(values)))


def _list_idle_parts(
    devices: Sequence[RankIdle], steps: Sequence[StepIdle], idle_share: float
) -> list[IdlePart]:
    """Split the mean idle share among the activities, largest part first.

    The parts are proportional to the idle time of each activity, summed over all steps, or over the
    devices if there are no steps.

    Args:
        devices: Measured devices.
        steps: Named steps on the measured devices.
        idle_share: Mean fraction of idle time, which is the sum of the parts.
    """
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


def _make_rank_entry(
    index: int, rank: RankIdle, score: float | None, gaps: tuple[int, list[GapEntry]]
) -> IdleRank:
    """Return the summary entry of a device.

    Args:
        index: Index of the device in the report.
        rank: The device.
        score: Speed of the device's kernels relative to the fastest device, or None if unknown.
        gaps: Number of the device's gaps that are not short, and the entries of the longest gaps.
    """
    n_gaps, longest_gaps = gaps
    return IdleRank(
        index=index,
        label=rank.label,
        profile=rank.path,
        host=rank.host,
        pid=rank.pid,
        device_id=rank.device_id,
        device=rank.device_label,
        gpu=rank.gpu,
        start_ns=rank.start_ns,
        end_ns=rank.end_ns,
        span_ns=rank.span_ns,
        busy_ns=rank.busy_ns,
        idle_ns=rank.idle_ns,
        compute_ns=rank.compute_ns,
        communication_ns=rank.communication_ns,
        copy_ns=rank.copy_ns,
        exposed_communication_ns=rank.exposed_communication_ns,
        exposed_point_to_point_ns=rank.exposed_point_to_point_ns,
        exposed_copy_ns=rank.exposed_copy_ns,
        overlap=rank.overlap,
        duty_cycle=rank.duty_cycle,
        compute_duty=rank.compute_duty,
        activities=[
            _make_activity_entry(total, rank.idle_ns, total.example) for total in rank.activities
        ],
        copies=[_make_copy_entry(total) for total in rank.copies],
        steps_by=rank.steps_by,
        steps=[_make_step_entry(step, is_measured=rank.is_measured) for step in rank.steps],
        waits=rank.waits,
        awaited_communication_ns=rank.awaited_communication_ns,
        awaited_copy_ns=rank.awaited_copy_ns,
        held_back=rank.held_back,
        held_back_ns=rank.held_back_ns,
        are_events_recorded=rank.are_events_recorded,
        launch_queue=rank.launch_queue,
        gaps=n_gaps,
        longest_gaps=longest_gaps,
        relative_score=score,
        capture=rank.capture,
    )


def _make_step_entry(step: StepIdle, *, is_measured: bool) -> IdleStep:
    """Return the entry of a step, omitting the duty cycle if the device is not measured."""
    return IdleStep(
        name=step.name,
        start_ns=step.start_ns,
        end_ns=step.end_ns,
        length_ns=step.length_ns,
        busy_ns=step.busy_ns,
        idle_ns=step.idle_ns,
        duty_cycle=step.duty_cycle if is_measured else None,
        activities=dict(step.activities),
        parts=step.parts,
    )


def _make_copy_entry(total: CopyTotal) -> CopyEntry:
    """Return the JSON entry for one kind of copy."""
    return CopyEntry(
        direction=total.direction.label,
        source=total.source.label,
        target=total.target.label,
        count=total.count,
        bytes=total.size,
        time_ns=total.time_ns,
        exposed_ns=total.exposed_ns,
        gb_per_s=total.bytes_per_ns,
    )


def _make_activity_entry(
    total: ActivityIdle, idle_ns: int, example: GapExample | None
) -> ActivityEntry:
    """Return the JSON entry for an activity.

    Args:
        total: Idle time attributed to the activity.
        idle_ns: Total idle time, used to compute the activity's share.
        example: The gap in which the activity took longest, or None for kernel-to-kernel gaps.
    """
    return ActivityEntry(
        activity=total.activity,
        idle_ns=total.idle_ns,
        share=total.idle_ns / idle_ns if idle_ns else None,
        gaps=total.gaps,
        longest_ns=total.longest_ns,
        example=example,
    )


def _list_longest_gaps(rank: RankIdle, shortest_ns: int, top: int) -> tuple[int, list[GapEntry]]:
    """Return the number of gaps that are not short, and the entries of the ``top`` longest gaps.

    The longest gap comes first. Equally long gaps are sorted by start.
    """
    gaps = rank.long_gaps(shortest_ns)
    order = np.argsort(gaps.start_ns - gaps.end_ns, kind="stable")
    longest = gaps.take(order[:top])
    return len(gaps), [*_list_gaps(rank, longest, str)] if len(longest) else []


def _list_gaps(
    rank: RankIdle, gaps: IdleIntervals, text: Callable[[str], str]
) -> Iterator[GapEntry]:
    """Yield one entry per gap for JSON or CSV: its times, step, activities and neighboring work.

    Args:
        rank: The device.
        gaps: The gaps of the device to list, one row each, in any order.
        text: Function that escapes names. The activities in ``chunks`` are not escaped.
    """
    works = [text(name) for name in rank.works]
    activities = [text(name) for name in rank.activity_names]
    steps = [None if step.name is None else text(step.name) for step in rank.steps]
    pieces = _list_pieces(rank)
    for step, start_ns, end_ns, activity, work_before, work_after, first, end in _list_gap_codes(
        rank, gaps
    ):
        yield GapEntry(
            start_ns=start_ns,
            end_ns=end_ns,
            idle_ns=end_ns - start_ns,
            step=None if step == NONE else steps[step],
            activity=activities[activity],
            before=works[work_before],
            after=works[work_after],
            chunks=[GapChunk(*piece) for piece in pieces[first:end]],
        )


def _list_pieces(rank: RankIdle) -> list[tuple[str, int, int]]:
    """Return the activity, start and end of every piece of a device's idle time."""
    idle = rank.idle
    names = (rank.activity_names[activity] for activity in idle.activity.tolist())
    return [*zip(names, idle.start_ns.tolist(), idle.end_ns.tolist(), strict=True)]


def _list_gap_codes(rank: RankIdle, gaps: IdleIntervals) -> Iterator[tuple[int, ...]]:
    """Yield one tuple of numbers per gap.

    A tuple contains, in this order:

    - the index of the step in which the gap starts, or -1
    - the start and the end in ns
    - the id of the activity that takes most of the gap
    - the indices in ``rank.works`` of the work before and after the gap
    - the half-open range (first, stop) of its pieces in ``rank.idle``
    """
    idle = rank.idle
    columns = (
        _find_steps_around(rank, gaps.start_ns),
        gaps.start_ns,
        gaps.end_ns,
        _find_main_activities(idle)[gaps.interval],
        gaps.before,
        gaps.after,
        np.searchsorted(idle.interval, gaps.interval, side="left"),
        np.searchsorted(idle.interval, gaps.interval, side="right"),
    )
    yield from zip(*(column.tolist() for column in columns), strict=True)


def _find_main_activities(idle: IdleIntervals) -> Ints:
    """Return the id of the activity that takes most of each gap, indexed by gap number.

    On ties, the activity with the smallest id wins.
    """
    groups = group_rows(idle.activity, idle.interval)
    spent_ns = group_sum(groups.of_row, len(groups), idle.end_ns - idle.start_ns)
    activity, gap = idle.activity[groups.first], idle.interval[groups.first]
    order = np.lexsort((-activity, spent_ns, gap))
    return scatter(int(gap.max(initial=NONE)) + 1, gap[order], activity[order])


def _find_steps_around(rank: RankIdle, time_ns: Ints) -> Ints:
    """Return the index of the step that covers each time, or -1 if no step does."""
    bounds = [(step.start_ns, step.end_ns) for step in rank.steps if step.start_ns is not None]
    start_ns, end_ns = np.array(bounds, np.int64).reshape(-1, 2).T
    return find_covering(start_ns, end_ns, time_ns)


def format_gaps_csv(measurement: IdleMeasurement) -> str:
    """Return the gaps as CSV: one row per attributed gap, and one row per step for its short gaps.

    The last cell of a row is a JSON object that maps activity names to idle time in ns.
    """
    return format_csv(
        COLUMNS,
        (
            row
            for index in range(len(measurement.ranks))
            for row in _list_csv_rows(measurement, index)
        ),
    )


def _list_csv_rows(measurement: IdleMeasurement, index: int) -> Iterator[tuple[object, ...]]:
    """Yield the CSV rows of one device: one per gap, then one per step for its short gaps.

    A row for short gaps only contains their total length. The cells for start, end and neighboring
    work are empty.
    """
    rank = measurement.ranks[index]
    device = index, quote_formula(rank.host), rank.pid, rank.device_id
    for gap in _list_gaps(rank, rank.gaps, quote_formula):
        spent_ns = Counter[str]()
        for chunk in gap.chunks:
            spent_ns[chunk.activity] += chunk.end_ns - chunk.start_ns
        times = gap.start_ns, gap.end_ns, gap.idle_ns
        names = gap.activity, gap.before, gap.after
        yield *device, gap.step, *times, *names, json.dumps(spent_ns)
    for step in rank.steps:
        if step.short_ns:
            short = host_activities.SHORT
            name = None if step.name is None else quote_formula(step.name)
            spent = json.dumps({short: step.short_ns})
            yield *device, name, None, None, step.short_ns, short, None, None, spent
