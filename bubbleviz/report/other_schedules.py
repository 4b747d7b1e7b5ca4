"""Simulates other schedules with the measured times of a report."""

from __future__ import annotations

from bubbleviz.explain.what_if import WhatIf, ask_what_if
from bubbleviz.report.memory_limits import find_device_memory
from bubbleviz.report.report import Report


def simulate_other_schedules(
    report: Report, *, with_all_schedules: bool = True, limit_bytes: float | None = None
) -> WhatIf:
    """Simulate how long the typical iteration of a report would take under other schedules.

    Args:
        report: The report. If it was made with a plan, that plan is simulated as well.
        with_all_schedules: Whether to simulate all known schedules. If false, only the schedule
            that ran (or the plan) is simulated.
        limit_bytes: Memory limit per device, or None to compare schedules with the memory use of
            the run. A limit has no effect if the memory use of any stage is unknown.
    """
    memory = None
    if report.memory is not None:
        kinds = report.explanation.phase_times.kinds
        memory = find_device_memory(report.memory, kinds, limit_bytes)
    return ask_what_if(
        tuple(report.ranks),
        report.operations,
        tuple(report.iterations),
        report.headline,
        report.explanation,
        report.schedule,
        report.planned_order,
        with_all_schedules=with_all_schedules,
        memory=memory,
    )
