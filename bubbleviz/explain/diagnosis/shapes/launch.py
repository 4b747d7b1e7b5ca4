"""Launches: the host launches operations late, though their inputs are there, or collectives.

Of a collective that one rank launches late all other members wait for its last one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.diagnosis.fault import Fault, FaultKind, host_during
from bubbleviz.explain.diagnosis.rank_paces import Evidence, losing
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct

#: So many ranks that launch late are faults of their own.
_MOST = 4


def faults(seen: Evidence) -> Iterator[Fault]:
    """Yield the ranks whose hosts launch late, then all of them, then the profiler's part."""
    rows = np.flatnonzero(seen.late_ns > 0)
    rank = seen.work.rank[rows]
    ranks = losing(rank, seen.late_ns[rows].astype(np.float64))
    for one in ranks[:_MOST]:
        yield _fault(seen, f"launch-{one}", rows[rank == one], seen.late_ns)
    if len(ranks) > 1:
        yield _fault(seen, "launches", rows, seen.late_ns)
    held = np.flatnonzero(seen.profiler_ns > 0)
    if len(held):
        yield _fault(seen, "profiler", held, seen.profiler_ns, "profiler")


def _fault(seen: Evidence, name: str, rows: Ints, late_ns: Ints, what: str = "") -> Fault:
    work, lost_ns = seen.work, late_ns[rows]
    longest = int(rows[lost_ns.argmax()])
    until_ns, longest_ns = int(work.start_ns[longest]), int(lost_ns.max())
    collective = seen.phase(int(work.kind[longest]))
    of_collectives = work.communicates[rows]
    return Fault(
        FaultKind.LAUNCH,
        name,
        ranks=tuple(distinct(work.rank[rows]).tolist()),
        iterations=tuple(distinct(work.iteration[rows]).tolist()),
        what=what,
        delayed=rows,
        late_ns=lost_ns,
        collective=collective if 2 * lost_ns[of_collectives].sum() > lost_ns.sum() else "",
        host=host_during(
            seen.hosts, int(work.rank[longest]), until_ns - longest_ns, until_ns, longest_ns
        ),
    )
