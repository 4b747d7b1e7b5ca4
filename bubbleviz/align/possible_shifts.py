"""Possible shifts: every way to pair the iterations of two ranks, and what speaks for it.

Ranks of a pipeline wait for each other: every F on the upstream one of two ends before the other's
input is there, and every B likewise the other way. Replicas step together. Pairs of ranks that have
as many iterations and events are one table, so that what is asked of them is asked of all together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.iteration_fits import Histories, Look, Overlaps
from bubbleviz.align.offsets import DRIFT, GRAIN_NS
from bubbleviz.align.waits import NEVER
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools, Floats, Ints

#: So many events of an iteration are compared, spread evenly over all.
_EVENTS = 64
#: Numbers that are worked on at once.
_AT_ONCE = 1 << 19


@dataclass(frozen=True)
class CommonEvents:
    """Events of pairs of ranks of which one waits for the other, shape (pairs, iterations, events).

    Attributes:
        a_ns: times on the first rank's clock; NaN unknown.
        b_ns: times on the second's.
        a_end_ns: ends of the same operations.
        b_end_ns: likewise.
        a_leads: by pair and event, whether the second rank waits for the first.
    """

    a_ns: Floats
    b_ns: Floats
    a_end_ns: Floats
    b_end_ns: Floats
    a_leads: Bools

    @property
    def known(self) -> bool:
        """Whether there are any."""
        return bool(self.a_leads.shape[1])

    def take(self, pairs: Ints) -> CommonEvents:
        """Return those of some of the pairs."""
        times = self.a_ns[pairs], self.b_ns[pairs], self.a_end_ns[pairs], self.b_end_ns[pairs]
        return CommonEvents(*times, self.a_leads[pairs])

    def bounds(self, overlaps: Overlaps) -> tuple[Floats, Floats]:
        """Return for each pair of iterations the least and the most to add to b's clock.

        Infinite where nothing bounds it; the shape is (pairs, moves, iterations).
        """
        return self._extremes(self.a_ns, self.b_ns, overlaps)

    def loose_bounds(self, overlaps: Overlaps) -> tuple[Floats, Floats]:
        """Return the same over all iterations, by ends alone, shape (pairs, moves).

        A span may begin with kernels that need no input.
        """
        least, most = self._extremes(self.a_end_ns, self.b_end_ns, overlaps)
        return least.max(axis=2, initial=-np.inf), most.min(axis=2, initial=np.inf)

    def _extremes(self, a_ns: Floats, b_ns: Floats, overlaps: Overlaps) -> tuple[Floats, Floats]:
        shape = len(a_ns), *overlaps.held.shape
        least, most = np.full(shape, -np.inf), np.full(shape, np.inf)
        leads = self.a_leads[:, None, None]
        size = max(1, _AT_ONCE // max(len(a_ns) * shape[2] * a_ns.shape[2], 1))
        for low in range(0, shape[1], size):
            at = slice(low, low + size)
            some = overlaps.take(at)
            apart = a_ns[:, some.first] - b_ns[:, some.second]
            seen = ~np.isnan(apart) & some.held[None, :, :, None]
            least[:, at] = np.where(seen & leads, apart, -np.inf).max(axis=3, initial=-np.inf)
            most[:, at] = np.where(seen & ~leads, apart, np.inf).min(axis=3, initial=np.inf)
        return least, most


_Tables = Iterator[tuple[Ints, CommonEvents | None]]


def _tables(histories: Histories, first: Ints, second: Ints, by_ns: Ints, beside: Bools) -> _Tables:
    """Yield (numbers of pairs, their events): of pairs of one shape, some at a time.

    Compared are virtual stages next to each other; replicas have no events.

    Args:
        histories: of all ranks.
        first: a rank of each pair.
        second: another one.
        by_ns: what is added to the clock of that.
        beside: whether the two are replicas.
    """
    counts, rows = histories.counts, np.diff(histories.first_end)
    cells = (counts[first] + counts[second]) ** 2
    larger = np.where(beside, cells, np.maximum(cells, rows[first] + rows[second]))
    for replicas in (False, True):
        pairs = np.flatnonzero(beside == replicas)
        size = max(1, _AT_ONCE // max(int(larger[pairs].max(initial=1)), 1))
        for low in range(0, len(pairs), size):
            at = pairs[low : low + size]
            if not replicas:
                for own, events in _events(histories, first[at], second[at], by_ns[at]):
                    yield at[own], events
                continue
            for _, own in grouping.rows_by_value(
                grouping.groups_of(counts[first[at]], counts[second[at]]).of_row
            ):
                yield at[own], None


def _events(
    histories: Histories, first: Ints, second: Ints, by_ns: Ints
) -> Iterator[tuple[Ints, CommonEvents]]:
    """Yield the events of pairs, by shape."""
    ours, theirs = (_Entries(histories, ranks) for ranks in (first, second))
    nearest = _nearest(ours.stages, theirs.stages)
    found = grouping.looked_up(
        (theirs.group, theirs.event),
        np.arange(len(theirs.group)),
        (nearest[ours.group], ours.event),
    )
    column = np.flatnonzero(found >= 0)
    number = np.bincount(ours.pair[column], minlength=len(first))
    kept = np.minimum(number, _EVENTS)
    owner, nth = grouping.expanded(np.zeros_like(kept), kept)
    begin = np.cumsum(number) - number
    column = column[begin[owner] + nth * number[owner] // np.maximum(kept[owner], 1)]
    partner = found[column]
    leads = (ours.event[column] & 1 == 0) == (ours.stage[column] < theirs.stage[partner])
    begin = np.cumsum(kept) - kept
    sides = ours.times(np.zeros_like(by_ns)), theirs.times(by_ns)
    counts = histories.counts[first], histories.counts[second]
    for _, pairs in grouping.rows_by_value(grouping.groups_of(*counts, kept).of_row):
        at = begin[pairs][:, None] + np.arange(kept[pairs[0]])
        a_leads = leads[at]
        (a_ready, a_end), (b_ready, b_end) = (
            [times[rows[at], : count[pairs[0]]].swapaxes(1, 2) for times in side]
            for side, rows, count in zip(sides, (column, partner), counts, strict=True)
        )
        a_ns = _inner(np.where(a_leads[:, None], a_end, a_ready))
        b_ns = _inner(np.where(a_leads[:, None], b_ready, b_end))
        yield pairs, CommonEvents(a_ns, b_ns, a_end, b_end, a_leads)


class _Entries:
    """The events of one rank of each pair: a row for each (pair, virtual stage, event), in order.

    Args:
        histories: of all ranks.
        ranks: the rank of each pair.

    Attributes:
        stages: pair and virtual stage of each (pair, virtual stage).
        pair: number of the pair of each event.
        group: number of the (pair, virtual stage) of each.
        stage: virtual stage of each.
        event: which event it is.
    """

    def __init__(self, histories: Histories, ranks: Ints) -> None:
        self._of_row, row = histories.rows_of(ranks)
        self._ends = histories.ends.take(row)
        stages = grouping.groups_of(self._of_row, self._ends.virtual_stage)
        self._entries = grouping.groups_of(stages.of_row, self._ends.events)
        first = self._entries.first
        self.stages = self._of_row[stages.first], self._ends.virtual_stage[stages.first]
        self.pair, self.group = self._of_row[first], stages.of_row[first]
        self.stage, self.event = self._ends.virtual_stage[first], self._ends.events[first]
        self._width = int(histories.counts[ranks].max(initial=0))

    def times(self, by_ns: Ints) -> tuple[Floats, Floats]:
        """Return when inputs were there, and ends, by event and iteration; NaN unknown.

        Args:
            by_ns: what is added, by pair.
        """
        ready, end = (np.full((len(self.pair), self._width), np.nan) for _ in range(2))
        at = self._entries.of_row, self._ends.iteration
        ready_ns, by = self._ends.ready_ns, by_ns[self._of_row]
        ready[at] = np.where(ready_ns == NEVER, np.nan, ready_ns + by)
        end[at] = self._ends.end_ns + by
        return ready, end


def _nearest(ours: tuple[Ints, Ints], theirs: tuple[Ints, Ints]) -> Ints:
    """Return the row of theirs whose stage is nearest to each of ours in its pair; -1 for none.

    Of two that are equally near it is the earlier one. Both are (pair, virtual stage), in order.
    """
    bounds = (np.searchsorted(theirs[0], ours[0], side) for side in ("left", "right"))
    row, other = grouping.expanded(*bounds)
    best = grouping.first_of_each(row, np.abs(ours[1][row] - theirs[1][other]), theirs[1][other])
    nearest = np.full(len(ours[0]), NONE, np.int64)
    nearest[row[best]] = other[best]
    return nearest


def _inner(times_ns: Floats) -> Floats:
    """Return times without the first and last of each pair: a capture may have cut those."""
    unknown = np.isnan(times_ns)
    low = np.where(unknown, np.inf, times_ns).min(axis=(1, 2), initial=np.inf)
    high = np.where(unknown, -np.inf, times_ns).max(axis=(1, 2), initial=-np.inf)
    edge = (times_ns == low[:, None, None]) | (times_ns == high[:, None, None])
    return np.where(edge, np.nan, times_ns)


#: UTC clocks are seldom off by more, and may be off by seconds: so much speaks against that.
_UTC_NS, _UTC = 1e8, 4.0
#: What speaks for captures that hold as many iterations being of the same ones, and what more
#: does where no other shift brings their clocks closer together.
EQUAL, _EQUAL_IN_TIME = 3.0, 4.5
#: What speaks against a clock that was set once, and any number of times.
_SET, _SET_OFTEN = 6.0, 10.0
_SETTINGS = 2
#: What speaks against an iteration that a running capture does not hold.
_UNRECORDED = 15.0
#: What speaks against a pair of iterations of other operations, and against several.
_OTHER_SHAPE, _OTHER_SHAPES = 5.0, 15.0
#: Captures are moved by so many iterations.
_REACH = 256


@dataclass(frozen=True)
class Shift:
    """One way to pair the iterations of two ranks, and what speaks against it but fits.

    Attributes:
        move: the number of an iteration of the first rank less that of the second.
        offset_ns: what it adds to the second one's clock.
        utc: what UTC speaks against it.
        equal: what equal counts speak for it.
        settings: how often a clock would have been set during the capture, as no offset satisfies
            the data dependencies; counted up to ``_SETTINGS``.
        unrecorded: iterations that captures lack though they ran on.
        shapes: pairs of iterations of other operations.
    """

    move: int
    offset_ns: float
    utc: float
    equal: float
    settings: int
    unrecorded: int
    shapes: int


#: All shifts of pairs, shape (pairs, moves): the columns of :class:`Shift` but the move.
_Columns = tuple[Floats, Floats, Floats, Ints, Ints, Ints]


def _possible_shifts(
    histories: Histories,
    pair: tuple[Ints, Ints],
    timed: Bools,
    events: CommonEvents | None,
    moves: Ints,
) -> tuple[Bools, _Columns]:
    """Return which moves of pairs of ranks are possible, and what speaks for and against them.

    Args:
        histories: of all ranks.
        pair: the ranks of each pair; all pairs have as many iterations.
        timed: whether the UTC of both is known.
        events: of the pairs; None for replicas.
        moves: those that leave an iteration in common.
    """
    begun_ns = histories.starts(pair[0]), histories.starts(pair[1])
    overlaps = Overlaps.of(moves, begun_ns[0].shape[1], begun_ns[1].shape[1])
    starts = begun_ns[0][:, overlaps.first], begun_ns[1][:, overlaps.second]
    shape = len(timed), len(moves)
    settings = np.zeros(shape, np.int64)
    if events is None:
        possible = np.ones(shape, bool)
        offset_ns = _medians(starts[0] - starts[1], overlaps.held)
    else:
        least, most = events.loose_bounds(overlaps)
        sides = np.isfinite(least), np.isfinite(most)
        possible = sides[0] | sides[1]
        total = np.where(sides[0], least, 0.0) + np.where(sides[1], most, 0.0)
        offset_ns = total / np.maximum(sides[0].astype(np.int64) + sides[1], 1)
        settings = _settings(starts[0], overlaps.held, *events.bounds(overlaps))
    utc = np.where(timed[:, None], np.log1p((offset_ns / _UTC_NS) ** 2), 0.0)
    own, other = (histories.shapes(ranks) for ranks in pair)
    for shapes in (own, other):
        shapes[:, :1] = shapes[:, -1:] = -1  # a capture may have cut these
    own, other = own[:, overlaps.first], other[:, overlaps.second]
    differ = (own != other) & (own >= 0) & (other >= 0) & overlaps.held
    alike = begun_ns[0].shape == begun_ns[1].shape
    equal = np.where(possible & (moves == 0) & alike, EQUAL, 0.0)
    away = np.where(possible, np.abs(offset_ns), np.inf)
    in_time = timed[:, None] & (equal > 0) & (away == away.min(axis=1)[:, None])
    unrecorded = _unrecorded(histories, pair, moves) + _unrecorded(histories, pair[::-1], -moves)
    return possible, (
        offset_ns,
        np.minimum(utc, _UTC),
        equal + np.where(in_time, _EQUAL_IN_TIME, 0.0),
        settings,
        unrecorded,
        np.count_nonzero(differ, axis=2),
    )


def _prior(columns: _Columns) -> Floats:
    """Return what speaks for each shift, in nats."""
    _, utc, equal, settings, unrecorded, shapes = columns
    prior = equal - utc
    prior -= np.minimum(_SET * settings, _SET_OFTEN)
    prior -= _UNRECORDED * unrecorded
    prior -= np.minimum(_OTHER_SHAPE * shapes, _OTHER_SHAPES)
    return prior


def _medians(values: Ints, held: Bools) -> Floats:
    """Return the median of those that are held, along the last axis: at least one."""
    ordered = np.sort(np.where(held, values, np.iinfo(np.int64).max), axis=2)
    count = np.count_nonzero(held, axis=1)
    every = np.arange(len(count))
    ends = [ordered[:, every, at].astype(np.float64) for at in ((count - 1) // 2, count // 2)]
    return np.asarray((ends[0] + ends[1]) / 2, np.float64)


def _settings(start_ns: Ints, held: Bools, least: Floats, most: Floats) -> Ints:
    """Return how often a clock would have been set, so that each iteration keeps to its bounds.

    Clocks may drift in between.

    Args:
        start_ns: of iterations, shape (pairs, moves, iterations).
        held: which of them there are, by move.
        least: the least to add to the second clock in each, and the most.
        most: see there.
    """
    shape = start_ns.shape[:2]
    times = np.zeros(shape, np.int64)
    low, high, before = np.full(shape, -np.inf), np.full(shape, np.inf), np.zeros(shape, np.int64)
    for step in range(start_ns.shape[2]):
        now, under, over = start_ns[:, :, step], least[:, :, step], most[:, :, step]
        drift_ns = DRIFT * (now - before)
        low, high, before = (
            np.maximum(low - drift_ns, under),
            np.minimum(high + drift_ns, over),
            now,
        )
        broken = (low > high + GRAIN_NS) & held[:, step] & (times < _SETTINGS)
        if broken.any():
            times += broken
            sound = under <= over
            low = np.where(broken, np.where(sound, under, -np.inf), low)
            high = np.where(broken, np.where(sound, over, np.inf), high)
    return times


def _unrecorded(histories: Histories, pair: tuple[Ints, Ints], moves: Ints) -> Ints:
    """Return how many sides of b's capture lack an iteration of a that it would have recorded.

    Args:
        histories: of all ranks.
        pair: the ranks a and b of each pair.
        moves: of b against a.
    """
    a, b = pair
    a_ns, b_ns = histories.starts(a), histories.starts(b)
    begun_ns, ended_ns = (times[b][:, None] for times in histories.recorded_ns)
    margin_ns = histories.length_ns[a][:, None] // 2
    step_ns = np.diff(a_ns, axis=1)
    if step_ns.shape[1] == 0:
        return np.zeros((len(a_ns), len(moves)), np.int64)
    most = step_ns.shape[1] - 1
    before, last = moves - 1, b_ns.shape[1] - 1 + moves
    begins_ns = b_ns[:, :1] - step_ns[:, np.clip(before, 0, most)]
    lacking = (moves > 0) & (begun_ns < begins_ns - margin_ns)
    begins_ns = b_ns[:, -1:] + step_ns[:, np.clip(last, 0, most)]
    behind = (last + 1 < a_ns.shape[1]) & (ended_ns > begins_ns + margin_ns)
    return np.asarray(lacking.astype(np.int64) + behind, np.int64)


# Shifts: by how many iterations one rank's capture begins later than another's, on one clock.
#
# Ranks of one machine share a clock, and there a wrong shift breaks data dependencies; so do those
# of machines whose clocks were set against each other by links.


def shifts(
    histories: Histories, first: Ints, second: Ints, by_ns: Ints, beside: Bools
) -> list[int | None]:
    """Return the differences of the iteration numbers, those of a less those of b; None unknown.

    Every microbatch's F ends upstream before it ends downstream, and its B likewise the other way
    (ends, since a span may begin with kernels that need no input). Replicas step together, so
    their iterations start at about the same time.

    Args:
        histories: of all ranks.
        first: a rank of each pair.
        second: one that passes microbatches to it or gets them from it, or a replica of it.
        by_ns: what is added to the clock of the second, so that both are on one.
        beside: whether it is a replica.
    """
    found: list[int | None] = [None] * len(first)
    for pairs, events in _tables(histories, first, second, by_ns, beside):
        starts = histories.starts(first[pairs]), histories.starts(second[pairs])
        starts = starts[0], starts[1] + by_ns[pairs, None]
        most_ns = histories.length_ns[first[pairs]] // 4
        counts = starts[0].shape[1], starts[1].shape[1]
        equal = counts[0] == counts[1]
        in_order = np.zeros(len(pairs), bool)
        if equal and counts[0] > 0:
            # Mostly the first guess is right.
            in_order = _costs(starts, events, np.zeros(1, np.int64))[:, 0] <= most_ns
        for pair in pairs[in_order].tolist():
            found[pair] = 0
        rest = np.flatnonzero(~in_order)
        if len(rest) == 0 or min(counts) == 0:
            continue
        moves = _moves(*counts)
        starts = starts[0][rest], starts[1][rest]
        costs = _costs(starts, events and events.take(rest), moves)
        for pair, row, most in zip(pairs[rest].tolist(), costs, most_ns[rest], strict=True):
            least = np.nanmin(row, initial=np.inf)
            cheapest = moves[row == least]
            if least == 0 or (len(cheapest) == 1 and least <= most):
                found[pair] = int(cheapest[0])
            elif equal and (events is None or 0 in cheapest):
                # Nothing else is possible for replicas that are not in step.
                found[pair] = 0
    return found


def _moves(count_a: int, count_b: int) -> Ints:
    """Return the moves that leave an iteration in common, small ones first, not too far ones."""
    moves = np.arange(max(1 - count_b, -_REACH), min(count_a, _REACH + 1))
    return moves[np.argsort(np.abs(moves), kind="stable")]


def _costs(starts: tuple[Ints, Ints], events: CommonEvents | None, moves: Ints) -> Floats:
    """Return how much moves break, or take replicas apart, shape (pairs, moves); NaN unknown."""
    overlaps = Overlaps.of(moves, starts[0].shape[1], starts[1].shape[1])
    if events is None:
        apart = np.abs(starts[0][:, overlaps.first] - starts[1][:, overlaps.second])
        return np.floor(_medians(apart, overlaps.held))
    least, most = events.loose_bounds(overlaps)
    known = np.isfinite(least) | np.isfinite(most)
    return np.where(known, np.maximum(np.maximum(least, -most), 0.0), np.nan)


# Links: which iterations of two machines are the same, by all that speaks for it.
#
# Two machines have two clocks, which agree to what NTP leaves over, or not at all. So every shift
# of their iterations is weighed against every other one, in nats (factors of e in likelihood):
#
# - how well the lengths of iterations agree, event by event (see ``align.iteration_fits``),
# - whether any offset of the clocks satisfies the data dependencies,
# - whether iterations that it pairs ran as many forwards and backwards,
# - whether a capture had begun long before its first iteration, or went on long after its last one,
#   where the shift says that it should hold others,
# - that captures mostly hold the same iterations,
# - how far the clocks would be apart.


#: A shift is used if it is that much likelier than every other one.
DECIDED = 7.0
#: What speaks against captures that have no iteration in common.
_ELSEWHERE = 5.0
#: So many shifts are weighed against the best one.
_WEIGHED = 64


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
    for at, events in _tables(histories, first, second, still, beside):
        own = _links(histories, (first[at], second[at]), timed[at], events)
        found.update(zip(at.tolist(), own, strict=True))
    return [found[pair] for pair in range(len(first))]


def _links(
    histories: Histories, pair: tuple[Ints, Ints], timed: Bools, events: CommonEvents | None
) -> list[Link]:
    """Return the link of each pair; the arguments are those of :func:`_possible_shifts`."""
    count_a, count_b = (int(histories.counts[ranks[0]]) for ranks in pair)
    ends: list[tuple[int, int]] = list(zip(pair[0].tolist(), pair[1].tolist(), strict=True))
    if min(count_a, count_b) == 0:
        return [Link(*own, None, None, 0.0, 0.0) for own in ends]
    moves = _moves(count_a, count_b)
    possible, columns = _possible_shifts(histories, pair, timed, events, moves)
    prior = np.where(possible, _prior(columns), -np.inf)
    looks = _looks(histories, pair, events, moves)
    alone = _fit(look.alone() for look in looks)
    likely = alone + prior
    most = likely.max(axis=1)
    best = likely.argmax(axis=1)
    rows = np.arange(len(ends))
    lags = np.abs(moves - moves[best][:, None])
    for_best, for_others = zip(*(look.against(best, lags) for look in looks), strict=True)
    fits = _fit(for_best) - _fit(for_others)
    # Those that are worth weighing, the likeliest first.
    order = np.argsort(-likely, axis=1, kind="stable")[:, :_WEIGHED]
    weighed = np.take_along_axis(possible, order, axis=1) & (order != best[:, None])
    margins = fits + prior[rows, best][:, None] - np.where(possible, prior, 0.0)
    margins = np.where(weighed, np.take_along_axis(margins, order, axis=1), np.inf)
    rival = order[rows, margins.argmin(axis=1)]
    margin = margins.min(axis=1)
    any_shift = np.asarray(possible.any(axis=1), bool)
    nearest = np.where(possible, -columns[1], -np.inf).max(axis=1)
    elsewhere = np.where(any_shift, nearest, 0.0) - _ELSEWHERE
    alone_margin = most - elsewhere

    def shift(row: int, place: int) -> Shift:
        return Shift(int(moves[place]), *(column[row, place].item() for column in columns))

    found = []
    for row, own in enumerate(ends):
        one, other = int(best[row]), int(rival[row])
        by_rival = margin[row] < alone_margin[row]
        found.append(
            Link(
                *own,
                shift(row, one),
                shift(row, other) if by_rival else None,
                float(margin[row] if by_rival else alone_margin[row]),
                float(fits[row, other] if by_rival else alone[row, one]),
            )
            if any_shift[row]
            else Link(*own, None, None, 0.0, 0.0)
        )
    return found


def _fit(found: Iterable[Floats]) -> Floats:
    """Return the evidence of fits by the best look at them."""
    looks = list(found)
    # The best of several looks is a little likelier by chance.
    best = np.maximum.reduce(looks) - float(np.log(len(looks)))
    return np.asarray(np.maximum(best, 0.0), np.float64)


def _looks(
    histories: Histories, pair: tuple[Ints, Ints], events: CommonEvents | None, moves: Ints
) -> list[Look]:
    """Return the ways to compare the lengths of iterations.

    Ranks that wait for each other agree event by event, and best in those that waited least for
    anything else. Ranks that step together leave the collective before the Optimizer together, and
    replicas start the next iteration soon after.
    """
    counts = [int(histories.counts[ranks[0]]) for ranks in pair]
    steps = Overlaps.of(moves, *(max(count - 1, 0) for count in counts))
    optimizers = [histories.optimizers(ranks)[:, :, None] for ranks in pair]
    looks = [Look.at((optimizers[0], optimizers[1]), steps)]
    if events is None:
        whole = [_whole(histories, ranks)[:, :, None] for ranks in pair]
        looks.append(Look.at((whole[0], whole[1]), steps))
    elif events.known:
        looks.append(Look.at((events.a_ns, events.b_ns), steps))
        least, most = events.bounds(Overlaps.of(moves, *counts))
        known = np.isfinite(least) & np.isfinite(most)
        middle = (np.where(known, least, np.nan) + np.where(known, most, np.nan)) / 2
        looks.append(looks[-1].fitted(np.diff(middle, axis=-1), None))
    return looks


def _whole(histories: Histories, ranks: Ints) -> Floats:
    """Return when iterations start; NaN for a first one that is not like the second."""
    starts, shapes = histories.starts(ranks).astype(np.float64), histories.shapes(ranks)
    if starts.shape[1] > 1:
        starts[shapes[:, 0] != shapes[:, 1], 0] = np.nan
    return starts
