"""Communication: planted runs of several ranks with known waits, clocks, bytes and bandwidths."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import sqlite3
import struct
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.analyses.nccl import matching as nccl_matching
from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl.analysis import find_inputs
from bubbleviz.analyses.nccl.anchors import anchor_of
from bubbleviz.analyses.nccl.communications import Split, Timing, bus_factor, byte_factor
from bubbleviz.analyses.nccl.documents import COLUMNS, csv_of_operations, json_text
from bubbleviz.analyses.nccl.kernels import parse_kernel_name, read_kernels
from bubbleviz.analyses.nccl.matching import GPU_TOLERANCE_NS, Starts, match
from bubbleviz.analyses.nccl.text import summary
from bubbleviz.analyses.nccl.totals import Communication, totals_of
from bubbleviz.cli.app import main
from bubbleviz.errors import (
    BubblevizError,
    InputError,
    MismatchError,
    NothingToAnalyseError,
    UsageError,
)
from bubbleviz.model.window import window_of
from bubbleviz.sources.nccl.events import UNKNOWN
from bubbleviz.sources.nsys.nccl_payloads import read_payloads
from tests.support.nccl_event_files import Op, Plugin, Step, line, proxy_file
from tests.support.nsys_exports import C, K, R, global_id, profile

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
HASH = 0xFEEDFACECAFEBEEF
EXACT = (0, 0)


def columns(found: Communication, *names: str) -> list[tuple[int, ...]]:
    table = found.operations
    return list(zip(*(getattr(table, name).tolist() for name in names), strict=True))


def notes(found: Communication) -> set[str]:
    return {note.what for note in found.limitations}


def put(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def ring(folder: Path, count: int = 12, ranks: int = 2, late: int = 40_000) -> list[str]:
    """Write a file a rank of all-reduces, whose rank r begins r * ``late`` after rank 0."""
    paths = []
    for rank in range(ranks):
        file = Plugin(pid=100 + rank, begin=7_000 * rank, gpu=10**18 + 5**9 * rank, lag=EXACT)
        for number in range(count):
            start = 1_000_000 * (number + 1) + number**2 * 1_000
            op = Op("AllReduce", start + late * rank, start + 500_000, rank, sequence=number)
            file.add(op)
        paths.append(put(folder, f"trace-host-{rank}.txt", file.text()))
    return paths


# Nothing


def test_without_files_there_is_nothing() -> None:
    with pytest.raises(InputError, match="no file given"):
        measure_communication([])


def test_events_without_an_operation_are_refused(tmp_path: Path) -> None:
    text = line("Idle", "PROXY", "b", 0, 1, 5_000) + line("Idle", "PROXY", "e", 0, 1, 6_000)
    with pytest.raises(NothingToAnalyseError, match="no communication operation"):
        measure_communication(put(tmp_path, "a.txt", text))


def test_a_profile_without_kernels_of_nccl_is_refused(tmp_path: Path) -> None:
    path = profile(tmp_path, [K(10, 20, 1)], [C(1, 2, 1)], [R(0, 5, "F0")])
    with pytest.raises(NothingToAnalyseError, match="no communication operation"):
        measure_communication(path)


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    path = ring(tmp_path, 1)[0]
    with pytest.raises(MismatchError, match="the same file twice"):
        measure_communication([path, path])


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
        put(tmp_path, name, "what it holds is not looked at")
    # Event files count whatever they are called, and are no export of a report.
    events = ring(tmp_path, 2, 2)
    Path(events[0]).rename(tmp_path / "b.pt.trace.json")
    Path(events[1]).rename(tmp_path / "host0.trace.json")
    put(tmp_path, "notes.txt", "nothing of that kind")

    found = [(Path(own.path).name, own.format is not None) for own in find_inputs([str(tmp_path)])]

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
    assert {own.by for own in found.clocks} == {"reference", "operations"}
    assert found.clocks[1].matched == 12
    # The last channel ends 100 ns before the first.
    assert found.clocks[1].worst_ns == 0


def test_bytes_and_bandwidths_are_those_of_nccl_tests(tmp_path: Path) -> None:
    total = totals_of(measure_communication(ring(tmp_path, 4, 2, late=0)))

    assert len(total) == 1
    assert (total[0].ranks, total[0].operations, total[0].bytes) == (2, 8, 8 * (4 << 20))
    assert total[0].algorithm_gbps == pytest.approx((4 << 20) / 500_000)
    # 2 (n - 1) / n of two ranks is 1.
    assert total[0].bus_gbps == pytest.approx((4 << 20) / 500_000)
    assert total[0].moving_gbps == pytest.approx((4 << 20) / 500_000)


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
        columns(measure_communication(file, window=window_of(text)), "start_ns", "end_ns")
        for text in ("time:-2.5ms", "time:2.5ms-3500001ns", "time:3500001ns-")
    ]

    assert [len(part) for part in parts] == [2, 2, 1]
    assert [row for part in parts for row in part] == whole


def test_a_window_of_iterations_is_that_of_the_profile(tmp_path: Path) -> None:
    found = measure_communication(steps(tmp_path), window=window_of("iteration:4-5"))

    assert columns(found, "start_ns") == [(1_500_000,), (2_500_000,)]
    assert summary(found).splitlines()[-1].startswith("iteration:4-5 alone: 2 oper")
    assert json.loads(json_text(found))["window"] == "iteration:4-5"


def test_windows_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"iteration:9: .* the capture holds 3 to 7"):
        measure_communication(steps(tmp_path), window=window_of("iteration:9"))
    with pytest.raises(NothingToAnalyseError, match=r"begins in it; .* from 0.000500 s"):
        measure_communication(tmp_path, window=window_of("time:9s-"))
    with pytest.raises(UsageError, match="event files hold no iterations"):
        measure_communication(ring(tmp_path)[0], window=window_of("iteration:1"))


@pytest.mark.parametrize(
    ("name", "ranks", "times", "factor"),
    [
        ("AllReduce", 8, 1, 1.75),
        ("AllGather", 8, 8, 0.875),
        ("ReduceScatter", 4, 4, 0.75),
        ("Broadcast", 8, 1, 1.0),
        ("Send", None, 1, 1.0),
        ("AllReduce", None, 1, None),
        ("AllGather", None, None, None),
    ],
)
def test_factors(name: str, ranks: int | None, times: int | None, factor: float | None) -> None:
    assert (byte_factor(name, ranks), bus_factor(name, ranks)) == (times, factor)


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
    assert [own.by for own in found.clocks] == ["reference"]
    assert columns(found, "rank", "peer", "waiting_ns") == [
        *((0, 1, 5_000), (0, 1, 9_000), (1, 0, 0), (1, 7, -1), (1, 0, 0), (1, 7, -1))
    ]


def test_ties_wait_for_nobody(tmp_path: Path) -> None:
    found = measure_communication(ring(tmp_path, 3, 4, late=0))

    assert set(columns(found, "waiting_ns", "moving_ns")) == {(0, 500_000)}


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


# Together with a profile


def recorded(
    folder: Path,
    starts: list[int],
    *,
    ahead: int,
    drift: float = 0.0,
    jitter: int = 0,
    missing: frozenset[int] = frozenset(),
    unseen: frozenset[int] = frozenset(),
    gpu_clock: bool = True,
    pid: int = 100,
) -> tuple[str, Path]:
    """Write the events of all-reduces, and a profile whose clock is behind by ``ahead``.

    Args:
        folder: for both.
        starts: of the operations.
        ahead: subtracted from them, and from the GPU's clock, for the profile.
        drift: of the profile's clock.
        jitter: by which kernels begin before the work of their channels.
        missing: operations that have no event.
        unseen: operations that have no kernel.
        gpu_clock: whether events tell the GPU's clock.
        pid: of the process in the events.
    """
    randomly = random.Random(5)
    file = Plugin(pid=pid, begin=123_000, gpu_clock=gpu_clock)
    kernels, calls, ranges = [], [], []
    for number, start in enumerate(starts):
        length = 100_000 + 500 * (number % 7)
        if number not in missing:
            file.add(Op("AllReduce", start, start + length, sequence=number))
        at = start - ahead + round(start * drift) - randomly.randint(0, jitter)
        if number not in unseen:
            kernels.append(K(at, at + length + 3_000, number, ALLREDUCE, pid=100))
            calls.append(C(at - 400, at - 300, number, pid=100))
            ranges.append(R(at - 500, at - 200, "ncclAllReduce", pid=100, registered=True))
    trace = put(folder, "trace-host-1.txt", file.text())
    return trace, profile(folder, kernels, calls, ranges)


def uneven(count: int, seed: int = 1, step: int = 1_000_000) -> list[int]:
    randomly = random.Random(seed)
    starts = [200_000_000]
    for _ in range(count - 1):
        starts.append(starts[-1] + step + randomly.randint(0, step))
    return starts


@pytest.mark.parametrize(("jitter", "lost"), [(0, 0), (4_000, 0), (4_000, 30)])
def test_the_offset_of_planted_clocks_is_found(tmp_path: Path, jitter: int, lost: int) -> None:
    starts = uneven(150)
    randomly = random.Random(9)
    missing = frozenset(randomly.sample(range(150), lost))
    unseen = frozenset(randomly.sample(range(150), lost))
    paths = recorded(
        tmp_path, starts, ahead=77_000_000, jitter=jitter, missing=missing, unseen=unseen
    )
    found = measure_communication([str(path) for path in paths])
    both = set(range(150)) - missing - unseen
    clock = found.clocks[-1]

    assert (clock.by, clock.matched, clock.of) == ("kernels", len(both), 150 - lost)
    assert clock.median_ns is not None
    assert clock.worst_ns is not None
    assert clock.median_ns <= jitter
    assert clock.worst_ns <= 2 * jitter
    own = found.operations.start_ns[: 150 - lost]
    true = np.array([start - 77_000_000 for n, start in enumerate(starts) if n not in missing])
    assert np.abs(own - true).max() <= jitter + 1
    # A kernel that an event tells of is one row; the others are rows of their own.
    assert len(found.operations) == 150 - lost + len(missing - unseen)


def test_a_drift_is_followed(tmp_path: Path) -> None:
    starts = uneven(400, step=20_000_000)
    paths = recorded(tmp_path, starts, ahead=5_000_000, drift=30e-6, jitter=2_000)
    clock = measure_communication([str(path) for path in paths]).clocks[-1]

    assert (clock.matched, clock.of) == (400, 400)
    assert clock.drift_ppm == pytest.approx(30, abs=0.1)


def test_without_the_gpus_clock_the_host_tells(tmp_path: Path) -> None:
    paths = recorded(tmp_path, uneven(40), ahead=9_000_000, gpu_clock=False)
    found = measure_communication([str(path) for path in paths])

    assert (found.clocks[-1].by, found.clocks[-1].matched) == ("kernels", 40)
    assert {Timing(own) for (own,) in columns(found, "timing")} == {Timing.HOST}


def test_evenly_spaced_operations_match_at_several_offsets(tmp_path: Path) -> None:
    """Where half of the kernels have no event, and all are alike, no offset is the one."""
    starts = [200_000_000 + 7_000_000 * n for n in range(40)]
    trace, path = recorded(tmp_path, starts, ahead=0, missing=frozenset(range(20)))
    found = measure_communication([trace, str(path)])

    assert "operations that kernels match at several offsets" in notes(found)
    assert found.clocks[-1].by == "own"
    assert len(found.operations) == 20 + 40


def test_an_anchor_states_what_cannot_be_told(tmp_path: Path) -> None:
    starts = [200_000_000 + 7_000_000 * n for n in range(40)]
    trace, path = recorded(tmp_path, starts, ahead=1_000, missing=frozenset(range(20)))
    event = starts[20] + Plugin().gpu
    found = measure_communication([trace, str(path)], anchors=[f"{event}={starts[20] - 1_000}"])

    assert found.clocks[-1].by == "anchor"
    # The host saw the second channel 300 - 10 ns after it began.
    assert found.operations.start_ns[:20].tolist() == [start - 1_000 for start in starts[20:]]
    # The kernels beside them are theirs: what is left between both is told, and none counts twice.
    assert (found.clocks[-1].matched, found.clocks[-1].worst_ns) == (20, 0)
    assert len(found.operations) == 40


def test_two_anchors_give_the_drift(tmp_path: Path) -> None:
    trace, path = recorded(tmp_path, uneven(3), ahead=0)
    found = measure_communication(
        [trace, str(path)], anchors=["host-1.txt:1000.5=5000", "2000000.5=1999204900"]
    )

    assert found.clocks[-1].drift_ppm == pytest.approx(100.0, abs=0.1)


@pytest.mark.parametrize(
    "text", ["", "5", "a=b", "1=", "=1", "x:y=1", "1e999=1", "nan=1", "1e40=1"]
)
def test_what_is_no_anchor_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--anchor"):
        anchor_of(text)


def test_an_anchor_says_which_of_several_files_it_is_of(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are 2 event files"):
        measure_communication(ring(tmp_path), anchors=["50000000=123"])


def test_a_profile_without_ranges_tells_its_kernels(tmp_path: Path) -> None:
    file = profile(tmp_path, [K(10, 20, 1, ALLREDUCE)], [C(1, 2, 1)], [], without=("NVTX_EVENTS",))

    assert columns(measure_communication(file), "start_ns", "end_ns") == [(10, 20)]


def test_an_anchor_of_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no event file is named"):
        measure_communication(ring(tmp_path, 2), anchors=["other.txt:5=5"])


def test_the_proxy_profiler_is_matched_by_the_begin_of_its_transfers(tmp_path: Path) -> None:
    starts = uneven(60)
    transfers = [
        ("Recv", 1, n, (s, s + 5_000, s + 9_000, s + 9_500, s + 9_900))
        for n, s in enumerate(starts)
    ]
    trace = put(tmp_path, "proxy.json", proxy_file(transfers))
    kernels = [K(s + 50_000_000, s + 50_020_000, n, SENDRECV) for n, s in enumerate(starts)]
    calls = [C(s + 49_999_000, s + 49_999_100, n) for n, s in enumerate(starts)]
    path = profile(tmp_path, kernels, calls, [R(0, 1, "F0")])
    found = measure_communication([trace, str(path)])

    assert (found.clocks[-1].by, found.clocks[-1].matched) == ("kernels", 60)
    assert found.operations.start_ns[:60].tolist() == [s + 50_000_000 for s in starts]
    # What a proxy tells of is no kernel: the profile's stay.
    assert len(found.operations) == 120


def test_a_host_in_a_files_name_decides_between_equal_processes(tmp_path: Path) -> None:
    """Two hosts run the same process id; both profiles fit, and the names tell which is whose."""
    starts, paths = uneven(30), []
    for host in ("b", "a"):
        file = Plugin(pid=1, lag=EXACT)
        kernels, calls, ranges = [], [], []
        for n, start in enumerate(starts):
            rank = 1 if host == "b" else 0
            file.add(Op("AllReduce", start, start + 100_000, rank, sequence=n))
            kernels.append(K(start, start + 100_000, n, ALLREDUCE))
            calls.append(C(start - 400, start - 300, n))
            ranges.append(R(start - 500, start - 200, "ncclAllReduce"))
        paths.append(put(tmp_path, f"trace-{host}-9.txt", file.text()))
        node = profile(tmp_path, kernels, calls, ranges, hostname=host, name=f"node-{host}.sqlite")
        paths.append(str(node))
    found = measure_communication(paths)
    first = {int(k) // 30 for (k, source) in columns(found, "kernel", "source") if source == 0}

    # Kernels of the first profile, which is host b's, come first.
    assert first == {0}
    assert [own.matched for own in found.clocks if own.by == "kernels"] == [30, 30]


@pytest.mark.parametrize(
    ("host", "second", "placed_by", "starts_ns"),
    [
        # Another session of one machine: its steady clock tells, whatever NTP did to UTC.
        ("a", (2_500_000_000, 3_000_000_000), "reference", 2_000_000_000),
        # Its steady clock began a day later: another machine, or another boot, of this name.
        ("a", (2_000_000_000, 900_000_000_000_000), "utc", 1_000_000_000),
        ("b", (2_000_000_000, 3_000_000_000), "utc", 1_000_000_000),
        ("a", (None, 900_000_000_000_000), "reference", 899_999_000_000_000),
        ("b", (None, 3_000_000_000), "own", 0),
        ("a", (2_000_000_000, None), "reference", 1_000_000_000),
        ("a", (None, None), "own", 0),
    ],
)
def test_profiles_share_a_clock_as_they_do_elsewhere(
    tmp_path: Path,
    host: str,
    second: tuple[int | None, int | None],
    placed_by: str,
    starts_ns: int,
) -> None:
    """Of one hostname, but switched on at other times, are two machines."""
    paths = []
    for number, (name, (utc_ns, steady_ns)) in enumerate(
        (("a", (1_000_000_000, 1_000_000_000)), (host, second))
    ):
        kernels = [K(1_000, 2_000, 1, ALLREDUCE, pid=number + 1)]
        calls = [C(500, 600, 1, pid=number + 1)]
        path = profile(
            tmp_path, kernels, calls, [R(0, 5, "F0")], hostname=name, name=f"{number}.sqlite"
        )
        with closing(sqlite3.connect(path)) as db:
            db.execute("ALTER TABLE TARGET_INFO_SESSION_START_TIME ADD COLUMN systemClockNs")
            db.execute(
                "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = ?, systemClockNs = ?",
                (utc_ns, steady_ns),
            )
            db.commit()
        paths.append(str(path))
    found = measure_communication(paths)

    assert [clock.by for clock in found.clocks] == ["reference", placed_by]
    assert columns(found, "start_ns") == [(1_000,), (1_000 + starts_ns,)]


PLANTED = "".join(
    [*Plugin().lines, line("AllReduce", "COLL", "b", 0, 1, 5_000, '"CommHash": 1, "Rank": 0')]
) + line("KernelCh", "GPU", "b", 0, 1, 6_000, '"StartGpuClk": 5, "StopGpuClk": 9')


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(PLANTED)),
            st.integers(0, 8),
            st.sampled_from(
                [
                    "{",
                    "}",
                    '"',
                    "\0",
                    "nan",
                    "-1",
                    "1e400",
                    "9" * 30,
                    "null",
                    "[]",
                    "{}",
                    "0",
                    "1e12",
                ]
            ),
        ),
        max_size=6,
    )
)
def test_whatever_a_file_holds_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int, str]]
) -> None:
    text = PLANTED
    for at, length, piece in edits:
        text = text[:at] + piece + text[at + length :]
    path = put(tmp_path_factory.getbasetemp(), "damaged.txt", text)
    try:
        found = measure_communication(path)
    except BubblevizError:
        return
    json.loads(json_text(found))
    assert csv_of_operations(found).count("\n") == len(found.operations) + 1


# Matching, against a plain reference


@settings(max_examples=40)
@given(st.data())
def test_matching_recovers_an_offset(data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 40))
    gaps = data.draw(st.lists(st.integers(100_000, 9_000_000), min_size=count, max_size=count))
    offset = data.draw(st.integers(-(10**15), 10**15))
    starts = np.cumsum(np.array(gaps, np.int64))
    if len(set(gaps)) < count or min(abs(a - b) for a in gaps for b in gaps if a != b) < 90_000:
        return
    none = np.full(count, -1, np.int64)
    found = match(Starts(starts, none, none), Starts(starts + offset, none, none), GPU_TOLERANCE_NS)

    assert found is not None
    assert found.offset_ns == offset
    assert found.kernel.tolist() == list(range(count))
    assert (found.matched, found.worst_ns) == (count, 0)


@settings(max_examples=150)
@given(st.data())
def test_the_densest_offset_is_that_of_all_differences(data: st.DataObject) -> None:
    """Whatever the pieces; the reference looks at every difference as a window's begin."""
    times = st.integers(0, 400)

    def drawn(most: int) -> Starts:
        start = sorted(data.draw(st.lists(times, min_size=1, max_size=most)))
        family = [data.draw(st.integers(-1, 1)) for _ in start]
        return Starts(*(np.array(own, np.int64) for own in (start, family, [-1] * len(start))))

    operations, kernels = drawn(12), drawn(20)
    tolerance = data.draw(st.integers(0, 60))
    pairs = [
        (int(there - here), row)
        for row, (here, own) in enumerate(zip(operations.start_ns, operations.family, strict=True))
        for there, other in zip(kernels.start_ns, kernels.family, strict=True)
        if own == other or -1 in (own, other)
    ]

    def windows(without: int | None) -> list[tuple[int, int, int]]:
        found = []
        for begin, _ in pairs:
            held = [apart for apart, _ in pairs if begin <= apart <= begin + tolerance]
            if without is None or abs(begin - without) > 2 * tolerance:
                found.append((-len(held), max(held) - begin, begin))
        return sorted(found)

    def agreed(begin: int) -> tuple[int, int]:
        held = [own for own in pairs if begin <= own[0] <= begin + tolerance]
        return len({row for _, row in held}), round(float(np.median([own for own, _ in held])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl_matching, "_PIECE", data.draw(st.sampled_from((1, 20, 100, 1 << 20))))
        rows = np.arange(len(operations.start_ns))
        found = nccl_matching._densest(operations, rows, kernels, tolerance)
    wanted = windows(None)
    if not wanted:
        assert found is None
        return
    assert found is not None
    assert (found.matched, found.offset_ns) == agreed(wanted[0][2])
    others = windows(wanted[0][2])
    assert (found.rival, found.rival_ns) == (agreed(others[0][2]) if others else (0, 0))


def test_matching_many_takes_little_memory() -> None:
    """Of a block, all differences to the kernels would be 100 MB for each column of them."""
    randomly = np.random.default_rng(1)
    starts = np.cumsum(randomly.integers(100_000, 2_000_000, 200_000))
    none = np.full(len(starts), -1, np.int64)
    kept = np.sort(randomly.choice(len(starts), 1_000, replace=False))
    tracemalloc.start()
    found = match(
        Starts(starts[kept] + 10**15, none[kept], none[kept]),
        Starts(starts, none, none),
        GPU_TOLERANCE_NS,
    )
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert found is not None
    assert found.kernel.tolist() == kept.tolist()
    assert most < 64 << 20


@pytest.mark.parametrize("seed", range(12))
def test_what_matches_by_chance_is_not_clear(seed: int) -> None:
    randomly = np.random.default_rng(seed)
    one, two = (
        Starts(np.cumsum(randomly.integers(100_000, 2_000_000, 5_000)), none, none)
        for none in (np.full(5_000, -1, np.int64),) * 2
    )
    found = match(one, two, GPU_TOLERANCE_NS)

    assert found is not None
    assert found.matched < 500
    assert not found.clear


def test_matching_nothing() -> None:
    empty = Starts(*(np.empty(0, np.int64) for _ in range(3)))
    one = Starts(*(np.array([5], np.int64) for _ in range(3)))

    assert match(empty, one, 10) is None
    assert match(one, empty, 10) is None


# Payloads

LAYOUTS = {
    "init": (
        16777218,
        (
            (18, "NCCL communicator ID", None),
            (5, "No. of ranks", 8),
            (5, "Rank", 12),
            (5, "CUDA device", 16),
        ),
        "<Qiii4x",
    ),
    "reduce": (
        16777223,
        (
            (18, "NCCL communicator ID", None),
            (22, "Message size [bytes]", 8),
            (16777232, "Reduction operation", 16),
        ),
        "<QQi4x",
    ),
    "pass": (
        16777226,
        ((18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8), (5, "Peer rank", 16)),
        "<QQi4x",
    ),
}


def carrying(
    path: Path,
    payloads: list[tuple[int, str, str, tuple[int, ...]]],
    *,
    last: str = "offset",
    declared: str = "BLOB",
    pid: int = 1,
) -> str:
    """Give ranges of a profile payloads, as nsys exports them: start, name, layout, values."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData {declared}")
        db.execute(
            "CREATE TABLE IF NOT EXISTS NVTX_PAYLOAD_SCHEMAS (domainId, schemaId, name, type, "
            "flags, numEntries, payloadSize, alignTo)"
        )
        db.execute(
            "CREATE TABLE IF NOT EXISTS NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, schemaId, idx, "
            "flags, type, name, description, arrayOrUnionDetail, offset)"
        )
        for number, fields, form in LAYOUTS.values():
            size = struct.calcsize(form)
            # Every process registers them anew.
            for _ in range(2):
                db.execute(
                    "INSERT INTO NVTX_PAYLOAD_SCHEMAS VALUES (1,?,NULL,1,NULL,?,?,NULL)",
                    (number, len(fields), size),
                )
                db.executemany(
                    "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1,?,?,NULL,?,?,NULL,NULL,?)",
                    [(number, at, *own) for at, own in enumerate(fields)],
                )
        for start, name, layout, values in payloads:
            number, _, form = LAYOUTS[layout]
            body = struct.pack(form, *values)
            end = 32 if last == "offset" else 32 + len(body)
            blob = struct.pack("<QQQQ", 1, number, len(body), end) + body
            stored: object = blob.hex() if last == "text" else blob
            changed = db.execute(
                "UPDATE NVTX_EVENTS SET binaryData = ? WHERE start = ? AND globalTid = ? AND "
                "coalesce(text, (SELECT value FROM StringIds WHERE id = textId)) = ?",
                (stored, start, global_id(pid, pid), name),
            )
            assert changed.rowcount == 1
        db.commit()
    return str(path)


def passing(folder: Path, last: str = "offset", declared: str = "BLOB") -> str:
    """Write a rank that begins, all-reduces, then sends to 3 and receives from 2 in one kernel."""
    ranges = [
        R(10, 20, "ncclCommInitRank", registered=True),
        R(100, 200, "ncclAllReduce", registered=True),
        R(300, 310, "ncclGroupStart", registered=True),
        R(320, 330, "ncclSend", registered=True),
        R(340, 350, "ncclRecv", registered=True),
        R(360, 450, "ncclGroupEnd", registered=True),
        R(500, 510, "ncclReduce", registered=True),
    ]
    path = profile(
        folder,
        [K(1_000, 3_000, 1, ALLREDUCE), K(4_000, 4_500, 2, SENDRECV), K(9_000, 9_100, 3, SENDRECV)],
        [C(150, 160, 1), C(400, 410, 2), C(700, 710, 3)],
        ranges,
    )
    return carrying(
        path,
        [
            (10, "ncclCommInitRank", "init", (HASH, 4, 1, 0)),
            (100, "ncclAllReduce", "reduce", (HASH, 4096, 0)),
            (320, "ncclSend", "pass", (HASH, 1000, 3)),
            (340, "ncclRecv", "pass", (HASH, 2000, 2)),
        ],
        last=last,
        declared=declared,
    )


@pytest.mark.parametrize("last", ["offset", "total", "text"])
@pytest.mark.parametrize("declared", ["BLOB", "TEXT"])
def test_ranges_carry_communicator_bytes_peer_and_rank(
    tmp_path: Path, last: str, declared: str
) -> None:
    found = measure_communication(passing(tmp_path, last=last, declared=declared))
    names = found.operations.names

    assert found.operations.communicators == (HASH,)
    assert found.ranks == (4,)
    wanted = ("name", "communicator", "rank", "peer", "bytes", "start_ns", "end_ns", "shared")
    assert [(names[n], *rest) for n, *rest in columns(found, *wanted)] == [
        ("AllReduce", 0, 1, -1, 4096, 1_000, 3_000, 1),
        ("Send", 0, 1, 3, 1000, 4_000, 4_500, 2),
        ("Recv", 0, 1, 2, 2000, 4_000, 4_500, 2),
        ("SendRecv", -1, -1, -1, -1, 9_000, 9_100, 1),
    ]
    assert notes(found) >= {"kernels of NCCL outside its ranges", "calls of NCCL without kernels"}
    assert {names[n] for (n,) in columns(found, "algorithm") if n >= 0} == {"RING"}
    # An all-reduce of four ranks: 2 (4 - 1) / 4.
    total = next(own for own in totals_of(found) if own.name == "AllReduce")
    assert total.bus_gbps == pytest.approx(4096 / 2_000 * 1.5)


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE NVTX_EVENTS SET binaryData = substr(binaryData, 1, 20)",
        "UPDATE NVTX_EVENTS SET binaryData = 'no hex'",
        "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET schemaId = schemaId + 100",
        "DELETE FROM NVTX_PAYLOAD_SCHEMA_ENTRIES",
        "DROP TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES",
        "DROP TABLE NVTX_PAYLOAD_SCHEMAS",
        "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET type = 'x', offset = 1000",
        "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES SELECT domainId, schemaId, idx, flags, 5, name, "
        "description, arrayOrUnionDetail, 4 FROM NVTX_PAYLOAD_SCHEMA_ENTRIES",
        "UPDATE NVTX_EVENTS SET binaryData = NULL",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN binaryData",
    ],
)
def test_payloads_that_cannot_be_read_are_told(tmp_path: Path, edit: str) -> None:
    path = passing(tmp_path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(edit)
        db.commit()
    found = measure_communication(path)

    assert len(found.operations) == 4
    if "SCHEMAS" not in edit:
        assert {own for (own,) in columns(found, "communicator")} == {-1}
        assert notes(found) & {"payloads of NCCL's ranges", "payloads of ranges"}


@pytest.mark.parametrize(
    "spoilt", ["substr(hex, 2)", "'  ' || substr(hex, 3)", "'xy' || substr(hex, 3)", "hex || '0'"]
)
def test_payloads_beside_one_that_cannot_be_read_are_read(tmp_path: Path, spoilt: str) -> None:
    path = passing(tmp_path, "text", "TEXT")
    whole, _ = read_payloads(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            f"UPDATE NVTX_EVENTS SET binaryData = (SELECT {spoilt} FROM (SELECT binaryData AS hex))"
            " WHERE start = 320"
        )
        db.commit()
    found, notes = read_payloads(path)

    assert [note.count for note in notes] == [1]
    kept = np.flatnonzero(whole.start_ns != 320)
    assert whole.start_ns.tolist() == [10, 100, 320, 340]
    for name in whole.column_names():
        assert getattr(found, name).tolist() == getattr(whole, name)[kept].tolist()


def test_payloads_stand_in_the_order_of_the_export(tmp_path: Path) -> None:
    """Lengths and layouts change from one to the next; so do communicators."""
    drawn = random.Random(3)
    wanted = [
        (n, drawn.choice(("reduce", "pass")), HASH - drawn.randint(0, 4), drawn.randint(0, 99))
        for n in range(200)
    ]
    path = profile(
        tmp_path, [K(1, 2, 1)], [C(1, 2, 1)], [R(n, n + 1, "ncclSend") for n in range(200)]
    )
    carrying(path, [(n, "ncclSend", layout, (own, n, end)) for n, layout, own, end in wanted])
    found, notes = read_payloads(str(path))

    assert not notes
    assert found.start_ns.tolist() == found.bytes.tolist() == list(range(200))
    assert found.communicators == tuple(dict.fromkeys(own for *_, own, _ in wanted))
    assert [found.communicators[n] for n in found.communicator] == [own for *_, own, _ in wanted]
    peers = [end if layout == "pass" else -1 for _, layout, _, end in wanted]
    assert found.peer.tolist() == peers


def test_layouts_without_offsets_are_aligned(tmp_path: Path) -> None:
    path = passing(tmp_path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET offset = NULL")
        db.commit()

    assert columns(measure_communication(path), "bytes", "peer")[1] == (1000, 3)


def test_a_group_shares_its_kernels_out_by_what_they_do(tmp_path: Path) -> None:
    """Two all-reduces and a send in one group: two kernels of one family, one of the other."""
    ranges = [
        R(0, 1, "ncclGroupStart"),
        R(2, 3, "ncclGroupStart"),
        R(10, 20, "ncclAllReduce"),
        R(30, 40, "ncclSend"),
        R(50, 60, "ncclAllReduce"),
        R(61, 62, "ncclGroupEnd"),
        R(70, 100, "ncclGroupEnd"),
    ]
    kernels = [K(200, 300, 1, ALLREDUCE), K(300, 400, 2, SENDRECV), K(400, 500, 3, ALLREDUCE)]
    calls = [C(71 + 2 * n, 72 + 2 * n, n) for n in (1, 2, 3)]
    called = read_kernels(str(profile(tmp_path, kernels, calls, ranges))).operations

    assert [called.names[n] for n in called.name.tolist()] == ["AllReduce", "Send", "AllReduce"]
    assert called.first.tolist() == [0, 1, 2]


def test_kernels_pair_by_their_order_where_nothing_else_tells(tmp_path: Path) -> None:
    kernels, calls, ranges = [], [], []
    for pid, late in ((1, 0), (2, 300)):
        for n in range(5):
            at = 10_000 * (n + 1)
            kernels.append(K(at + late, at + 5_000, n, ALLREDUCE, pid=pid))
            calls.append(C(at - 400, at - 300, n, tid=pid, pid=pid))
            ranges.append(R(at - 500, at - 200, "ncclAllReduce", tid=pid, pid=pid))
    found = measure_communication(profile(tmp_path, kernels, calls, ranges))

    assert set(columns(found, "pid", "waiting_ns", "moving_ns", "split")) == {
        *((1, 300, 4_700, Split.ORDER), (2, 0, 4_700, Split.ORDER))
    }
    assert "operations paired by their order alone" in notes(found)


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (ALLREDUCE, ("AllReduce", "RING", "LL")),
        ("ncclKernel_AllReduce_TREE_LL128_Sum_float(ncclDevComm*)", ("AllReduce", "TREE", "LL128")),
        ("ncclDevKernel_AllGather_NVLS_TREE_SIMPLE", ("AllGather", "NVLS_TREE", "SIMPLE")),
        (SENDRECV, ("SendRecv", "", "")),
        ("ncclDevKernel_Generic(x)", ("", "", "")),
        ("void nccl_other()", ("", "", "")),
    ],
)
def test_what_names_of_kernels_tell(kernel: str, told: tuple[str, str, str]) -> None:
    assert parse_kernel_name(kernel) == told


# The command


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["nccl", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_table_tells_totals_and_clocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *ring(tmp_path))

    assert code == 0
    assert "0xfeedfacecafebeef" in out
    assert "RING/SIMPLE" in out
    assert "ends of common operations" in out
    assert "bubbleviz: warning: clocks aligned by the ends of operations: " in err


def test_csv_has_one_row_an_operation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *ring(tmp_path, 3), "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(out)))

    assert len(rows) == 6
    assert set(COLUMNS) <= set(rows[0])
    assert rows[0]["communicator"] == "0xfeedfacecafebeef"
    assert (rows[0]["waiting_ns"], rows[0]["moving_ns"]) == ("40000", "460000")
    assert (rows[0]["split"], rows[0]["timing"], rows[0]["peer"]) == ("members", "gpu", "")
    assert rows[0]["clock"] == ""


def test_json_is_whole_and_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ring(tmp_path)
    first, second = (run(capsys, *paths, "--json", "-")[1] for _ in range(2))
    told = json.loads(first)

    assert first == second
    assert told["schema"] == "bubbleviz.nccl/1"
    assert told["operations"] == 24
    assert told["totals"][0]["waiting_ns"] == 12 * 40_000
    assert told["communicators"] == [{"id": "0xfeedfacecafebeef", "ranks": 2}]
    assert told["clocks"][1]["placed_by"] == "operations"


def test_outputs_are_replaced_with_force_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ring(tmp_path, 2)
    output = put(tmp_path, "out.csv", "mine")
    code, out, err = run(capsys, *paths, "--csv", output)

    assert (code, out) == (1, "")
    assert "replace it with --force" in err
    assert Path(output).read_text(encoding="utf-8") == "mine"
    assert run(capsys, *paths, "--csv", output, "--force")[0] == 0
    assert Path(output).read_text(encoding="utf-8").startswith("file,kind,pid")
    code, _, err = run(capsys, *paths, "--csv", paths[0], "--force")
    assert code == 1
    assert "inputs are never replaced" in err


def test_hostile_names_are_inert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("=cmd|x", "<script>", "a\\u001b[31m\\nb", "x" * 10_000)):
        told = '"Count": 5, "Datatype": "@a", "Algorithm": "\\r\\u0000", "CommHash": 1'
        text = line(name, "COLL", "b", 0, 1, 5_000, told) + line(name, "COLL", "e", 0, 1, 6_000)
        path = put(tmp_path, f"{number}.txt", text)
        for option in ((), ("--csv", "-"), ("--json", "-")):
            code, out, _ = run(capsys, path, *option)
            assert code == 0
            assert "\x1b" not in out
            assert "\0" not in out
        assert all(
            not cell.startswith(("=", "@", "+"))
            for row in csv.reader(io.StringIO(run(capsys, path, "--csv", "-")[1]))
            for cell in row
        )


def test_operations_on_no_common_clock_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = Plugin(pid=1), Plugin(pid=2)
    one.add(Op("AllReduce", 60_000, 90_000, communicator=1))
    two.add(Op("AllReduce", 60_000, 90_000, communicator=2))
    paths = [put(tmp_path, "a.txt", one.text()), put(tmp_path, "b.txt", two.text())]
    code, out, err = run(capsys, *paths, "--csv", "-")

    assert code == 0
    assert "clocks that could not be aligned" in err
    assert [row["clock"] for row in csv.DictReader(io.StringIO(out))] == ["", "b.txt process 2"]


# Real files

DATA = Path(os.environ.get("BUBBLEVIZ_DATA", "data"))


@pytest.mark.skipif(
    not (DATA / "nccl").is_dir(), reason="BUBBLEVIZ_DATA names no folder with nccl/"
)
def test_ranks_of_a_real_ring_waited_for_the_last() -> None:
    found = measure_communication(DATA / "nccl" / "pha-z_sendrecv_v5.jsonlines")

    # Rank 0 began last, 13.3 ms after rank 3; none of the kernels was seen to end.
    assert columns(found, "rank", "peer", "bytes", "waiting_ns") == [
        (0, 1, 1 << 30, 0),
        (0, 3, 1 << 30, 0),
        (1, 2, 1 << 30, 0),
        (1, 0, 1 << 30, 4_285_741),
        (2, 3, 1 << 30, 0),
        (2, 1, 1 << 30, 5_006_468),
        (3, 0, 1 << 30, 13_290_702),
        (3, 2, 1 << 30, 3_998_493),
    ]
    assert set(columns(found, "end_ns", "moving_ns")) == {(UNKNOWN, -1)}


@pytest.mark.skipif(
    not (DATA / "nsys").is_dir(), reason="BUBBLEVIZ_DATA names no folder with nsys/"
)
def test_a_real_export_tells_sends_and_receives_of_its_kernels() -> None:
    found = measure_communication(DATA / "nsys" / "nsys-ai_mfu_2gpu_before.sqlite")

    # 66 kernels, of which 64 carry out two sends and two receives each; blobs were taken out.
    assert sorted((own.name, own.operations) for own in totals_of(found)) == [
        *(("Recv", 128), ("Send", 128), ("SendRecv", 2))
    ]
    assert set(columns(found, "split", "bytes")) == {(Split.ORDER, -1)}
