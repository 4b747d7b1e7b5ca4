"""A part of a run's communication: the operations that begin in a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.analyses.idle.evidence import IdleOptions
from bubbleviz.analyses.idle.ranks import window_extent
from bubbleviz.analyses.nccl.totals import Communication
from bubbleviz.conventions.host_activities import default_activities
from bubbleviz.conventions.kinds import default_kinds
from bubbleviz.errors import NothingToAnalyseError, UsageError
from bubbleviz.interpret.record import export_of
from bubbleviz.model.operations import Limitation
from bubbleviz.model.window import Window
from bubbleviz.progress import unwatched
from bubbleviz.sources.nccl.events import UNKNOWN
from bubbleviz.sources.readers import reader_of


def extent_of(window: Window, profiles: Sequence[str]) -> tuple[int, int]:
    """Return the start and end (exclusive) of a window on the clock of the first profile.

    Args:
        window: of the run.
        profiles: paths of profiles, of which the first tells the steps.

    Raises:
        UsageError: the window is one of iterations, and no profile tells these.
        InputError: the profile holds no such iteration.
    """
    if window.times_ns is not None:
        return window.times_ns
    if not profiles:
        raise UsageError(
            f"--window {window.text}: NCCL's event files tell no iterations; give a profile of the "
            "run beside them, or a window of time"
        )
    with (
        export_of(profiles[0]) as export,
        reader_of(export).open_file(export, 1, unwatched) as file,
    ):
        options = IdleOptions(0, None, default_activities(), default_kinds())
        return window_extent(file.read((), partial=True), window, options)


def within(found: Communication, window: Window, extent_ns: tuple[int, int]) -> Communication:
    """Return what ranks did in the operations that begin between two instants.

    Args:
        found: of the whole run; waiting and moving were split with all of it in sight.
        window: as it was options for.
        extent_ns: start and end (exclusive) on the report's clock.

    Raises:
        NothingToAnalyseError: no operation begins then.
    """
    table = found.operations
    placed = np.array([clock.placed for clock in found.clocks], bool)[table.clock]
    timed = placed & (table.start_ns != UNKNOWN)
    inside = timed & (table.start_ns >= extent_ns[0]) & (table.start_ns < extent_ns[1])
    if not inside.any():
        first, last = (
            (int(own) / 1e9 for own in (table.start_ns[timed].min(), table.start_ns[timed].max()))
            if timed.any()
            else (0.0, 0.0)
        )
        raise NothingToAnalyseError(
            f"--window {window.text}: no communication operation begins in it; they begin from "
            f"{first:.6f} s to {last:.6f} s of the report's clock"
        )
    lost = int((~timed).sum())
    reason = "their times are unknown, or on a clock of their own; they are left out of the window"
    note = Limitation("operations that lie in no window", reason, lost)
    return replace(
        found,
        operations=table.take(inside),
        limitations=(*found.limitations, *((note,) if lost else ())),
        window=window.text,
    )
