"""Matching of records of the same collective across ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bubbleviz.align.clocks.timebase import Timebase
from bubbleviz.align.meetings import find_meetings
from bubbleviz.model.collectives import CollectiveIntervals, Group

US = 1_000
#: (rank, iteration, kind, start_us, end_us), optionally followed by (group, order, sequence).
Row = tuple[int, ...]


def column(values: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def make_collectives(*rows: Row, groups: tuple[Group, ...] = ()) -> CollectiveIntervals:
    """Return collectives, numbered in order within each rank, iteration, kind and group."""
    complete_rows = [(*row, *(-1, -1, -1)[len(row) - 5 :]) for row in rows]
    last_position: dict[tuple[int, ...], int] = {}
    names = CollectiveIntervals.column_names()
    columns: dict[str, list[int]] = {name: [] for name in names}
    for rank, iteration, kind, start, end, group, order, sequence in complete_rows:
        key = rank, iteration, kind, group
        position = last_position[key] = last_position.get(key, -1) + 1
        position = position if order < 0 else order
        fields = (rank, iteration, kind, group, position, sequence, start * US, end * US, 0, -1, -1)
        for name, value in zip(names, fields, strict=True):
            columns[name].append(value)
    return replace(
        CollectiveIntervals.make_empty(),
        **{name: column(values) for name, values in columns.items()},
        kinds=("AllReduce", "ReduceScatter", ""),
        groups=groups,
    )


Places = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]


def make_places(
    stage: Sequence[int], pipeline: Sequence[int] = (), reducing: Sequence[int] = ()
) -> Places:
    return column(stage), column(pipeline or [0] * len(stage)), column(reducing or stage)


def make_timebase(machine: Sequence[int], *uncertainty_us: int) -> Timebase:
    """Return the clocks of ranks, by machine. An uncertainty of -1 means not comparable."""
    uncertainties = column(uncertainty_us)
    uncertainty_ns = np.where(uncertainties < 0, -1, uncertainties * US)
    return Timebase((), column(machine), uncertainties >= 0, uncertainty_ns, False, ())


def make_clocks(*uncertainty_us: int) -> Timebase:
    return make_timebase(range(len(uncertainty_us)), *uncertainty_us)


def list_meetings(
    collectives: CollectiveIntervals, where: Places, clock: Timebase | None = None, **options: bool
) -> list[tuple[int, ...]]:
    clock = clock or make_timebase([0] * len(where[0]), 0)
    meeting = find_meetings(collectives, where[0], where[1], where[2], clock, **options).tolist()
    return sorted(
        tuple(row for row, number in enumerate(meeting) if number == which)
        for which in set(meeting) - {-1}
    )


HALF, BOTH = make_places([0, 0]), make_places([0, 1])
PIPELINES = make_places([0, 1, 0, 1], [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("rows", "where", "expected"),
    [
        ([], make_places([]), []),
        ([], BOTH, []),
        # Collectives that end at the same instant match.
        (
            [(0, 0, 0, 0, 100), (1, 0, 0, 90, 100), (2, 0, 0, 100, 100)],
            make_places([0, 1, 2]),
            [(0, 1, 2)],
        ),
        # A collective of a single rank matches no other collective.
        ([(0, 0, 0, 0, 100)], make_places([0]), []),
        ([(0, 0, 0, 0, 100)], BOTH, []),
        ([(0, 0, 0, 0, 100), (1, 0, 0, 0, 200)], BOTH, []),
        # Replicas of a stage match, but not all ranks do.
        (
            [(0, 0, 1, 0, 500), (1, 0, 1, 0, 900), (2, 0, 1, 400, 500), (3, 0, 1, 100, 901)],
            PIPELINES,
            [(0, 2), (1, 3)],
        ),
        # The first and the last stage of a pipeline match.
        ([(0, 0, 0, 0, 500), (2, 0, 0, 300, 500)], make_places([0, 1, 2]), [(0, 1)]),
        # Only collectives of the same kind and iteration match.
        ([(0, 0, 0, 0, 100), (1, 0, 1, 0, 100), (2, 1, 0, 0, 100)], make_places([0, 0, 0]), []),
        # A few collectives without a name can only be matched by their group.
        ([(0, 0, 2, 0, 100), (1, 0, 2, 0, 100)], HALF, []),
        # Ranks that do equal work match by order if they leave together, within 100 us.
        (
            [(rank, n, 2, 900 * rank, 1_000 + 90 * rank) for rank in range(2) for n in range(3)],
            HALF,
            [(n, n + 3) for n in range(3)],
        ),
        # They do not match if they leave apart, ...
        ([(rank, n, 2, 0, 1_000 + 110 * rank) for rank in range(2) for n in range(3)], HALF, []),
        # ... if a rank is missing from one of them, ...
        ([(rank, n, 2, 0, 9) for rank in range(2) for n in range(4 - rank)], HALF, []),
        # ... or if the ranks are in different stages.
        ([(rank, n, 2, 0, 9) for rank in range(2) for n in range(4)], BOTH, []),
        # Several collectives in quick succession are matched in order.
        (
            [(rank, 0, 0, 20 * n, 20 * n + 10 + rank) for rank in range(2) for n in range(4)],
            HALF,
            [(n, n + 4) for n in range(4)],
        ),
        # Consecutive and concurrent pieces form one collective.
        # An earlier separate piece is not part of it.
        (
            [(0, 0, 0, 0, 400), (1, 0, 0, 100, 200), (1, 0, 0, 200, 300), (1, 0, 0, 302, 400)],
            HALF,
            [(0, 1, 2, 3)],
        ),
        ([(0, 0, 0, 0, 400), (1, 0, 0, 100, 400), (1, 0, 0, 110, 401)], HALF, [(0, 1, 2)]),
        ([(0, 0, 0, 0, 400), (1, 0, 0, 50, 100), (1, 0, 0, 200, 400)], HALF, [(0, 2)]),
        # Ranks leave a long collective almost together.
        # Their ends differ by at most 2 % of the time that the last rank to enter spends in it.
        # Ends that are 200 apart match if this time is 10,000, but not if it is 2,000.
        ([(0, 0, 0, 0, 50_000), (1, 0, 0, 40_000, 50_190)], HALF, [(0, 1)]),
        ([(0, 0, 0, 0, 50_000), (1, 0, 0, 48_000, 50_190)], HALF, []),
        # Stages of one pipeline that both wait long for another pipeline do not match.
        (
            [
                (0, 0, 0, 0, 143_000),
                (1, 0, 0, 0, 140_900),
                (2, 0, 0, 142_000, 143_000),
                (3, 0, 0, 139_900, 140_900),
            ],
            PIPELINES,
            [(0, 2), (1, 3)],
        ),
        # A long wait is tolerated if no other rank ends together with each of the ranks.
        (
            [(0, 0, 0, 0, 143_000), (1, 0, 0, 0, 140_900), (3, 0, 0, 0, 140_900)],
            PIPELINES,
            [(0, 1)],
        ),
        # Ends that coincide in a few iterations only do so by chance.
        (
            [
                (rank, n, 0, 1_000 * n, 1_000 * n + 500 + (300 * rank if n else 0))
                for n in range(5)
                for rank in range(2)
            ],
            HALF,
            [],
        ),
    ],
)
def test_collectives_that_end_together_meet(
    rows: list[Row], where: Places, expected: list[tuple[int, ...]]
) -> None:
    assert list_meetings(make_collectives(*rows), where) == expected


@pytest.mark.parametrize(
    ("late_us", "uncertainty_us", "expected"),
    [
        # Clocks may be off by as much as their uncertainty.
        ((150, 150, 150), 110, [(0, 1), (2, 3), (4, 5)]),
        ((150, 150, 150), 90, []),
        ((150, 150, 150), -1, []),
        # With uncertain clocks, irregular ends that coincide do so by chance.
        ((0, 70, 140), 500, []),
    ],
)
def test_clocks_may_be_off_by_their_uncertainty(
    late_us: tuple[int, ...], uncertainty_us: int, expected: list[tuple[int, ...]]
) -> None:
    rows = [
        (rank, n, 0, 1_000 * n, 1_000 * n + 500 + late * rank)
        for n, late in enumerate(late_us)
        for rank in range(2)
    ]

    assert list_meetings(make_collectives(*rows), HALF, make_clocks(0, uncertainty_us)) == expected


@pytest.mark.parametrize(("drift_us", "expected"), [(0, [(0, 3), (1, 4), (2, 5)]), (250, [])])
def test_equal_ranks_leave_together_on_clocks_that_cannot_be_compared(
    drift_us: int, expected: list[tuple[int, ...]]
) -> None:
    ends = [1_000 + (5_000 + n * drift_us) * rank for rank in range(2) for n in range(3)]
    rows = [(row // 3, row % 3, 2, end - 100, end) for row, end in enumerate(ends)]
    assert list_meetings(make_collectives(*rows), HALF, make_timebase([0, 1], 0, -1)) == expected


def test_sizes_given_by_the_user_need_no_clock() -> None:
    # No smaller group is certain unless every larger group can be refuted.
    where = make_places([0, 0, 0, 0], reducing=[0, 1, 0, 1])
    unrelated_clocks = make_timebase([0, 0, 1, 1], 0, -1)
    rows = [(rank, 0, 1, 0, 500 + 900 * (rank // 2)) for rank in range(4)]
    assert list_meetings(make_collectives(*rows), where, unrelated_clocks) == []
    assert list_meetings(make_collectives(*rows), where, unrelated_clocks, sizes_known=True) == [
        (0, 2),
        (1, 3),
    ]
    # Ranks on the same clock show that not all of them form one collective.
    where, unrelated_clocks = make_places([0, 0, 1, 1, 2]), make_timebase([0, 0, 0, 0, 1], 0, -1)
    rows = [(rank, 0, 1, 0, 500 + 900 * (rank // 2)) for rank in range(5)]
    assert list_meetings(make_collectives(*rows), where, unrelated_clocks) == [(0, 1), (2, 3)]


COMMUNICATOR = Group("0x00000000000000a1", size=2, has_unique_name=True)


def test_collectives_of_recorded_groups_match_by_number_and_others_by_end() -> None:
    collectives: CollectiveIntervals
    for group in (COMMUNICATOR, Group("dp", "", (3, 7), 2), Group("dp", size=2)):
        collectives = make_collectives(
            (0, 0, 0, 0, 50, 0), (1, 0, 0, 900, 1_000, 0), groups=(group,)
        )
        assert list_meetings(collectives, make_places([0, 5]), make_clocks(0, -1)) == [(0, 1)]
    rows: list[Row] = [(rank, -1, 0, 0, 10, 0, 0, number) for number in (7, 9) for rank in range(2)]
    collectives = make_collectives(*rows, groups=(COMMUNICATOR,))
    assert list_meetings(collectives, make_places([0, 5]), make_clocks(0, -1), ordered=False) == [
        (0, 1),
        (2, 3),
    ]
    # Groups have equal names but different ranks.
    rows = [(rank, 0, 0, 0, 100 + 500 * (rank // 2), 0) for rank in range(4)]
    collectives = make_collectives(*rows, groups=(Group("7", size=2),))
    assert list_meetings(collectives, make_places([0, 0, 1, 1])) == [(0, 1), (2, 3)]
    assert list_meetings(collectives, make_places([0, 0, 1, 1]), make_clocks(0, -1, -1, -1)) == []
    # One rank has more pieces of a collective than the other.
    rows = [(0, 0, 0, 0, 400, 0), (1, 0, 0, 100, 200, 0), (1, 0, 0, 200, 400, 0)]
    assert list_meetings(make_collectives(*rows, groups=(COMMUNICATOR,)), make_places([0, 5])) == [
        (0, 1, 2)
    ]
    # Collectives of a group do not match collectives without a group.
    rows, group = (
        [(0, 0, 0, 0, 100, 0), (1, 0, 0, 0, 100)],
        Group("0xb2", size=8, has_unique_name=True),
    )
    assert list_meetings(make_collectives(*rows, groups=(group,)), HALF) == []
