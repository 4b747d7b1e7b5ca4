"""Partial replays: graph launches of which some kernels were recorded, and others were not.

A graph runs the same kernels at each launch, unless it contains conditions. A launch that runs
fewer leaves less time until the next one, but a launch of which kernels were not recorded as much::

    kernels      ├ a ┤├ b ┤├ c ┤  ├ a ┤├ b ┤├ c ┤  ├ a ┤            ├ a ┤├ b ┤├ c ┤   not recorded
                 ├ a ┤├ b ┤├ c ┤  ├ a ┤├ b ┤├ c ┤  ├ a ┤  ├ a ┤├ b ┤├ c ┤             did not run
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bubbleviz.interpret.late_launches import Launches
from bubbleviz.interpret.unrecorded_work import times_around
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Codes, Ints, marked
from bubbleviz.model.grouping import distinct, found_in, heads, rows_by_value, sorted_rows

#: How many times as many launches must have run all kernels.
_FAR_MORE = 4
#: Maximum number of launches with few kernels that are looked at, of more the first.
_MAX_SHORT = 256
#: Number of launches before one with few kernels, and after it, that it is compared with.
_NEAREST = 16
#: Number of kernels whose launches are looked up together, to save memory.
_PIECE = 1 << 16


def find_partial_replays(
    graph_launches: model.Calls,
    launches: Launches,
    activities: model.Activities,
    of_launch: tuple[Codes, Ints],
) -> model.Calls:
    """Return the graph launches of which some kernels were recorded and others were not.

    Such a launch lacks one stretch of the kernels of others. At least four times as many launches
    have as many kernels as these, and the time for its work is as long as theirs. If launches run
    side by side, nothing shows that.

    Args:
        graph_launches: Graph launches with recorded work, by row.
        launches: Launches of all activities.
        activities: Kernels, then copies.
        of_launch: For each activity the row of its launch's thread, undefined if its launch is
            unknown, and the threads that made calls.
    """
    if len(graph_launches) == 0:
        return graph_launches
    graph = _graph_launch_of(graph_launches.row, launches.call[: activities.kernels])
    n_kernels = np.bincount(graph[graph != NONE], minlength=len(graph_launches))
    compared = {row: _longer_ones(n_kernels, row) for row in _short_ones(n_kernels).tolist()}
    compared = {row: longer for row, longer in compared.items() if len(longer) >= _FAR_MORE}
    if not compared:
        return graph_launches.take(np.empty(0, np.int64))
    chosen = distinct(np.array([*compared], np.int64), *compared.values())
    kernels_of = _kernels_of(chosen, graph, activities)
    time_ns = _times_for_work(chosen, kernels_of, graph_launches, launches, activities, of_launch)
    partial = [
        row
        for row, longer in compared.items()
        if _is_partial(row, longer, kernels_of, time_ns, activities)
    ]
    return graph_launches.take(np.array(partial, np.int64))


def _graph_launch_of(rows: Ints, call: Codes) -> Codes:
    """Return the graph launch of each kernel, or -1 if something else launched it.

    Args:
        rows: Rows of the graph launches, ascending.
        call: Row of the call that launched each kernel, or -1 if unknown.
    """
    graph = np.empty(len(call), np.int32)
    for first in range(0, len(call), _PIECE):
        piece = slice(first, first + _PIECE)
        graph[piece] = found_in(rows, call[piece].astype(np.int64))
    return graph


def _short_ones(n_kernels: Ints) -> Ints:
    """Return the graph launches that have fewer kernels than far more others.

    Args:
        n_kernels: Number of kernels of each launch.
    """
    n_alike = np.bincount(n_kernels)
    most_above = np.append(np.maximum.accumulate(n_alike[:0:-1])[::-1], 0)
    is_short = _FAR_MORE * n_alike <= most_above
    return np.flatnonzero(is_short[n_kernels] & (n_kernels > 0))[:_MAX_SHORT]


def _longer_ones(n_kernels: Ints, row: int) -> Ints:
    """Return the nearest graph launches with more kernels, of which there are far more.

    Args:
        n_kernels: Number of kernels of each launch.
        row: A launch with fewer.
    """
    n_alike = np.bincount(n_kernels)
    is_common = n_alike >= _FAR_MORE * n_alike[n_kernels[row]]
    longer = np.flatnonzero((n_kernels > n_kernels[row]) & is_common[n_kernels])
    position = int(np.searchsorted(longer, row))
    return longer[max(position - _NEAREST, 0) : position + _NEAREST]


def _kernels_of(chosen: Ints, graph: Codes, activities: model.Activities) -> Mapping[int, Ints]:
    """Return the rows of the kernels of some graph launches, in order of their starts.

    Args:
        chosen: The graph launches.
        graph: Graph launch of each kernel, or -1 if something else launched it.
        activities: Kernels, then copies.
    """
    is_chosen = marked(int(graph.max()) + 2, chosen)
    # The last place is the one of kernels that something else launched (-1).
    kernels = np.flatnonzero(is_chosen[graph])
    kernels = kernels[sorted_rows(graph[kernels], activities.start_ns[kernels])]
    first = heads(graph[kernels])
    pieces = np.split(kernels, first[1:])
    return dict(zip(graph[kernels[first]].tolist(), pieces, strict=True))


def _times_for_work(
    chosen: Ints,
    kernels_of: Mapping[int, Ints],
    graph_launches: model.Calls,
    launches: Launches,
    activities: model.Activities,
    of_launch: tuple[Codes, Ints],
) -> Mapping[int, int]:
    """Return how long the device could work on some graph launches, negative if that is unknown.

    Args:
        chosen: The graph launches.
        kernels_of: Rows of their kernels.
        graph_launches: All graph launches with recorded work.
        launches: Launches of all activities.
        activities: Kernels, then copies.
        of_launch: For each activity the row of its launch's thread, undefined if its launch is
            unknown, and the threads that made calls.
    """
    times_ns: dict[int, int] = {}
    kernels = np.flatnonzero(launches.call[: activities.kernels] != NONE)
    thread_of_kernel = of_launch[1][of_launch[0][kernels]]
    rank_of = np.array([activities.rank[kernels_of[row][0]] for row in chosen.tolist()], np.int64)
    # Threads and devices are few.
    for thread, of_thread in rows_by_value(graph_launches.thread[chosen]):
        near = kernels[thread_of_kernel == thread]
        for rank, of_rank in rows_by_value(rank_of[of_thread]):
            rows = chosen[of_thread[of_rank]]
            start_ns, end_ns = times_around(
                graph_launches.start_ns[rows],
                launches.start_ns,
                activities,
                near[activities.rank[near] == rank],
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
    """Return whether kernels of a graph launch were not recorded.

    Args:
        row: The launch.
        longer: Launches with more kernels.
        kernels_of: Rows of the kernels of launches.
        time_ns: How long the device could work on launches.
        activities: Kernels, then copies.
    """
    names = activities.name_id
    alike = [
        other
        for other in longer.tolist()
        if _lacks_one_stretch(names[kernels_of[row]], names[kernels_of[other]])
    ]
    if len(alike) < _FAR_MORE:
        return False
    busy_ns = {
        launch: int((activities.end_ns[rows] - activities.start_ns[rows]).sum())
        for launch in (row, *alike)
        for rows in (kernels_of[launch],)
    }
    missing_ns = np.median([busy_ns[other] for other in alike]) - busy_ns[row]
    usual_ns = np.median([time_ns[other] for other in alike])
    # If the kernels did not run, its time is shorter by theirs. If they ran, they had room.
    return bool(time_ns[row] > max(usual_ns - missing_ns / 2, missing_ns / 2))


def _lacks_one_stretch(names: Codes, more_names: Codes) -> bool:
    """Return whether a sequence is another one without some elements that follow each other.

    Args:
        names: The sequence.
        more_names: The longer one.
    """
    count = len(names)
    n_first = _common_length(names, more_names[:count])
    n_last = _common_length(names[::-1], more_names[::-1][:count])
    return n_first + n_last >= count


def _common_length(names: Codes, other_names: Codes) -> int:
    """Return for how many elements two sequences of one length agree from their start on."""
    differs = names != other_names
    return int(differs.argmax()) if differs.any() else len(names)
