"""Ranks and hosts: all that a GPU computes takes longer than its copies elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.diagnosis.fault import Fault, FaultKind
from bubbleviz.explain.diagnosis.rank_paces import Evidence, losing
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct, groups_of

#: So many ranks at most are faults of their own.
_MOST = 8


def faults(seen: Evidence) -> Iterator[Fault]:
    """Yield slow ranks, and the hosts and replicas all of whose ranks are slow."""
    effects, work = seen.effects, seen.work
    size = np.bincount(effects.cells.of_row, minlength=len(effects.cells))
    copies = np.bincount(effects.copies.of_row)[effects.copies.of_row]
    out = effects.stands_out(effects.rank_effect, size, 1 / np.maximum(copies - 1, 1))
    rank = work.rank[effects.rows[effects.cells.first]]
    excess = np.where(out, effects.cell_ns * (1 - 1 / effects.rank_effect) * size, 0.0)
    slow_ranks = losing(rank, excess)
    present = distinct(work.rank)
    host = seen.host_of_rank[present] if len(seen.host_of_rank) else np.zeros(0, np.int64)
    replica = work.replica[groups_of(work.rank).first]
    for kind, name, place in ((FaultKind.HOST, "host", host), (FaultKind.RANK, "replica", replica)):
        for number, ranks in _whole(present, place, slow_ranks):
            yield _fault(seen, out, rank, kind, f"{name}-{number}", ranks)
            slow_ranks = [r for r in slow_ranks if r not in ranks]
    for one in slow_ranks[:_MOST]:
        yield _fault(seen, out, rank, FaultKind.RANK, f"rank-{one}", [one])


def _whole(present: Ints, place: Ints, slow_ranks: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield places (hosts, replicas) of several ranks, not of all, that are slow one and all.

    Args:
        present: the ranks.
        place: of each; empty, or -1, for unknown.
        slow_ranks: those of them that are slow.
    """
    if not len(place):
        return
    for one in distinct(place[np.isin(present, slow_ranks)]).tolist():
        ranks = present[place == one].tolist()
        if one != NONE and 1 < len(ranks) < len(present) and set(ranks) <= set(slow_ranks):
            yield one, ranks


def _fault(
    seen: Evidence, out: Bools, rank: Ints, kind: FaultKind, name: str, ranks: list[int]
) -> Fault:
    effects, work = seen.effects, seen.work
    cells = out & np.isin(rank, ranks)
    at = np.flatnonzero(cells[effects.cells.of_row])
    rows, cell = effects.rows[at], effects.cells.of_row[at]
    # Without the fault cells take the times of the others.
    kind_of_cell = work.kind[effects.rows[effects.cells.first[cells]]]
    phases = groups_of(kind_of_cell)
    own = np.bincount(phases.of_row, effects.cell_ns[cells])
    others = np.bincount(phases.of_row, (effects.cell_ns / effects.rank_effect)[cells])
    kinds = kind_of_cell[phases.first].tolist()
    ratios = (own / others).tolist()
    stages = distinct(work.stage[rows]).tolist()
    return Fault(
        kind,
        name,
        rows,
        1 / effects.rank_effect[cell],
        ranks=tuple(ranks),
        stage=stages[0] if len(stages) == 1 else None,
        phases=tuple((seen.phase(k), r) for k, r in zip(kinds, ratios, strict=True)),
    )
