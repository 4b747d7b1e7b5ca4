"""Late collectives and stalls: how long a rank ran nothing since its host had launched nothing."""

from __future__ import annotations

import numpy as np
import pytest

from bubbleviz.interpret.late_launches import late_launched, stalls
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import Ints
from bubbleviz.model.intervals import Intervals, empty
from bubbleviz.model.phases import Phase
from tests.support.drawn_reports import Op, operations_of


def collectives(*start_ns: int) -> CollectiveIntervals:
    """Return collectives of one rank."""
    count = len(start_ns)
    columns = {name: np.zeros(count, np.int64) for name in CollectiveIntervals.column_names()}
    columns |= {"start_ns": ints(*start_ns), "end_ns": ints(*start_ns) + 10}
    return CollectiveIntervals(**columns, kinds=("AllReduce",), groups=())


def ints(*values: int) -> Ints:
    """Return a column."""
    return np.array(values, np.int64)


COMPUTED: Intervals = ints(0, 100), ints(50, 200)


def test_no_collectives() -> None:
    table, late = late_launched(collectives(), ints(), ints(), (COMPUTED, empty()), ints())

    assert (len(table), len(late)) == (0, 0)


@pytest.mark.parametrize(
    ("launched_ns", "start_ns", "late_ns"),
    [
        (80, 90, 30),  # the rank has run nothing since 50
        (50, 60, 0),
        (120, 130, 0),  # launched while the rank computes
        (260, 250, 50),  # clocks of host and device differ a little
        (-1, 90, 0),  # nobody recorded the launch
    ],
)
def test_how_late_a_collective_was_launched(launched_ns: int, start_ns: int, late_ns: int) -> None:
    table, late = late_launched(
        collectives(start_ns), ints(launched_ns), ints(7), (COMPUTED, empty()), ints(0)
    )

    assert table.late_ns.tolist() == [late_ns]
    assert len(late) == (late_ns > 0)
    assert late.operation.tolist() == [-1] * len(late)


def test_nothing_ran_before_the_first_of_a_capture() -> None:
    table, _ = late_launched(collectives(90), ints(80), ints(7), (empty(), empty()), ints(0))

    assert table.late_ns.tolist() == [0]


def test_what_another_collective_holds_up_is_not_late() -> None:
    held: Intervals = ints(60), ints(95)
    table, _ = late_launched(collectives(100), ints(80), ints(7), (COMPUTED, held), ints(0))

    assert table.late_ns.tolist() == [0]


def test_what_another_rank_ran_before_is_not_what_this_one_ran() -> None:
    table, late = late_launched(collectives(90), ints(80), ints(7), (COMPUTED, empty()), ints(60))

    assert (table.late_ns.tolist(), len(late)) == ([0], 0)


def test_only_what_is_far_drier_than_its_like_stalls() -> None:
    ops = [Op(0, Phase.F, n, 1_000_000 * n, 1_000_000 * n + 900_000) for n in range(5)]
    table = operations_of(ops)[0]
    dry_ns = ints(100_000, 100_000, 100_000, 250_000, 500_000)
    table = table.changed(active_ns=table.busy_ns - dry_ns)

    stalled = stalls(table, np.zeros(5, np.int64))
    assert stalled.since_ns.tolist() == [4_000_000]
    assert stalled.until_ns.tolist() == [4_900_000]
    assert len(stalls(table, np.full(5, -1))) == 0
