"""Links: transfers between two stages take longer than between others, or all take long."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.diagnosis.fault import Fault, FaultKind, group_medians, others_medians
from bubbleviz.explain.diagnosis.rank_paces import Evidence
from bubbleviz.explain.slowdown.messages import link_of
from bubbleviz.explain.slowdown.replay import Role
from bubbleviz.model.columns import NONE
from bubbleviz.model.grouping import distinct, distinct_rows, groups_of

#: A link that takes this many times as long as others is slow.
_SLOW = 1.3


def faults(seen: Evidence) -> Iterator[Fault]:
    """Yield links that are slower than others, then all transfers.

    How long data moved shows where the receive was there first; both directions are one link.
    """
    work = seen.work
    sender, receiver = link_of(work)
    rows = np.flatnonzero((sender != NONE) & (seen.own_ns > 0))
    if not len(rows):
        return
    links = groups_of(sender[rows], receiver[rows], work.kind[rows])
    length_ns = work.end_ns[rows] - work.start_ns[rows]
    shows = np.isin(work.role[rows], (Role.RECV_F, Role.RECV_B)) & (length_ns > seen.own_ns[rows])
    moved_ns = seen.own_ns[rows[shows]].astype(np.float64)
    link_ns = group_medians(links.of_row[shows], len(links), moved_ns)
    known = np.flatnonzero(~np.isnan(link_ns))
    norm_ns = np.full(len(links), np.nan)
    norm_ns[known] = others_medians(np.zeros(len(known), np.int64), link_ns[known])
    ratio = np.nan_to_num(link_ns / norm_ns)
    low, high = np.minimum(sender, receiver)[rows], np.maximum(sender, receiver)[rows]
    slow_rows = np.flatnonzero((ratio > _SLOW)[links.of_row])
    for pair in distinct_rows(low[slow_rows], high[slow_rows]).T.tolist():
        at = slow_rows[(low[slow_rows] == pair[0]) & (high[slow_rows] == pair[1])]
        yield Fault(
            FaultKind.LINK,
            f"link-{pair[0]}-{pair[1]}",
            rows[at],
            1 / ratio[links.of_row[at]],
            ranks=tuple(distinct(work.rank[rows[at]]).tolist()),
            link=(pair[0], pair[1]),
            phases=(("", float(ratio[links.of_row[at]].max())),),
        )
    yield Fault(FaultKind.LINK, "links", rows, np.zeros(len(rows)), bound=True)
