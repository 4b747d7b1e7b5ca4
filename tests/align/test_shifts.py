"""By how many iterations one rank's capture begins later than another's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

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
    iterations: Iterable[int], stage: int, off_ns: int = 0, starts: Ints | None = None
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
    seen = events.ready_ns.min(initial=0), events.end_ns.max(initial=0)
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


def irregular(seed: int, spread_ns: float = 2 * MS) -> Ints:
    """Return starts of iterations that are not equally long."""
    lengths = np.random.default_rng(seed).normal(0, spread_ns, 64)
    return np.cumsum(PERIOD + 8 * MS + lengths.astype(np.int64))


def linked(a: Histories, b: Histories, *, timed: bool = True) -> Link:
    """Return the link of two ranks of a pipeline."""
    return links(together(a, b), *PAIR, beside=np.array([False]), timed=np.array([timed]))[0]


@pytest.mark.parametrize(
    ("above", "below", "off_ns", "replicas", "expected"),
    [
        # Dependencies tell it.
        (range(5), range(5), 0, False, 0),
        (range(5), range(1, 5), 0, False, 1),
        (range(1, 5), range(5), 0, False, -1),
        (range(6), range(2, 6), 0, False, 2),
        (range(4), range(1, 5), 0, False, 1),
        # What breaks by less than a quarter of an iteration: equal counts stay in order.
        (range(4), range(4), -19 * MS, False, 0),
        # By more: another shift breaks nothing.
        (range(4), range(4), -30 * MS, False, -1),
        (range(0), range(3), 0, False, None),
        # Replicas pair by when their iterations start.
        (range(5), range(1, 5), 2 * MS, True, 1),
        # Between starts nothing tells, unless the counts agree.
        (range(5), range(5), PERIOD // 2, True, 0),
        (range(5), range(4), PERIOD // 2, True, None),
        (range(5), range(0), 0, True, None),
    ],
)
def test_one_clock_tells_the_shift(
    above: range, below: range, off_ns: int, replicas: bool, expected: int | None
) -> None:
    ranks = together(track(above, 0), track(below, 0 if replicas else 1, off_ns))

    assert shifts(ranks, *PAIR, column((0,)), np.array([replicas])) == [expected]


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

    found = linked(above, track(range(first, 10), 1, off_ns, starts), timed=timed)

    assert found.best is not None
    assert (found.decided, found.best.move) == (True, first)


@given(seed=st.integers(0, 1000), off_ns=st.integers(-5000 * MS, 5000 * MS))
def test_captures_without_an_iteration_in_common_are_not_paired(seed: int, off_ns: int) -> None:
    starts = irregular(seed)
    above = track(range(8), 0, starts=starts)

    assert not linked(above, track(range(20, 28), 1, off_ns, starts)).decided


@given(seed=st.integers(0, 1000), lag=st.sampled_from((2, 4)))
def test_a_pattern_that_repeats_itself_is_not_taken_for_evidence(seed: int, lag: int) -> None:
    lengths = np.tile(irregular(seed)[:lag] % (5 * MS), 32) + PERIOD + 8 * MS
    starts = np.cumsum(lengths)

    found = linked(track(range(12), 0, starts=starts), track(range(lag, 12), 1, starts=starts))

    assert not found.decided or (found.best is not None and found.best.move == lag)


def test_iterations_of_other_operations_are_not_the_same() -> None:
    """The fourth iteration only goes forward."""
    histories = []
    for stage, first in ((0, 0), (1, 1)):
        whole = track(range(first, 9), stage)
        evaluation = (whole.ends.iteration == 3 - first) & (whole.ends.is_backward == 1)
        ends = whole.ends.take(~evaluation)
        histories.append(replace(whole, ends=ends, first_end=column((0, len(ends)))))

    found = linked(*histories)

    assert found.best is not None
    assert found.best.move == 1
    assert found.rival is None or found.rival.shapes > 0 or found.margin < 7
