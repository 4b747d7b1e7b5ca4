"""Iterations in which a stage is idle, like a vision encoder in text-only steps."""

from __future__ import annotations

import sqlite3
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.align.pairing.pairs_by_time import pair_by_time
from bubbleviz.align.run import Run, RunHints, merge
from bubbleviz.count.completeness import find_idle_ranks
from bubbleviz.count.count import _find_possibly_idle
from bubbleviz.count.ratios import Extents
from bubbleviz.interpret.recording import Recordings
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operations import RankIntervals
from bubbleviz.report.report import Report
from tests.planting import Planting, Truth, plant
from tests.support.edited_databases import edit_database
from tests.support.exact import WINDOWS
from tests.support.needs import get_real_file
from tests.support.notes import find_limitation, list_limitation_subjects, list_restriction_codes
from tests.support.operation_tables import write_csv
from tests.support.torch_traces import write_traces

CUT = "iterations cut off by the capture"
UNPAIRED = "iterations across ranks"
WITHOUT_WORK = "forwards and backwards without GPU work"
MARK = "operations-without-gpu-work"

#: Stage 0 is idle in two of six iterations, and waits for other stages before its Optimizer.
IDLE = Planting(iterations=6, jitter=0.1, barrier=True, idle_stage=0, idle_iterations=(1, 4))
RUNS = {
    "unnamed iterations": IDLE,
    "named iterations": replace(IDLE, iteration_ranges=True),
    "last stage": replace(IDLE, idle_stage=3),
    "two iterations in a row": replace(IDLE, idle_stage=2, idle_iterations=(2, 3)),
    "first iteration": replace(IDLE, idle_iterations=(0, 3)),
    "last iteration": replace(IDLE, idle_iterations=(2, 5)),
    "a file per rank": replace(IDLE, files="rank"),
    "two servers": replace(IDLE, servers=2, iteration_ranges=True),
    "host runs ahead": replace(IDLE, run_ahead_ns=5_000_000),
    "constant names": replace(IDLE, names="constant"),
    "interleaved": replace(IDLE, schedule="interleaved-1f1b", chunks=2),
    "interleaved, first iterations": replace(
        IDLE, schedule="interleaved-1f1b", chunks=2, idle_iterations=(0, 1)
    ),
    "named, first iterations": replace(IDLE, iteration_ranges=True, idle_iterations=(0, 1)),
    "post-validation": replace(IDLE, schedule="zb-h1", idle_stage=1, postponed_ns=100_000),
    "two replicas": replace(IDLE, replicas=2),
    "no Optimizer": replace(IDLE, barrier=False, optimizer_ns=-1),
    "no Optimizer, no transfers": replace(
        IDLE, barrier=False, optimizer_ns=-1, communication=False
    ),
}


def check_ratios(report: Report, truth: Truth, windows: Sequence[str] = WINDOWS) -> None:
    """Check the mean bubble ratio of each window against the planted ratios."""
    for window in windows:
        ratios = [iteration.bubble_ratio[window] for iteration in truth.iterations]
        mean = np.mean([ratio for ratio in ratios if ratio is not None])
        assert report.summary.bubble_ratio[window].mean == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("name", RUNS)
def test_an_idle_stage_counts_with_no_work(name: str, tmp_path: Path) -> None:
    truth = plant(RUNS[name], tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert report.summary.iterations == 6
    assert not {CUT, UNPAIRED} & list_limitation_subjects(report)
    assert report.restrictions == ()
    check_ratios(report, truth)


def test_coverage_names_the_iterations_of_an_idle_stage(tmp_path: Path) -> None:
    truth = plant(IDLE, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    note = find_limitation(report, "iterations without work")
    names = [str(number) for number in truth.planting.idle_iterations]
    assert note.count == len(names)
    assert f"in iterations {', '.join(names)}, so it counts as idle there" in note.reason
    assert "stage 0" in note.reason
    assert report.restrictions == ()


def test_causes_of_an_idle_stage_add_up_to_its_bubble(tmp_path: Path) -> None:
    plant(IDLE, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    for name, idle_ns in report.explanation.causes.idle_ns.items():
        for iteration in report.iterations:
            for rank in iteration.ranks:
                if name in rank.accounts:
                    by_cause = idle_ns[iteration.index, rank.rank].sum()
                    assert by_cause == rank.accounts[name].bubble_ns
    idle = report.iterations[1].ranks[0]
    assert (idle.compute_ns, idle.bubble_ratio["schedule"]) == (0, 1.0)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    ("iterations", "idle"),
    [
        (6, (1, 4)),
        (6, (1, 2, 3)),
        (4, (3,)),
        (4, (0, 1)),
        (6, (1, 3, 5)),
        (5, (0, 1, 3, 4)),
        (5, (3, 4)),
        (8, (2, 3, 4, 5)),
        (8, (2, 3, 5, 6)),
    ],
)
def test_an_idle_stage_may_run_its_optimizer_at_once(
    iterations: int, idle: tuple[int, ...], servers: int, schedule: str, tmp_path: Path
) -> None:
    """No stage waits for others before its Optimizer, so only the count shows idle iterations.

    After several idle iterations, the stage runs forwards long before other stages do.
    """
    planting = Planting(
        schedule=schedule,
        iterations=iterations,
        servers=servers,
        idle_stage=0,
        idle_iterations=idle,
    )
    truth = plant(planting, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert sum(iteration.complete for iteration in report.iterations) == iterations
    check_ratios(report, truth)


@pytest.mark.parametrize(
    ("iterations", "idle"), [(4, (1, 2)), (5, (1, 2, 3)), (5, (2, 3)), (6, (1, 4))]
)
@pytest.mark.parametrize("servers", [1, 2])
def test_forwards_that_run_long_before_others_pair_by_time_or_not_at_all(
    servers: int, iterations: int, idle: tuple[int, ...], tmp_path: Path
) -> None:
    """Iteration numbers alone would pair forwards of stage 0 with an earlier iteration.

    Without Optimizers, only time shows the iterations in which the stage is idle, and the hosts may
    have different clocks.
    """
    planting = Planting(
        schedule="gpipe",
        iterations=iterations,
        servers=servers,
        optimizer_ns=-1,
        idle_stage=0,
        idle_iterations=idle,
    )
    truth = plant(planting, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    if servers == 1:
        check_ratios(report, truth)
    else:
        assert all(report.summary.bubble_ratio[window].mean is None for window in WINDOWS)
    assert (UNPAIRED in list_limitation_subjects(report)) == (servers == 2)


def test_a_stage_whose_kernels_were_lost_is_not_idle(tmp_path: Path) -> None:
    plant(Planting(iterations=3, iteration_ranges=True, barrier=True), tmp_path)
    path = tmp_path / "node0.sqlite"
    iteration = "(SELECT {} FROM NVTX_EVENTS WHERE text = 'iter_0_1')"
    # SQL for a process id, which is a thread id without the last 24 bits.
    process = iteration.format("globalTid >> 24 << 24")
    between = f"BETWEEN {iteration.format('start')} AND {iteration.format('end')}"
    calls = (
        "SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME "
        f"WHERE globalTid >> 24 << 24 = {process} AND start {between}"
    )
    edit_database(
        path,
        f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = {process} "
        f"AND correlationId IN ({calls})",
    )
    report = bubbleviz.analyze(path)

    assert not report.iterations[1].complete
    assert report.summary.iterations < 3


def test_a_stage_may_idle_in_half_of_the_iterations(tmp_path: Path) -> None:
    planting = Planting(iterations=4, idle_stage=0, idle_iterations=(1, 2))
    truth = plant(planting, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert [iteration.complete for iteration in report.iterations] == [True] * 4
    check_ratios(report, truth, ("schedule", "stage", "period"))


# Tests of idle stages that open their ranges without launching work.


def add_empty_ranges(path: Path, *, is_named: bool = False, is_launched: bool = False) -> None:
    """Add the ranges of all forwards and backwards to the idle iterations of ``IDLE``.

    Args:
        path: nsys export of the planted run.
        is_named: Whether a range names each of these iterations.
        is_launched: Whether one of the ranges contains a launch, whose kernel is not recorded.
    """
    with closing(sqlite3.connect(path)) as db:
        # The idle stage has the fewest forwards.
        (thread,) = db.execute(
            "SELECT globalTid FROM NVTX_EVENTS WHERE text = 'F0.0.0' "
            "GROUP BY globalTid ORDER BY count(*) LIMIT 1"
        ).fetchone()
        steps = db.execute(
            "SELECT start, end FROM NVTX_EVENTS WHERE text = 'Optimizer' AND globalTid = ? "
            "ORDER BY start",
            (thread,),
        ).fetchall()
        names = db.execute(
            "SELECT text, eventType FROM NVTX_EVENTS WHERE globalTid = ? AND end < ? "
            "AND (text GLOB 'F[0-9]*' OR text GLOB 'B[0-9]*') ORDER BY start",
            (thread, steps[0][0]),
        ).fetchall()
        assert len(names) == 16
        for k in IDLE.idle_iterations:
            end_ns = steps[k][0]
            first_ns = end_ns - 100 * len(names)
            assert first_ns - 50 > steps[k - 1][1]
            ranges = [
                (first_ns + 100 * place, first_ns + 100 * place + 50, kind, name, thread)
                for place, (name, kind) in enumerate(names)
            ]
            if is_named:
                name = f"iter_{IDLE.idle_stage}_{k}"
                ranges.append((first_ns - 50, steps[k][1] + 50, names[0][1], name, thread))
            db.executemany(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) "
                "VALUES (?, ?, ?, ?, ?)",
                ranges,
            )
            if is_launched:
                columns = "nameId, globalTid, eventClass, returnValue"
                db.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME "
                    f"(start, end, correlationId, {columns}) "
                    f"SELECT ?, ?, 1000000 + ?, {columns} FROM CUPTI_ACTIVITY_KIND_RUNTIME "
                    "WHERE globalTid = ? AND correlationId IN "
                    "(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL) LIMIT 1",
                    (end_ns - 90, end_ns - 80, k, thread),
                )
        db.commit()


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("is_trace", [False, True])
def test_a_stage_that_enters_ranges_and_launches_nothing_is_idle(
    is_named: bool, is_trace: bool, tmp_path: Path
) -> None:
    truth = plant(replace(IDLE, iteration_ranges=is_named), tmp_path)
    path = tmp_path / "node0.sqlite"
    add_empty_ranges(path, is_named=is_named)
    paths = write_traces(path, tmp_path) if is_trace else [path]
    report = bubbleviz.analyze(paths)

    assert report.summary.iterations == 6
    assert CUT not in list_limitation_subjects(report)
    assert report.restrictions == ()
    note = find_limitation(report, WITHOUT_WORK)
    assert note.count == 32
    assert "count as idle" in note.reason
    check_ratios(report, truth)


def test_ranges_whose_launches_have_no_kernels_do_not_make_a_stage_idle(tmp_path: Path) -> None:
    plant(IDLE, tmp_path)
    path = tmp_path / "node0.sqlite"
    add_empty_ranges(path, is_launched=True)
    report = bubbleviz.analyze(path)

    assert [i.complete for i in report.iterations] == [True, False, True, True, False, True]
    assert MARK in list_restriction_codes(report)


def test_a_stage_without_any_recorded_work_is_not_known_to_be_idle(tmp_path: Path) -> None:
    """The kernels and launches of the stage may all be lost, including those of the Optimizer."""
    plant(replace(IDLE, iteration_ranges=True), tmp_path)
    path = tmp_path / "node0.sqlite"
    add_empty_ranges(path, is_named=True)
    thread = "(SELECT globalTid FROM NVTX_EVENTS WHERE text = 'iter_0_1')"
    in_range = " AND ".join(
        f"start {sign} (SELECT {end} FROM NVTX_EVENTS WHERE text = 'iter_0_1')"
        for sign, end in ((">=", "start"), ("<=", "end"))
    )
    calls = f"FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE globalTid = {thread} AND {in_range}"
    edit_database(
        path,
        f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = {thread} >> 24 << 24 "
        f"AND correlationId IN (SELECT correlationId {calls})",
        f"DELETE {calls}",
    )
    report = bubbleviz.analyze(path)

    assert not report.iterations[1].complete
    assert MARK in list_restriction_codes(report)


@pytest.mark.parametrize("steps", [True, False])
def test_a_stage_that_stepped_is_idle_if_its_rows_have_no_times(
    steps: bool, tmp_path: Path
) -> None:
    path = table_of(tmp_path / "run.csv", set(), steps=steps)
    lines = path.read_text().splitlines()
    is_empty = [line.startswith(("1,0,0,F,", "1,0,0,BW,")) for line in lines]
    assert sum(is_empty) == 2
    rows = [
        ",".join([*line.split(",")[:-2], "", "", "1100000"]) if empty else f"{line},"
        for line, empty in zip(lines, is_empty, strict=True)
    ]
    # A row that has no times is refused.
    rows[0] += "host_start_ns"
    path.write_text("\n".join(rows) + "\n")
    report = bubbleviz.analyze(path)

    assert [iteration.complete for iteration in report.iterations] == [True, steps, True]


#: Iterations of two stages, 1 ms apart, with times in us.
#: Stage 1 runs between F and BW of stage 0.
_PARTS = ((0, "F", 0, 100), (1, "F", 100, 200), (1, "BW", 200, 400), (0, "BW", 400, 600))


def table_of(
    path: Path, idle: set[tuple[int, int]], *, steps: bool = True, iterations: int = 3
) -> Path:
    """Write a table of two stages.

    Args:
        path: File to write.
        idle: (iteration, rank) pairs that have no forward and backward.
        steps: Whether all ranks run an Optimizer in all iterations.
        iterations: Number of iterations.
    """
    rows: list[tuple[int | str, ...]] = []
    for k in range(iterations):
        for rank, phase, start, end in _PARTS:
            if (k, rank) not in idle:
                rows.append((k, rank, rank, phase, 0, 1000 * k + start, 1000 * k + end))
        if steps:
            rows += [
                (k, rank, rank, "Optimizer", "", 1000 * k + 600, 1000 * k + 610) for rank in (0, 1)
            ]
    names = ("iteration", "rank", "stage", "phase", "microbatch", "start_us", "end_us")
    return write_csv(path, dict(zip(names, zip(*rows, strict=True), strict=True)))


@pytest.mark.parametrize(
    ("idle", "steps", "complete"),
    [
        (set(), True, [True, True, True]),
        ({(1, 0)}, True, [True, True, True]),
        ({(1, 0)}, False, [True, True, True]),
        # Only an Optimizer shows that the capture contains the rank's iteration.
        ({(2, 0)}, True, [True, True, True]),
        ({(2, 0)}, False, [True, True, False]),
        ({(0, 0)}, True, [True, True, True]),
        ({(0, 1)}, False, [False, True, True]),
        # The iterations before and after the idle iteration are incomplete.
        ({(1, 0), (2, 1)}, False, [True, False, False]),
    ],
)
def test_iterations_with_an_idle_stage_are_complete_if_they_are_known_to_be_recorded(
    idle: set[tuple[int, int]], steps: bool, complete: list[bool], tmp_path: Path
) -> None:
    report = bubbleviz.analyze(table_of(tmp_path / "run.csv", idle, steps=steps))

    assert [iteration.complete for iteration in report.iterations] == complete


def test_a_stage_is_not_idle_on_a_clock_that_cannot_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table_of(tmp_path / "run.csv", {(1, 0)})

    def merge_on_unknown_clocks(parts: Recordings, hints: RunHints) -> Run:
        run = merge(parts, hints)
        comparable = np.zeros_like(run.timebase.comparable)
        return replace(run, timebase=replace(run.timebase, comparable=comparable))

    monkeypatch.setattr("bubbleviz.api.analysis.merge", merge_on_unknown_clocks)

    complete = [iteration.complete for iteration in bubbleviz.analyze(path).iterations]
    assert complete == [True, False, True]


@pytest.mark.real_files
def test_the_idle_stage_of_the_shared_example_counts() -> None:
    report = bubbleviz.analyze(get_real_file("cases/idle_stage.csv"))

    assert report.summary.iterations == 3
    assert [iteration.complete for iteration in report.iterations] == [True] * 3


# Tests against a slow reference for idle parts.


MASKS = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        *(
            st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=n, max_size=n)
            for _ in range(3)
        ),
        *(st.lists(st.booleans(), min_size=n, max_size=n) for _ in range(2)),
    )
)


def slow_idle_parts(
    present: list[list[bool]],
    can_idle: list[list[bool]],
    is_recorded: list[list[bool]],
    is_whole: list[bool],
    is_resumed: list[bool],
) -> list[list[bool]]:
    """Return the largest set of idle parts that are all proven.

    Parts that are not proven are removed until every remaining part is proven.
    """
    n, ranks = len(present), range(3)
    works = [any(row[r] for row in present) for r in ranks]
    idle = [
        [works[r] and not present[k][r] and can_idle[k][r] and is_whole[k] for r in ranks]
        for k in range(n)
    ]

    def is_complete(k: int) -> bool:
        return is_whole[k] and all(present[k][r] or idle[k][r] or not works[r] for r in ranks)

    def is_proven(k: int, r: int) -> bool:
        if is_recorded[k][r]:
            return True
        previous_row = [j for j in range(k) if present[j][r]]
        next_row = [j for j in range(k, n) if present[j][r]]
        around = range(previous_row[-1], next_row[0] + 1) if previous_row and next_row else ()
        is_paused = any(is_resumed[j] for j in around[1:])
        return bool(around) and not is_paused and all(is_complete(j) for j in around)

    changed = True
    while changed:
        changed = False
        wrong = [(k, r) for k in range(n) for r in ranks if idle[k][r] and not is_proven(k, r)]
        for k, r in wrong:
            idle[k][r], changed = False, True
    return idle


@given(MASKS)
def test_idle_parts_agree_with_a_slow_reference(
    masks: tuple[list[list[bool]], list[list[bool]], list[list[bool]], list[bool], list[bool]],
) -> None:
    present, can_idle, is_recorded, is_whole, is_resumed = masks
    is_idle = find_idle_ranks(
        *(np.array(mask, bool) for mask in (present, is_whole, can_idle, is_recorded, is_resumed))
    )

    assert is_idle.tolist() == slow_idle_parts(present, can_idle, is_recorded, is_whole, is_resumed)


def test_without_iterations_there_are_no_idle_parts() -> None:
    none = np.zeros((0, 2), bool)
    assert find_idle_ranks(none, np.zeros(0, bool), none, none, np.zeros(0, bool)).shape == (0, 2)


# Tests of pairing by time.


def mask_of(rank: Ints, iteration: Ints) -> Bools:
    """Return the mask of the two ranks' iterations that contain work."""
    mask = np.zeros((2, iteration.max() + 1), np.bool_)
    mask[rank, iteration] = True
    return mask


@pytest.mark.parametrize("column", [0, 1, 2])
def test_an_iteration_of_unknown_time_follows_the_one_before(column: int) -> None:
    rank, iteration = np.repeat([0, 1], 3), np.tile(np.arange(3), 2)
    start_ns = 100 * iteration
    is_timed = (rank == 0) | (iteration != column)
    numbers = pair_by_time(
        rank[is_timed],
        iteration[is_timed],
        start_ns[is_timed],
        start_ns[is_timed] + 50,
        mask_of(rank, iteration),
    )

    assert numbers is not None
    assert numbers.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_an_iteration_of_unknown_time_needs_a_separate_number() -> None:
    """Iteration 1 of rank 1 has no time, and there is no free number between iterations 0 and 2."""
    rank, iteration = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 2])
    start_ns = np.array([0, 100, 0, 100])
    is_worked = np.array([[True, True, False], [True, True, True]])

    assert pair_by_time(rank, iteration, start_ns, start_ns + 50, is_worked) is None


def test_iterations_pair_with_those_that_they_overlap() -> None:
    rank = np.array([0, 0, 0, 1, 1])
    iteration = np.array([0, 1, 2, 0, 1])
    start_ns = np.array([0, 100, 200, 10, 190])
    numbers = pair_by_time(rank, iteration, start_ns, start_ns + 50, mask_of(rank, iteration))

    assert numbers is not None
    assert numbers.tolist() == [[0, 1, 2], [0, 2, 2]]


def test_nothing_pairs_without_work_or_overlap() -> None:
    empty = np.empty(0, np.int64)
    assert pair_by_time(empty, empty, empty, empty, np.zeros((1, 0), np.bool_)) is None
    rank, zero = np.array([0, 1]), np.zeros(2, np.int64)
    start_ns = np.array([0, 50])
    assert pair_by_time(rank, zero, start_ns, start_ns + 50, mask_of(rank, zero)) is None


def test_two_iterations_never_share_a_number() -> None:
    rank, iteration = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    start_ns, end_ns = np.array([0, 100, 10, 20]), np.array([50, 150, 20, 30])
    assert pair_by_time(rank, iteration, start_ns, end_ns, mask_of(rank, iteration)) is None


def test_iterations_pair_around_one_without_work() -> None:
    rank, iteration = np.array([0, 0, 1]), np.array([0, 1, 1])
    start_ns = np.array([0, 100, 100])
    numbers = pair_by_time(rank, iteration, start_ns, start_ns + 50, mask_of(rank, iteration))

    assert numbers is not None
    assert numbers.tolist() == [[0, 1], [NONE, 1]]


def test_pairing_many_iterations_needs_little_memory() -> None:
    n = 3_000
    iteration = np.tile(np.arange(n), 2)
    rank = np.repeat([0, 1], n)
    start_ns = 100 * iteration + 10 * rank
    tracemalloc.start()
    try:
        numbers = pair_by_time(rank, iteration, start_ns, start_ns + 95, mask_of(rank, iteration))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert numbers is not None
    assert (numbers == np.arange(n)).all()
    assert peak_bytes < 1_000 * n


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), min_size=1, max_size=4)


@given(SPANS, SPANS)
def test_pairs_agree_with_a_slow_reference(
    reference: list[tuple[int, int]], shorter: list[tuple[int, int]]
) -> None:
    parts = [reference, shorter[: len(reference)]]
    rows = [
        (rank, iteration, start, start + length)
        for rank, spans in enumerate(parts)
        for iteration, (start, length) in enumerate(spans)
    ]
    rank_of, iteration, start_ns, end_ns = np.array(rows, np.int64).T
    numbers = pair_by_time(rank_of, iteration, start_ns, end_ns, mask_of(rank_of, iteration))

    expected: list[list[int]] | None = []
    for spans in parts:
        pair = []
        for start, length in spans:
            overlaps = [
                min(start + length, first + other) - max(start, first) for first, other in reference
            ]
            longest = max(overlaps)
            pair.append(overlaps.index(longest) if longest > 0 else -1)
        if expected is None or -1 in pair or sorted(set(pair)) != pair:
            expected = None
        else:
            expected.append(pair + pair[-1:] * (len(reference) - len(pair)))
    assert (None if numbers is None else numbers.tolist()) == expected


@given(SPANS | st.just([]), SPANS | st.just([]))
def test_overlaps_agree_with_a_slow_reference(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    tables = [
        (np.array([s for s, _ in spans], np.int64), np.array([s + n for s, n in spans], np.int64))
        for spans in (first, second)
    ]
    rows, other_rows = intervals.find_overlaps(*tables)

    assert list(zip(rows.tolist(), other_rows.tolist(), strict=True)) == [
        (i, k)
        for i, (start, length) in enumerate(first)
        for k, (other_start, other_length) in enumerate(second)
        if start < other_start + other_length and other_start < start + length
    ]


def test_many_pauses_need_little_memory() -> None:
    n = 4_000
    start_ns = 100 * np.arange(n)
    present = np.ones((n, 2), bool)
    times_ns = np.stack((start_ns, start_ns), axis=1)
    extents = Extents(times_ns, times_ns + 90, times_ns + 90, present, None)
    run: Any = SimpleNamespace(
        paired=True,
        timebase=SimpleNamespace(comparable=np.ones(1, bool), machine=np.zeros(2, np.int64)),
        pauses=RankIntervals(np.ones(n, np.int64), start_ns[::-1] + 91, start_ns[::-1] + 101),
    )
    tracemalloc.start()
    try:
        can_idle = _find_possibly_idle(run, extents)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert can_idle[:, 0].all()
    assert can_idle[:, 1].tolist() == [True] + [False] * (n - 1)
    assert peak_bytes < 1_000 * n
