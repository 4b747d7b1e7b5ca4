"""Which collectives of all ranks are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bubbleviz.align.meetings import Clocks, RankPlaces, meetings_of
from bubbleviz.model.collectives import CollectiveIntervals, Group

US = 1_000
#: (rank, iteration, kind, start_us, end_us) and perhaps (group, order, sequence)
Row = tuple[int, ...]


def column(values: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def table(*rows: Row, groups: tuple[Group, ...] = ()) -> CollectiveIntervals:
    """Return collectives; places are counted by rank, iteration, kind and group."""
    whole = [(*row, *(-1, -1, -1)[len(row) - 5 :]) for row in rows]
    counted: dict[tuple[int, ...], int] = {}
    names = CollectiveIntervals.column_names()
    columns: dict[str, list[int]] = {name: [] for name in names}
    for rank, iteration, kind, start, end, group, order, sequence in whole:
        key = rank, iteration, kind, group
        place = counted[key] = counted.get(key, -1) + 1
        place = place if order < 0 else order
        own = (rank, iteration, kind, group, place, sequence, start * US, end * US, 0, -1, -1)
        for name, value in zip(names, own, strict=True):
            columns[name].append(value)
    return replace(
        CollectiveIntervals.none(),
        **{name: column(values) for name, values in columns.items()},
        kinds=("AllReduce", "ReduceScatter", ""),
        groups=groups,
    )


def places(
    stage: Sequence[int], pipeline: Sequence[int] = (), reducing: Sequence[int] = ()
) -> RankPlaces:
    return RankPlaces(
        column(stage), column(pipeline or [0] * len(stage)), column(reducing or stage)
    )


def one_clock(ranks: int) -> Clocks:
    return Clocks(column([0] * ranks), np.ones(1, bool), column([0]))


def clocks(*uncertainty_us: int) -> Clocks:
    """Return a machine for each rank; -1 for a clock that cannot be compared."""
    known = column(uncertainty_us)
    return Clocks(np.arange(len(known)), known >= 0, np.where(known < 0, -1, known * US))


def met(
    own: CollectiveIntervals, where: RankPlaces, clock: Clocks | None = None, **options: bool
) -> list[tuple[int, ...]]:
    """Return the rows of each meeting."""
    clock = clock or one_clock(len(where.stage))
    meeting = meetings_of(own, where, clock, **options).tolist()
    return sorted(
        tuple(row for row, number in enumerate(meeting) if number == which)
        for which in set(meeting) - {-1}
    )


def test_no_collective_meets_none() -> None:
    assert met(table(), places([])) == []
    assert met(table(), places([0, 1])) == []


def test_all_that_end_at_one_instant_meet() -> None:
    own = table((0, 0, 0, 0, 100), (1, 0, 0, 90, 100), (2, 0, 0, 100, 100))

    assert met(own, places([0, 1, 2])) == [(0, 1, 2)]


def test_one_that_a_rank_is_alone_in_meets_none() -> None:
    assert met(table((0, 0, 0, 0, 100)), places([0])) == []
    assert met(table((0, 0, 0, 0, 100)), places([0, 1])) == []


def test_those_that_do_not_end_together_are_unknown() -> None:
    own = table((0, 0, 0, 0, 100), (1, 0, 0, 0, 200))

    assert met(own, places([0, 1])) == []


def test_replicas_of_a_stage_meet_where_not_all_ranks_do() -> None:
    own = table((0, 0, 1, 0, 500), (1, 0, 1, 0, 900), (2, 0, 1, 400, 500), (3, 0, 1, 100, 901))

    assert met(own, places([0, 1, 0, 1], [0, 0, 1, 1])) == [(0, 2), (1, 3)]


def test_the_first_and_the_last_stage_of_a_pipeline_meet() -> None:
    own = table((0, 0, 0, 0, 500), (2, 0, 0, 300, 500))

    assert met(own, places([0, 1, 2])) == [(0, 1)]


def test_only_one_kind_of_one_iteration_meets() -> None:
    own = table((0, 0, 0, 0, 100), (1, 0, 1, 0, 100), (2, 1, 0, 0, 100))

    assert met(own, places([0, 0, 0])) == []


def test_what_has_no_name_meets_by_nothing_but_its_group() -> None:
    own = table((0, 0, 2, 0, 100), (1, 0, 2, 0, 100))

    assert met(own, places([0, 0])) == []


def test_several_right_after_each_other_meet_in_order() -> None:
    rows = [(rank, 0, 0, 20 * n, 20 * n + 10 + rank) for rank in range(2) for n in range(4)]

    assert met(table(*rows), places([0, 0])) == [(n, n + 4) for n in range(4)]


def test_pieces_in_a_row_are_one() -> None:
    own = table((0, 0, 0, 0, 400), (1, 0, 0, 100, 200), (1, 0, 0, 200, 300), (1, 0, 0, 302, 400))

    assert met(own, places([0, 0])) == [(0, 1, 2, 3)]


def test_pieces_side_by_side_are_one() -> None:
    own = table((0, 0, 0, 0, 400), (1, 0, 0, 100, 400), (1, 0, 0, 110, 401))

    assert met(own, places([0, 0])) == [(0, 1, 2)]


def test_what_ran_before_by_itself_is_no_piece() -> None:
    own = table((0, 0, 0, 0, 400), (1, 0, 0, 50, 100), (1, 0, 0, 200, 400))

    assert met(own, places([0, 0])) == [(0, 2)]


def test_ranks_leave_long_collectives_farther_apart() -> None:
    """Within 2 % of what the last to enter takes, 10,000; of 2,000 they may be 50 apart."""
    long = [(0, 0, 0, 0, 50_000), (1, 0, 0, 40_000, 50_190)]
    short = [(0, 0, 0, 0, 50_000), (1, 0, 0, 48_000, 50_190)]

    assert met(table(*long), places([0, 0])) == [(0, 1)]
    assert met(table(*short), places([0, 0])) == []


def test_clocks_may_be_off_by_their_uncertainty() -> None:
    rows = [
        (rank, n, 0, 1_000 * n, 1_000 * n + 500 + 150 * rank) for n in range(3) for rank in range(2)
    ]

    assert met(table(*rows), places([0, 0]), clocks(0, 110)) == [(0, 1), (2, 3), (4, 5)]
    assert met(table(*rows), places([0, 0]), clocks(0, 90)) == []
    assert met(table(*rows), places([0, 0]), clocks(0, -1)) == []


def test_what_ends_together_by_chance_on_uncertain_clocks_does_not_meet() -> None:
    rows = [
        (rank, n, 0, 1_000 * n, 1_000 * n + 500 + 70 * n * rank)
        for n in range(3)
        for rank in range(2)
    ]

    assert met(table(*rows), places([0, 0]), clocks(0, 500)) == []


def test_what_ends_together_in_few_iterations_does_so_by_chance() -> None:
    rows = [
        (rank, n, 0, 1_000 * n, 1_000 * n + 500 + (300 * rank if n else 0))
        for n in range(5)
        for rank in range(2)
    ]

    assert met(table(*rows), places([0, 0])) == []


def test_sizes_that_the_user_gives_need_no_clock() -> None:
    rows = [(rank, 0, 1, 700 * rank, 700 * rank + 500) for rank in range(4)]
    where = places([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1])

    assert met(table(*rows), where, clocks(0, -1, -1, -1)) == []
    assert met(table(*rows), where, clocks(0, -1, -1, -1), sizes_known=True) == [(0, 1), (2, 3)]


def test_no_smaller_group_is_certain_where_a_larger_one_cannot_be_refuted() -> None:
    where = places([0, 0, 0, 0], reducing=[0, 1, 0, 1])
    apart = Clocks(column([0, 0, 1, 1]), np.array([True, False]), column([0, -1]))
    rows = [(rank, 0, 1, 0, 500 + 900 * (rank // 2)) for rank in range(4)]

    assert met(table(*rows), where, apart) == []
    assert met(table(*rows), where, apart, sizes_known=True) == [(0, 2), (1, 3)]
    # Here the ranks of one clock show that not all are one.
    where = places([0, 0, 1, 1, 2])
    apart = Clocks(column([0, 0, 0, 0, 1]), np.array([True, False]), column([0, -1]))
    rows = [(rank, 0, 1, 0, 500 + 900 * (rank // 2)) for rank in range(5)]
    assert met(table(*rows), where, apart) == [(0, 1), (2, 3)]


COMMUNICATOR = Group("0x00000000000000a1", size=2, sole=True)


@pytest.mark.parametrize("group", [COMMUNICATOR, Group("dp", "", (3, 7), 2), Group("dp", size=2)])
def test_recorded_groups_need_no_clock(group: Group) -> None:
    own = table((0, 0, 0, 0, 50, 0), (1, 0, 0, 900, 1_000, 0), groups=(group,))

    assert met(own, places([0, 5]), clocks(0, -1)) == [(0, 1)]


def test_recorded_numbers_need_no_iterations() -> None:
    rows = [(rank, -1, 0, 0, 10, 0, 0, number) for number in (7, 9) for rank in range(2)]
    own = table(*rows, groups=(COMMUNICATOR,))

    assert met(own, places([0, 5]), clocks(0, -1), ordered=False) == [(0, 1), (2, 3)]


def test_groups_of_one_name_and_other_ranks_meet_by_their_ends() -> None:
    rows = [(rank, 0, 0, 0, 100 + 500 * (rank // 2), 0) for rank in range(4)]
    own = table(*rows, groups=(Group("7", size=2),))

    assert met(own, places([0, 0, 1, 1])) == [(0, 1), (2, 3)]
    assert met(own, places([0, 0, 1, 1]), clocks(0, -1, -1, -1)) == []


def test_a_recorded_group_with_more_pieces_on_a_rank_meets_by_its_ends() -> None:
    own = table(
        (0, 0, 0, 0, 400, 0), (1, 0, 0, 100, 200, 0), (1, 0, 0, 200, 400, 0), groups=(COMMUNICATOR,)
    )

    assert met(own, places([0, 5])) == [(0, 1, 2)]


def test_another_groups_collectives_are_not_taken_for_ones_without() -> None:
    own = table((0, 0, 0, 0, 100, 0), (1, 0, 0, 0, 100), groups=(Group("0xb2", size=8, sole=True),))

    assert met(own, places([0, 0])) == []
