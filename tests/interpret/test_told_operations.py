"""What kernels of NCCL carry out, told by records and ranges where their names do not tell."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl.documents import csv_of_operations
from bubbleviz.conventions.launching_calls import operation_of, operation_of_range
from bubbleviz.render.formats import text
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.nsys_exports import C, K, R, profile

SENDRECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
Events = list[dict[str, Any]]
DATA = os.environ.get("BUBBLEVIZ_DATA")


def _work(number: int, start: float, end: float, name: str = "gemm", **args: Any) -> Events:
    """Return a kernel and its launch, in microseconds."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9}
    work = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start}
    own = {"correlation": number, "device": 0, "stream": 7, "External id": 100 + number}
    return [
        {**call, "ts": number * 10, "dur": 2, "args": {"correlation": number}},
        {**work, "dur": end - start, "args": {**own, **args}},
    ]


def _range(name: str, start: float, end: float, kind: str = "user_annotation") -> dict[str, Any]:
    own = {"ph": "X", "cat": kind, "pid": 9, "tid": 9}
    return {**own, "name": name, "ts": start, "dur": end - start}


def _step(communication: Events) -> Events:
    """Return an iteration of F and BW, with communication (number 2) launched inside F."""
    return [
        _range("F0.0.0", 5, 45),
        _range("B0.0.0", 45, 75),
        *_work(1, 100, 200),
        *communication,
        *_work(3, 600, 700),
        *_work(5, 700, 900),
    ]


def _analysed(folder: Path, events: Events) -> Report:
    file = folder / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return bubbleviz.analyze(file)


def _exposed_ns(report: Report) -> int:
    return int(report.explanation.communication.exposed_ns[0, 0])


def test_a_range_around_the_launch_tells_an_all_to_all(tmp_path: Path) -> None:
    inside = _range("nccl:all_to_all", 19, 23)
    plain = _analysed(tmp_path, _step(_work(2, 300, 600, SENDRECV)))
    told = _analysed(tmp_path, _step([inside, *_work(2, 300, 600, SENDRECV)]))

    # A receive's spin is a bubble, and a collective inside an operation is none.
    assert plain.iteration(0).ranks[0].busy_ns["F"] == 300_000
    assert told.iteration(0).ranks[0].busy_ns["F"] == 600_000
    assert _exposed_ns(told) == 300_000
    assert "dependency" not in text.render(told, View())


def test_what_pytorch_records_goes_before_the_range(tmp_path: Path) -> None:
    inside = _range("nccl:all_to_all", 19, 23)
    record = {"Collective name": "recv", "Process Group Ranks": "[0, 1]", "Group size": 2}
    report = _analysed(tmp_path, _step([inside, *_work(2, 300, 600, SENDRECV, **record)]))

    assert report.iteration(0).ranks[0].busy_ns["F"] == 300_000


@pytest.mark.parametrize("name", ["nccl:coalesced", "ncclGroupEnd", "nccl:recv 0<-1"])
def test_ranges_that_tell_no_collective_leave_a_receive(tmp_path: Path, name: str) -> None:
    inside = _range(name, 19, 23)
    report = _analysed(tmp_path, _step([inside, *_work(2, 300, 600, SENDRECV)]))

    assert report.iteration(0).ranks[0].busy_ns["F"] == 300_000


@pytest.mark.parametrize("name", ["ncclAllToAll", "nccl:all_to_all"])
def test_ranges_of_nsys_tell_too(tmp_path: Path, name: str) -> None:
    kernels = [K(100, 200, 1), K(300, 600, 2, name=SENDRECV), K(600, 700, 3), K(700, 900, 4)]
    calls = [C(10, 12, 1), C(20, 22, 2), C(30, 32, 3), C(50, 52, 4)]
    ranges = [R(5, 45, "F0.0.0"), R(19, 23, name), R(45, 75, "B0.0.0")]
    report = bubbleviz.analyze(profile(tmp_path, kernels, calls, ranges))

    assert report.iteration(0).ranks[0].busy_ns["F"] == 600
    assert _exposed_ns(report) == 300


def test_unhidden_communication_of_which_nothing_is_known_is_no_zero(tmp_path: Path) -> None:
    report = _analysed(tmp_path, _step(_work(2, 300, 600, SENDRECV)))

    assert "≥ 0.000" in text.render(report, View())


def test_the_nccl_command_names_operations_by_their_ranges(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    inside = _range("nccl:_all_gather_base", 19, 23)
    events = _step([inside, *_work(2, 300, 600, SENDRECV), *_work(4, 610, 640, SENDRECV)])
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))

    report = measure_communication([str(file)])
    rows = csv.DictReader(io.StringIO(csv_of_operations(report)))

    assert sorted(row["name"] for row in rows) == ["AllGather", "SendRecv"]


def test_names_of_operations() -> None:
    assert operation_of_range("") == operation_of_range("nccl:coalesced") == ""
    assert operation_of_range("nccl:send 0->1") == "Send"
    assert operation_of_range("nccl:_reduce_scatter_base") == "ReduceScatter"
    assert operation_of_range("ncclAllToAllv") == operation_of("all_to_allv") == "AlltoAllv"
    assert operation_of_range("ncclSend") == ""


def _union_ns(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _alone_ns(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> int:
    """Return how long some run and others do not, by plain loops over the edges."""
    edges = sorted({time for span in (*some, *others) for time in span})
    alone = 0
    for low, high in pairwise(edges):
        within = any(start <= low and high <= end for start, end in some)
        if within and not any(start <= low and high <= end for start, end in others):
            alone += high - low
    return alone


@pytest.mark.skipif(DATA is None, reason="BUBBLEVIZ_DATA is not set")
@pytest.mark.parametrize("name", ["hta_nccl_data", "hta_sampled_rank-0"])
def test_exposed_equals_a_plain_count_of_real_kernels(tmp_path: Path, name: str) -> None:
    assert DATA is not None
    path = Path(DATA, "kineto", f"{name}.json.gz")
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
    told = report.explanation.communication
    for iteration in report.iterations:
        rows = report.operations.iteration == iteration.index
        rows &= (report.operations.phase <= 3) & (report.operations.has_span == 1)
        low = int(report.operations.start_ns[rows].min())
        high = int(report.operations.end_ns[rows].max())
        inside = [(max(a, low), min(b, high), n) for a, b, n in spans if b > low and a < high]
        communication = _union_ns([(a, b) for a, b, n in inside if n.startswith("nccl")])
        compute = _union_ns([(a, b) for a, b, n in inside if not n.startswith("nccl")])
        counted = _alone_ns(communication, compute)
        assert counted > 0
        assert abs(int(told.exposed_ns[iteration.index, 0]) - counted) <= 2_000
