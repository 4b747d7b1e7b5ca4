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
from bubbleviz.align.pairing.histories import CommonEvents, Histories, list_batches
from bubbleviz.align.pairing.iteration_fits import StepComparison, compare_steps
from bubbleviz.align.pairing.possible_shifts import (
    DECIDED,
    MAX_UTC_EVIDENCE,
    Shift,
    find_possible_shifts,
    list_shifts,
)
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table
from bubbleviz.model.grouping import group_rows, subtract_values
from bubbleviz.model.texts import format_count

#: Evidence against captures that have no iteration in common, in nats.
_NO_COMMON_PENALTY = 5.0


@dataclass(frozen=True)
class Link:
    """The likeliest shift between the iterations of two ranks.

    Attributes:
        first: First rank.
        second: Second rank.
        best: Likeliest shift, or None if no shift is possible.
        rival: Next likeliest shift, or None if captures without a common iteration are likelier.
        margin: Evidence for the best shift against the rival, in nats.
        fit: Part of the margin that comes from the lengths of iterations, in nats.
    """

    first: int
    second: int
    best: Shift | None
    rival: Shift | None
    margin: float
    fit: float

    @property
    def decided(self) -> bool:
        """Whether the best shift is likelier than every other by at least ``DECIDED``."""
        return self.best is not None and self.margin >= DECIDED


def _find_links(
    histories: Histories, first: Ints, second: Ints, *, is_replica: Bools, timed: Bools
) -> list[Link]:
    """Find the likeliest shift of each pair of ranks of two machines.

    Args:
        histories: Iteration times of all ranks.
        first: One rank of each pair.
        second: The other rank, which exchanges microbatches with the first or is its replica.
        is_replica: Mask of the pairs of replicas, which step together but do not wait for
            microbatches of each other.
        timed: Mask of the pairs in which the UTC time of both ranks is known.
    """
    link_of_pair: dict[int, Link] = {}
    no_correction = np.zeros(len(first), np.int64)
    for pairs, events in list_batches(histories, first, second, no_correction, is_replica):
        links = _link_batch(histories, (first[pairs], second[pairs]), timed[pairs], events)
        link_of_pair.update(zip(pairs.tolist(), links, strict=True))
    return [link_of_pair[pair] for pair in range(len(first))]


def _link_batch(
    histories: Histories, pair: tuple[Ints, Ints], timed: Bools, events: CommonEvents | None
) -> list[Link]:
    """Find the likeliest shift of each pair of a batch, and the next likeliest.

    Args:
        histories: Iteration times of all ranks.
        pair: First and second rank of each pair.
        timed: Mask of the pairs in which the UTC time of both ranks is known.
        events: Events of the pairs, or None for replicas.
    """
    shifts = list_shifts(histories)
    offset_ns, prior, utc_penalty = find_possible_shifts(histories, pair, timed, events, shifts)
    min_utc_penalty = np.where(np.isfinite(prior), utc_penalty, MAX_UTC_EVIDENCE).min(axis=1)
    comparisons = _compare_iterations(histories, pair, events, shifts)
    choices = _choose_shifts(comparisons, shifts, prior, min_utc_penalty + _NO_COMMON_PENALTY)
    return _make_links(pair, shifts, offset_ns, choices)


def _make_links(
    pair: tuple[Ints, Ints], shifts: Ints, offset_ns: Floats, choices: _Choices
) -> list[Link]:
    """Make the link of each pair of ranks from the shifts that were chosen for it.

    Args:
        pair: First and second rank of each pair.
        shifts: Candidate shifts.
        offset_ns: Correction of the second clock that each shift implies, shape (pairs, shifts).
        choices: Likeliest shifts of each pair.
    """
    links = []
    for index, (a, b) in enumerate(zip(pair[0].tolist(), pair[1].tolist(), strict=True)):
        best, rival = (
            Shift(int(shifts[column]), float(offset_ns[index, column])) if column >= 0 else None
            for column in (int(choices.best[index]), int(choices.rival[index]))
        )
        margin, fit = float(choices.margin[index]), float(choices.fit[index])
        links.append(Link(a, b, best, rival, margin, fit))
    return links


@dataclass(frozen=True, eq=False, repr=False)
class _Choices(Table):
    """Likeliest shifts, one row per pair of ranks.

    Attributes:
        best: Index of the likeliest shift, or -1 if no shift is possible.
        rival: Index of the next likeliest shift, or -1 if captures without a common iteration are
            likelier, or no shift is possible.
        margin: Evidence for the best shift against the rival, in nats, or 0 if no shift is
            possible.
        fit: Part of the margin that comes from the lengths of iterations, in nats.
    """

    best: Ints
    rival: Ints
    margin: Floats
    fit: Floats


def _choose_shifts(
    comparisons: Sequence[StepComparison], shifts: Ints, prior: Floats, none_penalty: Floats
) -> _Choices:
    """Choose the likeliest and the next likeliest shift of each pair of ranks.

    The best shift has the largest sum of the prior and the fit of iteration times. The fit of every
    other shift is then computed again against steps that are as far apart as the two shifts,
    because iterations that repeat a pattern also fit well at some distances
    (:func:`_compare_with_lags`). The rival is the shift with the smallest margin.

    Args:
        comparisons: All ways to compare the iterations of the pairs.
        shifts: Candidate shifts.
        prior: Evidence for each shift apart from the fit of iteration times, in nats, or negative
            infinity if the shift is impossible, shape (pairs, shifts).
        none_penalty: Evidence against captures that have no iteration in common, for each pair.
    """
    row = np.arange(len(prior))
    is_linked = np.isfinite(prior).any(axis=1)
    fit_alone = _choose_largest(comparison.compute_evidence() for comparison in comparisons)
    evidence = fit_alone + prior
    best = evidence.argmax(axis=1)
    fit = _compare_with_lags(comparisons, shifts, best)
    best_prior = np.where(is_linked, prior[row, best], 0.0)
    margin = fit + best_prior[:, None] - prior
    margin[row, best] = np.inf
    rival = margin.argmin(axis=1)
    margin_to_none = evidence[row, best] + none_penalty
    has_rival = is_linked & (margin[row, rival] < margin_to_none)
    smallest_margin = np.minimum(margin[row, rival], margin_to_none)
    return _Choices(
        best=np.where(is_linked, best, NONE),
        rival=np.where(has_rival, rival, NONE),
        margin=np.where(is_linked, smallest_margin, 0.0),
        fit=np.where(has_rival, fit[row, rival], np.where(is_linked, fit_alone[row, best], 0.0)),
    )


def _compare_with_lags(comparisons: Sequence[StepComparison], shifts: Ints, best: Ints) -> Floats:
    """Compute how much better iteration times fit the best shift than every other shift, in nats.

    Both fits are tested against steps of one rank that are as far apart as the two shifts, or
    against any two steps if there are none that far apart.

    Args:
        comparisons: All ways to compare the iterations of the pairs.
        shifts: Candidate shifts.
        best: Index of the best shift of each pair.

    Returns:
        Difference of the two fits, shape (pairs, shifts).
    """
    lags = np.abs(shifts - shifts[best][:, None])
    lags = np.where(lags < comparisons[0].null.dof.shape[1], lags, 0)
    fit_of_best = _choose_largest(
        comparison.compute_evidence(lags, best) for comparison in comparisons
    )
    return fit_of_best - _choose_largest(
        comparison.compute_evidence(lags) for comparison in comparisons
    )


def _choose_largest(evidence: Iterable[Floats]) -> Floats:
    """Return the elementwise largest of several arrays of evidence, less the log of their number.

    The log corrects for choosing the largest value. The result is at least 0.
    """
    parts = list(evidence)
    largest = np.maximum.reduce(parts) - float(np.log(len(parts)))
    return np.asarray(np.maximum(largest, 0.0), np.float64)


def _compare_iterations(
    histories: Histories, pair: tuple[Ints, Ints], events: CommonEvents | None, shifts: Ints
) -> list[StepComparison]:
    """Compare the lengths of the iterations of pairs of ranks in all available ways.

    All pairs are compared by the starts of their Optimizers, because ranks leave the collective
    before the Optimizer together. Replicas are also compared by their iteration starts. Ranks that
    wait for each other are also compared by their common events and by the bounds from these
    events, if they have common events.

    Args:
        histories: Iteration times of all ranks.
        pair: First and second rank of each pair.
        events: Events of the pairs, or None for replicas.
        shifts: Candidate shifts.

    Returns:
        One comparison per kind of time, at least one.
    """

    def compare_single_event(times_ns: Floats) -> list[StepComparison]:
        a_ns, b_ns = (times_ns[ranks][:, :, None] for ranks in pair)
        return compare_steps(a_ns, b_ns, shifts)

    comparisons = compare_single_event(histories.optimizer_ns)
    if events is None:
        return comparisons + compare_single_event(histories.start_ns)
    if events.a_leads.shape[1]:
        bounds = events.bounds(shifts)
        comparisons += compare_steps(events.a_ns, events.b_ns, shifts, bounds)
    return comparisons


#: Maximum number of pairs of ranks that are tried to link two machines.
_MAX_TRIES = 6


#: First and second rank of neighbouring pairs, and a mask of the pairs that are replicas.
_Neighbours = tuple[Ints, Ints, Bools]


def link_machines(
    histories: Histories, neighbours: _Neighbours, machine: Ints, timed: Bools
) -> tuple[dict[int, int], tuple[Link, ...]]:
    """Link the machines to each other, starting from the machine of the first rank.

    Up to ``_MAX_TRIES`` pairs of ranks are tried for every two machines, until a decided link joins
    the machines. If neighbours do not suffice, ranks of one pipeline with a single rank between
    them are tried in the same way.

    Args:
        histories: Iteration times of all ranks.
        neighbours: Pairs of ranks to compare; the first pair contains the first rank.
        machine: Machine of each rank.
        timed: Mask of the ranks whose UTC time is known.

    Returns:
        offset_ns: Correction of the clock of each linked machine.
        links: One link for each machine but the first: the link that joined it, or the link with
            the largest margin if it was not joined.
    """
    offset_ns = {int(root): 0 for root in machine[neighbours[0][:1]]}
    best_links: dict[int, Link] = {}
    links: list[Link] = []
    for pairs in (neighbours, _list_farther_pairs(neighbours)):
        machines = np.stack((machine[pairs[0]], machine[pairs[1]]))
        untried = np.flatnonzero(machines[0] != machines[1])
        for _ in range(_MAX_TRIES):
            is_joined = np.isin(machines[:, untried], list(offset_ns)).all(axis=0)
            untried = untried[~is_joined]
            if len(untried) == 0:
                break
            tried = _take_next_pairs(machines, untried)
            untried = subtract_values(untried, tried)
            a, b = pairs[0][tried], pairs[1][tried]
            both_timed = timed[a] & timed[b]
            links += _find_links(histories, a, b, is_replica=pairs[2][tried], timed=both_timed)
            while _join_linked(links, machine, offset_ns, best_links):
                pass
    return offset_ns, tuple(best_links.values())


def _list_farther_pairs(neighbours: _Neighbours) -> _Neighbours:
    """Return the pairs of ranks of one pipeline with a single rank between them.

    Args:
        neighbours: Pairs of neighbouring ranks.
    """
    first, second, is_replica = neighbours
    is_chained = second[:-1] == first[1:]
    skipping = np.flatnonzero(~is_replica[:-1] & ~is_replica[1:] & is_chained)
    return first[skipping], second[skipping + 1], is_replica[skipping]


def _take_next_pairs(machines: Ints, untried: Ints) -> Ints:
    """Return the first untried pair of ranks for every two machines, in ascending order.

    Args:
        machines: Machines of the first and second rank of each pair, shape (2, pairs).
        untried: Indices of the pairs of ranks that were not tried yet.

    Returns:
        Indices of the pairs of ranks.
    """
    low, high = np.sort(machines[:, untried], axis=0)
    return untried[np.sort(group_rows(low, high).first)]


def _join_linked(
    links: Sequence[Link],
    machine: Ints,
    offset_ns: dict[int, int],
    best_links: dict[int, Link],
) -> bool:
    """Join each machine that a decided link connects to a joined machine.

    The links are processed once, in order. A machine joined late may allow earlier links to join
    further machines, so the caller repeats the call until it returns False.

    Args:
        links: All links so far.
        machine: Machine of each rank.
        offset_ns: Clock correction of each joined machine; updated.
        best_links: For each machine, its link to a joined machine with the largest margin; updated.

    Returns:
        True if any machine was joined.
    """
    n_joined = len(offset_ns)
    for link in links:
        a, b = int(machine[link.first]), int(machine[link.second])
        if (a in offset_ns) == (b in offset_ns):
            continue
        recordings, unjoined = (a, b) if a in offset_ns else (b, a)
        if unjoined not in best_links or link.margin > best_links[unjoined].margin:
            best_links[unjoined] = link
        if link.best is not None and link.decided:
            correction_ns = round(link.best.offset_ns)
            sign = 1 if recordings == a else -1
            offset_ns[unjoined] = offset_ns[recordings] + sign * correction_ns
    return len(offset_ns) > n_joined


def describe_undecided(link: Link, ranks: Sequence[JoinedRank]) -> str:
    """Describe the best pairing of iterations of an undecided link, and the rival that remains.

    Args:
        link: Link that no evidence decides.
        ranks: All ranks, which give the names of the two hosts.

    Returns:
        A clause for the middle of a sentence.
    """
    best, hosts = link.best, name_hosts(link, ranks)
    if best is None:
        return f"those of {hosts} have no operation in common"
    return (
        f"of {hosts}, {_describe_shift(best)} fits best, but another one, which "
        f"{describe_rival(link)}, remains possible"
    )


def name_hosts(link: Link, ranks: Sequence[JoinedRank]) -> str:
    """Return the names of the two hosts that a link connects."""
    return f"{ranks[link.first].host} and {ranks[link.second].host}"


def _describe_shift(shift: Shift) -> str:
    """Return a phrase that says which iteration a shift pairs with the first one of a host."""
    if shift.iterations == 0:
        return "pairing from the first iterations on"
    sides = ("first", "second") if shift.iterations > 0 else ("second", "first")
    count = format_count(abs(shift.iterations), "iteration")
    return f"pairing the {sides[1]} one's first with what is {count} later on the {sides[0]}"


def describe_rival(link: Link) -> str:
    """Return a predicate on the rival of a link: how it differs from the best shift."""
    best, rival = link.best, link.rival
    if rival is None or best is None:
        return "leaves no iteration in common"
    distance = format_count(abs(rival.iterations - best.iterations), "iteration")
    moved_ms = (rival.offset_ns - best.offset_ns) / 1e6
    return f"is off by {distance} and moves clocks by {moved_ms:+,.1f} ms"
