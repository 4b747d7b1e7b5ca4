"""Doing: what the launching thread did while a rank waited for its host alone."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bubbleviz.explain.causes import Bubbles
from bubbleviz.explain.idle import Cause
from bubbleviz.model.columns import NONE
from bubbleviz.model.operations import HostActivities


def with_doing(bubbles: Bubbles, hosts: HostActivities) -> Bubbles:
    """Return bubbles with what the host did in those that it caused.

    A call is named where calls of its name take half of the gap or more, a range where it is the
    shortest that does.

    Args:
        bubbles: idle intervals, by cause.
        hosts: what launching threads did, in order of the operation that came late.
    """
    call, around = bubbles.host_call_id.copy(), bubbles.host_range_id.copy()
    late = np.flatnonzero((bubbles.cause == Cause.HOST) & np.isin(bubbles.after, hosts.operation))
    # At most as many as operations were looked into, some thousand a profile.
    for row in late.tolist():
        low, high = np.searchsorted(hosts.operation, (bubbles.after[row], bubbles.after[row] + 1))
        own = hosts.take(slice(int(low), int(high)))
        since, until = bubbles.start_ns[row], bubbles.end_ns[row]
        spent_ns = np.minimum(own.end_ns, until) - np.maximum(own.start_ns, since)
        total: Counter[int] = Counter()
        for name, spent, is_call in zip(
            own.name_id.tolist(), spent_ns.tolist(), own.call.tolist(), strict=True
        ):
            if is_call and spent > 0:
                total[name] += spent
        name, most = max(total.items(), key=lambda pair: (pair[1], -pair[0]), default=(NONE, 0))
        call[row] = name if 2 * most >= until - since else NONE
        ranges = np.flatnonzero((own.call == 0) & (2 * spent_ns >= until - since))
        if len(ranges):
            shortest = ranges[np.argmin((own.end_ns - own.start_ns)[ranges])]
            around[row] = own.name_id[shortest]
    return bubbles.doing(call, around)
