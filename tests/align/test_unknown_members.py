"""Limitations for collectives of which not all members are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bubbleviz.align.meetings import without_members
from bubbleviz.model.collectives import CollectiveIntervals, Group
from bubbleviz.model.operations import RankIntervals

UNKNOWN = "collectives whose members are unknown"
LACKING = "collectives of which members are not recorded"
TWO, FOUR = Group("a", size=2, sole=True), Group("b", "", (0, 1, 2, 3), 4)
ONE, NAMELESS = Group("c", size=1, sole=True), Group("d", size=8)


def table(*rows: tuple[int, int, int]) -> CollectiveIntervals:
    """Return collectives of (rank, group, meeting), each from 0 to 100."""
    rank, group, meeting = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    zero = np.zeros(len(rows), np.int64)
    columns = dict.fromkeys(CollectiveIntervals.column_names(), zero) | {
        "rank": rank,
        "group": group,
        "end_ns": zero + 100,
        "meeting": meeting,
    }
    none = replace(CollectiveIntervals.none(), kinds=("AllReduce",))
    return replace(none, **columns, groups=(TWO, FOUR, ONE, NAMELESS))


def alone(*rows: tuple[int, int, int]) -> RankIntervals:
    """Return when only collectives ran."""
    return RankIntervals(*np.array(rows, np.int64).reshape(-1, 3).T.copy())


ALWAYS = alone(*((rank, 0, 100) for rank in range(4)))


def counts(own: CollectiveIntervals, exposed: RankIntervals = ALWAYS) -> dict[str, int]:
    return {note.what: note.count for note in without_members(own, exposed)}


def test_without_collectives_there_is_no_limitation() -> None:
    assert counts(table()) == counts(table(), alone()) == {}


def test_whole_meetings_lack_nobody() -> None:
    assert counts(table((0, 0, 5), (1, 0, 5))) == {}


@pytest.mark.parametrize(
    ("group", "expected"), [(-1, UNKNOWN), (3, UNKNOWN), (0, LACKING), (1, LACKING)]
)
def test_what_meets_none_is_unknown_or_lacks_members(group: int, expected: str) -> None:
    assert counts(table((0, group, -1))) == {expected: 1}


def test_a_group_of_one_waits_for_nobody() -> None:
    assert counts(table((0, 2, -1))) == {}


def test_meetings_without_some_members_lack_them() -> None:
    own = table((0, 1, 5), (1, 1, 5), (0, -1, -1), (0, 0, 9), (1, 0, 9))

    assert counts(own) == {UNKNOWN: 1, LACKING: 2}


def test_what_runs_beside_operations_does_not_count() -> None:
    own = table((0, -1, -1), (1, -1, -1), (2, 1, -1))

    assert counts(own, alone((1, 20, 30), (2, 100, 120))) == {UNKNOWN: 1}
