"""Idle time: planted profiles with known gaps."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from shutil import copy

import pytest

import bubbleviz
from bubbleviz.analyses.idle import host
from bubbleviz.analyses.idle.report import advice, title_of
from bubbleviz.errors import MismatchError, NothingToAnalyseError, UsageError
from tests.support.idle_runs import US, add_up, c, k, only, r, spent
from tests.support.nsys_exports import K, M, R, T, global_id, profile
from tests.support.places import FIXTURES
from tests.support.torch_traces import traces_of
from tests.support.xla_files import E, L, P, space

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_without_work_there_is_no_idle_time(tmp_path: Path) -> None:
    with pytest.raises(NothingToAnalyseError, match="no CUDA kernels were recorded"):
        bubbleviz.idle(profile(tmp_path))
    file = profile(tmp_path, [k(5, 5, 1)], [c(0, 1, 1)], name="no-time.sqlite")
    with pytest.raises(NothingToAnalyseError, match="no kernel or copy took any time"):
        bubbleviz.idle(file)
    with pytest.raises(UsageError, match="microseconds, 0 or more"):
        bubbleviz.idle(file, shortest_us=-1)


def test_every_part_of_a_gap_is_attributed_to_what_the_host_did(tmp_path: Path) -> None:
    file = profile(
        tmp_path,
        [k(0, 10, 1), k(210, 300, 2), k(302, 320, 3)],
        [
            c(-5, 0, 1),
            c(5, 20, None, name="cudaStreamSynchronize_v3020"),
            c(90, 95, 90, name="cudaMalloc_v3020"),
            c(130, 140, 91, name="cudaMemcpy_v3020"),
            c(150, 170, 92, name="cudaEventCreate"),
            c(180, 190, 2),
            c(191, 195, 3),
        ],
        [
            r(30, 80, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
            r(35, 45, "aten::stack, op_id = 3"),
            r(85, 120, "aten::empty"),
            r(125, 175, "mine 7"),
        ],
    )

    rank = only(bubbleviz.idle(file))

    # A call without a correlation id launched nothing, and exports that have such are not known.
    assert spent(rank) == {
        "data loading": 50,
        "no host trace": 20 + 5 + 5 + 5,
        "operators": 30,
        "allocation": 5,
        "host: mine #": 20,
        "transfer": 10,
        "API calls": 20,
        "launch": 20,
        "stream or rank dependency": 10,
        "kernel-to-kernel gaps": 2,
    }
    add_up(rank)


def test_of_too_many_calls_in_gaps_the_longer_ones_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [(20 + 10 * n, 22 + 10 * n + n, 10 + n) for n in range(5)]
    file = profile(
        tmp_path,
        [k(0, 10, 1), k(100, 110, 2)],
        [c(-9, 0, 1), *(c(*wait, name="cudaMalloc") for wait in waits), c(80, 81, 2)],
    )
    assert spent(only(bubbleviz.idle(file)))["allocation"] == 2 + 3 + 4 + 5 + 6
    monkeypatch.setattr(host, "_MOST", 3)

    report = bubbleviz.idle(file)

    assert spent(only(report)) == {"allocation": 4 + 5 + 6, "no host trace": 55, "launch": 20}
    assert "those of less than 4,000 ns" in report.limitations[-2].reason


def test_calls_of_the_operating_system_tell_where_no_range_does(tmp_path: Path) -> None:
    file = profile(
        tmp_path,
        [k(0, 10, 1), k(200, 210, 2)],
        [c(-9, 0, 1), c(40, 60, 9, name="cudaMalloc"), c(180, 181, 2)],
        [r(100, 150, "DataLoader")],
    )
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE OSRT_API (start INT, end INT, globalTid INT, nameId INT)")
        names = {900: "getc", 901: "ioctl", 902: "poll"}
        database.executemany("INSERT INTO StringIds VALUES (?,?)", names.items())
        rows = [(20, 30, 900), (45, 55, 901), (110, 160, 902), (165, 170, 901), (175, 177, 900)]
        database.executemany(
            "INSERT INTO OSRT_API VALUES (?,?,?,?)",
            [(a * US, b * US, global_id(1, 1), name) for a, b, name in rows],
        )
        database.commit()

    # What takes less than the shortest gap, as the last one, tells nothing.
    assert spent(only(bubbleviz.idle(file))) == {
        "no host trace": 10 + 10 + 40 + 5 + 10,
        "file access": 10,
        "allocation": 20,
        "data loading": 50,
        "waiting": 10,
        "system calls": 5,
        "launch": 20,
    }


def test_where_threads_have_made_up_numbers_the_main_one_is_known_by_its_name(
    tmp_path: Path,
) -> None:
    kernels, calls = [k(0, 10, 1, pid=8), k(100, 110, 2, pid=8)], [c(80, 85, 2, tid=9, pid=8)]
    ranges = [R(20 * US, 60 * US, "DataLoader", 77, 8), R(30 * US, 80 * US, "mine", 8, 8)]

    def told(*threads: T) -> dict[str, float]:
        return spent(
            only(bubbleviz.idle(profile(tmp_path, kernels, calls, ranges, threads=threads)))
        )

    assert told(T(77, "python", 8)) == {"no host trace": 30, "data loading": 40, "launch": 20}
    # Threads inherit the name of the first one, which is the main one where it is known.
    inherited = told(T(77, "python3.11", 8), T(8, "python3.11", 8))
    assert inherited == {"no host trace": 20, "host: mine": 50, "launch": 20}
    assert told(T(77, "pythonic", 8)) == inherited


def test_on_a_tpu_gaps_inside_a_module_are_the_devices_and_others_the_hosts(
    tmp_path: Path,
) -> None:
    ops = [
        E("fusion.1", 0, 40 * US),
        E("fusion.2", 50 * US, 90 * US),
        E("fusion.1", 300 * US, 340 * US),
    ]
    modules = [E("jit_step(1)", 0, 100 * US), E("jit_step(1)", 290 * US, 350 * US)]
    device = P("/device:TPU:0", [L("XLA Modules", modules, 1), L("XLA Ops", ops, 2)])
    host = P("/host:CPU", [L("python", [E("DataLoader", 120 * US, 280 * US)], 5)])
    file = tmp_path / "a.xplane.pb"
    file.write_bytes(space([device, host]))

    rank = only(bubbleviz.idle(file))

    # 40 to 50, 90 to 100 and 290 to 300 lie inside a module; 100 to 120 and 280 to 290 in nothing.
    assert spent(rank) == {
        "stream or rank dependency": 30,
        "data loading": 160,
        "no host trace": 30,
    }
    assert all(
        "module runs" not in where
        for p in rank.activities
        if p.example
        for where in p.example.where
    )
    add_up(rank)


def test_breakdown_of_overlapping_streams(tmp_path: Path) -> None:
    file = profile(
        tmp_path,
        [k(0, 10, 1), k(5, 20, 2, NCCL, stream=8), k(18, 30, 3), k(40, 60, 4, NCCL, stream=8)],
        [],
        copies=[M(0, 5 * US, 5), M(55 * US, 70 * US, 6)],
        fills=[M(80 * US, 90 * US, 7)],
    )

    own = only(bubbleviz.idle(file))

    assert (own.span_ns, own.busy_ns, own.idle_ns) == (90_000, 70_000, 20_000)
    assert (own.compute_ns, own.communication_ns, own.copy_ns) == (22_000, 35_000, 30_000)
    assert (own.exposed_communication_ns, own.exposed_copy_ns) == (28_000, 20_000)
    assert own.overlap == 7 / 35
    assert own.duty_cycle == 70 / 90


def test_without_calls_nothing_is_attributed_to_the_host(tmp_path: Path) -> None:
    kernels = [k(0, 10, 1), k(100, 110, 2)]
    without = ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "ThreadNames")

    report = bubbleviz.idle(profile(tmp_path, kernels, without=without))

    assert spent(only(report)) == {"launch not recorded": 90}
    assert [own.what for own in report.limitations if "launched" in own.what] == [
        "who launched the work after gaps"
    ]
    assert advice(report)[0].endswith("ProfilerActivity.CPU and CUDA in PyTorch")


def test_pages_of_managed_memory_are_launched_by_no_call(tmp_path: Path) -> None:
    spans = ((100, 110, 11), (150, 160, 12), (162, 165, 13))
    pages = [M(a * US, b * US, 0, kind=kind) for a, b, kind in spans]
    copies = [*pages, M(200 * US, 210 * US, 0, kind=1)]
    file = profile(tmp_path, [k(0, 10, 1)], [c(-9, -8, 1)], copies=copies)
    own = only(bubbleviz.idle(file))

    assert spent(own) == {
        "page migration": 130,
        "launch not recorded": 35,
        "kernel-to-kernel gaps": 2,
    }
    assert (own.exposed_copy_ns, own.compute_ns) == (33_000, 10_000)
    assert "cudaMemPrefetchAsync" in advice(bubbleviz.idle(file))[0]


@pytest.mark.parametrize("folder", ["1f1b", "zb-v"])
def test_both_formats_tell_the_same(tmp_path: Path, folder: str) -> None:
    export = next((FIXTURES / folder).glob("*.sqlite"))

    exported = bubbleviz.idle(export)
    traced = bubbleviz.idle(traces_of(export, tmp_path))

    told = [
        [
            (
                *(rank.span_ns, rank.compute_ns, rank.idle_ns),
                *(rank.communication_ns, rank.overlap, spent(rank)),
                [(step.name, step.length_ns, step.busy_ns, step.activities) for step in rank.steps],
            )
            for rank in report.ranks
        ]
        for report in (exported, traced)
    ]
    assert told[0] == told[1]


def test_several_files_are_several_ranks(tmp_path: Path) -> None:
    one = profile(
        tmp_path, [k(0, 10, 1), k(50, 60, 2)], [c(-9, 0, 1), c(40, 41, 2)], name="a.sqlite"
    )
    two = profile(
        tmp_path, [k(0, 10, 1), k(90, 99, 2)], [c(-9, 0, 1), c(80, 81, 2)], name="b.sqlite"
    )

    report = bubbleviz.idle([one, two])

    assert [rank.label for rank in report.ranks] == ["a.sqlite pid 1 GPU 0", "b.sqlite pid 1 GPU 0"]
    assert {part.activity: part.idle_ns // US for part in report.activities} == {
        "no host trace": 30 + 70,
        "launch": 10 + 10,
    }
    assert report.activities[0].rank == 1
    for twin in (one, copy(one, tmp_path / "c.sqlite")):
        with pytest.raises(MismatchError, match="the same profile twice"):
            bubbleviz.idle([one, two, twin])


SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
IDLE = "1 device, idle for 0.00 % of the time"


@pytest.mark.parametrize(
    ("kernels", "copy", "title", "advised"),
    [
        (
            [k(0, 100, 1)],
            (100, 1_000),
            f"{IDLE} and computing for 10.00 %",
            ["90.00 % of the time is exposed copies; they count as busy"],
        ),
        (
            [k(0, 100, 1), k(100, 300, 2, "ncclKernel")],
            (300, 1_000),
            f"{IDLE} and computing for 10.00 %",
            [
                "70.00 % of the time is exposed copies; they",
                "20.00 % of the time is exposed communication; it",
            ],
        ),
        (
            [k(0, 991, 1)],
            (0, 1_000),
            IDLE,
            ["devices are idle for less than 1 % of the time: there is little to win here"],
        ),
        # Receives that wait are the bubble of a pipeline.
        (
            [k(0, 500, 1), k(500, 860, 2, SENDRECV), k(860, 1_000, 3, NCCL)],
            (0, 1),
            f"{IDLE} and computing for 50.00 %",
            [
                "36.00 % of the time only send and receive kernels run, which",
                "14.00 % of the time is exposed communication; it counts as b",
            ],
        ),
        (
            [k(0, 950, 1)],
            (950, 1_000),
            IDLE,
            [
                "devices are idle for less than 1 % of the time, and only copy or fill memory for "
                "5.00 % of it: overlap copies with compute"
            ],
        ),
        (
            [k(0, 100, 1)],
            (500, 1_000),
            "1 device, idle for 40.00 % of the time and computing for 10.00 %",
            [
                "50.00 % of the time is exposed copies;",
                "100.00 % of the idle time (40.00 % of all)",
            ],
        ),
    ],
)
def test_what_devices_do_beside_compute_is_advised_on(
    tmp_path: Path, kernels: list[K], copy: tuple[int, int], title: str, advised: list[str]
) -> None:
    start, end = copy
    report = bubbleviz.idle(profile(tmp_path, kernels, copies=[M(start * US, end * US, None)]))

    assert title_of(report) == title
    for sentence, begins in zip(advice(report), advised, strict=True):
        assert sentence.startswith(begins)
