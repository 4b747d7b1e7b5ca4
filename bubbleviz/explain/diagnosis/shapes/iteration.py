"""Iterations: all ranks are slow in some, or one rank pauses in some operations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.diagnosis.fault import Fault, FaultKind, HostState, host_during, median_of
from bubbleviz.explain.diagnosis.rank_paces import Evidence, losing
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.grouping import distinct

#: A compute that takes this many times as long as its like paused.
_PAUSED = 1.5
#: So many ranks that pause are faults of their own.
_MOST = 4


def faults(seen: Evidence) -> Iterator[Fault]:
    """Yield iterations that are slow on all ranks, then ranks that pause, then all pauses."""
    yield from _on_all_ranks(seen)
    yield from _pauses(seen)


def _on_all_ranks(seen: Evidence) -> Iterator[Fault]:
    effects, work = seen.effects, seen.work
    groups, effect = effects.iterations, effects.iteration_effect / effects.trend
    size = np.bincount(groups.of_row, minlength=len(groups))
    out = effects.stands_out(effect, size, against=0.0)
    if not out.any():
        return
    at = np.flatnonzero(out[groups.of_row])
    scale = 1 / effect[groups.of_row[at]]
    yield Fault(
        FaultKind.ITERATION,
        "iterations",
        effects.rows[at],
        scale,
        iterations=tuple(work.iteration[effects.rows[groups.first[out]]].tolist()),
        phases=(("", median_of(effect[out])),),
        host=_host(seen, effects.rows[at], scale),
    )


def _pauses(seen: Evidence) -> Iterator[Fault]:
    effects, work = seen.effects, seen.work
    size = np.bincount(effects.paces.of_row, minlength=len(effects.paces))
    # A rank that has slowed for good does not pause.
    pace = effects.pace / seen.paces.since_slowed
    slow_pace = effects.stands_out(pace, size, against=0.0)
    paused = (effects.rest > _PAUSED) & (np.log(effects.rest) > 6 * effects.noise)
    factor = np.where(paused, effects.rest, 1.0)
    factor *= np.where(slow_pace, pace, 1.0)[effects.paces.of_row]
    lost_ns = effects.time_ns * (1 - 1 / factor)
    ranks = losing(work.rank[effects.rows], lost_ns)
    for one in ranks[:_MOST]:
        yield _pause(seen, factor, [one])
    if len(ranks) > 1:
        yield _pause(seen, factor, sorted(ranks))


def _pause(seen: Evidence, factor: Floats, ranks: list[int]) -> Fault:
    effects, work = seen.effects, seen.work
    at = np.flatnonzero((factor > 1) & np.isin(work.rank[effects.rows], ranks))
    rows = effects.rows[at]
    return Fault(
        FaultKind.ITERATION,
        f"pauses-{ranks[0]}" if len(ranks) == 1 else "pauses",
        rows,
        1 / factor[at],
        ranks=tuple(ranks),
        iterations=tuple(distinct(work.iteration[rows]).tolist()),
        phases=(("", median_of(factor[at])),),
        what="pause",
        host=_host(seen, rows, 1 / factor[at]),
    )


def _host(seen: Evidence, rows: Ints, scale: Floats) -> HostState:
    """Return where the host was in the operation that loses most.

    Args:
        seen: the run.
        rows: of the work table.
        scale: what each would take without the fault, as a share of what it took.
    """
    work = seen.work
    lost_ns = (work.end_ns - work.start_ns)[rows] * (1 - scale)
    longest = int(rows[lost_ns.argmax()])
    start_ns, end_ns = int(work.start_ns[longest]), int(work.end_ns[longest])
    return host_during(seen.hosts, int(work.rank[longest]), start_ns, end_ns, float(lost_ns.max()))
