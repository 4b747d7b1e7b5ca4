"""Partial replays: graph launches whose kernels were only partially recorded.

A graph without conditional nodes runs the same kernels in every launch. A launch that runs fewer
kernels ends sooner, so the kernels of the next launch start sooner. If kernels ran but were not
recorded, the next kernels start at the usual time::

    kernels      ├ a ┤├ b ┤├ c ┤  ├ a ┤├ b ┤├ c ┤  ├ a ┤            ├ a ┤├ b ┤├ c ┤   not recorded
                 ├ a ┤├ b ┤├ c ┤  ├ a ┤├ b ┤├ c ┤  ├ a ┤  ├ a ┤├ b ┤├ c ┤             did not run
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bubbleviz.interpret.launches import Launches
from bubbleviz.interpret.unrecorded_work import find_times_between_kernels
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Codes, Ints, make_mask
from bubbleviz.model.grouping import (
    find_distinct,
    find_positions,
    find_run_starts,
    list_rows_by_value,
    sort_rows,
)

#: The usual number of kernels must be this many times as common as the number of kernels in a short
#: launch. Otherwise, it is unclear which number is the usual one. Also the minimum number of
#: complete launches.
_FAR_MORE = 4
#: Maximum number of launches with few kernels that are checked. Later launches are ignored.
_MAX_SHORT = 256
#: A launch with few kernels is compared with at most this many launches on either side.
_NEAREST = 16
#: Number of kernels whose launches are looked up together, to save memory.
_PIECE = 1 << 16


def find_partial_replays(
    graph_launches: model.Calls,
    launches: Launches,
    activities: model.Activities,
    of_launch: tuple[Codes, Ints],
) -> model.Calls:
    """Return the graph launches whose kernels were only partially recorded.

    - A launch is checked if it has fewer kernels than usual; see :func:`_find_short_launches`.
    - It must have the same kernels as complete launches, except for one missing stretch.
    - It is a partial replay if the device had about as much time for it as for a complete launch;
      see :func:`_is_partial`. This cannot be determined if graph launches run concurrently.

    Args:
        graph_launches: Graph launches with recorded work, sorted by row.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Pair (index, threads). ``threads[index[i]]`` is the id of the thread that
            launched activity ``i``. It is undefined if the launch is unknown.
    """
    if len(graph_launches) == 0:
        return graph_launches
    graph = _find_graph_launches(graph_launches.row, launches.call[: activities.kernels])
    n_kernels = np.bincount(graph[graph != NONE], minlength=len(graph_launches))
    compared = {
        row: _find_longer_launches(n_kernels, row)
        for row in _find_short_launches(n_kernels).tolist()
    }
    compared = {row: longer for row, longer in compared.items() if len(longer) >= _FAR_MORE}
    if not compared:
        return graph_launches.take(np.empty(0, np.int64))
    compared_rows = find_distinct(np.array([*compared], np.int64), *compared.values())
    kernels_of = _group_kernels(compared_rows, graph, activities)
    time_ns = _measure_available_times(
        compared_rows, kernels_of, graph_launches, launches, activities, of_launch
    )
    partial = [
        row
        for row, longer in compared.items()
        if _is_partial(row, longer, kernels_of, time_ns, activities)
    ]
    return graph_launches.take(np.array(partial, np.int64))


def _find_graph_launches(rows: Ints, call: Codes) -> Codes:
    """Return the index of each kernel's graph launch, or -1 if something else launched it.

    Args:
        rows: Rows of the graph launches, ascending.
        call: Row of the call that launched each kernel, or -1 if unknown.
    """
    graph = np.empty(len(call), np.int32)
    for first in range(0, len(call), _PIECE):
        piece = slice(first, first + _PIECE)
        graph[piece] = find_positions(rows, call[piece].astype(np.int64))
    return graph


def _find_short_launches(n_kernels: Ints) -> Ints:
    """Return the indices of the graph launches that have few kernels, in ascending order.

    A launch with ``n`` kernels has few kernels if, for some larger number ``m``, at least
    ``_FAR_MORE`` times as many launches have ``m`` kernels as ``n``. Launches without kernels are
    ignored. Only the first ``_MAX_SHORT`` launches are returned.

    Args:
        n_kernels: Number of recorded kernels in each graph launch.
    """
    n_launches = np.bincount(n_kernels)
    most_above = np.append(np.maximum.accumulate(n_launches[:0:-1])[::-1], 0)
    is_short = _FAR_MORE * n_launches <= most_above
    return np.flatnonzero(is_short[n_kernels] & (n_kernels > 0))[:_MAX_SHORT]


def _find_longer_launches(n_kernels: Ints, row: int) -> Ints:
    """Return the nearest graph launches whose number of kernels is larger and far more common.

    A number is far more common if it occurs in at least ``_FAR_MORE`` times as many launches. Up to
    ``_NEAREST`` launches before ``row`` and up to ``_NEAREST`` launches after it are returned, in
    ascending order.

    Args:
        n_kernels: Number of recorded kernels in each graph launch.
        row: Index of a graph launch with few kernels.
    """
    n_launches = np.bincount(n_kernels)
    is_common = n_launches >= _FAR_MORE * n_launches[n_kernels[row]]
    longer = np.flatnonzero((n_kernels > n_kernels[row]) & is_common[n_kernels])
    position = int(np.searchsorted(longer, row))
    return longer[max(position - _NEAREST, 0) : position + _NEAREST]


def _group_kernels(
    selected: Ints, graph: Codes, activities: model.Activities
) -> Mapping[int, Ints]:
    """Group the kernels of the selected graph launches by launch.

    The result maps the index of each launch to the rows of its kernels, sorted by start.

    Args:
        selected: Indices of the graph launches.
        graph: Graph launch of each kernel, or -1 if something else launched it.
        activities: GPU activities of the profile, kernels before copies.
    """
    # The last entry of the mask is for kernels that were not launched by a graph (-1).
    is_chosen = make_mask(int(graph.max()) + 2, selected)
    kernels = np.flatnonzero(is_chosen[graph])
    kernels = kernels[sort_rows(graph[kernels], activities.start_ns[kernels])]
    first = find_run_starts(graph[kernels])
    pieces = np.split(kernels, first[1:])
    return dict(zip(graph[kernels[first]].tolist(), pieces, strict=True))


def _measure_available_times(
    selected: Ints,
    kernels_of: Mapping[int, Ints],
    graph_launches: model.Calls,
    launches: Launches,
    activities: model.Activities,
    of_launch: tuple[Codes, Ints],
) -> Mapping[int, int]:
    """Return the time, in ns, that was available on the device for each selected graph launch.

    This is the time between the recorded kernels that the same thread launched on the same device
    before and after; see
    :func:`~bubbleviz.interpret.unrecorded_work.find_times_between_kernels`. It may be negative. The
    result is keyed by the index of the launch.

    Args:
        selected: Indices of the graph launches.
        kernels_of: Kernel rows of each selected graph launch, keyed by launch index.
        graph_launches: All graph launches with recorded work.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Pair (index, threads). ``threads[index[i]]`` is the id of the thread that
            launched activity ``i``. It is undefined if the launch is unknown.
    """
    times_ns: dict[int, int] = {}
    kernels = np.flatnonzero(launches.call[: activities.kernels] != NONE)
    thread_of_kernel = of_launch[1][of_launch[0][kernels]]
    rank_of = np.array([activities.rank[kernels_of[row][0]] for row in selected.tolist()], np.int64)
    # The loops are short: there are few threads and devices.
    for thread, of_thread in list_rows_by_value(graph_launches.thread[selected]):
        launched = kernels[thread_of_kernel == thread]
        for rank, of_rank in list_rows_by_value(rank_of[of_thread]):
            rows = selected[of_thread[of_rank]]
            start_ns, end_ns = find_times_between_kernels(
                graph_launches.start_ns[rows],
                launches.start_ns,
                activities,
                launched[activities.rank[launched] == rank],
            )
            times_ns.update(zip(rows.tolist(), (end_ns - start_ns).tolist(), strict=True))
    return times_ns


def _is_partial(
    row: int,
    longer: Ints,
    kernels_of: Mapping[int, Ints],
    time_ns: Mapping[int, int],
    activities: model.Activities,
) -> bool:
    """Return whether kernels of a graph launch ran but were not recorded.

    The launch is compared with complete launches. A launch in ``longer`` is complete if removing
    one contiguous stretch of its kernels leaves the same kernels as in this launch. If there are
    fewer than ``_FAR_MORE`` complete launches, the result is False.

    The kernels in the missing stretch ran if the device had enough time for them::

        missing    median kernel time of complete launches - kernel time of this launch
        usual      median time that the device had for a complete launch
        result     time_ns[row] > max(usual - missing / 2, missing / 2)

    Args:
        row: Index of the graph launch.
        longer: Indices of the graph launches with more kernels to compare with.
        kernels_of: Kernel rows of each graph launch, keyed by launch index.
        time_ns: Time in ns that the device had for each graph launch.
        activities: GPU activities of the profile, kernels before copies.
    """
    names = activities.name_id
    complete = [
        launch
        for launch in longer.tolist()
        if _is_missing_one_stretch(names[kernels_of[row]], names[kernels_of[launch]])
    ]
    if len(complete) < _FAR_MORE:
        return False
    complete_busy_ns = [_sum_durations(activities, kernels_of[launch]) for launch in complete]
    missing_ns = np.median(complete_busy_ns) - _sum_durations(activities, kernels_of[row])
    usual_ns = np.median([time_ns[launch] for launch in complete])
    # If the missing kernels did not run, the time is shorter than usual by about their duration.
    # If they ran, the time is at least their duration. The limits are halfway in between.
    return bool(time_ns[row] > max(usual_ns - missing_ns / 2, missing_ns / 2))


def _sum_durations(activities: model.Activities, rows: Ints) -> int:
    """Return the total duration of activities, in ns."""
    return int((activities.end_ns[rows] - activities.start_ns[rows]).sum())


def _is_missing_one_stretch(names: Codes, more_names: Codes) -> bool:
    """Return whether cutting one contiguous stretch out of the longer sequence gives the shorter.

    Args:
        names: Name ids of the shorter sequence.
        more_names: Name ids of the longer sequence.
    """
    count = len(names)
    n_first = _count_common(names, more_names[:count])
    n_last = _count_common(names[::-1], more_names[::-1][:count])
    return n_first + n_last >= count


def _count_common(names: Codes, other_names: Codes) -> int:
    """Return the length of the common prefix of two sequences of equal length."""
    differs = names != other_names
    return int(differs.argmax()) if differs.any() else len(names)
