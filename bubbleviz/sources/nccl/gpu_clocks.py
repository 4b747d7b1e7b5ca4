"""Clocks of GPUs in event files: times that contradict all others of their GPU are left out.

The host sees each kernel begin a little later than its GPU does, always by about as much, for the
two clocks run alike::

    host    ···├─kernel────┤······├─kernel──┤···
    GPU      ├─kernel────┤······├─kernel──┤··············├─kernel──┤
                                                          damaged
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.values import frozen
from bubbleviz.sources.nccl.events import UNKNOWN, Bridges, NcclEvents

#: The thread that sees kernels begin sleeps for milliseconds, and clocks drift by as much in hours.
_APART_NS = 1_000_000_000
#: Of fewer instants on both clocks nobody knows which is damaged.
_FEWEST = 3
_OF_HOST = (
    *("host_start_ns", "host_end_ns", "kernel_start_ns", "kernel_end_ns"),
    *("proxy_start_ns", "proxy_end_ns"),
)


@frozen
class StrangeClocks:
    """Which operations have times of a GPU that cannot be: starts, and ends alone."""

    starts: Bools
    ends: Bools

    def left_out_of(self, events: NcclEvents) -> NcclEvents:
        """Return the events without these times."""
        if not (self.starts | self.ends).any():
            return events
        return replace(
            events,
            gpu_start_ns=np.where(self.starts, UNKNOWN, events.gpu_start_ns),
            gpu_end_ns=np.where(self.starts | self.ends, UNKNOWN, events.gpu_end_ns),
        )


def strange_clocks(events: NcclEvents, bridges: Bridges) -> StrangeClocks:
    """Return which operations have times of their GPU that its other times contradict.

    Args:
        events: of a file.
        bridges: instants on the clocks of GPUs and the host.
    """
    starts = np.zeros(len(events), bool)
    gpu = groups_of(events.pid, events.communicator, events.rank)
    if len(bridges):
        late_ns = bridges.host_ns - bridges.gpu_ns
        usual_ns, count = _medians(gpu.of_row[bridges.row], late_ns, len(gpu))
        of_bridge = gpu.of_row[bridges.row]
        apart = np.abs(late_ns - usual_ns[of_bridge]) > _APART_NS
        starts[bridges.row[apart & (count[of_bridge] >= _FEWEST)]] = True
    both = (events.gpu_start_ns != UNKNOWN) & (events.gpu_end_ns != UNKNOWN)
    length_ns = np.where(both, events.gpu_end_ns - np.where(both, events.gpu_start_ns, 0), 0)
    ends = both & (length_ns > _recorded_ns(events) + _APART_NS)
    return StrangeClocks(starts, np.asarray(ends & ~starts, bool))


def _medians(group: Ints, values: Ints, groups: int) -> tuple[Ints, Ints]:
    """Return the lower median of each group's values, 0 for none, and how many these are."""
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    at = np.minimum(first + np.maximum(count - 1, 0) // 2, len(values) - 1)
    return np.where(count > 0, values[order][at], 0), count


def _recorded_ns(events: NcclEvents) -> int:
    """Return how long the host recorded; no kernel can last longer."""
    times = np.concatenate([getattr(events, name) for name in _OF_HOST])
    known = times[times != UNKNOWN]
    return int(known.max() - known.min()) if len(known) else 0
