"""By how many iterations one rank's capture begins later than another's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.align.iteration_fits import Histories, OperationEnds
from bubbleviz.align.possible_shifts import Link, links, shifts
from bubbleviz.model.columns import Ints, joined

MS = 1_000_000
#: The first and the second of two ranks.
PAIR = np.array([0]), np.array([1])
#: An iteration: F down, F up, B up, B down, 10 ms each.
PERIOD = 40 * MS


def column(values: Iterable[int]) -> Ints:
    return np.array(list(values), np.int64)


def track(
    iterations: Iterable[int],
    stage: int,
    off_ns: int = 0,
    starts: Ints | None = None,
    recorded_ns: tuple[int, int] | None = None,
) -> Histories:
    """Return a rank of a pipeline of two that captured these of the run's iterations.

    Its clock is off by ``off_ns``; iterations start every ``PERIOD``, or at ``starts``.
    """
    held = list(iterations)
    begin = column(k * PERIOD for k in range(64)) if starts is None else starts
    ready, ends = (((0, 30), (10, 40)), ((10, 20), (20, 30)))[stage]
    events = OperationEnds(
        rank=column(0 for _ in range(2 * len(held))),
        iteration=column(n for n in range(len(held)) for _ in range(2)),
        microbatch=column(0 for _ in range(2 * len(held))),
        virtual_stage=column(stage for _ in range(2 * len(held))),
        is_backward=column((0, 1) * len(held)),
        ready_ns=column(int(begin[k]) + at * MS + off_ns for k in held for at in ready),
        end_ns=column(int(begin[k]) + at * MS + off_ns for k in held for at in ends),
    )
    start_ns = column(int(begin[k]) + ready[0] * MS + off_ns for k in held)
    seen = recorded_ns or (int(events.ready_ns.min(initial=0)), int(events.end_ns.max(initial=0)))
    return Histories(
        events,
        column((0, len(events))),
        column((0, len(held))),
        start_ns,
        np.full(len(held), np.nan),
        column((PERIOD,)),
        (column(seen[:1]), column(seen[1:])),
    )


def together(*ranks: Histories) -> Histories:
    """Return histories of one rank each as those of ranks."""
    ends = [rank.ends.take(slice(None)) for rank in ranks]
    recorded = [np.concatenate([rank.recorded_ns[end] for rank in ranks]) for end in (0, 1)]
    return Histories(
        joined([replace(own, rank=own.rank + n) for n, own in enumerate(ends)]),
        np.cumsum([0, *map(len, ends)]),
        np.cumsum([0, *(len(rank.start_ns) for rank in ranks)]),
        np.concatenate([rank.start_ns for rank in ranks]),
        np.concatenate([rank.optimizer_ns for rank in ranks]),
        np.concatenate([rank.length_ns for rank in ranks]),
        (recorded[0], recorded[1]),
    )


def shift(a: Histories, b: Histories, *, replicas: bool = False) -> int | None:
    """Return the shift of two ranks on one clock."""
    return shifts(together(a, b), *PAIR, column((0,)), np.array([replicas]))[0]


def link(a: Histories, b: Histories, *, beside: bool, timed: bool) -> Link:
    """Return the link of two ranks."""
    told = {"beside": np.array([beside]), "timed": np.array([timed])}
    return links(together(a, b), *PAIR, **told)[0]


def irregular(seed: int, spread_ns: float = 2 * MS) -> Ints:
    """Return starts of iterations that are not equally long."""
    lengths = np.random.default_rng(seed).normal(0, spread_ns, 64)
    return np.cumsum(PERIOD + 8 * MS + lengths.astype(np.int64))


def beside(a: Histories, b: Histories, *, timed: bool = True) -> Link:
    """Return the link of two ranks of a pipeline."""
    return link(a, b, beside=False, timed=timed)


@pytest.mark.parametrize(
    ("above", "below", "off_ns", "expected"),
    [
        (range(5), range(5), 0, 0),
        (range(5), range(1, 5), 0, 1),
        (range(1, 5), range(5), 0, -1),
        (range(6), range(2, 6), 0, 2),
        (range(4), range(1, 5), 0, 1),
        # What breaks by less than a quarter of an iteration: equal counts stay in order.
        (range(4), range(4), -19 * MS, 0),
        # By more: another shift breaks nothing.
        (range(4), range(4), -30 * MS, -1),
        (range(0), range(3), 0, None),
    ],
)
def test_dependencies_tell_the_shift_on_one_clock(
    above: range, below: range, off_ns: int, expected: int | None
) -> None:
    assert shift(track(above, 0), track(below, 1, off_ns)) == expected


@pytest.mark.parametrize(
    ("other", "off_ns", "expected"),
    [
        (range(1, 5), 2 * MS, 1),
        # Between starts nothing tells, unless the counts agree.
        (range(5), PERIOD // 2, 0),
        (range(4), PERIOD // 2, None),
        (range(0), 0, None),
    ],
)
def test_replicas_pair_by_when_their_iterations_start(
    other: range, off_ns: int, expected: int | None
) -> None:
    assert shift(track(range(5), 0), track(other, 0, off_ns), replicas=True) == expected


def test_without_a_microbatch_in_common_nothing_is_told() -> None:
    above, below = track(range(4), 0), track(range(4), 1)
    other = replace(below, ends=replace(below.ends, microbatch=below.ends.microbatch + 1))

    assert shift(above, other) is None
    assert not beside(above, other).decided


def test_a_rank_without_iterations_has_no_link() -> None:
    none = track((), 0)

    assert not beside(none, track(range(3), 1)).decided
    assert not link(none, track(range(3), 0), beside=True, timed=True).decided


def test_iterations_that_are_all_alike_are_not_paired_across_clocks() -> None:
    above = track(range(6), 0)

    # Equal counts decide where UTC agrees with them, and nothing else does.
    assert beside(above, track(range(6), 1)).decided
    assert not beside(above, track(range(1, 6), 1)).decided
    for off_ns in (90 * MS, PERIOD, -PERIOD):
        assert not beside(above, track(range(6), 1, off_ns=off_ns)).decided
        assert not beside(above, track(range(1, 6), 1, off_ns=off_ns)).decided
        assert not link(above, track(range(6), 0, off_ns), beside=True, timed=True).decided


@given(
    seed=st.integers(0, 1000),
    off_ns=st.integers(-5000 * MS, 5000 * MS),
    first=st.integers(0, 3),
    timed=st.booleans(),
)
def test_lengths_of_iterations_pair_them_whatever_the_clocks_show(
    seed: int, off_ns: int, first: int, *, timed: bool
) -> None:
    starts = irregular(seed)
    above = track(range(10), 0, starts=starts)

    found = beside(above, track(range(first, 10), 1, off_ns, starts), timed=timed)

    assert found.best is not None
    assert (found.decided, found.best.move) == (True, first)


@given(seed=st.integers(0, 1000), off_ns=st.integers(-5000 * MS, 5000 * MS))
def test_captures_without_an_iteration_in_common_are_not_paired(seed: int, off_ns: int) -> None:
    starts = irregular(seed)
    above = track(range(8), 0, starts=starts)

    assert not beside(above, track(range(20, 28), 1, off_ns, starts)).decided


@given(seed=st.integers(0, 1000), lag=st.sampled_from((2, 4)))
def test_a_pattern_that_repeats_itself_is_not_taken_for_evidence(seed: int, lag: int) -> None:
    lengths = np.tile(irregular(seed)[:lag] % (5 * MS), 32) + PERIOD + 8 * MS
    starts = np.cumsum(lengths)

    found = beside(track(range(12), 0, starts=starts), track(range(lag, 12), 1, starts=starts))

    assert not found.decided or (found.best is not None and found.best.move == lag)


def test_captures_that_ran_before_and_behind_their_iterations_start_together() -> None:
    long = (-100 * PERIOD, 200 * PERIOD)
    above, below = (track(range(6), stage, recorded_ns=long) for stage in (0, 1))

    found = beside(above, below)

    assert found.decided
    assert found.best is not None
    assert found.best.move == 0


def test_iterations_of_other_operations_are_not_the_same() -> None:
    """The fourth iteration only goes forward."""
    histories = []
    for stage, first in ((0, 0), (1, 1)):
        whole = track(range(first, 9), stage)
        evaluation = (whole.ends.iteration == 3 - first) & (whole.ends.is_backward == 1)
        ends = whole.ends.take(~evaluation)
        histories.append(replace(whole, ends=ends, first_end=column((0, len(ends)))))

    found = beside(*histories)

    assert found.best is not None
    assert found.best.move == 1
    assert found.rival is None or found.rival.shapes > 0 or found.margin < 7


@given(
    seed=st.integers(0, 1000),
    firsts=st.lists(st.integers(0, 6), min_size=2, max_size=6),
    replicas=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_many_pairs_at_once_are_linked_as_each_by_itself(
    seed: int, firsts: list[int], replicas: list[bool]
) -> None:
    starts = irregular(seed, 1 * MS)
    ranks = [
        track(range(first, 7 + place % 2), place % 2, place * PERIOD // 3, starts)
        for place, first in enumerate(firsts)
    ]
    first, second = (column(ends) for ends in zip(*pairwise(range(len(ranks))), strict=True))
    told = np.array(replicas[: len(first)]), np.arange(len(first)) % 2 == 0

    found = links(together(*ranks), first, second, beside=told[0], timed=told[1])
    moved = shifts(together(*ranks), first, second, column(range(len(first))), told[0])

    for place, (a, b) in enumerate(pairwise(ranks)):
        alone = link(a, b, beside=bool(told[0][place]), timed=bool(told[1][place]))
        assert found[place] == replace(alone, first=place, second=place + 1)
        own = shifts(together(a, b), *PAIR, column((place,)), told[0][place : place + 1])
        assert moved[place] == own[0]
