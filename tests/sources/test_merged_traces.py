"""Traces of several ranks in one file: the ranks are separated, or the file is refused."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bubbleviz
from bubbleviz.errors import ProfileError
from bubbleviz.report.report import Report
from tests.planting import Planting, plant
from tests.support.needs import get_real_file
from tests.support.torch_traces import write_traces

Event = dict[str, Any]


def _make_launch(pid: int | str, correlation: int, start_us: float, **changes: Any) -> Event:
    args = {"correlation": correlation}
    times = {"pid": pid, "tid": 1, "ts": start_us, "dur": 2, "args": args}
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        **times,
        **changes,
    }


def _make_kernel(pid: int | str, correlation: int, start_us: float, device: int = 0) -> Event:
    args = {"device": device, "stream": 7, "correlation": correlation}
    times = {"pid": pid, "tid": 7, "ts": start_us, "dur": 50, "args": args}
    return {"ph": "X", "cat": "kernel", "name": "gemm", **times}


def _rank(host: int, device: int, starts_us: list[float], launch_us: float = 2) -> list[Event]:
    """Return the launches and kernels of one rank, with correlation ids from 1."""
    return [
        event
        for correlation, start_us in enumerate(starts_us, 1)
        for event in (
            _make_launch(host, correlation, start_us - launch_us),
            _make_kernel(device, correlation, start_us, device),
        )
    ]


def _label(rank: int) -> Callable[[int], int | str]:
    return lambda pid: f"[TP{rank % 2:02}-PP{rank // 2:02}] {pid}"


def _prefix(rank: int) -> Callable[[int], int | str]:
    return lambda pid: f"rank{rank}_{pid}"


def _offset(rank: int) -> Callable[[int], int | str]:
    return lambda pid: pid + 1_000_000 * rank


def _small_offset(rank: int) -> Callable[[int], int | str]:
    return lambda pid: pid + 100 * rank


def _rank_only(rank: int) -> Callable[[int], int | str]:
    return lambda _: rank


RENAMINGS = {
    "label": _label,
    "prefix": _prefix,
    "offset": _offset,
    "offset below process ids": _small_offset,
    "rank": _rank_only,
}


def _write(path: Path, events: list[Event], **facts: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **facts, "traceEvents": events}))
    return path


def _rename(events: list[Event], rename: Callable[[int], int | str]) -> list[Event]:
    return [{**event, "pid": rename(event["pid"])} for event in events]


def _measure_busy_us(path: Path) -> list[tuple[float, float]]:
    """Return the compute time and the span of each device, in microseconds."""
    report = bubbleviz.idle(path)
    return sorted((r.compute_ns / 1000, (r.end_ns - r.start_ns) / 1000) for r in report.ranks)


def _list_merged_counts(path: Path) -> list[int]:
    """Return the counts of the notes on merged recordings."""
    notes = bubbleviz.idle(path).limitations
    return [note.count for note in notes if note.what == "the hosts of merged recordings"]


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("renaming", RENAMINGS)
def test_each_rank_of_a_merged_trace_is_a_device(
    renaming: str, seed: int | None, tmp_path: Path
) -> None:
    ranks = [_rank(5083, 0, [10, 110, 400]), _rank(5084, 0, [60, 160])]
    rename = RENAMINGS[renaming]
    events = [
        event
        for rank, rank_events in enumerate(ranks)
        for event in _rename(rank_events, rename(rank))
    ]
    if seed is not None:
        random.Random(seed).shuffle(events)

    path = _write(tmp_path / "merged.json", events)

    assert _measure_busy_us(path) == [(100, 150), (150, 440)]
    assert _list_merged_counts(path) == [2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the traces of a planted run of two stages and two replicas, one per process."""
    folder = tmp_path_factory.mktemp("run")
    plant(Planting(stages=2, replicas=2, microbatches=4), folder)
    (export,) = folder.glob("*.sqlite")
    return write_traces(export, folder)


def _read_document(trace: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(trace.read_bytes()))
    return document


@pytest.mark.parametrize("renaming", ["label", "prefix", "offset", "rank"])
def test_a_merged_run_has_the_ratios_of_its_files(
    renaming: str, run: list[Path], tmp_path: Path
) -> None:
    documents = [_read_document(trace) for trace in run]
    rename = RENAMINGS[renaming]
    merged = [
        event
        for rank, document in enumerate(documents)
        for event in _rename(document["traceEvents"], rename(rank))
    ]
    facts = {key: value for key, value in documents[0].items() if key != "traceEvents"}
    path = _write(tmp_path / "merged.json", merged, **facts)

    separate = bubbleviz.analyze([str(trace) for trace in run])
    combined = bubbleviz.analyze(path)

    assert combined.summary == separate.summary
    assert combined.schedule == separate.schedule
    assert _list_operations(combined) == _list_operations(separate)
    kernels = [sum(p.linked_kernels for p in report.profiles) for report in (combined, separate)]
    assert kernels[0] == kernels[1] > 0


def _list_operations(report: Report) -> list[tuple[int, ...]]:
    """Return the operations of a report, in an order that does not depend on rank numbers."""
    names = ("stage", "iteration", "phase", "microbatch", "start_ns", "end_ns", "kernels")
    stages = np.array([-1 if rank.stage is None else rank.stage for rank in report.ranks])
    operations = report.operations
    columns = [getattr(operations, name).tolist() for name in names[1:]]
    return sorted(zip(stages[operations.rank].tolist(), *columns, strict=True))


def test_labels_give_stages(run: list[Path], tmp_path: Path) -> None:
    """SGLang's labels contain the stage and the replica, like its file names."""
    labels = ["TP01-PP01", "TP00-PP01", "TP01-PP00", "TP00-PP00"]
    merged = [
        {**event, "pid": f"[{label}] {event['pid']}"}
        for label, trace in zip(labels, run, strict=True)
        for event in _read_document(trace)["traceEvents"]
    ]

    ranks = bubbleviz.analyze(_write(tmp_path / "merged.json", merged)).ranks

    stage_of_label = {rank.label.split()[1]: rank.stage for rank in ranks}
    assert stage_of_label == {"TP00-PP00": 0, "TP01-PP00": 0, "TP00-PP01": 1, "TP01-PP01": 1}


def test_concatenated_ranks_are_distinguished_by_their_devices(tmp_path: Path) -> None:
    events = [*_rank(5083, 0, [10, 110, 400]), *_rank(5084, 1, [60, 160])]

    assert _measure_busy_us(_write(tmp_path / "merged.json", events)) == [(100, 150), (150, 440)]


def test_few_shared_ids_link_no_kernel_to_another_rank(tmp_path: Path) -> None:
    """Ranks number their launches differently, so most of their ids are unique in the file."""
    starts_us = [100.0 * number for number in range(1, 201)]
    later = [
        {**event, "args": {**event["args"], "correlation": event["args"]["correlation"] + 199}}
        for event in _rank(5084, 1, [start_us + 30 for start_us in starts_us])
    ]
    unlaunched = _make_kernel(1, 1000, 30_000, 1)
    path = _write(tmp_path / "a.json", [*_rank(5083, 0, starts_us), *later, unlaunched])

    ranks = bubbleviz.idle(path).ranks

    assert [(rank.pid, rank.device_id) for rank in ranks] == [(5083, 0), (5084, 1)]
    assert [rank.compute_ns for rank in ranks] == [200 * 50_000, 201 * 50_000]


def test_processes_may_share_a_device(tmp_path: Path) -> None:
    events = [
        _make_launch(5083, 1, 5),
        _make_kernel(0, 1, 10),
        _make_launch(5084, 2, 106),
        _make_kernel(0, 2, 110),
    ]
    path = _write(tmp_path / "a.json", events)

    assert [rank.pid for rank in bubbleviz.idle(path).ranks] == [5083, 5084]
    assert _list_merged_counts(path) == []


def test_a_rank_without_recorded_launches_keeps_its_device(tmp_path: Path) -> None:
    kernels = [e for e in _rank(5084, 0, [60, 160]) if e["cat"] == "kernel"]
    events = [*_rank(5083, 0, [10, 110, 400]), *_rename(kernels, _offset(1))]

    assert _measure_busy_us(_write(tmp_path / "merged.json", events)) == [(100, 150), (150, 440)]


REFUSED = {
    "two ranks on one device": [*_rank(5083, 0, [10, 110]), *_rank(5084, 0, [60, 160])],
    "two ranks on one device, which launch far ahead": [
        *_rank(5083, 0, [100, 210], launch_us=90),
        *_rank(5084, 0, [160, 260], launch_us=140),
    ],
    "two runs of one process": [*_rank(5083, 0, [10, 110]), *_rank(5083, 0, [60, 160])],
    "two runs on two threads": [
        *_rank(5083, 0, [10, 110]),
        *({**event, "tid": event["tid"] + 100} for event in _rank(5083, 0, [60, 160])),
    ],
    "two runs of a labeled process": [
        *_rename(_rank(5083, 0, [10, 110]), _label(0)),
        *_rename(_rank(5083, 0, [60, 160]), _label(0)),
        *_rename(_rank(5084, 0, [60, 160]), _label(1)),
    ],
    # Each process may have launched the kernels of either device.
    "offsets below process ids, and launches far ahead": [
        *_rank(5083, 0, [100, 210], launch_us=90),
        *_rename(_rank(5084, 0, [160, 260], launch_us=140), _small_offset(1)),
    ],
}


@pytest.mark.parametrize("case", REFUSED)
def test_indistinguishable_recordings_are_refused(case: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "merged.json", REFUSED[case])

    for command in (bubbleviz.idle, bubbleviz.inspect):
        with pytest.raises(ProfileError, match=r"contains .*pass the original files"):
            command(path)


def test_calls_recorded_as_runtime_and_driver_are_one_recording(tmp_path: Path) -> None:
    events = _rank(5083, 0, [10, 110])
    driver = [
        {**e, "cat": "cuda_driver", "name": "cuLaunchKernel", "ts": e["ts"] + 0.5, "dur": 1}
        for e in events
        if e["cat"] == "cuda_runtime"
    ]

    path = _write(tmp_path / "a.json", [*events, *driver])

    assert len(bubbleviz.idle(path).ranks) == 1
    assert _list_merged_counts(path) == []


def test_devices_may_be_numbered_differently_than_their_processes(tmp_path: Path) -> None:
    """Visible devices may be numbered from 0, and processes by the device ids of the machine."""
    events = [
        _make_launch(5083, 1, 5),
        _make_kernel(4, 1, 10, 0),
        _make_launch(5083, 2, 6),
        _make_kernel(2, 2, 10, 1),
    ]

    path = _write(tmp_path / "a.json", events)

    ranks = bubbleviz.idle(path).ranks
    assert [(rank.pid, rank.device_id) for rank in ranks] == [(5083, 0), (5083, 1)]
    assert _list_merged_counts(path) == []


def test_replicas_that_launch_alike_are_refused_if_offsets_are_small(
    run: list[Path], tmp_path: Path
) -> None:
    """The processes of two replicas fit the kernels of either replica, and ids do not decide."""
    merged = [
        event
        for rank, trace in enumerate(run)
        for event in _rename(_read_document(trace)["traceEvents"], _small_offset(rank))
    ]

    with pytest.raises(ProfileError, match="contains recordings of 4 processes"):
        bubbleviz.analyze(_write(tmp_path / "merged.json", merged))


@pytest.mark.real_files
def test_the_published_merged_trace_is_separated_into_ranks() -> None:
    report = bubbleviz.idle(get_real_file("cases/merged.json"))

    assert [(r.compute_ns, r.end_ns - r.start_ns) for r in report.ranks] == [(100_000, 150_000)] * 2
