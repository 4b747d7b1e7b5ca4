"""Machine links: find which iterations on two machines are the same, using all evidence.

The clocks of two machines either agree to within the error of NTP, or do not agree at all.
Therefore, every shift of their iterations is compared with every other shift. Evidence is measured
in nats (factors of e in likelihood). Evidence for a shift includes:

- The lengths of paired iterations agree, event by event (see ``align.pairing.iteration_fits``).
- Paired iterations have equal and unusual forward and backward counts.
- The captures have equal numbers of iterations, and the shift is 0.

Evidence against a shift includes:

- No offset between the clocks satisfies all data dependencies.
- Paired iterations have different forward and backward counts.
- A capture began long before its first iteration, or ended long after its last one, although
  according to the shift it should contain more iterations.
- The shift requires a large correction of UTC clocks.

Each machine is linked to an already linked machine by a rank pair whose iterations can be
matched with sufficient evidence. The link determines the machine's clock correction.
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

#: Evidence, in nats, against the hypothesis that two captures have no iteration in common.
_NO_COMMON_PENALTY = 5.0


@dataclass(frozen=True)
class Link:
    """The likeliest shift between the iterations of two ranks.

    Attributes:
        first: Index of the first rank.
        second: Index of the second rank.
        best: Likeliest shift, or None if all shifts are ruled out.
        rival: Second likeliest shift, or None if it is more likely that the captures have no common
            iteration.
        margin: Evidence for the best shift over its rival, in nats.
        fit: The part of the margin that comes from comparing iteration times, in nats.
    """

    first: int
    second: int
    best: Shift | None
    rival: Shift | None
    margin: float
    fit: float

    @property
    def decided(self) -> bool:
        """Whether there is a best shift whose margin is at least ``DECIDED``."""
        return self.best is not None and self.margin >= DECIDED


def _find_links(
    histories: Histories, first: Ints, second: Ints, *, is_replica: Bools, timed: Bools
) -> list[Link]:
    """Find the likeliest shift for each pair of ranks on different machines.

    Args:
        histories: Iteration times of all ranks.
        first: One rank in each pair.
        second: The other rank in each pair, which exchanges microbatches with the first or is its
            replica.
        is_replica: Mask of the replica pairs. Replicas run their iterations at the same time,
            but do not exchange microbatches.
        timed: Mask of the rank pairs for which both UTC times are known.
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
    """Find the likeliest and second likeliest shifts for each pair in a batch.

    The hypothesis that two captures have no common iteration also has a penalty:
    ``_NO_COMMON_PENALTY`` plus the smallest UTC penalty of any possible shift, or plus
    ``MAX_UTC_EVIDENCE`` if all shifts are ruled out.

    Args:
        histories: Iteration times of all ranks.
        pair: First and second rank in each pair.
        timed: Mask of the rank pairs for which both UTC times are known.
        events: Common events of the pairs, or None for replicas.
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
    """Make a link from the chosen shifts of each rank pair. A choice of -1 becomes None.

    Args:
        pair: First and second rank in each pair.
        shifts: Candidate shifts.
        offset_ns: Correction to the second clock implied by each shift, shape (pairs, shifts).
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
    """Likeliest shifts, one row per rank pair.

    Attributes:
        best: Index of the likeliest shift, or -1 if all shifts are ruled out.
        rival: Index of the second likeliest shift, or -1 if it is more likely that the captures
            have no common iteration. Also -1 if all shifts are ruled out.
        margin: Evidence for the best shift over its rival, in nats, or 0 if all shifts are ruled
            out.
        fit: The part of the margin that comes from comparing iteration times, in nats.
    """

    best: Ints
    rival: Ints
    margin: Floats
    fit: Floats


def _choose_shifts(
    comparisons: Sequence[StepComparison], shifts: Ints, prior: Floats, none_penalty: Floats
) -> _Choices:
    """Choose the likeliest and second likeliest shifts for each rank pair.

    1. The best shift has the largest ``fit + prior``, where the fit is the evidence from iteration
       times.
    2. The best shift is compared with each other shift. Iterations that repeat a pattern also fit
       well at wrong shifts, so the difference of the two fits is computed again
       (:func:`_compare_with_lags`). The margin is this difference plus the difference of the
       priors.
    3. The hypothesis that the captures have no common iteration has the margin ``fit + prior +
       none_penalty``, where the fit and the prior are those of the best shift.
    4. The rival is whichever alternative (another shift, or this hypothesis) has the smallest
       margin.

    Args:
        comparisons: Statistics for each way of comparing the pairs' iterations.
        shifts: Candidate shifts, shape (shifts,).
        prior: Evidence for each shift, except the fit of iteration times, in nats, shape
            (pairs, shifts). Negative infinity for a shift that is ruled out.
        none_penalty: For each pair, the evidence in nats against the hypothesis that the captures
            have no common iteration.
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
    """Compute, in nats, how much better iteration times fit the best shift than each other shift.

    A step is the time from an event to the same event of the next iteration. Iterations that repeat
    a pattern fit well at several shifts. If two shifts are ``lag`` apart, both fits are therefore
    tested against steps of one rank that are ``lag`` iterations apart. If there are too few
    iterations, they are tested against any two steps of one rank.

    Args:
        comparisons: Statistics for each way of comparing the pairs' iterations.
        shifts: Candidate shifts, shape (shifts,).
        best: Index of each pair's best shift.

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
    """Return ``max(evidence) - log(len(evidence))`` elementwise, with negative results set to 0.

    The logarithm corrects for choosing the largest value.
    """
    parts = list(evidence)
    largest = np.maximum.reduce(parts) - float(np.log(len(parts)))
    return np.asarray(np.maximum(largest, 0.0), np.float64)


def _compare_iterations(
    histories: Histories, pair: tuple[Ints, Ints], events: CommonEvents | None, shifts: Ints
) -> list[StepComparison]:
    """Compare the iteration times of rank pairs in all available ways.

    - All pairs are compared by Optimizer starts, because ranks all leave the collective before the
      Optimizer together.
    - Replicas are also compared by iteration starts.
    - Other pairs are also compared by their common events, if there are any, and by the clock
      bounds from these events.

    Args:
        histories: Iteration times of all ranks.
        pair: First and second rank in each pair.
        events: Common events of the pairs, or None for replicas.
        shifts: Candidate shifts, shape (shifts,).

    Returns:
        One comparison per kind of time: Optimizer starts first, then the other times.
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


#: Maximum number of rank pairs to try when linking two machines.
_MAX_TRIES = 6


#: First and second rank in each pair of neighboring ranks, and a mask of the replica pairs.
_Neighbors = tuple[Ints, Ints, Bools]


def link_machines(
    histories: Histories, neighbors: _Neighbors, machine: Ints, timed: Bools
) -> tuple[dict[int, int], tuple[Link, ...]]:
    """Link the machines to each other, starting from the first rank's machine.

    Up to ``_MAX_TRIES`` rank pairs are tried for each pair of machines, until a decided link joins
    the machines. If neighboring ranks do not suffice, pairs of ranks with one rank between them are
    tried in the same way (:func:`_list_farther_pairs`).

    Args:
        histories: Iteration times of all ranks.
        neighbors: Rank pairs to compare. The first rank of the first pair determines the
            reference machine.
        machine: Machine of each rank.
        timed: Mask of the ranks whose UTC time is known.

    Returns:
        offset_ns: Clock correction in ns of each linked machine, keyed by machine. The correction
            is 0 for the reference machine.
        links: For each remaining machine that was compared with a linked machine, the link that has
            the largest margin. Links that were found after the machine was linked are ignored.
    """
    offset_ns = {int(root): 0 for root in machine[neighbors[0][:1]]}
    best_links: dict[int, Link] = {}
    links: list[Link] = []
    for pairs in (neighbors, _list_farther_pairs(neighbors)):
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


def _list_farther_pairs(neighbors: _Neighbors) -> _Neighbors:
    """Return the rank pairs (a, c) for which (a, b) and (b, c) are consecutive neighboring pairs.

    Replica pairs are left out.

    Args:
        neighbors: Pairs of neighboring ranks, in the order of the ranks.
    """
    first, second, is_replica = neighbors
    is_chained = second[:-1] == first[1:]
    skipping = np.flatnonzero(~is_replica[:-1] & ~is_replica[1:] & is_chained)
    return first[skipping], second[skipping + 1], is_replica[skipping]


def _take_next_pairs(machines: Ints, untried: Ints) -> Ints:
    """Return the first untried rank pair for each pair of machines.

    Args:
        machines: Machines of the first and second rank in each pair, shape (2, pairs).
        untried: Indices of the rank pairs that have not been tried yet, in ascending order.

    Returns:
        Indices of the selected rank pairs, in ascending order.
    """
    low, high = np.sort(machines[:, untried], axis=0)
    return untried[np.sort(group_rows(low, high).first)]


def _join_linked(
    links: Sequence[Link],
    machine: Ints,
    offset_ns: dict[int, int],
    best_links: dict[int, Link],
) -> bool:
    """Join the machines that decided links connect to already joined machines.

    The links are processed once, in order. A machine that is joined late may allow an earlier link
    to join another machine, so the caller repeats the call until it returns False.

    Args:
        links: All links found so far.
        machine: Machine of each rank.
        offset_ns: Clock correction of each joined machine, keyed by machine. Modified in place.
        best_links: The link with the largest margin between each machine and a joined machine,
            keyed by machine. Modified in place.

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
    """Describe the best shift of an undecided link, and the rival that is not ruled out.

    Args:
        link: Link whose evidence is insufficient.
        ranks: All ranks, with the names of their hosts.

    Returns:
        A sentence without the final period.
    """
    best, hosts = link.best, name_hosts(link, ranks)
    if best is None:
        return f"The iterations of {hosts} have no operation in common"
    return (
        f"Most likely, {_describe_shift(best)} ({hosts}), but a match that {describe_rival(link)} "
        "is also possible"
    )


def name_hosts(link: Link, ranks: Sequence[JoinedRank]) -> str:
    """Return the names of the two hosts connected by a link."""
    return f"{ranks[link.first].host} and {ranks[link.second].host}"


def _describe_shift(shift: Shift) -> str:
    """Return a clause that describes how a shift pairs the first iterations of two hosts."""
    if shift.iterations == 0:
        return "both recordings start with the same iteration"
    sides = ("first", "second") if shift.iterations > 0 else ("second", "first")
    count = format_count(abs(shift.iterations), "iteration")
    return f"the recording of the {sides[1]} host starts {count} after that of the {sides[0]}"


def describe_rival(link: Link) -> str:
    """Return the predicate of a sentence on how a link's rival differs from its best shift.

    The predicate contains the difference between the two shifts in iterations, and the difference
    between the two clock corrections in ms. If the link has no rival or no best shift, the
    predicate is "leaves no iteration in common".
    """
    best, rival = link.best, link.rival
    if rival is None or best is None:
        return "leaves no iteration in common"
    distance = format_count(abs(rival.iterations - best.iterations), "iteration")
    moved_ms = (rival.offset_ns - best.offset_ns) / 1e6
    return f"differs by {distance} (clocks moved by {moved_ms:+,.1f} ms)"
