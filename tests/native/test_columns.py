"""What the compiled part makes of columns is what numpy makes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bubbleviz.interpret.late_launches import Launches
from bubbleviz.interpret.spans import DeviceWork, RankWork, extents_of
from bubbleviz.model import intervals
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import BlockNumbering
from bubbleviz.model.intervals import Innermost
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import UNCORRELATED, Activities, Calls
from bubbleviz.native import library as native
from bubbleviz.native.columns import operation_spans
from scripts.build_native import compile_library
from tests.support.compiled import compiled_library

TIMES = st.integers(0, 20)
SPANS = st.lists(st.tuples(TIMES, TIMES), max_size=12)
IDS = st.sampled_from((0, 1, 2, 3, 70, UNCORRELATED - 1, UNCORRELATED))
PROCESSES = st.integers(1, 3)
#: (process, correlation id) of what was launched.
WORK = st.lists(st.tuples(PROCESSES, IDS), max_size=12)
#: (process, thread of it, correlation id, start) of calls, in blocks.
CALLS = st.lists(
    st.lists(st.tuples(PROCESSES, st.integers(0, 1), IDS, TIMES), max_size=8), max_size=4
)


def both(work: Callable[[], Any]) -> tuple[Any, Any]:
    """Return what some work gives without the compiled part, and with that of this source."""
    library = compiled_library()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_loaded", lambda: library)
        patch.setenv(native.SWITCH, "0")
        without = work()
        patch.delenv(native.SWITCH)
        return without, work()


def columns(spans: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    start, end = zip(*spans, strict=True) if spans else ((), ())
    return np.array(start, np.int64), np.array(end, np.int64)


def lists(found: tuple[Any, ...]) -> list[list[int]]:
    return [column.tolist() for column in found]


def union(spans: list[tuple[int, int]]) -> list[list[int]]:
    return lists(intervals.union(*columns(spans)))


def every_other(count: int) -> Bools:
    return np.asarray(np.arange(count) % 2 == 0, bool)


def chosen_union(spans: list[tuple[int, int]]) -> list[list[int]]:
    return lists(intervals.union(*columns(spans), every_other(len(spans))))


def around(index: Innermost, asked: list[tuple[int, int]]) -> list[int]:
    found: list[int] = index.around(*columns(asked)).tolist()
    return found


@example([])
@example([(3, 3), (3, 3)])
@given(SPANS)
def test_unions_are_the_same(spans: list[tuple[int, int]]) -> None:
    for some in (spans, sorted(spans)):
        without, found = both(partial(union, some))
        without_others, found_of_some = both(partial(chosen_union, some))

        assert found == without
        assert found_of_some == without_others == union(some[::2])


@example([], [])
@example([(0, 9)], [(0, 9)])
@given(SPANS, SPANS)
def test_differences_are_the_same(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    one, two = intervals.union(*columns(a)), intervals.union(*columns(b))

    without, found = both(lambda: lists(intervals.difference(one, two)))

    assert found == without


def test_columns_need_not_be_contiguous() -> None:
    table = np.array([[0, 5, 10], [3, 8, 13]], np.int64).T

    without, found = both(lambda: lists(intervals.union(table[::2, 0], table[::2, 1])))

    assert found == without == [[0, 10], [3, 13]]


@example([], [(1, 2)])
@example([(0, 5), (0, 5), (1, 4), (1, 4)], [(1, 4), (0, 5), (6, 6)])
@given(SPANS, SPANS)
def test_the_innermost_around_is_the_same(
    spans: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    index = Innermost.of(*columns(spans))
    for some in (asked, sorted(asked)):
        without, found = both(partial(around, index, some))

        assert found == without


def activities(work: list[tuple[int, int]]) -> Activities:
    """Return work of processes, on a device each."""
    process, ids = columns(work)
    ranks, rank = np.unique(process, return_inverse=True)
    none = np.zeros(len(work), np.int64)
    return Activities(
        none, none + 1, rank.astype(np.int16), ids.astype(np.uint32), none.astype(np.int16),
        len(work), ("k",), np.stack((ranks, np.zeros_like(ranks)), axis=1),
    )  # fmt: skip


def calls(block: list[tuple[int, int, int, int]], first: int) -> Calls:
    """Return a block of calls, numbered from one on with gaps."""
    table = np.array(block, np.int64).reshape(-1, 4)
    return Calls(
        first + 2 * np.arange(len(table)),
        table[:, 3].copy(),
        table[:, 3] + 1,
        table[:, 0] << 24 | table[:, 1],
        table[:, 2].astype(np.uint32),
    )


def linked(work: list[tuple[int, int]], blocks: list[list[tuple[int, int, int, int]]]) -> Any:
    """Return all that launches say as blocks pass by, whatever the order of pairs."""
    launches, told, first = Launches(activities(work)), [], 0
    for block in filter(None, blocks):
        found = launches.of(calls(block, first))
        first += 2 * len(block)
        told.append(
            (
                sorted(zip(found.activity.tolist(), found.call.tolist(), strict=True)),
                found.launched.tolist(),
                sorted(found.lost_start_ns.tolist()),
            )
        )
    return told, launches.call.tolist(), launches.start_ns.tolist()


@example([], [[(1, 0, 1, 5)]])
@example([(1, 2), (1, 2), (2, 2)], [[(1, 0, 2, 5), (1, 0, 2, 5)], [(1, 1, 2, 4), (1, 1, 2, 3)]])
@given(WORK, CALLS)
def test_launches_are_the_same(
    work: list[tuple[int, int]], blocks: list[list[tuple[int, int, int, int]]]
) -> None:
    without, found = both(lambda: linked(work, blocks))

    assert found == without


def test_calls_whose_rows_do_not_ascend_are_linked_all_the_same() -> None:
    block = calls([(1, 0, 1, 5), (1, 0, 1, 3)], 0)
    block = block.take(np.array([1, 0]))

    def found() -> Any:
        launches = Launches(activities([(1, 1)]))
        return launches.of(block).launched.tolist(), launches.call.tolist()

    without, compiled = both(found)

    assert compiled == without == ([True, False], [2])


GROUPED = st.lists(st.tuples(st.integers(0, 3), TIMES, TIMES), max_size=12)


def grouped(rows: list[tuple[int, int, int]]) -> list[list[int]]:
    table = np.array(rows, np.int64).reshape(-1, 3)
    return lists(intervals.group_union(table[:, 0], 4, table[:, 1], table[:, 2]))


def chosen_grouped(rows: list[tuple[int, int, int]]) -> list[list[int]]:
    table, chosen = np.array(rows, np.int64).reshape(-1, 3), every_other(len(rows))
    # Of those that are not chosen the group means nothing.
    group = np.where(chosen, table[:, 0], -1)
    return lists(intervals.group_union(group, 4, table[:, 1], table[:, 2], chosen))


@example([])
@example([(3, 2, 2), (0, 0, 4), (3, 1, 5), (0, 4, 6), (3, 7, 8)])
@given(GROUPED)
def test_unions_of_groups_are_the_same(rows: list[tuple[int, int, int]]) -> None:
    for some in (rows, sorted(rows, key=lambda row: row[1])):
        without, found = both(partial(grouped, some))
        without_others, found_of_some = both(partial(chosen_grouped, some))

        assert found == without
        assert found_of_some == without_others == grouped(some[::2])


def numbered(blocks: list[list[int]]) -> list[list[int]]:
    numbering = BlockNumbering()
    return [numbering.numbers(np.array(block, np.int64)).tolist() for block in blocks]


@example([[]])
@example([[-1, 5, -1], [1 << 40, -1, 5]])
@given(st.lists(st.lists(st.sampled_from((-1, 0, 5, 1 << 30, 1 << 40, 1 << 50)), max_size=6)))
def test_numbers_of_blocks_are_the_same(blocks: list[list[int]]) -> None:
    without, found = both(partial(numbered, blocks))

    assert found == without


#: (owner, kind: 0 compute, 1 communication, 2 copy; start, length) of work on operations 0 to 3.
OWNED = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(0, 2), TIMES, st.integers(0, 4)), max_size=12
)


def extents(rows: list[tuple[int, int, int, int]]) -> list[list[int]]:
    owner, kind, start, length = np.array(rows, np.int64).reshape(-1, 4).T
    count = len(rows)
    work = DeviceWork(
        start_ns=start,
        end_ns=start + length,
        rank=np.zeros(count, np.int32),
        range=np.zeros(count, np.int32),
        compute=kind == 0,
        communication=kind == 1,
        receive=np.zeros(count, bool),
    )
    none = np.empty(0, np.int64)
    ran = RankWork(range(1), np.arange(count), work, none, owner.astype(np.int32), none, none)
    return lists(extents_of(np.array([Phase.F, Phase.SEND_F, Phase.B, Phase.RECV_B]), ran))


@example([])
@example([(0, 0, 5, 0), (0, 0, 5, 0), (1, 0, 3, 1), (1, 1, 4, 1), (2, 2, 2, 2), (2, 1, 1, 9)])
@given(OWNED)
def test_extents_of_operations_are_the_same(rows: list[tuple[int, int, int, int]]) -> None:
    without, found = both(partial(extents, rows))

    assert found == without


@pytest.mark.parametrize(("owner", "sound"), [(-1, True), (1, True), (2, False), (-2, False)])
def test_an_owner_that_there_is_not_is_refused(owner: int, sound: bool) -> None:
    one, times = np.ones(1, bool), np.zeros(1, np.int64)
    arguments = np.array([owner], np.int32), (one, ~one), (times, times + 5), np.zeros(2, bool)
    if sound:
        assert operation_spans(compiled_library(), *arguments)[2].sum() == (owner >= 0)
    else:
        with pytest.raises(IndexError, match="1 rows have an owner"):
            operation_spans(compiled_library(), *arguments)


def test_a_library_of_another_source_is_not_loaded(tmp_path: Path) -> None:
    compiled_library()  # skips without a compiler
    own, other = tmp_path / "own.so", tmp_path / "other.so"

    assert compile_library(own) == ""
    assert compile_library(other, ["-UBUBBLEVIZ_SOURCE", "-DBUBBLEVIZ_SOURCE=1"]) == ""
    assert native.load(own) is not None
    assert native.load(other) is None
