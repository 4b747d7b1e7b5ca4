"""Row check: work that is recorded twice counts once, and kernels of no length are told.

A call launches a kernel once, so that two rows of one call, name and device with the same times are
the same, but for those of a CUDA graph, whose nodes may run side by side. A kernel cannot end as it
begins where others of its name take long.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.interpret.linking.correlations import Launches
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import UNCORRELATED, Activities, CallLog
from bubbleviz.model.values import frozen

#: Some profilers count in microseconds, so that a kernel of no length may have taken one or two.
_LONG_NS = 10_000
#: Rows that are looked at together.
_PIECE = 1 << 16


@frozen
class RowCheck:
    """Which work is recorded once, and has a length.

    Attributes:
        kept: which kernels and copies are kept; None for all.
        repeated: how many are left out, for they are recorded twice.
        lengthless: how many kernels end as they begin, though others of their name take long.
    """

    kept: Bools | None
    repeated: int
    lengthless: int

    def limitations(self, path: str) -> Iterator[Limitation]:
        """Yield what was left out of a profile, and what of it is uncertain."""
        if self.repeated:
            reason = f"{path}: call, name and times are those of another row; each counts once"
            yield Limitation(
                "kernels and copies recorded twice", reason, self.repeated, LimitationKind.COSTS
            )
        if self.lengthless:
            reason = (
                f"{path}: they end as they begin, though others of their name take long, so the "
                "profile is damaged: their time counts as idle; export or record it again"
            )
            yield Limitation(
                "kernels without a duration",
                reason,
                self.lengthless,
                LimitationKind.KERNELS_LEFT_OUT,
            )


def check_rows(activities: Activities, launches: Launches, calls: CallLog) -> RowCheck:
    """Look for rows that are there twice, and kernels without a length.

    Args:
        activities: kernels, then copies.
        launches: of all of these.
        calls: all calls, by row.
    """
    repeated = _repeated(activities, launches.by_id())
    if len(repeated):
        repeated = repeated[~_of_graphs(launches.call[repeated].astype(np.int64), calls)]
    kept = None
    if len(repeated):
        kept = np.ones(len(activities), bool)
        kept[repeated] = False
    return RowCheck(kept, len(repeated), _lengthless(activities))


def _repeated(activities: Activities, by_id: Ints) -> Ints:
    """Return the rows that an earlier one equals."""
    sharing = [np.empty(0, np.int64)]
    ids = activities.correlation_id
    for at in range(0, len(by_id), _PIECE):
        rows = by_id[at : at + _PIECE + 1]
        own = ids[rows]
        same = np.flatnonzero((own[1:] == own[:-1]) & (own[1:] != UNCORRELATED))
        if len(same):
            sharing.extend((rows[same], rows[same + 1]))
    # A row between two others is here twice.
    rows = distinct(*sharing)
    if len(rows) == 0:
        return rows
    keys = ("rank", "correlation_id", "name_id", "start_ns", "end_ns")
    columns = [getattr(activities, key)[rows] for key in keys]
    kernel = rows < activities.kernels
    order = np.lexsort((rows, *columns, kernel))
    equal = np.ones(len(rows) - 1, bool)
    for column in (*columns, kernel):
        equal &= column[order][1:] == column[order][:-1]
    repeated: Ints = rows[order[1:][equal]]
    return repeated


def _of_graphs(call: Ints, calls: CallLog) -> Bools:
    """Tell which of some launching calls launch CUDA graphs, whose nodes may run side by side."""
    of_graphs: Bools = np.isin(call, calls.graph_launches(distinct(call[call != NONE])))
    return of_graphs


def _lengthless(activities: Activities) -> int:
    """Return how many kernels end as they begin, while most of their name are long."""
    count = activities.kernels
    start_ns, end_ns = activities.start_ns[:count], activities.end_ns[:count]
    pieces = (slice(at, at + _PIECE) for at in range(0, count, _PIECE))
    found = [p.start + np.flatnonzero(start_ns[p] == end_ns[p]) for p in pieces]
    rows = np.concatenate([np.empty(0, np.int64), *found])
    if len(rows) == 0:
        return 0
    name = activities.name_id[:count]
    wanted = np.zeros(len(activities.names), bool)
    wanted[name[rows]] = True
    rows = np.flatnonzero(wanted[name])
    name, duration_ns = name[rows], end_ns[rows] - start_ns[rows]
    order = np.lexsort((duration_ns, name))
    name, duration_ns = name[order], duration_ns[order]
    # Of each name those without a length come first.
    first = np.flatnonzero(np.append(True, name[1:] != name[:-1]))
    after = np.append(first[1:], len(name))
    without = np.add.reduceat(duration_ns == 0, first, dtype=np.int64)
    real = after - first - without
    # Half of them at least are as long.
    middle = np.minimum(first + without + real // 2, after - 1)
    return int(without[(real > 0) & (duration_ns[middle] >= _LONG_NS)].sum())
