"""PyTorch profiler traces: a run gives the same report in every input format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.analyses.idle.advice import advice, make_title
from bubbleviz.analyses.idle.outputs import as_json
from bubbleviz.analyses.idle.picture import draw_idle
from bubbleviz.analyses.idle.text import first_screen, sections
from bubbleviz.cli.app import main
from bubbleviz.errors import NothingToAnalyzeError
from bubbleviz.model.columns import NONE
from bubbleviz.model.profile import Profile
from bubbleviz.progress import unwatched
from bubbleviz.render.document import Sentence
from bubbleviz.report.report import Report
from bubbleviz.sources.readers import find_reader
from bubbleviz.sources.trace_events import convert_times_ns
from tests.planting import Planting, plant
from tests.support import xla_profiles
from tests.support.needs import get_real_file
from tests.support.notes import count_limitations
from tests.support.processes import HIP
from tests.support.torch_traces import write_traces


def _read(path: Path, *globs: str) -> Profile:
    with find_reader(str(path)).open_file(str(path), 1, unwatched) as file:
        return file.read(globs or ("*",))


def _trace(path: Path, events: list[dict[str, Any]], **facts: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **facts, "traceEvents": events}))
    return path


def _make_kernel(
    start: float, dur: float, correlation: int, cat: Any = "kernel", **args: Any
) -> dict[str, Any]:
    arguments = {"correlation": correlation, "device": 0, "stream": 7, **args}
    fields = {"pid": 0, "tid": 7, "ts": start, "dur": dur, "args": arguments}
    return {"ph": "X", "cat": cat, "name": "gemm", **fields}


def _make_call(start: float, dur: float, correlation: int, **changes: Any) -> dict[str, Any]:
    fields = {"pid": 9, "tid": 9, "ts": start, "dur": dur, "args": {"correlation": correlation}}
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        **fields,
        **changes,
    }


def _make_range(start: float, dur: float, name: str, **changes: Any) -> dict[str, Any]:
    fields = {"pid": 9, "tid": 9, "ts": start, "dur": dur}
    return {"ph": "X", "cat": "user_annotation", "name": name, **fields, **changes}


_KEPT = [_make_range(0, 9, "F"), _make_call(1, 1, 1), _make_kernel(5, 2, 1)]
_AT = {"pid": 1, "tid": 1, "ts": 3}
#: Additional events, and the expected limitations as (subject, count, end of the reason).
LIMITATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, tuple[int, str]]]] = {
    "strays": (
        [_make_kernel(-1e12, 2, 2), _make_kernel(9, -3, 3), {**_make_range(0, 4, "G"), "ts": None}],
        {
            "kernels and copies with impossible times": (1, ""),
            "events without a time": (1, "these events are left out"),
        },
    ),
    "endless": (
        [{**_make_kernel(9, 2, 2), "dur": None}],
        {"events without a duration": (1, "a missing duration counts as 0 ns")},
    ),
    "not needed": (
        [
            {"ph": "X", "cat": "gpu_user_annotation", "name": "F", "dur": 1, **_AT},
            {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "dur": 1, **_AT},
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, **_AT},
            {"ph": "f", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "bp": "e", **_AT},
            {"ph": "i", "name": "Record Window End", "s": "g", **_AT},
            {"ph": "C", "name": "memory", "args": {"bytes": 1}, **_AT},
            {},
        ],
        {},
    ),
}


@pytest.mark.parametrize("name", LIMITATIONS)
def test_events_left_out_are_reported_only_if_they_matter(name: str, tmp_path: Path) -> None:
    events, expected = LIMITATIONS[name]

    profile = _read(_trace(tmp_path / "a.json", [*_KEPT, *events]))

    notes = {note.what: note for note in profile.limitations}
    assert notes.keys() == expected.keys()
    for subject, (count, end) in expected.items():
        assert notes[subject].count == count
        assert notes[subject].reason.endswith(end)
    assert len(profile.activities) >= 1


def test_an_empty_trace_is_refused_and_kernels_lost_to_a_cut_are_counted(tmp_path: Path) -> None:
    with pytest.raises(NothingToAnalyzeError, match="no kernels or operators"):
        bubbleviz.analyze(_trace(tmp_path / "a.json", []))
    trace = _trace(
        tmp_path / "b.json",
        [*_KEPT, _make_call(2, 1, 2), _make_call(3, 1, 3), _make_kernel(8, 2, 2)],
    )
    content = trace.read_bytes()
    trace.write_bytes(content[: content.rindex(b"{") - 2])

    notes = count_limitations(_read(trace))

    assert notes["launches without a recorded kernel or copy"] == 2


def test_times_count_from_the_first_event_except_strays(tmp_path: Path) -> None:
    base = 1_700_000_000_000_000
    events = [_make_kernel(base + 5, 2, 1), _make_kernel(0, 2, 2), _make_call(base + 1, 1, 1)]

    profile = _read(_trace(tmp_path / "a.json", [*events, _make_range(base, 4, "Forward 0")]))

    assert profile.activities.start_ns.tolist() == [5000]
    assert profile.source.session_utc_ns == base * 1000


def _collect_content(report: Report) -> dict[str, Any]:
    """Return the content of a report without format details, with times from the first start."""
    operations = report.operations
    zero_ns = int(operations.start_ns[operations.has_span == 1].min())
    columns = {}
    for name in operations.column_names():
        column = getattr(operations, name)
        if name.endswith("_ns") and name not in {"active_ns", "busy_ns"}:
            column = np.where(column == NONE, NONE, column - zero_ns)
        columns[name] = column.tolist()
    columns["name_id"] = [operations.names[i] for i in columns["name_id"]]
    profiles = report.profiles
    return {
        "operations": columns,
        "ratios": [i.ratios for i in report.iterations],
        "summary": report.summary,
        "headline": report.headline,
        "schedule": report.schedule,
        "kernels": sum(p.kernels for p in profiles),
        "linked": sum(p.linked_kernels for p in profiles),
        "attributed": sum(p.attributed_kernels for p in profiles),
        "cross_thread": sum(p.cross_thread_kernels for p in profiles),
        "gpu_ns": sum(p.gpu_ns for p in profiles),
        "comm_ns": sum(p.comm_ns for p in profiles),
        "causes": np.bincount(report.explanation.bubbles.cause).tolist(),
    }


@pytest.mark.parametrize(
    "planting",
    [
        Planting(),
        Planting(schedule="zb-h1", stages=4, microbatches=8),
        Planting(schedule="interleaved-1f1b", stages=4, microbatches=8),
    ],
    ids=lambda planting: planting.schedule,
)
def test_nsys_and_pytorch_files_give_the_same_report(tmp_path: Path, planting: Planting) -> None:
    plant(planting, tmp_path)
    exports = sorted(tmp_path.glob("*.sqlite"))
    traces = [trace for export in exports for trace in write_traces(export, tmp_path)]

    through_sql = bubbleviz.analyze([str(export) for export in exports])
    through_json = bubbleviz.analyze([str(trace) for trace in traces])

    assert _collect_content(through_json) == _collect_content(through_sql)
    assert {p.format for p in through_json.profiles} == {"kineto"}


def test_file_names_give_stages_and_replicas(tmp_path: Path) -> None:
    """SGLang names files like this.

    Parts that all files share, or a single stage, label the run.
    """
    plant(Planting(stages=2, replicas=2, microbatches=4), tmp_path)
    (export,) = tmp_path.glob("*.sqlite")
    traces = write_traces(export, tmp_path)
    for name, stages, pipelines in (
        ("17-TP-{0}-DP-0-PP-{1}-EP-0", [0, 1, 0, 1], [0, 0, 1, 1]),
        ("pp4_{0}{1}", [0, 0, 1, 1], [None] * 4),
        ("pp{2}_dp{0}", [0, 0, 1, 1], [None] * 4),
    ):
        for number, trace in enumerate(traces):
            file_name = name.format(number % 2, number // 2, number // 2 + 1)
            traces[number] = trace.rename(tmp_path / f"{file_name}.trace.json.gz")
        ranks = bubbleviz.analyze([str(trace) for trace in traces]).ranks
        stage_and_pipeline = [(rank.stage, rank.pipeline) for rank in ranks]
        assert stage_and_pipeline == list(zip(stages, pipelines, strict=True))


def test_plain_json_of_a_directory_is_a_trace_if_it_looks_like_one(tmp_path: Path) -> None:
    events = [_make_range(0, 4, "Forward 0"), _make_call(1, 1, 1), _make_kernel(5, 2, 1)]
    _trace(tmp_path / "rank0.json", events)
    (tmp_path / "report.json").write_text('{"schema": "bubbleviz.report/1"}')
    (tmp_path / "other.json").write_text('{"a": 1}')

    report = bubbleviz.idle(tmp_path)

    assert {rank.path for rank in report.ranks} == {str(tmp_path / "rank0.json")}


def test_old_names_of_categories_are_known(tmp_path: Path) -> None:
    events = [
        {**_make_kernel(5, 2, 1), "cat": "Kernel"},
        {**_make_kernel(8, 2, 2), "cat": "Memcpy"},
        _make_call(1, 1, 1, cat="Runtime"),
        _make_range(0, 4, "Forward 0", cat="Operator"),
    ]

    profile = _read(_trace(tmp_path / "a.json", events))

    assert (len(profile.activities), profile.activities.kernels) == (2, 1)
    assert len(next(profile.calls.blocks())) == len(profile.ranges) == 1


def test_kernels_without_calls_are_linked_through_their_operators(tmp_path: Path) -> None:
    operator = {"External id": 77}
    events = [
        _make_kernel(50, 2, 1, **operator),
        _make_kernel(60, 2, 2, **{"External id": 78}),
        _make_kernel(70, 2, 3),
        _make_call(41, 1, 3),
        _make_range(10, 20, "aten::mm", cat="cpu_op", args=operator),
        _make_range(5, 30, "Forward 0"),
    ]

    profile = _read(_trace(tmp_path / "a.json", events))

    calls = next(profile.calls.blocks())
    assert calls.correlation_id.tolist() == [1, 3]
    assert (calls.start_ns - calls.start_ns[0]).tolist() == [0, 31_000]
    assert [(note.what, note.count) for note in profile.limitations] == [
        ("kernels and copies without a CUDA API call", 1)
    ]


def test_without_a_gpu_the_outermost_operators_replace_kernels(tmp_path: Path) -> None:
    events = [
        _make_range(0, 50, "Forward 0"),
        _make_range(1, 9, "aten::linear", cat="cpu_op"),
        _make_range(2, 7, "aten::addmm", cat="cpu_op"),
        _make_range(2, 8, "aten::same_end", cat="cpu_op"),
        _make_range(10, 5, "aten::touching", cat="cpu_op"),
        _make_range(3, 30, "aten::other_thread", cat="cpu_op", tid=8),
    ]

    profile = _read(_trace(tmp_path / "a.json", events))

    work = profile.activities
    time_of_name = {
        work.names[name]: (start, end)
        for name, start, end in zip(
            work.name_id.tolist(), work.start_ns.tolist(), work.end_ns.tolist(), strict=True
        )
    }
    assert time_of_name == {
        "aten::linear": (1000, 10_000),
        "aten::touching": (10_000, 15_000),
        "aten::other_thread": (3000, 33_000),
    }
    assert [note.what for note in profile.limitations] == ["GPU work"]


@pytest.mark.parametrize(
    ("events", "facts", "cut", "message"),
    [
        ([_make_call(1, 1, 1)], {}, False, "although calls launched it"),
        ([_make_call(1, 1, 1)], {}, True, "although calls launched it"),
        (
            [],
            {"deviceProperties": [{"id": 0, "name": "H100"}]},
            True,
            "the GPU work at its end is missing",
        ),
    ],
)
def test_a_trace_that_lost_its_gpu_work_is_not_a_run_without_a_gpu(
    tmp_path: Path, events: list[dict[str, Any]], facts: dict[str, Any], cut: bool, message: str
) -> None:
    recorded = [
        _make_range(0, 4, "Forward 0"),
        _make_range(1, 2, "aten::mm", cat="cpu_op"),
        *events,
    ]
    trace = _trace(tmp_path / "a.json", recorded, **facts)
    if cut:
        trace.write_bytes(trace.read_bytes()[:-2])

    for command in (bubbleviz.analyze, bubbleviz.idle):
        with pytest.raises(NothingToAnalyzeError, match=message):
            command(trace)
    assert not bubbleviz.inspect(trace).analyzable
    assert message in bubbleviz.inspect(trace).missing[0]


@given(st.integers(0, (1 << 43) * 1000), st.integers(0, 10**9))
def test_written_nanoseconds_are_read(start_ns: int, duration_ns: int) -> None:
    times_us = [float(f"{ns // 1000}.{ns % 1000:03}") for ns in (start_ns, duration_ns)]

    assert convert_times_ns(times_us).tolist() == [start_ns, duration_ns]


def test_threads_and_processes_may_be_texts(tmp_path: Path) -> None:
    events = [
        _make_kernel(5, 2, 1),
        _make_call(1, 1, 1, pid="trainer", tid="main"),
        _make_range(0, 4, "Forward 0", pid="trainer", tid="main"),
        _make_range(0, 4, "Forward 1", pid="trainer", tid="other"),
    ]

    profile = _read(_trace(tmp_path / "a.json", events))

    call = next(profile.calls.blocks()).thread.tolist()
    assert profile.ranges.thread.tolist()[0] == call[0]
    assert profile.ranges.thread.tolist()[1] != call[0]
    assert profile.activities.ranks.tolist() == [[call[0] >> 24, 0]]


#: Numbers of kernels, copies and memsets, calls, annotations and operators in each file.
REAL = {
    "hta_nccl_data.json.gz": (2700, 1074, 8740, 42 + 14346),
    "hta_ns_resolution.json.gz": (4350, 1745, 15329, 70 + 23910),
    "hta_sampled_rank-0.json.gz": (1154, 50, 1204, 73 + 2329),
    "hta_sampled_rank-1.json.gz": (1104, 50, 1154, 65 + 2302),
    "tracelens_resnet_act_checkpoint.json.gz": (2995, 658, 3100, 24 + 8004),
}


@pytest.mark.real_files
def test_real_traces_contain_what_a_plain_reader_finds(subtests: pytest.Subtests) -> None:
    for name, counts in REAL.items():
        with subtests.test(name=name):
            path = get_real_file(f"kineto/{name}")
            events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
            plain = [e for e in events if e.get("ph") == "X" and e.get("cat") == "kernel"]

            profile = _read(path)

            kernels, copies, calls, ranges = counts
            assert profile.activities.kernels == kernels == len(plain)
            assert len(profile.activities) == kernels + copies
            assert sum(map(len, profile.calls.blocks())) == calls
            assert len(profile.ranges) == ranges
            kernel = profile.activities.take(slice(0, kernels))
            assert (kernel.end_ns - kernel.start_ns).tolist() == [
                round(e["dur"] * 1000) for e in plain
            ]
            base = min(e["ts"] for e in plain)
            assert (kernel.start_ns - kernel.start_ns.min()).tolist() == pytest.approx(
                [(e["ts"] - base) * 1000 for e in plain], abs=300
            )
            assert [kernel.names[i] for i in kernel.name_id.tolist()] == [e["name"] for e in plain]


#: Names of forward and backward passes in the test data of HolisticTraceAnalysis.
HTA_NAMES = """
name = "hta"
[[pattern]]
glob = "## forward ##"
match = '^## forward ##$'
phase = "F"
[[pattern]]
glob = "## backward ##"
match = '^## backward ##$'
phase = "BW"
[[pattern]]
glob = "## optimizer ##"
match = '^## optimizer ##$'
phase = "Optimizer"
"""


@pytest.mark.real_files
def test_backward_kernels_of_a_real_trace_are_found_across_threads(tmp_path: Path) -> None:
    naming = tmp_path / "hta.toml"
    naming.write_text(HTA_NAMES)
    path = get_real_file("kineto/hta_ns_resolution.json.gz")

    report = bubbleviz.analyze(path, convention=naming)

    profile = report.profiles[0]
    assert [i.name for i in report.iterations] == [str(n) for n in range(101, 106)]
    assert profile.linked_kernels == profile.kernels
    assert profile.attributed_kernels == profile.kernels
    assert profile.cross_thread_kernels > 0


@pytest.mark.parametrize(
    ("work", "calls", "noun"),
    [
        ("kernel", "cuda_runtime", "GPU"),
        ("kernel", "hip_runtime", "GPU"),
        ("mtia_ccp_events", "mtia_runtime", "MTIA"),
    ],
)
def test_the_same_run_on_another_accelerator_has_the_same_report(
    work: str, calls: str, noun: str, tmp_path: Path
) -> None:
    planting = Planting(
        stages=4, microbatches=4, iterations=2, transfer_ns=20_000, autograd="named", copies=True
    )
    truth = plant(planting, tmp_path)
    traces = write_traces(tmp_path / truth.files[0].path, tmp_path)
    then = bubbleviz.analyze(traces)
    for trace in traces:
        document = json.loads(gzip.decompress(trace.read_bytes()))
        for event in document["traceEvents"]:
            if event.get("cat") == "cuda_runtime":
                event["cat"] = calls
                if calls != "mtia_runtime":
                    event["name"] = HIP.get(event["name"], "hipOther")
            elif event.get("cat") == "kernel":
                event["cat"] = work
        trace.write_bytes(gzip.compress(json.dumps(document).encode()))

    now = bubbleviz.analyze(traces)

    assert (now.iterations, now.summary) == (then.iterations, then.summary)
    assert [p.linked_kernels for p in now.profiles] == [p.linked_kernels for p in then.profiles]
    assert now.limitations == then.limitations
    assert not any("CUDA" in note.reason + note.what for note in now.limitations)
    labels = [rank.label.replace("GPU", noun) for rank in then.ranks]
    assert [rank.label for rank in now.ranks] == labels


def _list_operators(*names: str) -> list[dict[str, Any]]:
    return [_make_range(10.0 * at, 6.0, name, cat="cpu_op") for at, name in enumerate(names)]


#: (category of work, category of calls, device name).
ACCELERATORS = [
    ("kernel", "cuda_runtime", "GPU"),
    ("kernel", "hip_runtime", "GPU"),
    ("kernel", "xpu_runtime", "XPU"),
    ("mtia_ccp_events", "mtia_runtime", "MTIA"),
    ("MTIA_CCP_EVENTS", "cuda_runtime", "MTIA"),
    ("kernel", "privateuse1_runtime", "accelerator"),
    ("kernel", "hpu_op", "accelerator"),
]


@pytest.mark.parametrize(("work", "call", "noun"), ACCELERATORS)
def test_devices_of_any_accelerator_are_devices(
    tmp_path: Path, work: str, call: str, noun: str
) -> None:
    # The device is busy for 30 of 100 us.
    # Operators cover all of the time, but are not device activities.
    events = [
        _make_range(0, 120, "aten::linear", cat="cpu_op"),
        *(_make_call(start - 2, 1, number, cat=call) for number, start in enumerate((10, 60, 100))),
        _make_kernel(10, 10, 0, work, device=1),
        _make_kernel(60, 10, 1, work, device=1),
        _make_kernel(100, 10, 2, work, device=1),
    ]

    report = bubbleviz.idle(_trace(tmp_path / "a.json", events))

    (rank,) = report.ranks
    assert (rank.device_label, rank.device_id, rank.is_host) == (f"{noun} 1", 1, False)
    assert rank.label.endswith(f" {noun} 1")
    assert rank.duty_cycle == pytest.approx(0.3)
    assert make_title(report) == "1 device, idle for 70.00 % of the time"
    assert not report.limitations


@pytest.mark.parametrize(("work", "activity"), [("kernel", "CUDA"), ("mtia_ccp_events", "MTIA")])
def test_kernels_without_calls_are_refused_with_the_activity_of_their_device(
    work: str, activity: str, tmp_path: Path
) -> None:
    events = [_make_range(0, 30, "F0"), _make_kernel(10, 10, 0, work)]
    with pytest.raises(NothingToAnalyzeError) as caught:
        bubbleviz.analyze(_trace(tmp_path / "a.json", events))
    sentence = str(caught.value)
    assert (
        f"no {activity} API calls were recorded, so kernels cannot be linked to ranges" in sentence
    )
    assert f"ProfilerActivity.CPU, ProfilerActivity.{activity}])" in sentence


def test_transfers_of_mtia_are_copies(tmp_path: Path) -> None:
    # The names of transfers start with "dma" (hta/common/types.py of
    # facebookresearch/HolisticTraceAnalysis).
    events = [
        *(
            _make_call(start - 2, 1, number, cat="mtia_runtime")
            for number, start in enumerate((10, 60, 100))
        ),
        _make_kernel(10, 10, 0, "mtia_ccp_events"),
        {**_make_kernel(60, 10, 1, "mtia_ccp_events"), "name": "dma_in"},
        _make_kernel(100, 10, 2, "mtia_ccp_events"),
    ]

    (rank,) = bubbleviz.idle(_trace(tmp_path / "a.json", events)).ranks

    assert (rank.compute_ns, rank.copy_ns) == (20_000, 10_000)


@pytest.mark.parametrize(("pid", "device", "notes"), [(3, 3, 2), (70_000, 0, 2)])
def test_work_without_a_device_belongs_to_its_process(
    tmp_path: Path, pid: int, device: int, notes: int
) -> None:
    events = [
        *(
            _make_call(start - 2, 1, number, cat="mtia_runtime")
            for number, start in enumerate((10, 60))
        ),
        {**_make_kernel(10, 10, 0, "mtia_ccp_events"), "pid": pid, "args": {"correlation": 0}},
        {**_make_kernel(60, 10, 1, "mtia_ccp_events"), "pid": pid, "args": {"correlation": 1}},
    ]

    report = bubbleviz.idle(_trace(tmp_path / "a.json", events))

    assert [rank.device_label for rank in report.ranks] == [f"MTIA {device}"]
    assert ("kernels and copies without a device", notes) in {
        (note.what, note.count) for note in report.limitations
    }


@pytest.mark.parametrize("names", [["aten::mm"], ["aten::mm", "aten::relu", "aten::add"]])
def test_a_host_without_devices_has_no_duty_cycle(tmp_path: Path, names: list[str]) -> None:
    report = bubbleviz.idle(_trace(tmp_path / "a.json", _list_operators(*names), host_name="node7"))

    (rank,) = report.ranks
    assert (rank.label, rank.is_host, rank.duty_cycle) == ("node7 host", True, None)
    assert (report.devices, report.activities) == ((), ())
    assert (report.idle_ns, report.span_ns) == (0, 0)
    assert make_title(report) == (
        "1 host without a device: operators were recorded, but no device work"
    )
    assert advice(report)[0].startswith("no device work was recorded")
    document = json.loads(as_json(report, 5))
    assert document["ranks"][0]["device"] == "host"
    assert document["ranks"][0]["duty_cycle"] is None
    assert document["ranks"][0]["compute_duty"] is None
    assert {step["duty_cycle"] for step in document["ranks"][0]["steps"]} == {None}
    # A GPU is named only in the limitation.
    assert "GPU" not in draw_idle(report).replace("Limitations: GPU work", "")
    assert list(sections(report, 5))
    (sentence,) = first_screen(report)
    assert isinstance(sentence, Sentence)
    assert sentence.text == (
        "1 host without a device: operators were recorded, but no device work, so idle time is "
        "unknown: record device activity as well (ProfilerActivity.CUDA, or your accelerator's "
        "activity)"
    )


@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_xla_devices_are_named_by_their_kind(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(xla_profiles.write_planes(tmp_path, getattr(xla_profiles, f"make_{kind}")()))
    for command in ("analyze", "idle", "inspect"):
        assert main([command, path, "-v"]) == 0
        output = capsys.readouterr().out.replace(path, "")
        assert f"{kind.upper()} 3" in output
        assert ("GPU 3" in output) == (kind == "gpu")
    main(["pgle", path])
    assert ("--xla_gpu" in capsys.readouterr().out) == (kind == "gpu")
