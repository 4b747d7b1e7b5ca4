"""The last arrivals at barriers, and the parts of the step that make ranks late."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import bubbleviz
from bubbleviz.explain.late_arrivals import (
    OTHER,
    PartTimes,
    Visits,
    find_late_arrivals,
    measure_lateness,
)
from bubbleviz.report.run_lateness import describe_late_rank, find_lateness
from tests.support.data_parallel_runs import plant_steps, record_steps, write_table

NAMES = ("forward", "backward")
#: (barrier, rank, step, enter, leave).
Visit = tuple[int, int, int, int, int]
#: (rank, part, start, end).
Part = tuple[int, int, int, int]


def column(values: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def make_visits(visits: Sequence[Visit], begin_ns: int = -1) -> Visits:
    barrier, rank, step, enter_ns, leave_ns = (
        map(column, zip(*visits, strict=True)) if visits else [column([])] * 5
    )
    begin = np.full(len(visits), begin_ns, np.int64)
    return Visits(barrier, rank, step, enter_ns, leave_ns, begin)


def make_parts(parts: Sequence[Part]) -> PartTimes:
    rank, part, start_ns, end_ns = (
        map(column, zip(*parts, strict=True)) if parts else [column([])] * 4
    )
    return PartTimes(rank, part, start_ns, end_ns, NAMES)


def test_the_rank_with_the_shortest_visit_is_last() -> None:
    visits = make_visits([(5, 0, 0, 10, 50), (5, 1, 0, 40, 50), (5, 2, 0, 20, 50)])
    arrivals = find_late_arrivals(visits, make_parts([]))
    assert arrivals.rank.tolist() == [1]
    assert arrivals.late_ns.tolist() == [25]
    assert arrivals.n_ranks.tolist() == [3]
    assert not arrivals.is_divided.any()
    assert not arrivals.part_ns.any()


def test_clocks_of_ranks_need_not_agree() -> None:
    visits = make_visits([(0, 0, 0, 1_000_010, 1_000_050), (0, 1, 0, 40, 50)])
    assert find_late_arrivals(visits, make_parts([])).late_ns.tolist() == [30]


def test_the_lowest_rank_wins_ties_and_single_visits_are_left_out() -> None:
    visits = make_visits([(0, 3, 0, 0, 9), (1, 2, 0, 10, 20), (1, 1, 0, 12, 22)])
    arrivals = find_late_arrivals(visits, make_parts([]))
    assert arrivals.rank.tolist() == [1]
    assert arrivals.late_ns.tolist() == [0]


def test_nothing_is_late_without_visits() -> None:
    lateness = measure_lateness(make_visits([]), make_parts([]), 1.0, np.ones(1, bool))
    assert lateness.ranks == ()
    assert lateness.n_steps == 0
    assert lateness.main is None


def test_lateness_is_divided_from_the_previous_barrier_of_the_same_ranks() -> None:
    visits = make_visits(
        [
            *[(0, rank, 0, 0, 10) for rank in (0, 1)],
            # Another barrier of rank 0 with rank 2 does not count.
            *[(1, rank, 1, 20, 25) for rank in (0, 2)],
            *[(2, 0, 1, 50, 100), (2, 1, 1, 90, 100)],
        ]
    )
    parts = make_parts([(0, 0, 10, 20), (0, 1, 25, 50), (1, 0, 10, 45), (1, 1, 45, 80)])
    arrivals = find_late_arrivals(visits, parts)
    is_second = arrivals.barrier == 2
    assert arrivals.rank[is_second].tolist() == [1]
    assert arrivals.part_ns[is_second].tolist() == [[25, 10, 5]]


def test_a_common_start_replaces_an_unknown_previous_barrier() -> None:
    visits = make_visits([(0, 0, 0, 50, 100), (0, 1, 0, 90, 100)], begin_ns=10)
    arrivals = find_late_arrivals(visits, make_parts([(0, 0, 10, 50), (1, 0, 0, 90)]))
    assert arrivals.part_ns.tolist() == [[40, 0, 0]]


def plant(generator: random.Random) -> tuple[list[Visit], list[Part]]:
    """Return random visits of three ranks to six barriers, and random parts between them."""
    visits: list[Visit] = []
    parts: list[Part] = []
    now = {rank: generator.randrange(100) for rank in range(3)}
    for barrier in range(6):
        members = sorted(generator.sample(range(3), generator.choice((2, 3))))
        for rank in members:
            start = now[rank]
            for part in range(2):
                end = start + generator.randrange(30)
                parts.append((rank, part, start, end))
                start = end + generator.randrange(5)
            leave = start + generator.randrange(40)
            visits.append((barrier, rank, barrier // 2, start, leave))
            now[rank] = leave
    return visits, parts


def compute_parts(visits: Sequence[Visit], parts: Sequence[Part], barrier: int) -> list[int] | None:
    """Return the parts of the lateness at a barrier, computed one visit at a time, or None."""
    members = {visit[1]: visit for visit in visits if visit[0] == barrier}
    rank_sets = {b: {v[1] for v in visits if v[0] == b} for b in {v[0] for v in visits}}
    earlier = [b for b in range(barrier) if rank_sets[b] == set(members)]
    previous = earlier[-1] if earlier else None
    step = barrier // 2
    if previous is None or step - previous // 2 > 1:
        return None
    last = min(members, key=lambda rank: (members[rank][4] - members[rank][3], rank))
    totals = {}
    for rank, visit in members.items():
        since = next(v[4] for v in visits if v[:2] == (previous, rank))
        totals[rank] = [
            sum(
                max(0, min(end, visit[3]) - max(start, since))
                for of_rank, of_part, start, end in parts
                if (of_rank, of_part) == (rank, part)
            )
            for part in range(2)
        ]
    others = [rank for rank in members if rank != last]
    means = [sum(totals[rank][part] for rank in others) / len(others) for part in range(2)]
    return [round(totals[last][part] - means[part]) for part in range(2)]


@pytest.mark.parametrize("seed", range(40))
def test_parts_equal_a_slow_reference_and_add_up(seed: int) -> None:
    visits, parts = plant(random.Random(seed))
    shuffled = random.Random(seed).sample(visits, len(visits))
    arrivals = find_late_arrivals(make_visits(shuffled), make_parts(parts))
    assert sorted(arrivals.barrier.tolist()) == list(range(6))
    for row, barrier in enumerate(arrivals.barrier.tolist()):
        expected = compute_parts(visits, parts, barrier)
        assert bool(arrivals.is_divided[row]) == (expected is not None)
        assert arrivals.part_ns[row, :2].tolist() == (expected or [0, 0])
        if expected is not None:
            assert arrivals.part_ns[row].sum() == arrivals.late_ns[row]


@pytest.mark.parametrize(
    ("planted", "part", "words"),
    [
        ("loading", "before forward", "begins its first forward 20.000 ms per step later"),
        ("forward", "forward", "Its forward takes 20.000 ms per step longer"),
        ("backward", "backward", "Its backward takes 20.000 ms per step longer"),
        ("optimizer", "optimizer", "Its optimizer takes 20.000 ms per step longer"),
    ],
)
@pytest.mark.parametrize("source", ["table", "recording", "hosts"])
def test_the_planted_part_makes_the_rank_late(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    planted: str,
    part: str,
    words: str,
    source: str,
) -> None:
    steps = plant_steps(planted)
    if source == "table":
        path = write_table(tmp_path / "run.csv", steps)
    else:
        hosts = 4 if source == "hosts" else 1
        path = record_steps(tmp_path / "run", steps, monkeypatch, hosts=hosts)
    report = bubbleviz.analyze(path)
    lateness = report.derive(find_lateness)
    assert lateness is not None
    assert lateness.main is not None
    assert lateness.main.rank == 1
    n_late = lateness.n_steps - (planted == "optimizer" and source != "hosts")
    assert lateness.main.late_ns == 20_000_000 * n_late
    assert lateness.main.parts[0] == (part, 20_000_000 * n_late)
    if planted != "optimizer":
        assert words in describe_late_rank(report)
        assert "the others wait 20.000 ms per step" in describe_late_rank(report)


def test_ranks_of_a_slow_host_take_turns_and_the_host_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rank r runs on host r % 4, so the late ranks are those of the host node1.
    steps = plant_steps("forward", late_ranks=(1, 5, 9), ranks=12, steps=8, jitter=0.002)
    report = bubbleviz.analyze(record_steps(tmp_path / "run", steps, monkeypatch, hosts=4))
    lateness = report.derive(find_lateness)
    assert lateness is not None
    late_host = lateness.find_late_host([rank.host for rank in report.ranks])
    assert late_host is not None
    assert late_host.host == "node1"
    assert late_host.late.steps == lateness.n_steps
    # The other two late ranks do not wait for the last one.
    mean_ns = late_host.late.late_ns / lateness.n_steps
    assert mean_ns == pytest.approx(20_000_000 * 9 / 11, rel=0.05)
    text = describe_late_rank(report)
    assert text.startswith(f"a rank of host node1 arrives last at barriers in {lateness.n_steps} ")
    assert "Its forward takes" in text


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("steps", [2, 3, 6, 20])
def test_no_rank_is_late_by_chance(tmp_path: Path, ranks: int, steps: int) -> None:
    planted = plant_steps(jitter=0.01, ranks=ranks, steps=steps)
    report = bubbleviz.analyze(write_table(tmp_path / "run.csv", planted))
    lateness = find_lateness(report)
    assert lateness is not None
    assert lateness.ranks
    assert describe_late_rank(report) == ""


@pytest.mark.parametrize(("late_steps", "is_named"), [("11111111", True), ("10101010", False)])
def test_a_rank_is_late_if_the_lateness_is_not_chance(late_steps: str, is_named: bool) -> None:
    # Rank 1 or rank 0 arrives last, 40 ns after the other one.
    visits = [
        (step, rank, step, 100 * step + (40 if rank == int(late) else 0), 100 * step + 60)
        for step, late in enumerate(late_steps)
        for rank in range(2)
    ]
    lateness = measure_lateness(make_visits(visits), make_parts([]), 100.0, np.ones(8, bool))
    assert (lateness.main is not None) == is_named


@pytest.mark.parametrize(("late_ns", "is_named"), [(40, False), (60, True)])
def test_in_a_single_step_a_rank_must_be_late_by_a_larger_share(
    late_ns: int, is_named: bool
) -> None:
    visits = make_visits([(0, 0, 0, 0, 100), (0, 1, 0, late_ns, 100)])
    lateness = measure_lateness(visits, make_parts([]), 1000.0, np.ones(1, bool))
    assert (lateness.main is not None) == is_named


def test_iterations_in_which_a_rank_lacks_operations_are_left_out(tmp_path: Path) -> None:
    path = write_table(tmp_path / "run.csv", plant_steps("backward"))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    missing = ("1,F,3,", "1,BW,3,")
    path.write_text("".join(line for line in lines if not line.startswith(missing)), "utf-8")
    lateness = find_lateness(bubbleviz.analyze(path))
    assert lateness is not None
    assert lateness.main is not None
    assert 3 not in lateness.arrivals.step
    assert lateness.main.parts[0] == ("backward", 20_000_000 * lateness.n_steps)


def test_a_step_that_ends_with_a_barrier_contains_it(tmp_path: Path) -> None:
    path = write_table(tmp_path / "run.csv", plant_steps("backward"))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if ",Optimizer," not in line), "utf-8")
    lateness = find_lateness(bubbleviz.analyze(path))
    assert lateness is not None
    assert lateness.step_ns == 118_000_000


def test_long_waiting_for_ranks_in_turn_is_described(tmp_path: Path) -> None:
    planted = plant_steps(jitter=0.3, ranks=4, steps=12)
    report = bubbleviz.analyze(write_table(tmp_path / "run.csv", planted))
    lateness = find_lateness(report)
    assert lateness is not None
    assert lateness.main is None
    text = describe_late_rank(report)
    assert text.startswith("ranks take turns in arriving last at barriers; the others wait ")


@pytest.mark.parametrize("tensor_size", [2, 4])
def test_ranks_that_wait_for_a_late_rank_of_their_tensor_group_are_not_late(
    tensor_size: int,
) -> None:
    tensor_groups = [range(first, first + tensor_size) for first in range(0, 8, tensor_size)]
    data_groups = [range(first, 8, tensor_size) for first in range(tensor_size)]
    visits: list[Visit] = []
    now = [0] * 8
    for step in range(3):
        # Rank 1 is late by 10 before each of two barriers of tensor groups.
        for groups, work, late in (
            (tensor_groups, 50, 10),
            (tensor_groups, 50, 10),
            (data_groups, 0, 0),
        ):
            now = [time + work + (late if rank == 1 else 0) for rank, time in enumerate(now)]
            for number, group in enumerate(groups):
                leave = max(now[rank] for rank in group) + 1
                barrier = len(visits) + number
                visits += [(barrier, rank, step, now[rank], leave) for rank in group]
                for rank in group:
                    now[rank] = leave
    lateness = measure_lateness(make_visits(visits), make_parts([]), 120.0, np.ones(3, bool))
    assert lateness.main is not None
    assert lateness.main.rank == 1
    assert lateness.main.late_ns == lateness.n_steps * 20
    assert not any(rank.late_ns for rank in lateness.ranks if rank.rank != 1)


def test_a_host_with_most_ranks_is_not_late() -> None:
    visits = make_visits([(0, rank, 0, 90 if rank == 0 else 50, 100) for rank in range(3)])
    lateness = measure_lateness(visits, make_parts([]), 100.0, np.ones(1, bool))
    assert lateness.find_late_host(["a", "a", "b"]) is None
    assert lateness.find_late_host(["a", "b", "c"]) is not None


def test_ranks_that_take_turns_are_not_named(tmp_path: Path) -> None:
    report = bubbleviz.analyze(write_table(tmp_path / "run.csv", plant_steps(steps=8, jitter=0.01)))
    lateness = report.derive(find_lateness)
    assert lateness is not None
    assert len(lateness.ranks) > 1
    assert describe_late_rank(report) == ""


def test_an_unrecorded_synchronization_hides_the_backward(tmp_path: Path) -> None:
    path = write_table(tmp_path / "run.csv", plant_steps("forward"), with_collectives=False)
    report = bubbleviz.analyze(path)
    lateness = report.derive(find_lateness)
    assert lateness is not None
    assert lateness.hidden_part == "backward"
    assert lateness.main is not None
    assert lateness.main.late_ns == 5 * 20_000_000
    assert dict(lateness.main.parts) == {
        "before forward": 0,
        "forward": 5 * 20_000_000,
        "backward": 0,
        "optimizer": 0,
        OTHER: 0,
    }
    assert "Its backward may be slow, too" in describe_late_rank(report)


def test_a_pipeline_has_no_late_rank() -> None:
    report = bubbleviz.analyze("fixtures/1f1b")
    assert report.derive(find_lateness) is None
    assert report.to_dict()["lateness"] is None


def test_json_lists_each_barrier(tmp_path: Path) -> None:
    report = bubbleviz.analyze(write_table(tmp_path / "run.csv", plant_steps("forward")))
    entry = report.to_dict()["lateness"]
    assert entry["main_rank"] == 1
    assert entry["n_barriers"] == entry["steps"] == 5
    assert entry["barriers"] == {
        "iteration": (0, 1, 2, 3, 4),
        "rank": (1,) * 5,
        "late_ns": (20_000_000,) * 5,
        "part": ("forward",) * 5,
    }
