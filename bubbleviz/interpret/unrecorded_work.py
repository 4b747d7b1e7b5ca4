"""Unrecorded work: launches whose kernels the profile lacks, and the idle time around them.

A kernel that was launched and not recorded ran after what its thread launched before it had ended,
and before what the thread launched next began, so the device may have been busy there::

    launches    │ a   b   c                │
    kernels     │   ├ a ┤           ├ c ┤  │      b was not recorded
    unknown     │       ├───────────┤      │
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.kinds import GRAPH_LAUNCHES
from bubbleviz.interpret.damaged_work import launched_before, recorded_until
from bubbleviz.interpret.late_launches import Launches
from bubbleviz.model import intervals
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.grouping import distinct, rows_by_value
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import RankIntervals

#: Minimum part of the graph launches of a file that is lost if ratios are off.
_NOTICEABLE = 0.01


@dataclass(frozen=True)
class LostGraphs:
    """Graph launches of processes that recorded the work of at least one.

    Attributes:
        calls: Launches without recorded work.
        n_launches: Number of all launches of these processes.
    """

    calls: model.Calls
    n_launches: int

    def limitations(self, path: str) -> Iterator[Limitation]:
        """Yield the limitation that counts the launches without work, if there are any."""
        n_lost = len(self.calls)
        if n_lost == 0:
            return
        verb = "has" if n_lost == 1 else "have"
        what = f"{n_lost:,} of {self.n_launches:,} graph launches {verb} no recorded kernels"
        reason = (
            f"{path}: the kernels of the others are recorded, so idle time around these launches "
            "is unknown; profile with larger buffers or for a shorter time"
        )
        is_noticeable = n_lost >= _NOTICEABLE * self.n_launches
        kind = LimitationKind.GRAPHS_LOST if is_noticeable else LimitationKind.COSTS
        yield Limitation(what, reason, n_lost, kind)


def find_lost_graphs(
    calls: model.CallLog,
    launches: Launches,
    activities: model.Activities,
    of_launch: tuple[Codes, Ints],
) -> LostGraphs:
    """Return the graph launches without work in processes that recorded the work of others.

    Launches that failed, and launches whose work may not have run when the capture ended, are not
    lost.

    Args:
        calls: All calls of the profile.
        launches: Launches of all activities.
        activities: Kernels, then copies.
        of_launch: For each activity the row of its launch's thread, undefined if its launch is
            unknown, and the threads that made calls.
    """
    every_launch = calls.at(calls.named(GRAPH_LAUNCHES))
    if len(every_launch) == 0:
        return LostGraphs(every_launch, 0)
    has_work = launches.have_work(every_launch)
    process = model.process_of(every_launch.thread)
    is_recorded = np.isin(process, distinct(process[has_work]))
    without_work = every_launch.take(is_recorded & ~has_work)
    if len(without_work):
        without_work = without_work.take(~calls.failed(without_work.row))
        until_ns = recorded_until(launches, activities, of_launch)
        without_work = launched_before(without_work, until_ns, of_launch[1])
    return LostGraphs(without_work, int(is_recorded.sum()))


def unknown_times(
    lost: Sequence[model.Calls],
    launches: Launches,
    activities: model.Activities,
    of_launch: tuple[Codes, Ints],
) -> RankIntervals:
    """Return when each rank may have run work that was launched and not recorded.

    Args:
        lost: Launches whose kernels were not recorded, each in one of several tables.
        launches: Launches of all activities.
        activities: Kernels, then copies.
        of_launch: For each activity the row of its launch's thread, undefined if its launch is
            unknown, and the threads that made calls.
    """
    launch_ns = np.concatenate([np.empty(0, np.int64), *(calls.start_ns for calls in lost)])
    caller = np.concatenate([np.empty(0, np.int64), *(calls.thread for calls in lost)])
    ranks, starts, ends = ([np.empty(0, np.int64)] for _ in range(3))
    kernels = np.flatnonzero(launches.call[: activities.kernels] != NONE) if len(caller) else ()
    # Threads that lost work, and devices, are few.
    for thread, rows in rows_by_value(caller):
        of_thread = kernels[of_launch[1][of_launch[0][kernels]] == thread]
        for rank, of_rank in rows_by_value(activities.rank[of_thread]):
            start_ns, end_ns = _between_kernels(
                launch_ns[rows], launches.start_ns, activities, of_thread[of_rank]
            )
            ranks.append(np.full(len(start_ns), rank, np.int64))
            starts.append(start_ns)
            ends.append(end_ns)
    of_rank, begin_ns, until_ns = (np.concatenate(column) for column in (ranks, starts, ends))
    return RankIntervals(*intervals.group_union(of_rank, len(activities.ranks), begin_ns, until_ns))


def _between_kernels(
    launch_ns: Ints, launched_ns: Ints, activities: model.Activities, kernels: Ints
) -> tuple[Ints, Ints]:
    """Return from when to when lost work may have run, by the recorded kernels of its thread.

    Args:
        launch_ns: When the lost work was launched.
        launched_ns: When each activity was launched.
        activities: Kernels, then copies.
        kernels: Rows of the kernels that the thread launched on one device, at least one.

    Returns:
        start_ns: Start of the time of each piece of lost work that a recorded kernel follows.
        end_ns: End of that time, later than its start.
    """
    order = kernels[np.argsort(launched_ns[kernels], kind="stable")]
    times_ns = launched_ns[order]
    latest_end_ns = np.maximum.accumulate(activities.end_ns[order])
    earliest_start_ns = np.minimum.accumulate(activities.start_ns[order][::-1])[::-1]
    n_before = np.searchsorted(times_ns, launch_ns)
    n_up_to = np.searchsorted(times_ns, launch_ns, side="right")
    has_next = n_up_to < len(order)
    launch_ns, n_before, n_up_to = launch_ns[has_next], n_before[has_next], n_up_to[has_next]
    previous_end_ns = np.where(n_before > 0, latest_end_ns[n_before - 1], launch_ns)
    start_ns = np.maximum(launch_ns, previous_end_ns)
    end_ns = earliest_start_ns[n_up_to]
    is_open = end_ns > start_ns
    return start_ns[is_open], end_ns[is_open]
