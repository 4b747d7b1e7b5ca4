"""The compiled library computes the same columns as numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.interpret.linking import LinkedWork, Linker
from bubbleviz.interpret.spans import measure_times
from bubbleviz.model import intervals
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import (
    find_distinct_rows,
    group_rows,
    sort_columns_by_group,
    sort_rows,
)
from bubbleviz.model.nesting import Innermost
from bubbleviz.model.numbering import BlockNumbering
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import UNCORRELATED, Activities, Calls, Ranges
from bubbleviz.native import library as native
from scripts.build_native import compile_library
from tests.support.compiled import build_library

TIMES = st.integers(0, 20)
SPANS = st.lists(st.tuples(TIMES, TIMES), max_size=12)
IDS = st.sampled_from((0, 1, 2, 3, 70, UNCORRELATED - 1, UNCORRELATED))
PROCESSES = st.integers(1, 3)
#: (process, correlation id) of GPU work that was launched.
WORK = st.lists(st.tuples(PROCESSES, IDS), max_size=12)
THREADS = st.integers(0, 2)
#: (process, thread, start, end) of ranges.
OPENED = st.lists(st.tuples(PROCESSES, THREADS, TIMES, TIMES), max_size=9)
#: (process, thread, correlation id, start) of calls, in blocks.
CALLS = st.lists(st.lists(st.tuples(PROCESSES, THREADS, IDS, TIMES), max_size=8), max_size=4)


def run_both(work: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the results of ``work`` without and with the compiled library."""
    library = build_library()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_load_once", lambda: library)
        patch.setenv(native.SWITCH, "0")
        without = work()
        patch.delenv(native.SWITCH)
        return without, work()


def split_columns(spans: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    # These arrays are not contiguous.
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    return start, end


def convert_to_lists(columns_of_result: tuple[Any, ...]) -> list[list[int]]:
    return [column.tolist() for column in columns_of_result]


def mask_every_other(count: int) -> Bools:
    return np.asarray(np.arange(count) % 2 == 0, bool)


def compute_unions(spans: list[tuple[int, int]]) -> list[list[list[int]]]:
    """Return the unions of intervals, once in the given order and once sorted."""
    results = []
    for ordered in (spans, sorted(spans)):
        selected_union = convert_to_lists(
            intervals.union(*split_columns(ordered), mask_every_other(len(ordered)))
        )
        assert selected_union == convert_to_lists(intervals.union(*split_columns(ordered[::2])))
        results.append(convert_to_lists(intervals.union(*split_columns(ordered))))
    return results


def measure_covered(spans: list[tuple[int, int]], limits: list[tuple[int, int]]) -> list[int]:
    covered = intervals.measure_within(
        intervals.union(*split_columns(spans)), *split_columns(limits)
    )
    return list(covered.tolist())


def compute_differences(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> list[list[int]]:
    first_union, second_union = (
        intervals.union(*split_columns(a)),
        intervals.union(*split_columns(b)),
    )
    return convert_to_lists(intervals.difference(first_union, second_union))


def find_enclosing(
    spans: list[tuple[int, int]], inner_spans: list[tuple[int, int]]
) -> list[list[int]]:
    index = Innermost.of(*split_columns(spans))
    return [
        index.around(*split_columns(some)).tolist() for some in (inner_spans, sorted(inner_spans))
    ]


def make_activities(work: list[tuple[int, int]]) -> Activities:
    """Return activities of processes, each on a separate device."""
    process, ids = split_columns(work)
    ranks, rank = np.unique(process, return_inverse=True)
    none = np.zeros(len(work), np.int64)
    return Activities(
        none, none + 1, rank.astype(np.int16), ids.astype(np.uint32), none.astype(np.int16),
        len(work), ("k",), np.stack((ranks, np.zeros_like(ranks)), axis=1),
    )  # fmt: skip


def make_calls(block: list[tuple[int, int, int, int]], first: int) -> Calls:
    """Return a block of calls whose row numbers start at ``first`` and have gaps."""
    table = np.array(block, np.int64).reshape(-1, 4)
    return Calls(
        first + 2 * np.arange(len(table)),
        table[:, 3].copy(),
        table[:, 3] + 1,
        table[:, 0] << 24 | table[:, 1],
        table[:, 2].astype(np.uint32),
    )


def make_ranges(spans: list[tuple[int, int, int, int]]) -> Ranges:
    """Return ranges, given as (process, thread, start, end).

    Every third one is a start/end range.
    """
    process, thread, start, end = np.array(spans, np.int64).reshape(-1, 4).T
    owner, row = process << 24 | thread, np.arange(len(spans))
    return Ranges(
        start, end, owner, np.where(row % 6 == 5, 0, owner), row % 3 == 2, row < 0, 0 * row, ("r",)
    )


def link_blocks(
    work: list[tuple[int, int]],
    spans: list[tuple[int, int, int, int]],
    blocks: list[list[tuple[int, int, int, int]]],
    step: int = 1,
) -> Any:
    """Return the links of blocks of calls. Step -1 reverses the rows, and 0 removes all phases."""
    phase = np.resize([Phase.F, Phase.B, Phase.BW], len(spans)) if step else None
    linker, first = (
        Linker(make_activities(work), make_ranges(spans), phase, np.array([1 << 24 | 2])),
        0,
    )
    for block in blocks:
        linker.add(make_calls(block, first).take(np.arange(len(block))[:: step or 1]))
        first += 2 * len(block)
    links = linker.link_work()
    workless = {
        process: sorted(int(base + at) for base, after in times for at in after)
        for process, times in linker.collect_workless().items()
    }
    columns_of_links = convert_to_lists((links.call, links.range, links.rule)), workless
    is_linked = links.call >= 0
    return columns_of_links, convert_to_lists(
        (links.launched_ns[is_linked], links.threads[links.thread[is_linked]])
    )


def group_intervals(rows: list[tuple[int, int, int]]) -> list[list[list[int]]]:
    """Return the unions of groups, once in the given order and once sorted by time."""
    results = []
    for ordered_rows in (rows, sorted(rows, key=lambda row: row[1])):
        group, start, end = np.array(ordered_rows, np.int64).reshape(-1, 3).T
        is_selected = mask_every_other(len(ordered_rows))
        # Groups of rows that are not selected are ignored.
        of_selected = intervals.group_union(
            np.where(is_selected, group, -1), 4, start, end, is_selected
        )
        of_every_other = intervals.group_union(group[::2], 4, start[::2], end[::2])
        assert convert_to_lists(of_selected) == convert_to_lists(of_every_other)
        results.append(convert_to_lists(intervals.group_union(group, 4, start, end)))
        results.append([intervals.group_measure(group, 4, start, end).tolist()])
    return results


def sort_by_group(group: list[int]) -> Any:
    """Return columns sorted by group, with equal results for narrow and wide group codes."""
    rows = np.arange(len(group))
    parts: list[Any] = [rows, rows.astype(np.uint32), rows.astype(np.int16), rows.astype(np.int8)]
    narrow, wide = (
        convert_to_lists(tuple(sort_columns_by_group(np.array(group, kind), [*parts])))
        for kind in (np.int16, np.int32)
    )
    assert narrow == wide
    return narrow


def number_blocks(blocks: list[list[int]]) -> list[list[int]]:
    numbering = BlockNumbering()
    return [numbering.numbers(np.array(block, np.int64)).tolist() for block in blocks]


#: (owner, kind, start, length) of work on operations 0 to 3.
#: Kind 0 is compute, 1 is communication, and 2 is a copy.
OWNED = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(0, 2), TIMES, st.integers(0, 4)), max_size=12
)


def measure_work_times(rows: list[tuple[int, int, int, int]]) -> list[Any]:
    owner, kind, start, length = np.array(rows, np.int64).reshape(-1, 4).T
    count = len(rows)
    work = LinkedWork.make_without_launches(
        start_ns=start,
        end_ns=start + length,
        rank=owner // 2 + 3,
        operation=owner.astype(np.int32),
        compute=kind == 0,
        communication=kind == 1,
    )
    iterations = {"iteration": [0, 0, 0, -1], "rank": [3, 3, 4, 4]}
    phase = np.array([Phase.F, Phase.SEND_F, Phase.B, Phase.RECV_B])
    columns = {name: np.full(4, -1) for name in Operations.column_names()}
    columns |= {name: np.array(numbers) for name, numbers in iterations.items()}
    keys = Operations(**(columns | {"phase": phase}), names=())
    results = []
    for ranks, first in ((range(2, 5), 0), (range(1), None)):
        of_ranks = work if first == 0 else work.replace_columns(rank=np.zeros(count, np.int32))
        times_by_name = vars(measure_times(keys, of_ranks, ranks))
        results.append([np.asarray(times_by_name[name]).tolist() for name in times_by_name])
    return results


def group_equal_rows(rows: list[tuple[int, int]]) -> list[list[list[int]]]:
    """Return the sort orders, groups and distinct rows of two columns with many rows."""
    first, second = np.tile(np.array(rows, np.int64).reshape(-1, 2), (60, 1)).T
    groups, groups_of_first = group_rows(first, second), group_rows(first, np.zeros_like(second))
    return [
        convert_to_lists((sort_rows(first, second), sort_rows(np.sort(first), second))),
        convert_to_lists(
            (groups.of_row, groups.first, groups_of_first.of_row, groups_of_first.first)
        ),
        find_distinct_rows(first, second).tolist(),
    ]


#: Values whose differences exceed one digit of the radix sort.
VALUES = st.sampled_from((-1, 0, 1, 70, 1 << 20, 1 << 40, np.iinfo(np.int64).min))


def find_last_rows(rows: list[tuple[int, int]], queries: list[tuple[int, int]]) -> list[list[int]]:
    """Return the last row of each group at or before given times, from unsorted and sorted rows."""
    return [
        intervals.find_last_before(
            *split_columns(some), *split_columns(asked), or_at=or_at
        ).tolist()
        for some, asked in ((rows, queries), (sorted(rows), sorted(queries)))
        for or_at in (False, True)
    ]


def measure_windows(
    spans: list[tuple[int, int, int]], limits: list[tuple[int, int, int]]
) -> list[Any]:
    """Return the time that the sets of groups cover in windows, and the extents of groups."""
    group, start, end = np.array(spans, np.int64).reshape(-1, 3).T
    sets = intervals.group_union(group, 4, start, end)
    owner, low, length = np.array(limits, np.int64).reshape(-1, 3).T
    within = intervals.measure_windows(sets, 4, owner, low, low + length)
    return [within.tolist(), convert_to_lists(intervals.group_extents(group - 1, 4, start, end))]


GROUPS = st.integers(0, 3)
#: Argument strategies, required examples, and the function to compare.
CASES: dict[str, tuple[tuple[st.SearchStrategy[Any], ...], list[Any], Callable[..., Any]]] = {
    "unions": ((SPANS,), [([],), ([(3, 3), (3, 3)],)], compute_unions),
    "differences": (
        (SPANS, SPANS),
        [([], []), ([(0, 9)], [(0, 9)]), ([(0, 1), (2, 5)], [(0, 3)])],
        compute_differences,
    ),
    "measures of windows": (
        (SPANS, SPANS),
        [([], [(1, 2)]), ([(1, 3)], [(0, 9)])],
        measure_covered,
    ),
    "the innermost around": (
        (SPANS, SPANS),
        [([], [(1, 2)]), ([(0, 5), (0, 5), (1, 4), (1, 4)], [(1, 4), (0, 5), (6, 6)])],
        find_enclosing,
    ),
    "links": (
        (WORK, OPENED, CALLS, st.sampled_from((-1, 0, 1))),
        [
            ([(1, 1)], [], [[(1, 0, 1, 3), (1, 0, 1, 5)]], -1),
            (
                [(1, 2), (1, 2), (2, 2)],
                [(1, 0, 0, 9), (1, 1, 2, 9), (1, 0, 4, 6)],
                [[(1, 0, 2, 5), (1, 0, 2, 5)], [(1, 1, 2, 4), (1, 2, 2, 3), (2, 0, 2, 3)]],
            ),
        ],
        link_blocks,
    ),
    "unions of groups": (
        (st.lists(st.tuples(st.integers(0, 3), TIMES, TIMES), max_size=12),),
        [([],), ([(3, 2, 2), (0, 0, 4), (3, 1, 5), (0, 4, 6), (3, 7, 8)],)],
        group_intervals,
    ),
    "rows of groups": (
        (st.lists(st.integers(0, 5), max_size=12),),
        [([],), ([3, 0, 3, 0, 2],)],
        sort_by_group,
    ),
    "numbers of blocks": (
        (st.lists(st.lists(st.sampled_from((-1, 0, 5, 1 << 30, 1 << 40, 1 << 50)), max_size=6)),),
        [([[]],), ([[-1, 5, -1], [1 << 40, -1, 5]],)],
        number_blocks,
    ),
    "rows that agree": (
        (st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=12),),
        [([(0, 1)] * 9,), ([(3, 1), (2, 1), (3, 0), (3, 1)] * 3,)],
        group_equal_rows,
    ),
    "last rows before": (
        (st.lists(st.tuples(GROUPS, TIMES)), st.lists(st.tuples(GROUPS, TIMES))),
        [([], [(0, 1)]), ([(0, 3), (0, 3), (2, 1)], [(0, 3), (0, 4), (1, 9), (2, 0)])],
        find_last_rows,
    ),
    "windows of groups": (
        (st.lists(st.tuples(GROUPS, TIMES, TIMES)), st.lists(st.tuples(GROUPS, TIMES, TIMES))),
        [([], [(0, 1, 2)]), ([(1, 2, 5), (1, 7, 9), (2, 0, 3)], [(1, 0, 20), (1, 3, 5)])],
        measure_windows,
    ),
    "times of work": (
        (OWNED,),
        [
            ([],),
            ([(0, 0, 5, 0), (0, 0, 5, 0), (1, 0, 3, 1), (1, 1, 4, 1), (2, 2, 2, 2), (2, 1, 1, 9)],),
        ],
        measure_work_times,
    ),
}


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_both_implementations_agree(case: str, data: st.DataObject) -> None:
    strategies, _, work = CASES[case]
    rows = data.draw(st.tuples(*strategies))

    without, compiled_result = run_both(lambda: work(*rows))

    assert compiled_result == without


@pytest.mark.parametrize("case", CASES)
def test_both_implementations_agree_on_examples(case: str) -> None:
    for rows in CASES[case][1]:
        without, compiled_result = run_both(partial(CASES[case][2], *rows))

        assert compiled_result == without


@pytest.mark.parametrize("owner", [4, -2])
def test_a_stray_owner_is_refused(owner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_load_once", build_library)
    with pytest.raises(IndexError, match="1 rows have an owner"):
        measure_work_times([(owner, 0, 5, 1)])


def test_a_library_of_a_different_source_is_not_loaded(tmp_path: Path) -> None:
    build_library()  # the test is skipped without a compiler
    library, foreign_library = tmp_path / "own.so", tmp_path / "other.so"

    assert compile_library(library) == ""
    assert compile_library(foreign_library, ["-UBUBBLEVIZ_SOURCE", "-DBUBBLEVIZ_SOURCE=1"]) == ""
    assert native.load(library) is not None
    assert native.load(foreign_library) is None
