"""Truncated and damaged traces are marked, and concatenated traces are refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.analyses.idle import outputs, page, picture
from bubbleviz.analyses.idle.advice import advice, make_title
from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl import outputs as nccl
from bubbleviz.analyses.nccl import text as nccl_text
from bubbleviz.errors import ProfileError
from bubbleviz.render.json_document import render
from bubbleviz.render.text.first_screen import describe_headline
from bubbleviz.report.view import View
from bubbleviz.sources import gzip_files
from tests.planting import Planting, plant
from tests.support.notes import list_limitation_subjects, list_restriction_codes
from tests.support.nsys_exports import C, K, write_profile
from tests.support.torch_traces import write_traces
from tests.support.xla_files import make_trace_json
from tests.support.xla_profiles import make_tpu

US = 1_000
MARK = "incomplete: events are missing because a file is cut short or damaged"
#: Number of kernels of a planted run.
COUNT = 200


def write_trace_file(folder: Path) -> Path:
    """Write a PyTorch trace without compression, and return its path."""
    kernels = [K(1_000 * US * i + 10, 1_000 * US * i + 500 * US, i + 1) for i in range(COUNT)]
    calls = [C(1_000 * US * i, 1_000 * US * i + 5, i + 1) for i in range(COUNT)]
    packed = write_traces(write_profile(folder, kernels, calls), folder)[0]
    path = folder / "whole.json"
    content = packed.read_bytes()
    path.write_bytes(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    return path


def write_cut_trace(path: Path, fraction: float, name: str) -> Path:
    """Copy the first ``fraction`` of a file, and return the path of the copy."""
    content = path.read_bytes()
    cut_path = path.with_name(name)
    cut_path.write_bytes(content[: int(fraction * len(content))])
    return cut_path


def test_a_complete_trace_has_no_mark(tmp_path: Path) -> None:
    assert list_restriction_codes(bubbleviz.idle(write_trace_file(tmp_path))) == []


@pytest.mark.parametrize("fraction", [0.8, 1.0])
def test_communication_of_a_cut_trace_is_marked(tmp_path: Path, fraction: float) -> None:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    kernels = [
        K(1_000 * US * i + 10, 1_000 * US * i + 500 * US, i + 1, name=name) for i in range(COUNT)
    ]
    calls = [C(1_000 * US * i, 1_000 * US * i + 5, i + 1) for i in range(COUNT)]
    (packed,) = write_traces(write_profile(tmp_path, kernels, calls), tmp_path)
    content = packed.read_bytes()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)

    report = measure_communication(write_cut_trace(path, fraction, "cut.json"))
    expected = [{"code": "file-damaged", "text": MARK}] if fraction < 1 else []
    assert json.loads(nccl.as_json(report))["restrictions"] == expected
    assert (MARK in nccl_text.summary(report)) == (fraction < 1)


@pytest.mark.parametrize("fraction", [0.8, 0.95])
def test_a_cut_trace_is_marked_in_every_output(tmp_path: Path, fraction: float) -> None:
    report = bubbleviz.idle(write_cut_trace(write_trace_file(tmp_path), fraction, "cut.json"))
    assert list_restriction_codes(report)[0] == "file-damaged"
    assert MARK in make_title(report)
    assert MARK in picture.draw_idle(report)
    assert MARK in page.render(report)
    document = json.loads(outputs.as_json(report, 1))
    assert document["restrictions"][0] == {"code": "file-damaged", "text": MARK}
    assert advice(report)[0].startswith("Copy the files again")


def test_a_flipped_byte_of_gzip_data_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gzip_files, "_PACKED_BYTES", 256)
    content = bytearray(gzip.compress(write_trace_file(tmp_path).read_bytes()))
    content[int(0.9 * len(content))] ^= 0xFF
    path = tmp_path / "flipped.json.gz"
    path.write_bytes(content)
    assert list_restriction_codes(bubbleviz.idle(path))[0] == "file-damaged"


@pytest.mark.parametrize("is_noticeable", [True, False])
def test_many_unreadable_events_are_marked(tmp_path: Path, is_noticeable: bool) -> None:
    path = write_trace_file(tmp_path)
    beginning, *events = path.read_text().split('"ph": "X"')
    distance = 20 if is_noticeable else 300
    joints = ['"ph" "X"' if i % distance == 0 else '"ph": "X"' for i in range(len(events))]
    pieces = (joint + event for joint, event in zip(joints, events, strict=True))
    path.write_text(beginning + "".join(pieces))
    report = bubbleviz.idle(path)
    assert "events that cannot be read" in list_limitation_subjects(report)
    assert ("file-damaged" in list_restriction_codes(report)) is is_noticeable


def test_a_cut_xla_trace_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "whole.trace.json"
    path.write_bytes(make_trace_json(make_tpu(1)))
    assert "file-damaged" not in list_restriction_codes(bubbleviz.idle(path))
    assert list_restriction_codes(bubbleviz.idle(write_cut_trace(path, 0.9, "cut.trace.json"))) == [
        "file-damaged"
    ]


def test_a_cut_event_list_is_marked(tmp_path: Path) -> None:
    events = []
    for step in range(4):
        for rank in range(2):
            for name, microbatch, at_us in (("forward", 0, rank), ("backward", 0, 4 - rank)):
                args = {"iteration": step, "microbatch": microbatch, "pp_rank": rank}
                times = {"ts": 1000 * step + 100 * at_us, "dur": 100}
                thread = {"pid": rank, "tid": 0}
                events.append({"name": name, "ph": "X", **thread, **times, "args": args})
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(events))
    assert list_restriction_codes(bubbleviz.analyze(path)) == []
    report = bubbleviz.analyze(write_cut_trace(path, 0.9, "cut.json"))
    assert list_restriction_codes(report) == ["file-damaged"]


def test_a_pipeline_with_a_cut_trace_is_marked(tmp_path: Path) -> None:
    plant(Planting(stages=2, microbatches=4, iterations=3), tmp_path)
    exports = sorted(tmp_path.glob("*.sqlite"))
    traces = [trace for export in exports for trace in write_traces(export, tmp_path)]
    assert list_restriction_codes(bubbleviz.analyze(traces)) == []
    content = traces[-1].read_bytes()
    traces[-1].write_bytes(content[: int(0.95 * len(content))])
    report = bubbleviz.analyze(traces)
    assert "file-damaged" in list_restriction_codes(report)
    assert any(MARK in line for line in describe_headline(report))
    assert MARK in render(report, View())


@pytest.mark.parametrize("is_list", [False, True])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_joined_traces_are_refused(
    tmp_path: Path, is_list: bool, is_packed: bool, fraction: float
) -> None:
    content = write_trace_file(tmp_path).read_bytes()
    if is_list:
        content = json.dumps(json.loads(content)["traceEvents"]).encode()
    parts = [content, content[: int(fraction * len(content))]]
    path = tmp_path / "joined.json"
    path.write_bytes(b"".join(map(gzip.compress, parts) if is_packed else parts))
    with pytest.raises(ProfileError, match="contains several concatenated traces"):
        bubbleviz.idle(path)


def test_joined_xla_traces_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "joined.trace.json"
    path.write_bytes(2 * make_trace_json(make_tpu(1)))
    with pytest.raises(ProfileError, match="contains several concatenated traces"):
        bubbleviz.idle(path)


@pytest.mark.parametrize("rest", ["", "\n\0\0", "garbage", "}", "[1, 2"])
def test_text_after_the_end_of_a_trace_is_reported(tmp_path: Path, rest: str) -> None:
    complete_trace = write_trace_file(tmp_path)
    path = tmp_path / "longer.json"
    path.write_text(f"\n{complete_trace.read_text()}{rest}")
    report = bubbleviz.idle(path)
    is_reported = "text after the end of the trace" in list_limitation_subjects(report)
    assert is_reported is bool(rest.strip("\n\0"))
    assert report.ranks[0].host == bubbleviz.idle(complete_trace).ranks[0].host
    assert list_restriction_codes(report) == []
