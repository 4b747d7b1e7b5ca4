"""Collectives: their kinds, the interval of each rank, and the delay of their launches."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl.outputs import format_operations_csv
from bubbleviz.conventions.kinds import classify_collective, default_kinds
from bubbleviz.interpret.record import ReadOptions, record
from bubbleviz.interpret.recording import Recordings
from bubbleviz.model.collectives import CollectiveIntervals, Group
from bubbleviz.render.text import report as text
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.exact import measure_union, subtract, unite
from tests.support.nccl_payloads import add_payloads
from tests.support.needs import get_real_file
from tests.support.nsys_exports import C, K, R, write_profile

# Tests of the collectives of ranks, and their records in profiles.


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"

#: A kernel as (name, launch, start, end).
Work = tuple[str, int, int, int]


def write_recording(folder: Path, *work: Work, ranges: tuple[R, ...] = ()) -> Recordings:
    """Return a rank with F, B and Optimizer that also runs the given communication kernels."""
    all_work = (("gemm", 10, 100, 200), ("gemm", 30, 300, 400), ("adam", 50, 700, 720), *work)
    path = write_profile(
        folder,
        [K(start, end, n, name) for n, (name, _, start, end) in enumerate(all_work)],
        [C(launch, launch + 1, n) for n, (_, launch, _, _) in enumerate(all_work)],
        [R(0, 20, "F0.0.0"), R(25, 40, "B0.0.0"), R(45, 60, "Optimizer"), *ranges],
    )
    return record(str(path), ReadOptions())[0]


def summarize(table: CollectiveIntervals) -> list[tuple[str, int, int, int, int]]:
    """Return the (kind, start, end, iteration, order) of each collective."""
    columns = (table.kind, table.start_ns, table.end_ns, table.iteration, table.order)
    return [
        (table.kinds[kind], *more)
        for kind, *more in zip(*(column.tolist() for column in columns), strict=True)
    ]


def test_a_rank_without_collectives_has_none(tmp_path: Path) -> None:
    assert len(write_recording(tmp_path).collectives) == 0
    assert len(write_recording(tmp_path, (SENDRECV, 12, 500, 600)).collectives) == 0


def test_collectives_after_the_last_backward_are_kept_in_order(tmp_path: Path) -> None:
    work = [(REDUCE, 43, 500, 650), (SCATTER, 42, 410, 500), (REDUCE, 48, 500, 660)]
    table = write_recording(tmp_path, *work).collectives

    assert summarize(table) == [
        ("ReduceScatter", 410, 500, 0, 0),
        ("AllReduce", 500, 650, 0, 0),
        ("AllReduce", 500, 660, 0, 1),
    ]
    assert table.operation.tolist() == [-1, -1, 2]
    assert set(table.group.tolist()) == set(table.meeting.tolist()) == {-1}


def test_collectives_before_the_first_operation_have_no_iteration(tmp_path: Path) -> None:
    table = write_recording(tmp_path, (REDUCE, -5, 20, 90)).collectives

    assert table.iteration.tolist() == [-1]


def test_tensor_parallel_collectives_inside_operations_are_left_out(tmp_path: Path) -> None:
    in_operations = [(REDUCE, 11, 110 + n, 111 + n) for n in range(65)]

    assert len(write_recording(tmp_path, *in_operations[:64]).collectives) == 64
    assert len(write_recording(tmp_path, *in_operations).collectives) == 0
    # A collective is kept if the rank idles under it.
    # Its order also counts the collectives that are left out.
    table = write_recording(tmp_path, *in_operations, (REDUCE, 12, 210, 290)).collectives
    assert summarize(table) == [("AllReduce", 210, 290, 0, 65)]


# Tests of communicators in nsys exports.


def add_communicators(folder: Path) -> Recordings:
    all_work = (
        ("gemm", 10, 1_000, 1_100),
        ("gemm", 30, 1_200, 1_300),
        ("adam", 90, 2_000, 2_100),
        (REDUCE, 45, 1_300, 1_500),
        (SCATTER, 65, 1_500, 1_600),
        (REDUCE, 82, 1_700, 1_800),
    )
    ranges = [
        R(0, 20, "F0.0.0"),
        R(25, 35, "B0.0.0"),
        R(85, 95, "Optimizer"),
        R(40, 50, "ncclAllReduce"),
        R(60, 70, "ncclReduceScatter"),
        R(2, 3, "ncclCommInitRank"),
        R(80, 83, "ncclAllReduce"),
    ]
    path = write_profile(
        folder,
        [K(start, end, n, name) for n, (name, _, start, end) in enumerate(all_work)],
        [C(launch, launch + 1, n) for n, (_, launch, _, _) in enumerate(all_work)],
        ranges,
    )
    add_payloads(
        path,
        [
            (2, "ncclCommInitRank", "init", (0xAB, 4, 1, 0)),
            (40, "ncclAllReduce", "reduce", (0xAB, 4096, 0)),
            (60, "ncclReduceScatter", "reduce", (0xCD, 4096, 0)),
            (80, "ncclAllReduce", "reduce", (0xAB, 4096, 0)),
        ],
    )
    return record(str(path), ReadOptions())[0]


def test_kernels_belong_to_the_communicator_of_their_range(tmp_path: Path) -> None:
    table = add_communicators(tmp_path).collectives

    assert [table.groups[group].name[-2:] for group in table.group.tolist()] == ["ab", "cd", "ab"]
    assert [table.groups[group].size for group in table.group.tolist()] == [4, 0, 4]
    assert table.order.tolist() == [0, 0, 1]


# Tests of process groups of PyTorch.


def make_event(cat: str, name: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, **more}


def make_work(
    number: int, launch: float, start: float, end: float, name: str, **args: Any
) -> list[Any]:
    named = {"correlation": number, "device": 0, "stream": 7, **args}
    index = {"pid": 9, "tid": 9}
    return [
        make_event("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, **index, args=named),
        make_event("kernel", name, start, end, pid=0, tid=7, args=named),
    ]


def trace(folder: Path, rank: int, *collectives: tuple[float, float, dict[str, Any]]) -> Path:
    """Write a rank with one F and one B, followed by collectives."""
    events = [
        _make_range("F0.0.0", 5, 45),
        _make_range("B0.0.0", 46, 75),
        *make_work(1, 10, 100, 200, "gemm"),
        *make_work(2, 50, 210, 300, "gemm"),
    ]
    for number, (start, end, args) in enumerate(collectives):
        events += make_work(10 + number, 80 + 2 * number, start, end, SCATTER, **args)
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
    }
    path = folder / f"rank{rank}.pt.trace.json"
    path.write_text(json.dumps(document))
    return path


def make_record(sequence: int, operator: int) -> dict[str, Any]:
    """Return the arguments that PyTorch records for the kernel of a collective."""
    return {
        "Collective name": "_reduce_scatter_base",
        "Group size": 2,
        "Process Group Name": "7",
        "Process Group Ranks": "[0, 1]",
        "Seq": sequence,
        "External id": operator,
    }


def test_kernels_of_one_operator_form_one_collective(tmp_path: Path) -> None:
    path = trace(
        tmp_path,
        0,
        (300, 350, make_record(4, 1)),
        (360, 400, make_record(4, 1)),
        (400, 450, make_record(5, 2)),
    )
    table = record(str(path), ReadOptions())[0].collectives

    base = int(table.start_ns[0])

    assert (table.start_ns - base).tolist() == [0, 100_000]
    assert (table.end_ns - base).tolist() == [100_000, 150_000]
    assert table.sequence.tolist() == [4, 5]
    assert [table.groups[group] for group in table.group.tolist()] == [
        Group("7", "", (0, 1), 2)
    ] * 2


# Tests of the kinds of collectives.


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        (REDUCE, "AllReduce"),
        (SCATTER, "ReduceScatter"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half", "ReduceScatter"),
        ("ncclReduceScatterRingLLKernel_sum_f16", "ReduceScatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "Reduce"),
        ("ncclReduceRingLLKernel_sum_f32", "Reduce"),
        ("void ncclAllGatherRingLLKernel_copy_i8", "AllGather"),
        ("ncclDevKernel_Broadcast_RING_LL", "Broadcast"),
        ("nccl:AlltoAll", "AlltoAll"),
        ("nccl:Gather", "Gather"),
        ("all-reduce.3", "AllReduce"),
        ("reduce-scatter.1", "ReduceScatter"),
        ("psum_scatter.2", "ReduceScatter"),
        ("all-reduce-start.1", ""),
        ("all-gather-done", ""),
        ("c10d::allreduce_", ""),
        ("gloo:all_reduce", "AllReduce"),
        ("ncclDevKernel_Generic", ""),
        ("mscclKernel_Sum_half_LL", ""),
    ],
)
def test_kernels_are_named_after_what_they_do(kernel: str, kind: str) -> None:
    kinds = default_kinds().collective_kinds
    number = classify_collective(kernel, kinds)

    assert ("" if number < 0 else kinds[number][0]) == kind


# Some names of NCCL kernels do not determine the operation, but records and ranges do.


Events = list[dict[str, Any]]


def _make_work_event(
    number: int, start: float, end: float, name: str = "gemm", **args: Any
) -> Events:
    """Return a kernel and its launch, with times in microseconds."""
    return make_work(number, number * 10, start, end, name, **{"External id": 100 + number, **args})


def _make_range(name: str, start: float, end: float) -> dict[str, Any]:
    return make_event("user_annotation", name, start, end, pid=9, tid=9)


def _make_step(communication: Events) -> Events:
    """Return an iteration of F and BW. Communication (number 2) is launched inside F."""
    return [
        _make_range("F0.0.0", 5, 45),
        _make_range("B0.0.0", 45, 75),
        *_make_work_event(1, 100, 200),
        *communication,
        *_make_work_event(3, 600, 700),
        *_make_work_event(5, 700, 900),
    ]


def _analyze(folder: Path, events: Events) -> Report:
    file = folder / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return bubbleviz.analyze(file)


def _measure_exposed(report: Report) -> int:
    return int(report.explanation.communication.exposed_ns[0, 0])


def test_a_range_around_the_launch_identifies_an_all_to_all(tmp_path: Path) -> None:
    events = _make_range("nccl:all_to_all", 19, 23)
    plain = _analyze(tmp_path, _make_step(_make_work_event(2, 300, 600, SENDRECV)))
    recorded_events = _analyze(
        tmp_path, _make_step([events, *_make_work_event(2, 300, 600, SENDRECV)])
    )

    # A spinning receive counts as bubble, but a collective inside an operation does not.
    assert plain.iteration(0).ranks[0].busy_ns["F"] == 300_000
    assert recorded_events.iteration(0).ranks[0].busy_ns["F"] == 600_000
    assert _measure_exposed(recorded_events) == 300_000
    # An unknown time is not printed as zero.
    assert "≥ 0.000" in text.render_text(plain, View())
    assert "dependency" not in text.render_text(recorded_events, View())


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        # The record of PyTorch takes precedence over the range.
        (
            "nccl:all_to_all",
            {"Collective name": "recv", "Process Group Ranks": "[0, 1]", "Group size": 2},
        ),
        # These ranges contain no collective.
        ("nccl:coalesced", {}),
        ("ncclGroupEnd", {}),
        ("nccl:recv 0<-1", {}),
    ],
)
def test_a_receive_stays_a_receive(name: str, recorded: dict[str, Any], tmp_path: Path) -> None:
    events = _make_range(name, 19, 23)
    report = _analyze(
        tmp_path, _make_step([events, *_make_work_event(2, 300, 600, SENDRECV, **recorded)])
    )

    assert report.iteration(0).ranks[0].busy_ns["F"] == 300_000


@pytest.mark.parametrize("name", ["ncclAllToAll", "nccl:all_to_all"])
def test_nsys_ranges_also_identify_operations(tmp_path: Path, name: str) -> None:
    kernels = [K(100, 200, 1), K(300, 600, 2, name=SENDRECV), K(600, 700, 3), K(700, 900, 4)]
    calls = [C(10, 12, 1), C(20, 22, 2), C(30, 32, 3), C(50, 52, 4)]
    ranges = [R(5, 45, "F0.0.0"), R(19, 23, name), R(45, 75, "B0.0.0")]
    report = bubbleviz.analyze(write_profile(tmp_path, kernels, calls, ranges))

    assert report.iteration(0).ranks[0].busy_ns["F"] == 600
    assert _measure_exposed(report) == 300


def test_the_nccl_command_names_operations_by_their_ranges(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    inside = _make_range("nccl:_all_gather_base", 19, 23)
    events = _make_step(
        [inside, *_make_work_event(2, 300, 600, SENDRECV), *_make_work_event(4, 610, 640, SENDRECV)]
    )
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))

    report = measure_communication([str(file)])
    rows = csv.DictReader(io.StringIO(format_operations_csv(report)))

    assert sorted(row["name"] for row in rows) == ["AllGather", "SendRecv"]


@pytest.mark.real_files
@pytest.mark.parametrize("name", ["hta_nccl_data", "hta_sampled_rank-0"])
def test_exposed_equals_a_plain_count_of_real_kernels(tmp_path: Path, name: str) -> None:
    path = get_real_file(f"kineto/{name}.json.gz")
    convention = tmp_path / "mine.toml"
    patterns = [
        f"[[pattern]]\nglob = '## {word} ##'\nmatch = '^## {word} ##$'\nphase = \"{phase}\"\n"
        for word, phase in (("forward", "F"), ("backward", "BW"), ("optimizer", "Optimizer"))
    ]
    convention.write_text('name = "mine"\n\n' + "\n".join(patterns))
    report = bubbleviz.analyze(path, convention=convention)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op", "user_annotation")
    base_us = min(e["ts"] for e in events if e.get("cat") in kinds)
    spans = [
        (round((e["ts"] - base_us) * 1000), round((e["ts"] - base_us + e["dur"]) * 1000), e["name"])
        for e in kernels
    ]
    times = report.explanation.communication
    for iteration in report.iterations:
        rows = report.operations.iteration == iteration.index
        rows &= (report.operations.phase <= 3) & (report.operations.has_span == 1)
        low = int(report.operations.start_ns[rows].min())
        high = int(report.operations.end_ns[rows].max())
        in_operation = [(max(a, low), min(b, high), n) for a, b, n in spans if b > low and a < high]
        communication = unite([(a, b) for a, b, n in in_operation if n.startswith("nccl")])
        compute = unite([(a, b) for a, b, n in in_operation if not n.startswith("nccl")])
        expected_ns = measure_union(subtract(communication, compute))
        assert expected_ns > 0
        assert abs(int(times.exposed_ns[iteration.index, 0]) - expected_ns) <= 2_000
