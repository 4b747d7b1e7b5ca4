"""Links between machines: iterations of two machines that are the same, by all evidence.

The clocks of two machines agree except for the error of NTP, or not at all. Every shift of their
iterations is therefore weighed against every other shift, in nats (factors of e in likelihood), by

- how well the lengths of iterations agree, event by event (see ``align.pairing.iteration_fits``),
- whether any offset of the clocks satisfies the data dependencies,
- whether matched iterations ran the same number of forwards and backwards,
- whether a capture began long before its first iteration, or ended long after its last iteration,
  although it should contain further iterations according to the shift,
- the assumption that captures usually contain the same iterations,
- the distance between the clocks.

Each machine is linked by a pair of ranks that decides how its iterations match the iterations of a
machine that is already linked. The link gives the correction of its clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.join import JoinedRank
from bubbleviz.align.pairing.histories import CommonEvents, Histories, batches
from bubbleviz.align.pairing.iteration_fits import StepComparison, compare_steps
from bubbleviz.align.pairing.possible_shifts import (
    DECIDED,
    MAX_UTC_EVIDENCE,
    Shift,
    find_possible_shifts,
    list_moves,
)
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.texts import format_count

#: What speaks against captures that have no iteration in common.
_ELSEWHERE = 5.0


@dataclass(frozen=True)
class Link:
    """The shift between the iterations of two ranks.

    Attributes:
        first: one of the ranks.
        second: the other.
        best: the likeliest shift; None if there is none.
        rival: the next best; None for captures without a common iteration.
        margin: how much likelier the best is, in nats.
        fit: how much of that the lengths of iterations are.
    """

    first: int
    second: int
    best: Shift | None
    rival: Shift | None
    margin: float
    fit: float

    @property
    def decided(self) -> bool:
        """Whether no other shift is possible."""
        return self.best is not None and self.margin >= DECIDED


def links(
    histories: Histories, first: Ints, second: Ints, *, beside: Bools, timed: Bools
) -> list[Link]:
    """Return the shifts between the iterations of pairs of ranks, each of two machines.

    Args:
        histories: of all ranks.
        first: a rank of each pair.
        second: one that passes microbatches to it or gets them from it, or a replica of it.
        beside: whether it is a replica, which steps together with it but waits for no microbatch.
        timed: whether the UTC of both is known.
    """
    found: dict[int, Link] = {}
    still = np.zeros(len(first), np.int64)
    for at, events in batches(histories, first, second, still, beside):
        own = _links(histories, (first[at], second[at]), timed[at], events)
        found.update(zip(at.tolist(), own, strict=True))
    return [found[pair] for pair in range(len(first))]


def _links(
    histories: Histories, pair: tuple[Ints, Ints], timed: Bools, events: CommonEvents | None
) -> list[Link]:
    """Return the link of each pair; the arguments are those of :func:`find_possible_shifts`."""
    moves = list_moves(histories)
    offset_ns, prior, utc = find_possible_shifts(histories, pair, timed, events, moves)
    possible = np.isfinite(prior)
    ways = _looks(histories, pair, events, moves)
    every = np.arange(len(timed))
    alone = _by_best(look.compute_evidence() for look in ways)
    likely = alone + prior
    best = likely.argmax(axis=1)
    lags = np.abs(moves - moves[best][:, None])
    lags = np.where(lags < histories.start_ns.shape[1] - 1, lags, 0)
    fit = _by_best(look.compute_evidence(lags, best) for look in ways)
    fit = fit - _by_best(look.compute_evidence(lags) for look in ways)
    most = np.where(possible.any(axis=1), prior[every, best], 0.0)
    margin = fit + most[:, None] - prior
    margin[every, best] = np.inf
    rival = margin.argmin(axis=1)
    # Or captures have no iteration in common.
    nearest = np.where(possible, utc, MAX_UTC_EVIDENCE).min(axis=1)
    against_none = likely[every, best] + nearest + _ELSEWHERE
    by_rival = margin[every, rival] < against_none

    def shift(row: int, place: int) -> Shift:
        return Shift(int(moves[place]), float(offset_ns[row, place]))

    found = []
    for row, (a, b) in enumerate(zip(pair[0].tolist(), pair[1].tolist(), strict=True)):
        if not possible[row].any():
            found.append(Link(a, b, None, None, 0.0, 0.0))
            continue
        one, other = int(best[row]), int(rival[row])
        found.append(
            Link(
                *(a, b, shift(row, one), shift(row, other) if by_rival[row] else None),
                float(min(margin[row, other], against_none[row])),
                float(fit[row, other] if by_rival[row] else alone[row, one]),
            )
        )
    return found


def _by_best(found: Iterable[Floats]) -> Floats:
    """Return the evidence of the best of several looks, which is a little likelier by chance."""
    looks = list(found)
    best = np.maximum.reduce(looks) - float(np.log(len(looks)))
    return np.asarray(np.maximum(best, 0.0), np.float64)


def _looks(
    histories: Histories, pair: tuple[Ints, Ints], events: CommonEvents | None, moves: Ints
) -> list[StepComparison]:
    """Return the ways to compare the lengths of iterations.

    Ranks that wait for each other agree event by event, and best in those that waited least for
    anything else. Ranks that step together leave the collective before the Optimizer together, and
    replicas start the next iteration soon after.
    """

    def of_iterations(times_ns: Floats) -> list[StepComparison]:
        one, other = (times_ns[ranks][:, :, None] for ranks in pair)
        return compare_steps(one, other, moves)

    found = of_iterations(histories.optimizer_ns)
    if events is None:
        return found + of_iterations(histories.start_ns)
    if events.a_leads.shape[1]:
        found += compare_steps(events.a_ns, events.b_ns, moves, events.bounds(moves))
    return found


#: Maximum number of pairs of ranks that are tried to link two machines.
_TRIES = 6


#: First and second rank of neighbouring pairs, and a mask of the pairs that are replicas.
_Neighbours = tuple[Ints, Ints, Bools]


def link_machines(
    histories: Histories, neighbours: _Neighbours, machine: Ints, timed: Bools
) -> tuple[dict[int, int], tuple[Link, ...]]:
    """Return what to add to the clock of each machine that is linked to the first rank's.

    And one link for each machine but that: how it was joined, or what came closest.

    Args:
        histories: of all ranks.
        neighbours: those of the first rank first.
        machine: number of each rank's machine.
        timed: whether the UTC of each rank is known.
    """
    first, second, beside = neighbours
    # At last ranks of one pipeline that have one other rank in between.
    is_chained = second[:-1] == first[1:]
    passing = ~beside[:-1] & ~beside[1:] & is_chained
    over = np.flatnonzero(passing)
    farther = first[over], second[over + 1], beside[over]
    offset_ns = {int(own): 0 for own in machine[first[:1]]}
    closest: dict[int, Link] = {}
    found: list[Link] = []
    for pairs in (neighbours, farther):
        ends = machine[pairs[0]], machine[pairs[1]]
        rest = np.flatnonzero(ends[0] != ends[1])
        for _ in range(_TRIES):
            # The next pair of any two machines that are not joined yet.
            rest = rest[~np.isin(np.stack(ends)[:, rest], list(offset_ns)).all(axis=0)]
            if len(rest) == 0:
                break
            sides = np.sort(np.stack(ends)[:, rest], axis=0)
            next_ones = np.sort(group_rows(sides[0], sides[1]).first)
            wanted, rest = rest[next_ones], np.delete(rest, next_ones)
            one, other = pairs[0][wanted], pairs[1][wanted]
            both_timed = timed[one] & timed[other]
            found += links(histories, one, other, beside=pairs[2][wanted], timed=both_timed)
            while _join_linked(found, machine, offset_ns, closest):
                pass
    return offset_ns, tuple(closest.values())


def _join_linked(
    links: Sequence[Link],
    machine: Ints,
    offset_ns: dict[int, int],
    closest: dict[int, Link],
) -> bool:
    """Join what links join to what is joined already, and return whether that is anything."""
    before = len(offset_ns)
    for link in links:
        one, other = int(machine[link.first]), int(machine[link.second])
        if (one in offset_ns) == (other in offset_ns):
            continue
        old, new = (one, other) if one in offset_ns else (other, one)
        if new not in closest or link.margin > closest[new].margin:
            closest[new] = link
        if link.best is not None and link.decided:
            moved = round(link.best.offset_ns)
            offset_ns[new] = offset_ns[old] + (moved if old == one else -moved)
    return len(offset_ns) > before


def describe_undecided(one: Link, ranks: Sequence[JoinedRank]) -> str:
    """Return which pairings of two ranks remain possible."""
    best, hosts = one.best, name_hosts(one, ranks)
    if best is None:
        return f"those of {hosts} have no operation in common"
    return (
        f"of {hosts}, {_describe_shift(best)} fits best, but another one, which "
        f"{describe_rival(one)}, remains possible"
    )


def name_hosts(one: Link, ranks: Sequence[JoinedRank]) -> str:
    """Return the names of the two hosts that a link connects."""
    return f"{ranks[one.first].host} and {ranks[one.second].host}"


def _describe_shift(shift: Shift) -> str:
    """Return a pairing in words."""
    if shift.move == 0:
        return "pairing from the first iterations on"
    sides = ("first", "second") if shift.move > 0 else ("second", "first")
    count = format_count(abs(shift.move), "iteration")
    return f"pairing the {sides[1]} one's first with what is {count} later on the {sides[0]}"


def describe_rival(link: Link) -> str:
    """Return what the next best shift would mean."""
    best, rival = link.best, link.rival
    if rival is None or best is None:
        return "leaves no iteration in common"
    return (
        f"is off by {format_count(abs(rival.move - best.move), 'iteration')} and moves clocks by "
        f"{(rival.offset_ns - best.offset_ns) / 1e6:+,.1f} ms"
    )
