"""By how many iterations one rank's capture begins later than another's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from bubbleviz.align.iteration_fits import Histories, OperationEnds
from bubbleviz.align.possible_shifts import shifts
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
