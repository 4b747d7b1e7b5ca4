"""Collectives over the replicas of a stage, and the bounds that they give their clocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import numpy.typing as npt

from bubbleviz.align.offsets import Precedences, solve
from bubbleviz.align.timebase import overlaps
from bubbleviz.interpret.collectives import ReplicaCollectives

#: (rank, iteration, kind, start_ns, end_ns)
Row = tuple[int, int, int, int, int]


def collectives(*rows: Row) -> ReplicaCollectives:
    return ReplicaCollectives(*np.array(rows, np.int64).reshape(-1, 5).T.copy())


def column(values: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def pairs(found: Precedences) -> set[tuple[int, int, int, int]]:
    """Return (before clock, after clock, before_ns, after_ns)."""
    return set(
        zip(
            found.before.tolist(),
            found.after.tolist(),
            found.before_ns.tolist(),
            found.after_ns.tolist(),
            strict=True,
        )
    )


def test_every_member_enters_before_any_other_leaves() -> None:
    own = collectives(*((rank, 0, 0, 10 * rank, 100 + rank) for rank in range(3)))

    found = overlaps(own, column([5, 5, 5]), column([0, 1, 2]))

    assert pairs(found) == {
        (one, other, 10 * one, 100 + other) for one, other in permutations(range(3), 2)
    }
    assert set(found.before_row.tolist()) == set(found.after_row.tolist()) == {-1}


def test_a_collective_bounds_two_replicas_that_nothing_else_links() -> None:
    # Rank 1 enters at 480 on its own clock and leaves at 1_000, rank 0 at 0 and 500.
    own = collectives((0, 0, 0, 0, 500), (1, 0, 0, 480, 1_000))

    found = overlaps(own, column([0, 0]), column([0, 1]))

    # Clock 1 moves by at least -1_000 and at most 20.
    (_, second), _ = solve(found, column([0, 480]), column([500, 1_000]))
    assert second.offset_ns == -490
    assert second.uncertainty_ns == 511  # 510, and what clocks drift meanwhile


def test_only_the_same_collective_of_one_group_is_compared() -> None:
    first: Row = (0, 0, 0, 0, 100)
    for other, group, clock in (
        ((1, 1, 0, 10, 110), [0, 0], [0, 1]),  # another iteration
        ((1, 0, 1, 10, 110), [0, 0], [0, 1]),  # another kind
        ((1, 0, 0, 10, 110), [0, 1], [0, 1]),  # another stage
        ((1, 0, 0, 10, 110), [-1, -1], [0, 1]),  # of no group
        ((1, 0, 0, 10, 110), [0, 0], [0, 0]),  # the same clock
    ):
        assert len(overlaps(collectives(first, other), column(group), column(clock))) == 0
    outside = collectives((0, -1, 0, 0, 100), (1, -1, 0, 0, 100))
    for own in (outside, collectives()):
        assert len(overlaps(own, column([0, 0]), column([0, 1]))) == 0


def test_the_number_of_pairs_grows_with_the_members_alone() -> None:
    members = 100
    own = collectives(*((rank, 0, 0, 0, 100) for rank in range(members)))
    every = column(range(members))

    found = overlaps(own, every * 0, every)

    assert len(found) == 2 * sum(members - step for step in range(1, 17))


def test_ranks_that_do_not_leave_together_are_in_no_collective() -> None:
    rows: list[Row] = []
    for iteration, late in enumerate((0, 40_000, 90_000)):
        at = iteration * 1_000_000
        rows.append((0, iteration, 0, at, at + 500_000))
        rows.append((1, iteration, 0, at, at + 500_000 + late))

    assert len(overlaps(collectives(*rows[:4]), column([0, 0]), column([0, 1]))) == 4
    assert len(overlaps(collectives(*rows), column([0, 0]), column([0, 1]))) == 0
