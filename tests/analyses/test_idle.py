"""Idle time: planted profiles with known gaps."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from shutil import copy
from xml.etree import ElementTree

import numpy as np
import pytest

import bubbleviz
from bubbleviz.analyses.idle import host
from bubbleviz.analyses.idle.advice import advice, make_title
from bubbleviz.analyses.idle.outputs import COLUMNS, as_json
from bubbleviz.analyses.idle.picture import draw_idle
from bubbleviz.analyses.idle.python_functions import name_function
from bubbleviz.analyses.idle.report import BUSY, REST, IdleMeasurement
from bubbleviz.analyses.idle.text import make_device_table, sections
from bubbleviz.cli.app import main
from bubbleviz.conventions.kinds import classify_kernels, default_kinds
from bubbleviz.errors import MismatchError, NothingToAnalyzeError, UsageError
from bubbleviz.model.texts import PRINTED_CHARACTERS
from bubbleviz.render.text.terminal import render_plain_text
from bubbleviz.report.idle_summary import LaunchQueue, WorkTotal
from tests.support import xla_profiles
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database
from tests.support.idle_runs import (
    US,
    World,
    add_overheads,
    c,
    check_sums,
    get_only_rank,
    k,
    list_times,
    plant_idle,
    r,
    write_world,
)
from tests.support.needs import get_real_file
from tests.support.notes import list_limitation_subjects
from tests.support.nsys_exports import C, K, M, R, T, pack_global_id, write_profile
from tests.support.places import FIXTURES, GOLDEN
from tests.support.xla_files import E, L, P, make_space

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_without_work_there_is_no_idle_time(tmp_path: Path) -> None:
    with pytest.raises(NothingToAnalyzeError, match="no CUDA kernels were recorded"):
        bubbleviz.idle(write_profile(tmp_path))
    file = write_profile(tmp_path, [k(5, 5, 1)], [c(0, 1, 1)], name="no-time.sqlite")
    with pytest.raises(NothingToAnalyzeError, match="all kernels and copies have zero duration"):
        bubbleviz.idle(file)
    with pytest.raises(UsageError, match="microseconds, 0 or more"):
        bubbleviz.idle(file, shortest_us=-1)


def test_if_gaps_contain_too_many_calls_only_longer_calls_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [(20 + 10 * n, 22 + 10 * n + n, 10 + n) for n in range(5)]
    file = write_profile(
        tmp_path,
        [k(0, 5, 1), k(5, 10, 1), k(50, 50, 1), k(100, 110, 2)],
        [c(-9, 0, 1), *(c(*wait, name="cudaMalloc") for wait in waits), c(80, 81, 2)],
    )
    # A gap of exactly the minimum length is reported.
    # Kernels without a duration or without a gap before them end no gap.
    for shortest_us in (10, 90):
        report = bubbleviz.idle(file, shortest_us=shortest_us)
        assert list_times(get_only_rank(report))["allocation"] == 2 + 3 + 4 + 5 + 6
        assert len(get_only_rank(report).gaps) == 1
    monkeypatch.setattr(host, "_MAX_CALLS", 3)

    report = bubbleviz.idle(file)

    assert list_times(get_only_rank(report)) == {
        "allocation": 4 + 5 + 6,
        "no host trace": 55,
        "launch": 20,
    }
    assert "calls shorter than 4,000 ns" in report.limitations[-2].reason


def test_python_frames_describe_their_thread_if_nothing_else_does(tmp_path: Path) -> None:
    kernels, calls = [k(0, 10, 1), k(100, 110, 2)], [c(-9, 0, 1, tid=2), c(80, 81, 2, tid=2)]
    frames = [
        r(20, 60, "train.py(3): step", 2),
        r(30, 70, "b.py(1): f", 2),
        r(0, 200, "c.py(9)", 3),
    ]
    for other_ranges, expected in (
        ([], {"Python": 10, "Python: f (b.py)": 40}),
        (
            [r(40, 50, "aten::mm", 2)],
            {"Python": 10, "Python: f (b.py)": 30, "operators": 10},
        ),
    ):
        rank = get_only_rank(
            bubbleviz.idle(write_profile(tmp_path, kernels, calls, [*frames, *other_ranges]))
        )
        assert list_times(rank) == {**expected, "no host trace": 20, "launch": 20}


def test_the_time_of_python_is_divided_among_functions(tmp_path: Path, cli: CommandLine) -> None:
    kernels, calls, frames = [], [], [r(0, 4_100, "core.py(600): loop")]
    for n in range(4):
        start = 1_000 * n
        frames += [
            r(start + 1, start + 990, "vllm/core.py(200): step"),
            r(start + 20, start + 400, "vllm/scheduler.py(100): schedule"),
            r(start + 30, start + 200, "vllm/cache.py(50): allocate"),
            r(start + 410, start + 900, "vllm/runner.py(300): prepare"),
            r(start + 420, start + 600, "<built-in method fill_ of Tensor object at 0x7f2e>"),
        ]
        calls.append(c(start + 950, start + 960, n))
        kernels.append(k(start + 960, start + 990, n))
    run = write_profile(tmp_path, kernels, calls, frames)

    rank = get_only_rank(bubbleviz.idle(run))

    # Three of the four steps lie between the first and the last kernel.
    assert list_times(rank) == {
        "Python: prepare (runner.py)": 3 * 490,
        "Python: schedule (scheduler.py)": 3 * 380,
        "Python: step (core.py)": 3 * (19 + 10 + 50),
        # The loop itself takes less than 2 % of the time.
        "Python": 3 * 11,
        "launch": 3 * 10,
    }
    printed = " ".join(cli.printed("idle", str(run)).split())
    assert '"Python: prepare (runner.py)": move work out of the step' in printed
    details = cli.printed("idle", "-v", str(run))
    assert details.count("Python: Python ran outside any operator") == 1


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        ("torch/nn/modules/module.py(1501): _call_impl", "_call_impl (module.py)"),
        ("$util.py:175 <genexpr>", "<genexpr> (util.py)"),
        ("$builtins isinstance", "isinstance (builtins)"),
        (
            "<built-in method to of Tensor object at 0x7f2e8b>",
            "<built-in method to of Tensor object>",
        ),
        ("nn.Module: Linear_0", "nn.Module: Linear_0"),
    ],
)
def test_functions_are_named_without_line_numbers(frame: str, name: str) -> None:
    assert name_function(frame) == name


def test_time_held_up_by_the_profiler_is_attributed_to_it(tmp_path: Path) -> None:
    calls = [(-9, 0, 1, "cudaLaunchKernel", 1), (80, 81, 1, "cudaLaunchKernel", 2)]
    world = World([(0, 10, 0, 1), (100, 110, 0, 2)], calls, [(20, 60, 1, "DataLoader")], [(50, 70)])
    rank = get_only_rank(bubbleviz.idle(write_world(tmp_path, world)))

    assert list_times(rank) == {
        "data loading": 30,
        "profiler": 20,
        "no host trace": 20,
        "launch": 20,
    }


def test_operating_system_calls_describe_gaps_without_ranges(tmp_path: Path) -> None:
    file = write_profile(
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
            [(a * US, b * US, pack_global_id(1, 1), name) for a, b, name in rows],
        )
        database.commit()

    # Calls that are shorter than the shortest gap, such as the last one, are ignored.
    assert list_times(get_only_rank(bubbleviz.idle(file))) == {
        "no host trace": 10 + 10 + 40 + 5 + 10,
        "file access": 10,
        "allocation": 20,
        "data loading": 50,
        "waiting": 10,
        "system calls": 5,
        "launch": 20,
    }


def test_if_thread_numbers_are_made_up_the_main_thread_is_known_by_its_name(
    tmp_path: Path,
) -> None:
    kernels, calls = [k(0, 10, 1, pid=8), k(100, 110, 2, pid=8)], [c(80, 85, 2, tid=9, pid=8)]
    ranges = [R(20 * US, 60 * US, "DataLoader", 77, 8), R(30 * US, 80 * US, "mine", 8, 8)]

    def told(*threads: T) -> dict[str, float]:
        return list_times(
            get_only_rank(
                bubbleviz.idle(write_profile(tmp_path, kernels, calls, ranges, threads=threads))
            )
        )

    assert told(T(77, "python", 8)) == {"no host trace": 30, "data loading": 40, "launch": 20}
    # A thread inherits the name of the first thread, or of the main thread if that is known.
    inherited = told(T(77, "python3.11", 8), T(8, "python3.11", 8))
    assert inherited == {"no host trace": 20, "host: mine": 50, "launch": 20}
    assert told(T(77, "pythonic", 8)) == inherited


def test_gaps_on_a_tpu_belong_to_the_device_inside_modules_and_to_the_host_outside(
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
    file.write_bytes(make_space([device, host]))

    rank = get_only_rank(bubbleviz.idle(file))

    # Three gaps are inside a module: 40 to 50, 90 to 100 and 290 to 300.
    # The gaps from 100 to 120 and from 280 to 290 are not.
    assert list_times(rank) == {
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
    check_sums(rank)


PAGES = ((100, 10, 11), (150, 10, 12), (162, 3, 13), (200, 10, 1))


def test_work_without_calls_is_attributed_to_no_host(tmp_path: Path) -> None:
    kernels = [k(0, 10, 1), k(100, 110, 2)]
    without = ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "ThreadNames")
    report = bubbleviz.idle(write_profile(tmp_path, kernels, without=without))

    assert list_times(get_only_rank(report)) == {"launch not recorded": 90}
    assert "launches after gaps" in list_limitation_subjects(report)
    assert advice(report)[0].endswith("ProfilerActivity.CPU and CUDA in PyTorch)")

    # Page migrations of managed memory are not launched by any call.
    pages = [M(a * US, (a + n) * US, 0, kind=kind) for a, n, kind in PAGES]
    report = bubbleviz.idle(write_profile(tmp_path, [k(0, 10, 1)], [c(-9, -8, 1)], copies=pages))
    assert list_times(get_only_rank(report)) == {
        "page migration": 130,
        "launch not recorded": 35,
        "kernel-to-kernel gaps": 2,
    }
    assert (get_only_rank(report).exposed_copy_ns, get_only_rank(report).compute_ns) == (
        33_000,
        10_000,
    )
    assert "cudaMemPrefetchAsync" in advice(report)[0]
    # Page migrations are not kernels.
    classes = {total.name: total.work_class for total in report.work()}
    assert classes == {
        "gemm": "matrix products",
        "page migration": "copies",
        "copy or memset": "copies",
    }


def test_documents_contain_only_the_start_of_a_name_of_megabytes(
    tmp_path: Path, cli: CommandLine
) -> None:
    kernels = [k(10 * n, 10 * n + 1, n, f"gemm_{n}{'x' * (1 << 20)}") for n in range(8)]
    calls = [c(10 * n - 5, 10 * n - 4, n) for n in range(8)]
    file, saved = write_profile(tmp_path, kernels, calls), tmp_path / "idle.json"

    cli.printed("idle", file, "-o", saved)

    assert saved.stat().st_size < 1 << 20
    names = [kernel["name"] for kernel in json.loads(saved.read_text())["kernels"]]
    assert {len(name) for name in names} == {PRINTED_CHARACTERS}
    assert {name[:6] for name in names} == {f"gemm_{n}" for n in range(8)}


def test_each_file_is_a_rank(tmp_path: Path) -> None:
    first_file, second_file = (
        write_profile(
            tmp_path,
            [k(0, 10, 1), k(at, at + 9, 2)],
            [c(-9, 0, 1), c(at - 10, at - 9, 2)],
            name=f"{name}.sqlite",
        )
        for name, at in (("a", 50), ("b", 90))
    )
    report = bubbleviz.idle([first_file, second_file])

    assert [rank.label for rank in report.ranks] == ["a.sqlite pid 1 GPU 0", "b.sqlite pid 1 GPU 0"]
    assert {part.activity: part.idle_ns // US for part in report.activities} == {
        "no host trace": 30 + 70,
        "launch": 10 + 10,
    }
    assert report.activities[0].rank == 1
    for twin in (first_file, copy(first_file, tmp_path / "c.sqlite")):
        with pytest.raises(MismatchError, match="are the same profile"):
            bubbleviz.idle([first_file, second_file, twin])


SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
IDLE = "1 device, idle for 0.00 % of the time"


@pytest.mark.parametrize(
    ("kernels", "copy", "title", "advised"),
    [
        (
            [k(0, 100, 1), k(100, 300, 2, "ncclKernel")],
            (300, 1_000),
            IDLE,
            [
                "70.00 % of the time is spent on exposed copies, while",
                "20.00 % of the time is exposed communication, some of which",
            ],
        ),
        (
            [k(0, 991, 1)],
            (0, 1_000),
            IDLE,
            ["devices are idle for less than 1 % of the time: there is little to gain"],
        ),
        # The time of waiting receives is the bubble of a pipeline.
        (
            [k(0, 500, 1), k(500, 860, 2, SENDRECV), k(860, 1_000, 3, NCCL)],
            (0, 1),
            IDLE,
            [
                "36.00 % of the time, only send and receive kernels run, waiting",
                "14.00 % of the time is exposed communication, some of which may",
            ],
        ),
        (
            [k(0, 950, 1)],
            (950, 1_000),
            IDLE,
            ["5.00 % of the time is spent on exposed copies, while"],
        ),
        (
            [k(0, 100, 1)],
            (500, 1_000),
            "1 device, idle for 40.00 % of the time",
            [
                "50.00 % of the time is spent on exposed copies,",
                "100.00 % of the idle time (40.00 % of the span)",
            ],
        ),
    ],
)
def test_there_is_advice_on_what_devices_do_besides_compute(
    tmp_path: Path, kernels: list[K], copy: tuple[int, int], title: str, advised: list[str]
) -> None:
    start, end = copy
    report = bubbleviz.idle(
        write_profile(tmp_path, kernels, copies=[M(start * US, end * US, None)])
    )

    assert make_title(report) == title
    for sentence, beginning in zip(advice(report), advised, strict=True):
        assert sentence.startswith(beginning)


def test_the_first_screen_divides_the_time_into_parts_of_exactly_100_percent(
    tmp_path: Path, cli: CommandLine
) -> None:
    # Rounded on their own, the parts would add up to 99.99 %.
    run = write_profile(
        tmp_path,
        [k(0, 100, 1), k(100, 200, 2, NCCL), k(299, 300, 3, NCCL)],
        [c(0, 5, 1), c(5, 10, 2), c(10, 15, 3)],
    )

    printed = cli.printed("idle", str(run))

    division = "compute 33.33 + exposed comm. 33.67 + exposed copies 0.00 + idle 33.00 = 100 %"
    assert division in printed
    assert "host GPU 0, 0.300 ms" in printed
    assert "queued" not in printed


def plant_kernels(tmp_path: Path, count: int) -> Path:
    """Return a profile of kernels that differ only in their template arguments."""
    kernels = [
        k(
            100 * n,
            100 * n + 99 - n,
            n,
            f"void at::native::elementwise_kernel<128, at::native::Functor_{n}<float> >(int)",
        )
        for n in range(count)
    ]
    return write_profile(tmp_path, kernels, [c(100 * n, 100 * n + 1, n) for n in range(count)])


@pytest.mark.parametrize(
    ("lines", "shown"),
    [("24", "6 of 30"), ("40", "22 of 30"), ("60", "25 of 30"), ("", "10 of 30")],
)
def test_the_first_screen_lists_as_many_kernels_as_fit(
    lines: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    if lines:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("LINES", lines)

    printed = cli.printed("idle", str(plant_kernels(tmp_path, 30)))

    assert f"Longest kernels ({shown}; -v)" in printed
    names = re.findall(r"at::\S*Functor_\d+>", printed)
    assert len(names) == len(set(names)) == int(shown.split(maxsplit=1)[0])
    assert not lines or len(printed.splitlines()) < int(lines)


def test_a_pipe_of_known_width_lists_ten_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("LINES", raising=False)

    printed = cli.printed("idle", str(plant_kernels(tmp_path, 30)))

    assert "Longest kernels (10 of 30; -v)" in printed


def test_files_define_the_columns_of_devices(tmp_path: Path, cli: CommandLine) -> None:
    run = write_profile(
        tmp_path,
        [k(0, 100, 1), k(50, 200, 2, NCCL, stream=8), k(299, 300, 3)],
        [c(0, 5, 1), c(5, 10, 2), c(10, 15, 3)],
    )
    for suffix in ("md", "html"):
        cli.printed("idle", str(run), "-o", str(tmp_path / f"idle.{suffix}"))
        text = (tmp_path / f"idle.{suffix}").read_text()
        for term in ("duty cycle: busy / span", "queued: kernels and copies", "empty: share of"):
            assert term in text, (suffix, term)
    assert "also contains communication that compute hides" in text


def test_full_kernel_names_are_listed(tmp_path: Path, cli: CommandLine) -> None:
    printed = cli.printed("idle", "-v", str(plant_kernels(tmp_path, 3)))

    assert "at::native::elementwise_kernel<Functor_0>  element-wise" in printed
    full_name = "void at::native::elementwise_kernel<128, at::native::Functor_0<float> >(int)"
    assert full_name in " ".join(printed.partition("Full kernel names")[2].split())


def test_full_kernel_names_are_numbered_and_complete_on_narrow_terminals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    long_name = f"_ZN7cutlass{'9Implicit' * 20}E"
    path = write_profile(tmp_path, [k(0, 300, 1, long_name), k(400, 500, 2, "fan")], [])
    monkeypatch.setenv("COLUMNS", "50")

    printed = cli.printed("idle", "-v", str(path))
    table, _, names = printed.partition("Full kernel names, by number in the table\n")

    (row,) = (line for line in table.splitlines() if "_ZN7cut" in line)
    assert row.split()[0] == "1"
    assert "2  fan " in table
    assert names.splitlines()[0] == f"   1  {long_name}"
    assert "fan" not in names.partition("\n\n")[0]


@pytest.mark.parametrize(("counts", "is_named"), [((3, 3), True), ((3, 4), False), ((3,), False)])
def test_nccl_is_named_only_if_it_can_find_the_late_rank(
    counts: Sequence[int], is_named: bool, tmp_path: Path
) -> None:
    kernels, calls = [], []
    for device, count in enumerate(counts):
        for n in range(count):
            number = 100 * device + n
            kernels.append(k(100 * n, 100 * n + 90, number, NCCL, device=device))
            calls.append(c(100 * n, 100 * n + 1, number))

    sentences = advice(bubbleviz.idle(write_profile(tmp_path, kernels, calls)))

    assert "exposed communication" in sentences[0]
    assert ("run bubbleviz nccl" in sentences[0]) is is_named


def test_the_printed_report_equals_the_golden_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gaps", "-v", str(plant_idle(tmp_path))]) == 0

    golden = (GOLDEN / "idle.txt").read_text(encoding="utf-8")
    assert capsys.readouterr() == (golden, "")


def test_json_is_stable_and_adds_up(tmp_path: Path, cli: CommandLine) -> None:
    file = plant_idle(tmp_path)

    document = cli.json("gaps", str(file), "--json", "-", "--top", "1")
    assert document["schema"] == "bubbleviz.idle/1"
    assert set(document) == {
        "schema",
        "version",
        "definitions",
        "shortest_ns",
        "span_ns",
        "idle_ns",
        "summary",
        "what_to_do_first",
        "kernels",
        "copies",
        "headline",
        "iterations",
        "restrictions",
        "activities",
        "meanings",
        "ranks",
        "limitations",
        "window",
        "proved_idle_ns",
        "profiling_cost",
        "gpu_names",
        "lateness",
    }
    (rank,) = document["ranks"]
    assert rank["idle_ns"] == sum(activity["idle_ns"] for activity in rank["activities"])
    assert rank["duty_cycle"] == 0.75
    (gap,) = rank["longest_gaps"]
    assert (
        sum(chunk["end_ns"] - chunk["start_ns"] for chunk in gap["chunks"])
        == gap["idle_ns"]
        == 50_000
    )
    assert all(a["end_ns"] == b["start_ns"] for a, b in pairwise(gap["chunks"]))
    assert gap["activity"] == "data loading"
    assert [step["name"] for step in rank["steps"]] == ["step 1", "step 2"]
    assert cli.json("gaps", str(file), "--json", "-", "--top", "1") == document

    # The CSV output has one row per gap.
    (row,) = csv.DictReader(io.StringIO(cli.printed("gaps", str(file), "--csv", "-")))
    assert tuple(row) == COLUMNS
    assert (row["step"], row["idle_ns"], row["activity"]) == ("step 1", "50000", "data loading")
    chunks = json.loads(row["chunks"])
    assert chunks == {"no host trace": 10_000, "data loading": 35_000, "launch": 5_000}


def test_the_csv_sums_short_gaps(tmp_path: Path, cli: CommandLine) -> None:
    # Most gaps take 2 us, and one takes 40 us.
    # The last short gap contains profiler overhead.
    starts = (0, 12, 24, 74, 86, 98)
    kernels = [k(start, start + 10, number) for number, start in enumerate(starts)]
    calls = [c(start - 9, start - 8, number) for number, start in enumerate(starts)]
    steps = [r(-20, 50, "step 1"), r(50, 120, "step 2")]
    file = write_profile(tmp_path, kernels, calls, steps)
    add_overheads(file, [(96, 97)])

    rows = list(csv.DictReader(io.StringIO(cli.printed("idle", file, "--csv", "-"))))

    assert [(row["step"], row["idle_ns"], row["start_ns"] != "") for row in rows] == [
        ("step 1", "40000", True),
        ("step 2", "2000", True),
        ("step 1", "4000", False),
        ("step 2", "2000", False),
    ]
    chunks = [json.loads(row["chunks"]) for row in rows]
    assert chunks[1:] == [
        {"profiler": 1000, "kernel-to-kernel gaps": 1000},
        {"kernel-to-kernel gaps": 4000},
        {"kernel-to-kernel gaps": 2000},
    ]
    rank = get_only_rank(bubbleviz.idle(file))
    check_sums(rank)
    (short,) = (
        activity for activity in rank.activities if activity.activity == "kernel-to-kernel gaps"
    )
    assert (short.idle_ns, short.gaps, short.longest_ns) == (7000, 4, 2000)


HOSTILE = "=1+1\x00\x1b[31m<script>alert(1)</script>\n" + "x" * 10_000


def test_hostile_names_are_inert(tmp_path: Path, cli: CommandLine) -> None:
    printed_name = HOSTILE.replace("\x00", "\x01")
    file = write_profile(
        tmp_path,
        [k(0, 10, 1, printed_name), k(100, 110, 2, printed_name)],
        [c(-9, 0, 1), c(90, 91, 2, name=printed_name)],
        [r(20, 80, printed_name), r(-10, 50, f"{printed_name}1"), r(50, 120, f"{printed_name}2")],
    )
    out = tmp_path / "gaps.csv"

    printed = cli.printed("gaps", str(file), "--csv", str(out))
    assert not set(printed) & {"\x01", "\x1b"}
    assert max(map(len, printed.splitlines())) < 400
    text = out.read_text(encoding="utf-8")
    assert "\x01" not in text
    assert "\x1b" not in text
    assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(text)) for cell in row)
    json.loads(as_json(bubbleviz.idle(file), 5))

    kernels = [k(at, at + 5, None, device=d) for d in range(40) for at in (0, 20 + d)]
    hostile_file = write_profile(
        tmp_path, kernels, [c(30, 35, 7)], hostname="<script>\x01" + "x" * 10_000
    )
    picture = draw_idle(bubbleviz.idle(hostile_file))
    ElementTree.fromstring(picture)
    assert "<script>" not in picture
    assert "and 8 more devices" in picture
    assert len(picture) < 300_000


def test_the_picture_is_complete_and_reproducible(tmp_path: Path) -> None:
    report = bubbleviz.idle(plant_idle(tmp_path))

    picture = draw_idle(report)

    root = ElementTree.fromstring(picture)
    words = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    words = [text.replace("\u00a0", " ") for text in words]
    assert words[0] == "1 device, idle for 25.00 % of the time"
    assert {"step 1", "step 2", "host GPU 0", "75.0 %", "data loading  17.5 %"} <= set(words)
    assert picture == draw_idle(bubbleviz.idle(tmp_path / "profile.sqlite"))
    (rank,) = report.ranks
    slices_ns = rank.slice_ns.sum(axis=0)
    assert (slices_ns.sum(), rank.slice_ns[:3].sum()) == (rank.span_ns, rank.busy_ns)
    assert slices_ns.max() - slices_ns.min() <= 1
    # A single device cannot be compared with another device.
    assert TITLE not in picture
    assert TITLE not in render_texts(report)


def test_each_kind_of_work_has_a_lane(tmp_path: Path) -> None:
    run = write_profile(
        tmp_path,
        # The interruption of 2 us is too short to be seen, and the communication is partly hidden.
        [k(0, 40, 1), k(42, 50, 2, "relu"), k(40, 70, 3, NCCL, stream=8), k(90, 100, 4)],
        [c(n, n + 1, n) for n in range(1, 5)],
        copies=[M(60 * US, 80 * US, None)],
    )

    rank = get_only_rank(bubbleviz.idle(run))

    lanes = [
        [
            (start // US, end // US, rank.works[work])
            for start, end, work in zip(
                lane.start_ns.tolist(), lane.end_ns.tolist(), lane.work.tolist(), strict=True
            )
        ]
        for lane in rank.lanes
    ]
    assert lanes == [
        [(0, 50, "gemm"), (90, 100, "gemm")],
        [(40, 70, NCCL)],
        [(60, 80, "copy or memset")],
    ]
    assert (rank.lane_slice_ns.sum(axis=1) // US).tolist() == [58, 30, 20]
    picture = draw_idle(bubbleviz.idle(run))
    for name in ("compute", "communication", "copies", "idle"):
        assert f">{name}</text>" in picture


@pytest.mark.parametrize("suffix", ["md", "txt", "svg", "html", "json", "csv", "pdf", "png"])
def test_every_output_can_be_written_by_the_command_and_in_python(
    suffix: str, tmp_path: Path, cli: CommandLine
) -> None:
    if suffix in {"pdf", "png"}:
        pytest.importorskip("typst")
    run = plant_idle(tmp_path)
    by_command, by_method = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"

    cli.printed("idle", str(run), "-o", str(by_command))
    bubbleviz.idle(run).save(by_method)

    assert by_command.read_bytes() == by_method.read_bytes()
    if suffix in {"md", "txt"}:
        text = by_command.read_text(encoding="utf-8")
        assert "compute 75.00 + exposed comm. 0.00 + exposed copies 0.00 + idle 25.00" in text
        assert "data loading" in text


@pytest.mark.parametrize("ranges", [(), (R(0, 5, "work"),), (R(0, 5, "iter_0_0"),)])
@pytest.mark.parametrize("end_ns", [1_000, 1_000_000])
def test_a_single_kernel_gives_no_duty_cycle(
    end_ns: int, ranges: tuple[R, ...], tmp_path: Path, cli: CommandLine
) -> None:
    run = write_profile(tmp_path, [K(10, 10 + end_ns, 1)], [C(1, 2, 1)], ranges)
    json_file = tmp_path / "idle.json"
    text = " ".join(cli.printed("idle", str(run), "--json", str(json_file)).split())
    document = json.loads(json_file.read_text(encoding="utf-8"))
    assert "1 device with a single kernel or copy" in text
    assert "100.00" not in text
    assert "profile more of the run" in text
    assert document["ranks"][0]["duty_cycle"] is None
    assert document["span_ns"] == 0
    assert "duty cycle" in {note["what"] for note in document["limitations"]}
    report = bubbleviz.idle(run)
    assert isinstance(report, bubbleviz.IdleReport)
    assert "1 device with a single kernel or copy" in report._repr_html_()
    # If there is another device, this device is left out of all sums.
    kernels = [K(10, 20, 1), K(50, 60, 2), K(10, 900, 3, device=1)]
    calls = [C(1, 2, 1), C(3, 4, 2), C(5, 6, 3)]
    assert "2 devices, idle for 60.00 % of the time" in cli.printed(
        "idle", str(write_profile(tmp_path, kernels, calls, []))
    )


# Tests with several devices.


TITLE = "Devices side by side"


def device(tmp_path: Path, name: str, idle_us: int, activity: str = "DataLoader") -> Path:
    """Return a profile of 1 ms: compute, idle time inside a host range, and compute."""
    return write_profile(
        tmp_path,
        [k(0, 1000 - idle_us - 10, 1), k(990, 1000, 2)],
        [c(0, 1, 1), c(990, 991, 2)],
        [r(500 - idle_us // 2, 990, activity)],
        name=f"{name}.sqlite",
        hostname=name,
    )


def render_texts(measurement: IdleMeasurement, top: int = 12) -> str:
    return render_plain_text(sections(measurement, top))


def test_a_kernel_whose_name_has_two_ids_is_one_kernel(tmp_path: Path) -> None:
    files = [device(tmp_path, name, us) for name, us in (("a", 200), ("b", 500))]
    expected = bubbleviz.idle([str(file) for file in files])
    duplicate_names = (
        "INSERT INTO StringIds SELECT 1000, value FROM StringIds WHERE value = 'gemm'",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 1000 WHERE start > 0",
    )
    edit_database(files[1], *duplicate_names)
    report = bubbleviz.idle([str(file) for file in files])

    assert report.scores() == expected.scores() == (0.625, 1.0)
    assert report.work() == expected.work()


def test_shares_add_up_and_the_idlest_device_is_first(tmp_path: Path) -> None:
    files = [device(tmp_path, name, us) for name, us in (("a", 200), ("b", 500), ("c", 200))]
    report = bubbleviz.idle([str(file) for file in files])

    _, names, shares = report.device_shares(5)
    assert names[: len(BUSY)] == BUSY
    assert np.allclose(shares.sum(axis=1), 1)
    assert shares[:, len(BUSY) :].sum(axis=1).tolist() == [0.2, 0.5, 0.2]
    # The same two kernels take 800, 500 and 800 us on the three devices.
    assert report.scores() == (0.625, 1.0, 0.625)
    assert report.device_shares(0)[1] == (*BUSY, REST)
    bars = draw_idle(report).partition(TITLE)[2]
    assert all(label in bars for label in (">a ", ">b ", "20.0\u00a0%", "50.0\u00a0%"))
    lines = render_texts(report).partition(TITLE)[2].splitlines()
    # Devices with equal idle time keep their order.
    assert [line[0] for line in lines[3:6]] == ["b", "a", "c"]
    assert lines[6].startswith("idle time of 3 devices: 20.00 % (c ")
    assert "median 20.00 %" in lines[6]


# Tests of kernels and the launch queue, comparisons, checks and pages of idle-time reports.


def test_kernels_and_the_launch_queue_are_reported(tmp_path: Path) -> None:
    # Two gemms are launched at 0 and 10 us and begin at 100 and 300 us.
    # The third kernel begins when it is launched.
    kernels = [k(100, 200, 0), k(300, 400, 1), k(400, 500, 2, "ncclDevKernel_AllReduce")]
    calls = [c(0, 5, 0), c(10, 15, 1), c(400, 401, 2)]
    report = bubbleviz.idle(write_profile(tmp_path, kernels, calls))

    rank = get_only_rank(report)
    assert report.work() == [
        WorkTotal("gemm", "matrix products", 2, 200 * US),
        WorkTotal("ncclDevKernel_AllReduce", "communication", 1, 100 * US),
    ]
    assert rank.launch_queue == LaunchQueue(200 / 400, 1, 200 * US)


def test_work_without_a_recorded_launch_is_not_queued(tmp_path: Path) -> None:
    # The second gemm waits for 200 us.
    # The launch of the third kernel is not recorded.
    kernels = [k(0, 100, 0), k(300, 400, 1), k(400, 500, 2)]
    calls = [c(0, 1, 0), c(100, 101, 1)]
    rank = get_only_rank(bubbleviz.idle(write_profile(tmp_path, kernels, calls)))
    assert rank.launch_queue == LaunchQueue(200 / 500, 1, 300 * US)

    # If only one launch of twelve is recorded, the queue is unknown.
    kernels = [k(100 * i, 100 * i + 50, i) for i in range(12)]
    report = bubbleviz.idle(write_profile(tmp_path, kernels, [c(0, 1, 0)]))
    rank = get_only_rank(report)
    assert rank.launch_queue is None
    (row,) = make_device_table(report, 1).rows
    assert (row["queued"], row["empty %"]) == ("-", "-")
    assert json.loads(as_json(report, 1))["ranks"][0]["launch_queue"] is None


@pytest.mark.parametrize(
    ("unrecorded", "is_known"),
    [
        (range(24), True),
        (range(76, 100), True),
        (range(0, 100, 2), True),
        (range(50), False),
        (range(50, 100), False),
    ],
)
def test_the_queue_is_unknown_if_no_launch_is_recorded(
    tmp_path: Path, unrecorded: range, is_known: bool
) -> None:
    kernels = [k(80 * i, 80 * i + 50, i) for i in range(100)]
    calls = [c(80 * i - 10, 80 * i - 5, i) for i in range(100) if i not in unrecorded]
    rank = get_only_rank(bubbleviz.idle(write_profile(tmp_path, kernels, calls)))
    assert (rank.launch_queue is not None) is is_known


def test_a_single_kernel_has_no_launch_queue_in_any_output(tmp_path: Path) -> None:
    report = bubbleviz.idle(write_profile(tmp_path, [k(100, 200, 0)], [c(0, 1, 0)]))

    (row,) = make_device_table(report, 1).rows
    assert (row["queued"], row["empty %"]) == ("-", "-")
    assert json.loads(as_json(report, 1))["ranks"][0]["launch_queue"] is None


def test_work_that_no_host_launched_is_not_queued(tmp_path: Path) -> None:
    report = bubbleviz.idle(xla_profiles.write_planes(tmp_path, xla_profiles.make_tpu()))
    assert all(rank.launch_queue is None for rank in report.ranks)


def test_page_migrations_are_never_queued(tmp_path: Path) -> None:
    # The correlation id of these kernels is 0, which is also the id of a call.
    kernels = [k(100, 200, 0), k(400, 500, 1)]
    calls = [c(50, 51, 0), c(300, 301, 1)]
    pages = [M(a * US, (a + 10) * US, 0, kind=kind) for a, kind in ((600, 11), (700, 12))]
    report = bubbleviz.idle(write_profile(tmp_path, kernels, calls, copies=pages))
    rank = get_only_rank(report)
    assert rank.launch_queue is not None
    assert (rank.launch_queue.mean, rank.launch_queue.most) == (100 / 610, 1)
    assert list_times(rank)["page migration"] == 190

    report = bubbleviz.idle(write_profile(tmp_path, copies=pages))
    assert get_only_rank(report).launch_queue is None


@pytest.mark.real_files
def test_a_trace_without_launches_has_an_unknown_queue() -> None:
    report = bubbleviz.idle(get_real_file("cases/queued.json"))
    assert get_only_rank(report).launch_queue is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void flash_fwd_kernel<cutlass::bfloat16_t>", "attention"),
        ("void cutlass::Kernel<cutlass_80_wmma>(Params)", "matrix products"),
        ("void at::native::vectorized_elementwise_kernel<4, CopyFunctor>", "element-wise"),
        ("cudnn::winograd_nonfused::fwd4x4", "convolutions"),
        ("void at::native::multi_tensor_apply_kernel<Adam>", "optimizer"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgs)", "communication"),
        ("mine", "other"),
    ],
)
def test_kernels_have_the_class_of_their_name(name: str, kind: str) -> None:
    assert classify_kernels([name], default_kinds()) == (kind,)


def test_idle_reports_can_be_compared_checked_and_shown_as_pages(
    tmp_path: Path, cli: CommandLine
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    first, other = plant_idle(tmp_path / "a"), plant_idle(tmp_path / "b", "mine")
    saved, page = tmp_path / "a.json", tmp_path / "a.html"
    cli.printed("idle", first, "-o", saved, "-o", page)

    compared = cli("compare", saved, other)[1]
    assert "ms per device and step" in compared
    assert "data loading" in compared
    assert cli("gate", other, "--baseline", saved)[0] == 0
    assert cli("gate", first, "--max-bubble", "1%")[0] == 3
    html = page.read_text()
    # A long name is truncated and comes after the numbers.
    _, kernels = html.split("Longest kernels")
    assert kernels.index(">mean us<") < kernels.index(">kernel<")
    assert "text-overflow:ellipsis" in html
    assert 'name="color-scheme" content="light dark"' in html
    for command in ("plan", "view"):
        assert f"run bubbleviz view {first}\n" in cli.refused(command, saved, code=1)
    moved_file = first.rename(tmp_path / "moved")
    assert "the profiles, which are no longer" in cli.refused("view", saved, code=1)
    moved_file.rename(first)
    report = tmp_path / "report.json"
    cli.printed("analyze", FIXTURES / "1f1b", "-o", report)
    assert "compare reports of the same kind" in cli.refused("compare", saved, report, code=2)


@pytest.mark.parametrize("columns", [60, 80])
def test_narrow_terminals_drop_columns_before_they_shorten_kernel_names(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "60")

    lines = cli.printed("idle", str(plant_kernels(tmp_path, 30))).splitlines()

    start = next(index for index, line in enumerate(lines) if line.startswith("kernel "))
    headers, *rows = lines[start], *lines[start + 2 : start + 12]
    assert all(len(row[: headers.index(" class")].rstrip()) >= 28 for row in rows)
    assert ("mean us" in headers) == (columns == 80)
    assert all(len(line) <= columns for line in lines)
