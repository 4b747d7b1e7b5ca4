"""NCCL's communication: nothing recorded, waiting and moving, bandwidth, windows."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copy

import pytest

from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl.members import Split
from bubbleviz.analyses.nccl.outputs import as_json, summary, totals_of
from bubbleviz.analyses.nccl.profiles import find_inputs
from bubbleviz.errors import InputError, MismatchError, NothingToAnalyseError, UsageError
from bubbleviz.model.window import parse_window
from tests.support.nccl_event_files import Op, Plugin, Step, line
from tests.support.nccl_runs import ALLREDUCE, EXACT, columns, notes, put, ring
from tests.support.nsys_exports import C, K, R, profile

# Nothing


def test_nothing_that_communicates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file given"):
        measure_communication([])
    path = profile(tmp_path, [K(10, 20, 1)], [C(1, 2, 1)], [R(0, 5, "F0")])
    with pytest.raises(NothingToAnalyseError, match="no communication operation"):
        measure_communication(path)
    text = line("Idle", "PROXY", "b", 0, 1, 5_000) + line("Idle", "PROXY", "e", 0, 1, 6_000)
    with pytest.raises(NothingToAnalyseError, match="no communication operation"):
        measure_communication(put(tmp_path, "a.txt", text))


def test_a_copy_of_a_profile_is_refused_and_equal_event_files_are_not(tmp_path: Path) -> None:
    path = profile(tmp_path, [K(10, 20, 1)], [C(1, 2, 1)], [R(0, 5, "F0")])
    with pytest.raises(MismatchError, match="the same profile twice"):
        find_inputs([str(path), str(copy(path, tmp_path / "copy.sqlite"))])

    text = line("Idle", "PROXY", "b", 0, 1, 5_000) + line("Idle", "PROXY", "e", 0, 1, 6_000)
    ranks = [str(put(tmp_path, name, text)) for name in ("a.txt", "b.txt")]
    with pytest.raises(MismatchError, match="the same file twice"):
        find_inputs([ranks[0], ranks[0]])
    assert [file.path for file in find_inputs(ranks)] == ranks


def test_a_directory_stands_for_what_it_holds(tmp_path: Path) -> None:
    paths = ring(tmp_path)
    put(tmp_path, "notes.txt", "nothing of that kind")

    assert [own.path for own in find_inputs([str(tmp_path)])] == paths
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="neither an event file"):
        find_inputs([str(tmp_path / "empty")])


def test_profiles_of_a_directory_are_those_of_all_commands(tmp_path: Path) -> None:
    """A trace of XLA beside its planes, and a report that was exported, count once."""
    for name in ("host0.xplane.pb", "host0.trace.json.gz", "a.sqlite", "a.nsys-rep", "b.nsys-rep"):
        put(tmp_path, name, f"what {name} holds is not looked at")
    # Event files count whatever they are called, and are no export of a report.
    events = ring(tmp_path, 2, 2)
    Path(events[0]).rename(tmp_path / "b.pt.trace.json")
    Path(events[1]).rename(tmp_path / "host0.trace.json")
    put(tmp_path, "notes.txt", "nothing of that kind")

    inputs = find_inputs([str(tmp_path)])
    found = [(Path(own.path).name, events is not None) for own, events in inputs.items()]

    assert found == [
        *(("a.sqlite", False), ("b.nsys-rep", False), ("b.pt.trace.json", True)),
        *(("host0.trace.json", True), ("host0.xplane.pb", False)),
    ]
    logged = tmp_path / "logs" / "plugins" / "profile" / "run"
    logged.mkdir(parents=True)
    put(logged, "host1.xplane.pb", "planes")
    assert [Path(own.path).name for own in find_inputs([str(tmp_path / "logs")])] == [
        "host1.xplane.pb"
    ]


# Waiting and moving, bytes and bandwidth


def test_who_begins_early_waits_for_who_begins_late(tmp_path: Path) -> None:
    found = measure_communication(ring(tmp_path, 12, 2, late=40_000))

    assert set(columns(found, "rank", "duration_ns", "waiting_ns", "moving_ns", "split")) == {
        (0, 500_000, 40_000, 460_000, Split.MEMBERS),
        (1, 460_000, 0, 460_000, Split.MEMBERS),
    }
    assert {own.aligned_by.value for own in found.clocks} == {"reference", "operations"}
    assert found.clocks[1].matched == 12
    # The last channel ends 100 ns before the first.
    assert found.clocks[1].largest_ns == 0
    (total,) = totals_of(found)
    assert (total.ranks, total.operations, total.bytes) == (2, 24, 24 * (4 << 20))
    # 2 (n - 1) / n of two ranks is 1.
    assert total.bus_gbps == total.algorithm_gbps == pytest.approx((4 << 20) / 480_000)
    assert total.moving_gbps == pytest.approx((4 << 20) / 460_000)


# A part of the run


def steps(folder: Path, count: int = 5) -> Path:
    """Write a profile of steps of 1 ms, in each an all-reduce of NCCL after a kernel."""
    kernels, calls, ranges = [], [], []
    for number in range(count):
        begin = 1_000_000 * number
        ranges.append(R(begin, begin + 1_000_000, f"ProfilerStep#{number + 3}"))
        for part, (name, at) in enumerate((("gemm", 100_000), (ALLREDUCE, 500_000))):
            own = 2 * number + part + 1
            calls.append(C(begin + 10_000 * own % 7, begin + 20_000 + part, own))
            kernels.append(K(begin + at, begin + at + 300_000, own, name))
    return profile(folder, kernels, calls, ranges)


def test_windows_of_time_make_the_whole(tmp_path: Path) -> None:
    file = steps(tmp_path)
    whole = columns(measure_communication(file), "start_ns", "end_ns")

    parts = [
        columns(measure_communication(file, window=parse_window(text)), "start_ns", "end_ns")
        for text in ("time:-2.5ms", "time:2.5ms-3500001ns", "time:3500001ns-")
    ]

    assert [len(part) for part in parts] == [2, 2, 1]
    assert [row for part in parts for row in part] == whole


def test_a_window_of_iterations_is_that_of_the_profile(tmp_path: Path) -> None:
    found = measure_communication(steps(tmp_path), window=parse_window("iteration:4-5"))

    assert columns(found, "start_ns") == [(1_500_000,), (2_500_000,)]
    assert summary(found).splitlines()[-1].startswith("iteration:4-5 alone: 2 oper")
    assert json.loads(as_json(found))["window"] == "iteration:4-5"


def test_windows_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"iteration:9: .* the capture holds 3 to 7"):
        measure_communication(steps(tmp_path), window=parse_window("iteration:9"))
    with pytest.raises(NothingToAnalyseError, match=r"begins in it; .* from 0.000500 s"):
        measure_communication(tmp_path, window=parse_window("time:9s-"))
    with pytest.raises(UsageError, match="event files hold no iterations"):
        measure_communication(ring(tmp_path)[0], window=parse_window("iteration:1"))


def test_sends_pair_with_the_receives_of_their_peers(tmp_path: Path) -> None:
    """Rank 0 sends twice to 1; the k-th send is the k-th receive, whatever else there is."""
    one, two = Plugin(pid=1, lag=EXACT), Plugin(pid=1, gpu=3 * 10**17, lag=EXACT)
    for number, late in enumerate((5_000, 9_000)):
        start = 1_000_000 * (number + 1)
        one.add(Op("Send", start, start + 90_000, rank=0, peer=1))
        two.add(Op("Recv", start + late, start + 90_000, rank=1, peer=0))
        two.add(Op("Recv", start + 200_000, start + 300_000, rank=1, peer=7))
    paths = [put(tmp_path, "t-1.txt", one.text()), put(tmp_path, "t-2.txt", two.text())]
    found = measure_communication(paths)

    # The threads of one process share its clock, so that nothing need be placed.
    assert [own.aligned_by.value for own in found.clocks] == ["reference"]
    assert columns(found, "rank", "peer", "waiting_ns") == [
        *((0, 1, 5_000), (0, 1, 9_000), (1, 0, 0), (1, 7, -1), (1, 0, 0), (1, 7, -1))
    ]


def test_an_end_that_is_unknown_leaves_the_waiting(tmp_path: Path) -> None:
    one = Plugin(pid=1, lag=EXACT)
    for rank in (0, 1):
        one.add(Op("AllReduce", 1_000_000 + 3_000 * rank, None, rank=rank))
    found = measure_communication(put(tmp_path, "t-1.txt", one.text()))

    assert columns(found, "rank", "duration_ns", "waiting_ns", "moving_ns") == [
        *((0, -1, 3_000, -1), (1, -1, 0, -1))
    ]
    assert "operations of unknown duration" in notes(found)
    assert totals_of(found)[0].algorithm_gbps is None


def test_of_a_rank_alone_its_proxy_tells(tmp_path: Path) -> None:
    file = Plugin(pid=1, lag=EXACT)
    step = Step(("RecvWait", "RecvFlushWait", "RecvGpuWait"), (10_000, 40_000, 45_000, 60_000))
    file.add(Op("AllReduce", 10_000, 70_000, steps=(step,)))
    found = measure_communication(put(tmp_path, "t-1.txt", file.text()))

    assert columns(found, "waiting_ns", "moving_ns", "split") == [(30_000, 30_000, Split.PROXY)]
    # How many ranks there are is not told by one.
    assert found.ranks == (None,)
    assert totals_of(found)[0].bus_gbps is None


def test_a_member_that_is_missing_is_told(tmp_path: Path) -> None:
    paths = ring(tmp_path, 6, 3)
    found = measure_communication([paths[0], paths[2]])

    assert found.ranks == (3,)
    assert "operations of which not all members were recorded" in notes(found)


def test_two_gpus_of_one_process_each_have_their_clock(tmp_path: Path) -> None:
    """Clocks of two GPUs are seconds apart, as those of a real trace; the host saw both."""
    file = Plugin(pid=1, gpu=10**18, lag=EXACT)
    for number in range(3):
        for rank, gpu in enumerate((10**18, 10**18 + 4_000_000_000)):
            file.gpu = gpu
            start = 1_000_000 * (number + 1) + 20_000 * rank
            file.add(
                Op("AllReduce", start, 1_000_000 * (number + 1) + 90_000, rank, sequence=number)
            )
    found = measure_communication(put(tmp_path, "t-1.txt", file.text()))

    assert set(columns(found, "rank", "waiting_ns", "duration_ns")) == {
        *((0, 20_000, 90_000), (1, 0, 70_000))
    }
